"""Tiny models for the tests of serving and deploying: real TorchScript and a real tokenizer."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from greenroom.serving.scorer import Scorer

LABELS = ("animal", "größe/😀", "place")
WORDS = ("who", "what", "where", "when", "is", "the", "a", "dog", "cat", "paris", "big", "small")


class Tiny(torch.nn.Module):
    """The mean of word vectors through one layer: a classifier whose answer the mask matters to."""

    def __init__(self, vocabulary: int, classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(vocabulary, 16)
        self.head = torch.nn.Linear(16, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Logits [B, C]."""
        mask = attention_mask.unsqueeze(-1).float()
        mean = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1.0)
        return self.head(mean * 8)


def tokenizer(max_length: int = 16) -> Tokenizer:
    """A WordPiece tokenizer of twelve words and the lower-case letters."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocabulary = [*special, *WORDS, *letters[1:], *(f"##{c}" for c in letters)]
    made = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(max_length)
    return made


def write_model(
    folder: Path, *, seed: int = 0, labels: Sequence[str] = LABELS, max_length: int = 16
) -> Path:
    """A complete model folder, but for its probes; different seeds give different answers."""
    folder.mkdir(parents=True, exist_ok=True)
    words = tokenizer(max_length)
    words.save(str(folder / "tokenizer.json"))
    module = Tiny(words.get_vocab_size(), len(labels), seed).eval()
    example = torch.ones((1, 4), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch.jit.trace", DeprecationWarning)
        torch.jit.trace(module, (example, example)).save(str(folder / "module.pt"))
    about = {
        "format": 1,
        "task": "classification",
        "labels": list(labels),
        "input_keys": ["input_ids", "attention_mask"],
        "max_length": max_length,
        "pad_id": 0,
        "text": "text",
        "model": "scratch:tiny",
        "run_id": "",
        "snapshot": "s" * 32,
        "experiment": "tiny",
    }
    (folder / "greenroom.json").write_text(json.dumps(about), encoding="utf-8")
    (folder / "README.md").write_text("A tiny model.\n", encoding="utf-8")
    return folder


def write_probes(folder: Path, measured: Path) -> None:
    """probes.json in `folder`, with the answers of the model in `measured`."""
    texts = ["who is the dog", "where is paris", "what", "a big cat"]
    answers = Scorer.load(measured).score(texts)
    probes = [{"instance": text, **answer} for text, answer in zip(texts, answers, strict=True)]
    value = {"tolerance": 1e-3, "probes": probes}
    (folder / "probes.json").write_text(json.dumps(value), encoding="utf-8")

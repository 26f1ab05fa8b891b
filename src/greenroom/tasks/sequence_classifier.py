"""The torch module of the classification task. Imported only when a model is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from greenroom.errors import ConfigError
from greenroom.models import SCRATCH_POSITIONS, ModelSource


class SequenceClassifier(torch.nn.Module):
    """A transformers classifier as a function of tensors: what TorchScript can trace."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Token ids and mask, each [B, T] -> logits [B, C]."""
        logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits


def load(
    source: ModelSource, labels: tuple[str, ...], vocab_size: int, seed: int
) -> SequenceClassifier:
    """The model of `source` with a head for `labels`, float32, on the CPU, in eval mode.

    New weights come from `seed`; the caller's random state is left as it was.
    """
    head = {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        if source.path is None:
            config = _scratch_config(source, vocab_size, head)
            model = AutoModelForSequenceClassification.from_config(config)
        else:
            model = _pretrained(source, source.path, head)
            embeddings = model.get_input_embeddings()
            assert isinstance(embeddings, torch.nn.Embedding)
            if embeddings.num_embeddings < vocab_size:
                model.resize_token_embeddings(vocab_size)
    return SequenceClassifier(model.float()).eval()


def _pretrained(source: ModelSource, path: Path, head: dict[str, Any]) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, **head)
        model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
            path,
            config=config,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # a classifier's head for other labels is replaced
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"models: {source.source!r} ({path}) cannot be loaded as a text classifier: {error}"
        ) from error
    return model


def _scratch_config(source: ModelSource, vocab_size: int, head: dict[str, Any]) -> PretrainedConfig:
    shape = source.shape
    return BertConfig(
        vocab_size=vocab_size,
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        max_position_embeddings=SCRATCH_POSITIONS,
        pad_token_id=0,  # the first token that our tokenizers learn is [PAD]
        **head,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the report that the head is new, and the bar over 0.1 s of loading."""
    level = transformers_logging.get_verbosity()
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()

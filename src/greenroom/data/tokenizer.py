"""A model's tokenizer: its digest, its loading, and the training of one for a new model.

Called by `snapshot`. transformers is imported only for a model that has no tokenizer.json.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenroom.errors import ConfigError
from greenroom.models import TOKENIZER_FILES, VOCABULARIES, ModelSource

if TYPE_CHECKING:
    import tokenizers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ALPHABET = 1000  # characters that a trained tokenizer knows: WordPiece's usual limit


def digest(source: ModelSource, seed: int) -> str:
    """What the tokens depend on: the files' bytes, or the recipe of a tokenizer to be trained."""
    if source.path is None:
        return f"wordpiece-{source.shape.vocabulary}-{seed}"
    total = hashlib.sha256()
    for name in TOKENIZER_FILES:
        file = source.path / name
        if file.is_file():
            total.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def load(source: ModelSource, texts: Iterable[str], max_length: int) -> tokenizers.Tokenizer:
    """The tokenizer, cutting at `max_length` tokens and padding nothing.

    `texts` train that of a scratch model: those of the train split, and no others.
    """
    tokenizer = _read(source) if source.path else train(texts, source.shape.vocabulary)
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    return tokenizer


def pad_id(source: ModelSource, tokenizer: tokenizers.Tokenizer) -> int:
    """The id that fills a batch's shorter rows; the attention mask hides it from the model."""
    if source.path is None:
        return SPECIAL.index("[PAD]")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _json(source.path / name).get("pad_token")
        text = token.get("content") if isinstance(token, dict) else token
        found = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if found is not None:
            return int(found)
    given = source.config().get("pad_token_id")
    if isinstance(given, int):
        return given
    raise ConfigError(f"models: {source.source!r} has no padding token, so it takes no batches")


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"models: {file} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _read(source: ModelSource) -> tokenizers.Tokenizer:
    import tokenizers

    assert source.path is not None
    if not any((source.path / name).is_file() for name in VOCABULARIES):
        raise ConfigError(
            f"models: {source.source!r} ({source.path}) lacks its tokenizer: none of "
            f"{', '.join(VOCABULARIES)} is there"
        )
    file = source.path / "tokenizer.json"
    if not file.is_file():
        return _converted(source)
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust library raises Exception itself
        raise ConfigError(f"models: {file} is no tokenizer: {error}") from error


def _converted(source: ModelSource) -> tokenizers.Tokenizer:
    """The fast tokenizer that transformers makes of older files (vocab.txt, merges.txt, ...)."""
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(str(source.path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"models: {source.source!r} ({source.path}) has no usable tokenizer: {error}"
        ) from error
    tokenizer: tokenizers.Tokenizer | None = getattr(slow, "backend_tokenizer", None)
    wanted = int(source.config().get("vocab_size") or 0)
    # Without its vocabulary transformers makes a tokenizer of five tokens and says nothing.
    if tokenizer is None or tokenizer.get_vocab_size() < wanted // 2:
        size = tokenizer.get_vocab_size() if tokenizer else 0
        raise ConfigError(
            f"models: {source.source!r} ({source.path}) lacks its tokenizer's files: {size} tokens "
            f"where the model has {wanted}"
        )
    return tokenizer


# -- training ---------------------------------------------------------------------------------


# WordPiece makes [UNK] of a word over 100 characters, and learning one takes time that grows with
# its square: 2.7 s for one of 50,000.
_LONG = re.compile(r"\S{101,}")


def train(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    """A lower-casing WordPiece tokenizer of at most `size` tokens; equal texts, equal tokenizer.

    The library numbers the continuing characters (`##a`) in the order of a hash map with a random
    seed, and breaks ties between merges by these numbers: the same texts give another vocabulary
    in every process. So they are numbered first, as if they were special tokens, and the finished
    vocabulary is put into a fresh tokenizer.
    """
    from tokenizers import Tokenizer, models, trainers

    texts = [_LONG.sub(" ", text) for text in texts]
    learner = _wordpiece(None)
    alphabet = _alphabet(learner.normalizer, texts)
    learner.train_from_iterator(
        texts,
        trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=[*SPECIAL, *(f"##{c}" for c in alphabet)],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    tokenizer: Tokenizer = _wordpiece(learner.get_vocab())
    assert isinstance(tokenizer.model, models.WordPiece)
    return tokenizer


def _alphabet(normalizer: Any, texts: Sequence[str]) -> list[str]:
    """The most frequent characters, of equally frequent ones those first in Unicode."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    known = [c for c in counts if not c.isspace()]
    return sorted(sorted(known, key=lambda c: (-counts[c], c))[:_ALPHABET])


def _wordpiece(vocabulary: dict[str, int] | None) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    if vocabulary is not None:
        tokenizer.add_special_tokens(list(SPECIAL))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
        )
    return tokenizer

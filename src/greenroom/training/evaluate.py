"""What a TorchScript artifact is worth on the unseen test split.

Scores through `serving.scorer`, so that what is measured is what will serve, not the eager model.
Called by `steps.evaluate`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from greenroom.serving.scorer import Scorer

# Latency is measured one example at a time, as a client sees it; so many are enough for a p95.
LATENCY_EXAMPLES = 200
WARMUP_EXAMPLES = 10
PROBES = 8
# A probe's scores may differ on another machine's kernels by this much.
PROBE_TOLERANCE = 1e-3


@dataclass(frozen=True)
class LabelResult:
    """How one label fared in the test split."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    right: int
    wrong: int


@dataclass(frozen=True)
class Evaluation:
    """The results of one artifact on one test split."""

    metrics: Mapping[str, float]
    labels: tuple[LabelResult, ...]  # by F1, best first
    confusion: npt.NDArray[np.int64]  # [C, C], rows are the true labels
    predictions: npt.NDArray[np.int64]  # [N]
    probes: tuple[Mapping[str, Any], ...]


def evaluate(
    scorer: Scorer,
    texts: Sequence[str],
    references: npt.NDArray[np.int64],
    compute_metrics: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], Mapping[str, float]],
) -> Evaluation:
    """Scores `texts` [N] against their label indices `references` [N]."""
    logits = scorer.logits(texts)
    predictions = logits.argmax(-1).astype(np.int64)
    confusion = confusion_matrix(predictions, references, len(scorer.labels))
    seconds = latencies(scorer, texts)
    metrics = {
        **compute_metrics(predictions, references),
        "loss": cross_entropy(logits, references),
        "latency_p50_ms": float(np.percentile(seconds, 50)) * 1000,
        "latency_p95_ms": float(np.percentile(seconds, 95)) * 1000,
        "examples": float(len(texts)),
    }
    rows = label_results(scorer.labels, confusion)
    probes = make_probes(scorer, [texts[i] for i in probe_indices(references)])
    return Evaluation(metrics, rows, confusion, predictions, probes)


def confusion_matrix(
    predictions: npt.NDArray[np.int64], references: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int64]:
    """[C, C]: how often true label i (row) was predicted as j (column)."""
    flat = np.bincount(references * count + predictions, minlength=count * count)
    return flat.reshape(count, count).astype(np.int64)


def label_results(
    labels: Sequence[str], confusion: npt.NDArray[np.int64]
) -> tuple[LabelResult, ...]:
    """Precision, recall and F1 of each label, 0 where they are undefined; best F1 first."""
    right = np.diag(confusion)
    support, predicted = confusion.sum(1), confusion.sum(0)
    rows = []
    for i, label in enumerate(labels):
        precision = right[i] / predicted[i] if predicted[i] else 0.0
        recall = right[i] / support[i] if support[i] else 0.0
        both = precision + recall
        f1 = 2 * precision * recall / both if both else 0.0
        counts = int(support[i]), int(right[i]), int(support[i] - right[i])
        rows.append(LabelResult(label, float(precision), float(recall), float(f1), *counts))
    return tuple(sorted(rows, key=lambda row: (-row.f1, row.label)))


def cross_entropy(logits: npt.NDArray[np.float32], references: npt.NDArray[np.int64]) -> float:
    """The mean of -log softmax(logits)[true label]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    log_sum = np.log(np.exp(wide).sum(-1))
    return float((log_sum - wide[np.arange(len(references)), references]).mean())


def latencies(scorer: Scorer, texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Seconds from text to scores for single examples, after a warm-up."""
    for text in texts[:WARMUP_EXAMPLES]:
        scorer.score([text])
    seconds = []
    for text in texts[:LATENCY_EXAMPLES]:
        started = time.perf_counter()
        scorer.score([text])
        seconds.append(time.perf_counter() - started)
    return np.array(seconds)


def probe_indices(references: npt.NDArray[np.int64]) -> list[int]:
    """Up to 8 examples that together name as many labels as they can: round robin, in order."""
    queues = [np.flatnonzero(references == label).tolist() for label in np.unique(references)]
    chosen: list[int] = []
    while len(chosen) < min(PROBES, len(references)):
        for queue in queues:
            if queue and len(chosen) < PROBES:
                chosen.append(queue.pop(0))
    return chosen


def make_probes(scorer: Scorer, texts: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Inputs with the outputs measured now: an endpoint must answer them alike."""
    return tuple(
        {"instance": text, "label": answer["label"], "scores": answer["scores"]}
        for text, answer in zip(texts, scorer.score(list(texts)), strict=True)
    )

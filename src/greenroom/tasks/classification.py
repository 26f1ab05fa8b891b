"""Text classification: one text, one label. The built-in task.

Imports no torch, transformers or evaluate before a function needs them: the data step encodes
without any of them.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from greenroom.models import ModelSource
from greenroom.specs import DataSpec
from greenroom.tasks import Examples, Task

if TYPE_CHECKING:
    import numpy as np
    import tokenizers
    import torch


def load_examples(spec: DataSpec) -> Examples:
    """The source's rows with one text and one label each, cleaned and without duplicates."""
    from greenroom.data import reconcile, sources

    return reconcile.reconcile(sources.read(spec), spec)


def encode(
    columns: Mapping[str, list[Any]], tokenizer: tokenizers.Tokenizer
) -> Mapping[str, list[Any]]:
    """`input_ids` of each text, cut at the tokenizer's limit, and whether it was cut."""
    encodings = tokenizer.encode_batch_fast(columns["text"])
    return {
        "input_ids": [e.ids for e in encodings],
        "truncated": [bool(e.overflowing) for e in encodings],
    }


def load_model(
    source: ModelSource, labels: tuple[str, ...], vocab_size: int, seed: int
) -> torch.nn.Module:
    """A transformers sequence classifier with a new head of len(labels) outputs."""
    from greenroom.tasks import sequence_classifier

    return sequence_classifier.load(source, labels, vocab_size, seed)


def input_keys() -> tuple[str, ...]:
    """forward(input_ids, attention_mask), each [B, T]."""
    return ("input_ids", "attention_mask")


def compute_metrics(
    predictions: np.ndarray, references: np.ndarray, labels: tuple[str, ...]
) -> dict[str, float]:
    """accuracy, f1_macro and f1_weighted of label indices [N], through the evaluate library.

    Macro-F1 is the plain mean over those of `labels` that occur among the references or the
    predictions; one that occurs in neither says nothing about the model.
    """
    metrics = _metrics()
    pairs = {"predictions": predictions, "references": references}
    return {
        "accuracy": metrics["accuracy"].compute(**pairs)["accuracy"],
        "f1_macro": metrics["f1"].compute(**pairs, average="macro")["f1"],
        "f1_weighted": metrics["f1"].compute(**pairs, average="weighted")["f1"],
    }


@functools.lru_cache(maxsize=1)
def _metrics() -> dict[str, Any]:
    """The metric objects, made once a process.

    Not by `evaluate.load(path)`: that copies each script into the user's HF cache and imports it
    from there, which fails on a read-only home and can run an older copy. The folder that a metric
    insists on making is a temporary one; results are kept in memory.
    """
    from greenroom.tasks.metrics.accuracy import Accuracy
    from greenroom.tasks.metrics.f1 import F1

    with tempfile.TemporaryDirectory(prefix="greenroom-metrics-") as folder:
        made = {"accuracy": Accuracy, "f1": F1}
        return {k: metric(keep_in_memory=True, cache_dir=folder) for k, metric in made.items()}


TASK = Task(
    name="classification",
    load_examples=load_examples,
    encode=encode,
    load_model=load_model,
    input_keys=input_keys,
    compute_metrics=compute_metrics,
)

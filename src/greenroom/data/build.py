"""Examples -> the content of a snapshot: parts, label map, tokenizer, encoded rows, manifest.

Called by `snapshot`, which decides whether there is anything to do and writes the result.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from greenroom import tasks
from greenroom.data import encode, sources, split, tokenizer
from greenroom.data.manifest import ENCODING_VERSION, Manifest, SplitInfo, TokenizerInfo
from greenroom.data.reconcile import normalised
from greenroom.errors import DataError
from greenroom.models import ModelSource
from greenroom.specs import DataSpec, Experiment

if TYPE_CHECKING:
    import tokenizers


@dataclass(frozen=True)
class Identity:
    """What is known of a snapshot before any of it is read."""

    id: str
    source_digest: str


@dataclass(frozen=True)
class Content:
    """What a snapshot's folder will hold."""

    manifest: Manifest
    splits: Mapping[str, pa.Table]
    tokenizer: tokenizers.Tokenizer


def load(experiment: Experiment) -> tuple[tasks.Task, tasks.Examples]:
    """The task and its examples, checked: a user's `load_examples` is trusted with nothing."""
    task = tasks.load_task(experiment.task)
    examples = task.load_examples(experiment.data)
    table = examples.table
    missing = [name for name in ("text", "label") if name not in table.column_names]
    if missing:
        raise DataError(
            f"task {task.name!r}: load_examples returned no column {' and '.join(missing)}, only "
            f"{', '.join(table.column_names)}"
        )
    if not table.num_rows:
        raise DataError(f"task {task.name!r}: load_examples returned no examples")
    if experiment.task not in tasks.TASKS:
        _check_distinct(table["text"].to_pylist(), task)
    if "id" not in table.column_names:
        table = table.append_column("id", pa.array(range(table.num_rows), pa.int64()))
    return task, replace(examples, table=table)


def _check_distinct(texts: list[str], task: tasks.Task) -> None:
    """A text that comes twice would be in train and in test: the built-in task drops it."""
    seen: set[str] = set()
    for text in texts:
        key = normalised(text)
        if key in seen:
            raise DataError(
                f"task {task.name!r}: load_examples returned the text {text[:60]!r} twice, which "
                "would leak into test; keep one (greenroom.data.reconcile.reconcile does)"
            )
        seen.add(key)


def build(
    identity: Identity,
    experiment: Experiment,
    source: ModelSource,
    task: tasks.Task,
    examples: tasks.Examples,
) -> Content:
    """The examples split, encoded for the model of `source`, and described."""
    data = experiment.data
    raw, notes = _split(examples.table, data)
    labels = encode.label_order(examples.table["label"].to_pylist())
    words = tokenizer.load(source, raw["train"]["text"].to_pylist(), data.max_length)
    splits = {name: encode.encode(rows, task, words, labels) for name, rows in raw.items()}
    infos = {name: encode.figures(rows, labels) for name, rows in splits.items()}
    manifest = Manifest(
        id=identity.id,
        source=sources.describe(data),
        source_digest=identity.source_digest,
        labels=labels,
        splits=infos,
        tokenizer=TokenizerInfo(
            source.source, tokenizer.digest(source, data.seed), words.get_vocab_size()
        ),
        max_length=data.max_length,
        pad_id=tokenizer.pad_id(source, words),
        task=experiment.task,
        notes=(*examples.notes, *notes, *_truncation(infos, data.max_length)),
        counts=dict(examples.counts),
        encoding_version=ENCODING_VERSION,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )
    return Content(manifest, splits, words)


def _split(table: pa.Table, data: DataSpec) -> tuple[dict[str, pa.Table], tuple[str, ...]]:
    columns = table.column_names
    parts, notes = split.split(
        table["label"].to_pylist(),
        table["group"].to_pylist() if "group" in columns else None,
        table["split"].to_pylist() if "split" in columns else None,
        {"validation": data.validation_fraction, "test": data.test_fraction},
        data.seed,
    )
    where = pa.array(parts)
    found = {name: table.filter(pc.equal(where, name)) for name in sources.SPLITS if name in parts}
    return found, notes


def _truncation(infos: Mapping[str, SplitInfo], limit: int) -> tuple[str, ...]:
    cut = sum(info.truncated for info in infos.values())
    total = sum(info.rows for info in infos.values())
    return (f"{cut} of {total} texts are longer than {limit} tokens and were cut",) if cut else ()

"""Examples -> encoded rows and their figures. Called by `snapshot`; knows no files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from greenroom.data.manifest import SplitInfo
from greenroom.errors import DataError
from greenroom.tasks import Task

if TYPE_CHECKING:
    import tokenizers

BATCH = 1000  # texts a call: enough for the tokenizer's threads, little memory


def label_order(labels: Sequence[str]) -> tuple[str, ...]:
    """The distinct labels as people would list them: whole numbers by size, `x2` before `x10`."""

    def key(label: str) -> tuple[Any, ...]:
        if re.fullmatch(r"[+-]?[0-9]+", label):
            return (0, int(label), label)
        pieces = re.split(r"([0-9]+)", label.casefold())
        return (1, [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces], label)

    return tuple(sorted(set(labels), key=key))


def encode(
    table: pa.Table, task: Task, tokenizer: tokenizers.Tokenizer, labels: Sequence[str]
) -> pa.Table:
    """The rows with `label` as an index into `labels`, `input_ids`, and `truncated`."""
    batches: list[dict[str, pa.Array]] = []
    for batch in table.to_batches(max_chunksize=BATCH):
        encoded = dict(task.encode(batch.to_pydict(), tokenizer))
        encoded.setdefault("truncated", [False] * batch.num_rows)
        _check(encoded, batch.num_rows, task)
        batches.append({name: pa.array(v, _type(name)) for name, v in encoded.items()})
    index = {label: i for i, label in enumerate(labels)}
    indices = [index[label] for label in table["label"].to_pylist()]
    columns: dict[str, Any] = {
        "id": table["id"].cast(pa.int64()),
        "text": table["text"],
        "label": pa.array(indices, pa.int32()),
    }
    for name in batches[0]:
        columns[name] = pa.chunked_array([batch[name] for batch in batches])
    rest = [n for n in table.column_names if n not in (*columns, "split")]
    return pa.table({**columns, **{name: table[name] for name in rest}}).combine_chunks()


def _type(name: str) -> pa.DataType:
    return pa.bool_() if name == "truncated" else pa.list_(pa.int32())


def _check(encoded: dict[str, Any], rows: int, task: Task) -> None:
    if "input_ids" not in encoded:
        raise DataError(f"task {task.name!r}: encode returned no input_ids: {sorted(encoded)}")
    wrong = {name: len(values) for name, values in encoded.items() if len(values) != rows}
    if wrong:
        raise DataError(f"task {task.name!r}: encode returned {wrong} values for {rows} examples")


def figures(rows: pa.Table, labels: Sequence[str]) -> SplitInfo:
    """The figures of one encoded split."""
    lengths = pc.list_value_length(rows["input_ids"])
    counted = {c["values"]: c["counts"] for c in pc.value_counts(rows["label"]).to_pylist()}
    return SplitInfo(
        rows=rows.num_rows,
        labels={label: counted[i] for i, label in enumerate(labels) if i in counted},
        truncated=int(pc.sum(rows["truncated"]).as_py() or 0),
        tokens=int(pc.sum(lengths).as_py() or 0),
        longest=int(pc.max(lengths).as_py() or 0),
    )

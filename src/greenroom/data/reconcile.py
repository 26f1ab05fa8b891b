"""Rows as they were read -> clean examples, each text once. Called by a task's `load_examples`.

What is done, and counted: a row without a text or a label is dropped; NUL characters are removed
from texts, which stay as they are otherwise; labels become text (1, 1.0 and "1" are one label),
trimmed and in Unicode's NFC; of the rows whose texts are equal after normalisation one is kept.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from greenroom.data.sources import SPLIT_NAMES, SPLITS, Rows
from greenroom.data.tables import as_texts
from greenroom.errors import DataError, nearest
from greenroom.specs import DataSpec
from greenroom.tasks import Examples

# Which split keeps a text that several hold: what tests must not have been trained on.
_PRECEDENCE = {"test": 0, "validation": 1, "train": 2, "": 3}
_OURS = ("id", "text", "label", "group", "split", "input_ids", "truncated")
_WHOLE = re.compile(r"([+-]?\d+)\.0+")


def normalised(text: str) -> str:
    """The form in which two texts are compared: NFKC, case folded, runs of white space as one."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    # Once more: folding can undo the composition (as of U+0345), and equal must stay equal.
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def clean_label(text: str) -> str:
    """A label's one spelling; "" when nothing is left of it."""
    label = unicodedata.normalize("NFC", text).replace("\0", "").strip()
    whole = _WHOLE.fullmatch(label)
    return whole[1] if whole else label


class Row(NamedTuple):
    """A row as it takes part in the deduplication; a tuple because there may be millions."""

    id: int
    text: str
    label: str
    split: str


def reconcile(rows: Rows, spec: DataSpec) -> Examples:
    """The examples of `rows`; `DataError` for a missing column, no rows left, or one label."""
    table = rows.table
    _check_columns(table, spec, rows.split_column)
    texts = [(t or "").replace("\0", "") for t in as_texts(table[spec.text], spec.text)]
    labels = [clean_label(v or "") for v in as_texts(table[spec.label], spec.label)]
    splits = _splits(table, rows.split_column)
    found = [Row(i, *row) for i, row in enumerate(zip(texts, labels, splits, strict=True))]
    full = [row for row in found if row.text.strip() and row.label]
    kept, counts = deduplicate(full)
    counts = {
        "rows": len(found),
        "empty_text": sum(not row.text.strip() for row in found),
        "empty_label": sum(bool(row.text.strip()) and not row.label for row in found),
        **counts,
        "kept": len(kept),
    }
    _check_labels(kept, counts, spec)
    return Examples(
        _examples_table(table, kept, spec, rows.split_column),
        (*rows.notes, *_notes(counts)),
        counts,
    )


def deduplicate(rows: Sequence[Row]) -> tuple[list[Row], dict[str, int]]:
    """One row for each normalised text, in the order of the rows, and what was dropped.

    The text stays in test if test holds it, else in validation, else in train; there it keeps the
    label that most of its rows have (of equally many the one seen first), and the first such row.
    """
    by_text: dict[str, list[Row]] = {}
    for row in rows:
        by_text.setdefault(normalised(row.text), []).append(row)
    kept = []
    leaked = conflicting = 0
    for same in by_text.values():
        split = min((row.split for row in same), key=_PRECEDENCE.__getitem__)
        inside = [row for row in same if row.split == split]
        label = Counter(row.label for row in inside).most_common(1)[0][0]
        kept.append(next(row for row in inside if row.label == label))
        leaked += len(same) - len(inside)
        conflicting += len({row.label for row in inside}) > 1
    counts = {
        "duplicates": len(rows) - len(kept) - leaked,
        "in_other_split": leaked,
        "conflicting_texts": conflicting,
    }
    return sorted(kept, key=lambda row: row.id), counts


def _check_columns(table: pa.Table, spec: DataSpec, split_column: str) -> None:
    wanted = {"data.text": spec.text, "data.label": spec.label, "data.group": spec.group}
    if split_column:
        wanted["data.splits"] = split_column
    columns = [c for c in table.column_names if not c.startswith("__")]
    problems = [
        f"{key}: the source has no column {name!r}; {nearest(name, columns)}"
        for key, name in wanted.items()
        if name and name not in table.column_names
    ]
    if problems:
        raise DataError("\n".join(problems))
    if spec.text == spec.label:
        raise DataError(f"data.label: {spec.label!r} is the text column as well")


def _splits(table: pa.Table, column: str) -> list[str]:
    if not column:
        return [""] * table.num_rows
    values = [(v or "").strip() for v in as_texts(table[column], column)]
    unknown = sorted({v for v in values if v.lower() not in SPLIT_NAMES})
    if unknown:
        raise DataError(
            f"data.splits: column {column!r} holds {', '.join(map(repr, unknown[:5]))}; "
            f"valid: {', '.join(sorted(SPLIT_NAMES))}"
        )
    return [SPLIT_NAMES[v.lower()] for v in values]


def _check_labels(kept: Sequence[Row], counts: dict[str, int], spec: DataSpec) -> None:
    if not kept:
        raise DataError(
            f"data.source: no usable row: {counts['rows']} rows, {counts['empty_text']} without "
            f"text ({spec.text!r}), {counts['empty_label']} without label ({spec.label!r})"
        )
    labels = {row.label for row in kept}
    if len(labels) == 1:
        raise DataError(
            f"data.label: all {len(kept)} examples have the label {labels.pop()!r}; a classifier "
            "needs at least two"
        )


def _examples_table(
    table: pa.Table, kept: Sequence[Row], spec: DataSpec, split_column: str
) -> pa.Table:
    ids = [row.id for row in kept]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "text": pa.array([row.text for row in kept], pa.string()),
        "label": pa.array([row.label for row in kept], pa.string()),
    }
    if spec.group:
        groups = as_texts(table[spec.group], spec.group)
        columns["group"] = pa.array([groups[i] for i in ids], pa.string())
    if split_column:
        columns["split"] = pa.array([row.split for row in kept], pa.string())
    used = {spec.text, spec.label, split_column}
    for name in table.column_names:
        if name not in used:
            columns[f"source_{name}" if name in _OURS else name] = table[name].take(columns["id"])
    return pa.table(columns)


def _notes(counts: dict[str, int]) -> list[str]:
    what = {
        "empty_text": "rows without text were dropped",
        "empty_label": "rows without label were dropped",
        "duplicates": "rows whose text came before were dropped",
        "in_other_split": "rows were dropped because test or validation holds their text",
        "conflicting_texts": "texts had several labels; the most frequent one was kept",
    }
    return [f"{counts[key]} {text}" for key, text in what.items() if counts[key]]


assert set(_PRECEDENCE) == {*SPLITS, ""}

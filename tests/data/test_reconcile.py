"""Cleaning: what is dropped, what is counted, and that no text is in two splits."""

from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.data.reconcile import Row, clean_label, deduplicate, normalised, reconcile
from greenroom.data.sources import Rows
from greenroom.errors import DataError
from greenroom.specs import DataSpec

SPLITS = ["train", "validation", "test"]
FEW = st.sampled_from(
    ["a", "A ", " a", "b", "ﬁ", "fi", "Ｂ", "straße", "STRASSE", "c\u00a0d", "c d"]
)
ROWS = st.lists(st.tuples(FEW, st.sampled_from("xyz"), st.sampled_from(SPLITS)), max_size=40)


def examples(columns: dict, split: str = "", **spec: str) -> tuple[list[dict], dict, tuple]:
    result = reconcile(Rows(pa.table(columns), split), DataSpec(**spec))
    return result.table.to_pylist(), dict(result.counts), result.notes


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once
    assert once == once.strip()


def test_texts_that_readers_would_call_equal_are_equal() -> None:
    assert normalised("Ｗhat  is\tthis ?") == normalised("what is this ?")
    assert normalised("caf\u00e9") == normalised("cafe\u0301")
    assert normalised("naïve") != normalised("naive")


@given(ROWS)
def test_every_text_is_kept_once_on_the_side_that_must_not_leak(rows: list) -> None:
    found = [Row(i, *row) for i, row in enumerate(rows)]
    kept, counts = deduplicate(found)
    keys = [normalised(row.text) for row in kept]
    assert sorted(keys) == sorted({normalised(row.text) for row in found})
    assert len(kept) + counts["duplicates"] + counts["in_other_split"] == len(found)
    assert [row.id for row in kept] == sorted(row.id for row in kept)
    for row in kept:
        same = [r for r in found if normalised(r.text) == normalised(row.text)]
        assert row.split == max((r.split for r in same), key=SPLITS.index)
        votes = [r.label for r in same if r.split == row.split]
        assert votes.count(row.label) == max(map(votes.count, votes))
        tied = [v for v in votes if votes.count(v) == votes.count(row.label)]
        assert row.label == tied[0]


def test_what_is_dropped_is_counted_and_said() -> None:
    rows, counts, notes = examples(
        {
            "text": ["a", " A", "b", "b", "b", None, "  ", "c", "d\0d"],
            "label": ["x", "x", "x", "y", "y", "x", "x", " ", "y"],
        }
    )
    assert [(r["id"], r["text"], r["label"]) for r in rows] == [
        (0, "a", "x"),
        (3, "b", "y"),
        (8, "dd", "y"),
    ]
    assert counts == {
        "rows": 9,
        "empty_text": 2,
        "empty_label": 1,
        "duplicates": 3,
        "in_other_split": 0,
        "conflicting_texts": 1,
        "kept": 3,
    }
    assert "1 texts had several labels; the most frequent one was kept" in notes


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2, 1]),
        pa.array([1.0, 2.0, 1.0]),
        pa.array(["1", "2.0", " 1 "]),
        pa.array(["1", "2", "1.00"]).dictionary_encode(),
    ],
)
def test_numbers_and_their_texts_are_one_label(values: pa.Array) -> None:
    rows, _, _ = examples({"text": ["a", "b", "c"], "label": values})
    assert [r["label"] for r in rows] == ["1", "2", "1"]


def test_labels_are_composed_trimmed_and_otherwise_kept() -> None:
    assert clean_label(" cafe\u0301/crème 🎭 ") == "caf\u00e9/crème 🎭"
    assert clean_label("007") == "007"
    assert clean_label("1.5") == "1.5"
    assert clean_label("-2.0") == "-2"
    assert unicodedata.is_normalized("NFC", clean_label("o\u0308"))


def test_truth_values_and_missing_ones() -> None:
    rows, counts, _ = examples({"text": ["a", "b", "c"], "label": [True, False, None]})
    assert [r["label"] for r in rows] == ["true", "false"]
    assert counts["empty_label"] == 1


def test_columns_by_other_names_and_those_in_the_way() -> None:
    rows, _, _ = examples(
        {"id": [7, 8], "sentence": ["a", "b"], "kind": ["x", "y"], "text": ["-", "+"], "g": [1, 2]},
        text="sentence",
        label="kind",
        group="g",
    )
    first = {"id": 0, "text": "a", "label": "x", "group": "1"}
    assert rows[0] == {**first, "source_id": 7, "source_text": "-", "g": 1}


def test_given_splits_and_texts_in_two_of_them() -> None:
    rows, counts, notes = examples(
        {
            "text": ["a", "A", "b", "B", "c"],
            "label": ["x", "y", "x", "x", "y"],
            "part": ["Train", "test", "dev", "train", "training"],
        },
        split="part",
    )
    assert [(r["id"], r["split"]) for r in rows] == [(1, "test"), (2, "validation"), (4, "train")]
    assert counts["in_other_split"] == 2
    assert any("test or validation holds their text" in note for note in notes)


@pytest.mark.parametrize(
    "columns, split, spec, said",
    [
        (
            {"text": ["a"], "lable": ["x"]},
            "",
            {},
            "data.label: the source has no column 'label'; did",
        ),
        (
            {"text": ["a"], "label": ["x"]},
            "",
            {"group": "g"},
            "data.group: the source has no column",
        ),
        ({"text": ["a", "b"], "label": ["x", "x"]}, "", {}, "have the label 'x'; a classifier"),
        (
            {"text": ["", None], "label": ["x", "y"]},
            "",
            {},
            "no usable row: 2 rows, 2 without text",
        ),
        ({"text": ["a"], "label": ["x"]}, "", {"label": "text"}, "is the text column as well"),
        ({"text": [["a"]], "label": ["x"]}, "", {}, "column 'text' holds list"),
        ({"text": [b"a"], "label": ["x"]}, "", {}, "column 'text' holds binary"),
        (
            {"text": ["a"], "label": ["x"], "part": ["holdout"]},
            "part",
            {},
            "column 'part' holds 'holdout'; valid: dev, test, train",
        ),
    ],
)
def test_what_cannot_be_used(columns: dict, split: str, spec: dict, said: str) -> None:
    with pytest.raises(DataError) as error:
        examples(columns, split, **spec)
    assert said in str(error.value)

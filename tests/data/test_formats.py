"""Bytes of each format -> rows, and what is said of bytes that are not."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.data.formats import decode, parse
from greenroom.errors import DataError

TEXTS = ("text", "label")


def rows(data: bytes, kind: str, encoding: str = "utf-8") -> list[dict]:
    return parse(data, kind, "FILE", encoding, TEXTS).to_pylist()


def test_csv_keeps_texts_as_they_stand_and_types_the_rest() -> None:
    data = b'text,label,n\n"a, ""b""\nc",007,1\nNA,1.0,2\n'
    assert rows(data, "csv") == [
        {"text": 'a, "b"\nc', "label": "007", "n": 1},
        {"text": "NA", "label": "1.0", "n": 2},
    ]


def test_csv_types_come_from_all_rows_not_the_first_block() -> None:
    data = b"text,label,n\n" + b"t,a,1\n" * 300_000 + b"t,a,x\n"
    assert rows(data, "csv")[-1]["n"] == "x"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_text_of_megabytes(kind: str) -> None:
    text = "long " * 1_000_000
    data = {"csv": f'text,label\n"{text}",x\n', "jsonl": json.dumps({"text": text, "label": "x"})}
    assert rows(data[kind].encode(), kind) == [{"text": text, "label": "x"}]


def test_tsv() -> None:
    assert rows(b"text\tlabel\na, b\tx\n", "tsv") == [{"text": "a, b", "label": "x"}]


def test_a_byte_order_mark_is_no_part_of_a_column() -> None:
    assert rows(b"\xef\xbb\xbftext,label\na,b\n", "csv") == [{"text": "a", "label": "b"}]
    data = "text,label\né,b\n".encode("utf-16")
    assert rows(data, "csv", "utf-16") == [{"text": "é", "label": "b"}]


def test_jsonl_of_mixed_labels_and_missing_keys() -> None:
    lines = [{"text": "a", "label": 1}, {"text": "b", "label": "x"}, {"label": True}, {"text": "c"}]
    data = "\n".join(map(json.dumps, lines)).encode()
    assert rows(data, "jsonl") == [
        {"text": "a", "label": "1"},
        {"text": "b", "label": "x"},
        {"text": None, "label": "true"},
        {"text": "c", "label": None},
    ]


def test_jsonl_texts_that_look_like_times_stay_texts() -> None:
    data = b'{"text": "2024-01-31", "label": "2024-01-31 10:00:00"}\n' * 2
    assert rows(data, "jsonl")[0] == {"text": "2024-01-31", "label": "2024-01-31 10:00:00"}


def test_parquet() -> None:
    table = pa.table({"text": ["a"], "label": pa.array(["x"]).dictionary_encode()})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    assert rows(sink.getvalue(), "parquet") == [{"text": "a", "label": "x"}]


def test_trec_lines_cut_only_at_newlines() -> None:
    data = b"DESC:def What is caf\xe9 \x85 ?\r\n\nHUM:ind Who ?\n"
    assert rows(data, "trec") == [
        {"text": "What is café \x85 ?", "label": "DESC", "fine": "DESC:def"},
        {"text": "Who ?", "label": "HUM", "fine": "HUM:ind"},
    ]
    assert rows("A:b café ?".encode(), "trec")[0]["text"] == "café ?"


@pytest.mark.parametrize(
    "kind, data, said",
    [
        ("csv", b"", "FILE: the file is empty"),
        ("csv", b"text,label\na,b,c\n", "Row #2: Expected 2 columns, got 3"),
        ("csv", b"text,text\na,b\n", "more than one column is called 'text'"),
        ("csv", b"text,label\na,b\nc\xff,d\n", "byte ff at offset 16, line 3; set data.encoding"),
        ("csv", "text".encode("utf-16"), "perhaps utf-16"),
        ("jsonl", b'{"text": "a"}\n{"text": \n', "FILE, line 2: not JSON"),
        ("jsonl", b'[{"text": "a"}]\n', "is not a JSON object; write one a line"),
        ("jsonl", b'[\n{"text": "a"}]\n', "a JSON array is not read: write one object a line"),
        ("jsonl", b'{"text": "a"}\n"b"\n', "line 2: '\"b\"' is not a JSON object"),
        ("jsonl", b'{"text": "\\ud800"}\n', "line 1: holds one half of a surrogate pair"),
        ("parquet", b"PAR1 but no more", "not a readable Parquet file"),
        ("trec", b"A:b c\nno label here\n", "FILE, line 2: 'no label here' is not"),
    ],
)
def test_what_is_said_of_bad_bytes(kind: str, data: bytes, said: str) -> None:
    with pytest.raises(DataError) as error:
        rows(data, kind)
    assert "FILE" in str(error.value)
    assert said in str(error.value)


def test_an_unknown_encoding() -> None:
    with pytest.raises(DataError, match="no encoding 'utf-88'; common ones: utf-8"):
        decode(b"a", "FILE", "utf-88")


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1))
def test_jsonl_gives_back_what_was_written(pairs: list[tuple[str, str]]) -> None:
    written = [{"text": text, "label": label} for text, label in pairs]
    data = "\n".join(map(json.dumps, written)).encode()
    try:
        "".join(t + v for t, v in pairs).encode()
    except UnicodeEncodeError:
        with pytest.raises(DataError, match="surrogate"):
            rows(data, "jsonl")
    else:
        assert rows(data, "jsonl") == written

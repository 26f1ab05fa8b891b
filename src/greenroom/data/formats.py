"""The bytes of one file -> a table. Called by `sources`; opens nothing itself.

Every error is a `DataError` that names the file and, where it is known, the line.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from greenroom.errors import DataError

_TREC = re.compile(r"([^\s:]+):(\S+)\s+(.*)")
_BLOCK = 2**30  # pyarrow refuses a row that is longer than its block: the whole file, if it can be


def parse(data: bytes, kind: str, name: str, encoding: str, texts: Sequence[str]) -> pa.Table:
    """The table in `data`, a file of the format `kind` that messages call `name`.

    `texts` are columns that are read as they stand, without guessing a type ("007" stays so).
    """
    if not data.strip():
        raise DataError(f"{name}: the file is empty")
    parser: Mapping[str, Callable[[], pa.Table]] = {
        "csv": lambda: _delimited(_utf8(data, name, encoding), ",", name, texts),
        "tsv": lambda: _delimited(_utf8(data, name, encoding), "\t", name, texts),
        "jsonl": lambda: _jsonl(_utf8(data, name, encoding), name, texts),
        "parquet": lambda: _parquet(data, name),
        "trec": lambda: _trec(_trec_text(data, name, encoding), name),
    }
    table = parser[kind]()
    names = table.column_names
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise DataError(f"{name}: more than one column is called {', '.join(map(repr, twice))}")
    return table


# -- text -------------------------------------------------------------------------------------


def decode(data: bytes, name: str, encoding: str) -> str:
    """The text of `data`; an error says at which byte and line it is not of `encoding`."""
    try:
        text = data.decode(encoding)
    except LookupError:
        raise DataError(
            f"data.encoding: Python knows no encoding {encoding!r}; common ones: utf-8, utf-16, "
            "latin-1, cp1252, shift_jis, gb18030"
        ) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        likely = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1 or cp1252"
        raise DataError(
            f"{name}: not {encoding}: byte {data[error.start : error.start + 1].hex()} at offset "
            f"{error.start}, line {line}; set data.encoding to the file's own (perhaps {likely})"
        ) from error
    return text.removeprefix("\ufeff")  # a byte order mark is no part of the first column's name


def _utf8(data: bytes, name: str, encoding: str) -> bytes:
    return decode(data, name, encoding).encode()


def _trec_text(data: bytes, name: str, encoding: str) -> str:
    """UTF-8 where it is UTF-8; else latin-1, in which the TREC questions are published."""
    if encoding == "utf-8":
        try:
            return decode(data, name, encoding)
        except DataError:
            encoding = "latin-1"
    return decode(data, name, encoding)


# -- formats ----------------------------------------------------------------------------------


def _delimited(data: bytes, delimiter: str, name: str, texts: Sequence[str]) -> pa.Table:
    from pyarrow import csv

    try:
        return csv.read_csv(
            io.BytesIO(data),
            csv.ReadOptions(use_threads=False, block_size=min(len(data) + 1, _BLOCK)),
            csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            csv.ConvertOptions(column_types={column: pa.string() for column in texts}),
        )
    except pa.ArrowInvalid as error:
        what = "tab" if delimiter == "\t" else "comma"
        raise DataError(f"{name}: not a {what}-separated table: {_first_line(error)}") from error


def _parquet(data: bytes, name: str) -> pa.Table:
    from pyarrow import parquet

    try:
        return parquet.read_table(pa.BufferReader(data))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{name}: not a readable Parquet file: {_first_line(error)}") from error


def _trec(text: str, name: str) -> pa.Table:
    """Lines `LABEL:fine the question` as columns label, fine and text (Li and Roth 2002)."""
    labels, fine, texts = [], [], []
    # Not splitlines(): in latin-1 it would also cut at byte 85, which is a character of a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = _TREC.fullmatch(line.rstrip("\r"))
        if match is None:
            raise DataError(
                f"{name}, line {number}: {line[:60]!r} is not `LABEL:fine text`; set data.format "
                "if the file is of another kind"
            )
        labels.append(match[1])
        fine.append(f"{match[1]}:{match[2]}")
        texts.append(match[3])
    return pa.table({"text": texts, "label": labels, "fine": fine})


def _jsonl(data: bytes, name: str, texts: Sequence[str]) -> pa.Table:
    from pyarrow import json as arrow_json

    try:
        table = arrow_json.read_json(
            io.BytesIO(data), arrow_json.ReadOptions(block_size=min(len(data) + 1, _BLOCK))
        )
    except pa.ArrowInvalid:
        # Columns of mixed types, or a bad line: Python's parser takes the one and names the other.
        return _jsonl_by_line(data, name)
    guessed = [c for c in texts if c in table.column_names and _is_time(table.schema.field(c).type)]
    return _jsonl_by_line(data, name) if guessed else table


def _is_time(kind: pa.DataType) -> bool:
    """pyarrow reads texts such as 2024-01-31 as times; a text or a label must stay as it stands."""
    return bool(pa.types.is_temporal(kind))


def _jsonl_by_line(data: bytes, name: str) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data.decode().split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            array = "; a JSON array is not read: write one object a line" if line[0] == "[" else ""
            raise DataError(f"{name}, line {number}: not JSON: {error}{array}") from error
        if not isinstance(row, dict):
            raise DataError(
                f"{name}, line {number}: {line[:40]!r} is not a JSON object; write one a line"
            )
        if "\\ud" in line.lower():
            _check_surrogates(row, f"{name}, line {number}")
        rows.append(row)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pa.table({column: _array([row.get(column) for row in rows]) for column in columns})


def _check_surrogates(row: dict[str, Any], where: str) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: holds one half of a surrogate pair, which is no text") from error


def _array(values: list[Any]) -> pa.Array:
    """An Arrow array; values of mixed types become their JSON text, texts staying as they are."""
    kinds = {type(v) for v in values if v is not None}
    if len(kinds) <= 1:
        try:
            return pa.array(values)
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            OverflowError,
        ):  # lists or objects of mixed kinds
            pass
    return pa.array([v if v is None or isinstance(v, str) else _json(v) for v in values])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]

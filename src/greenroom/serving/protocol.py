"""The body of a prediction request <-> instances. Standard library only; pure functions.

The four spellings are those of Vertex AI and MLflow's scoring protocol (`instances`, `inputs`,
`dataframe_split`, `dataframe_records`): https://mlflow.org/docs/latest/ml/deployment/
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

SPELLINGS = ("instances", "inputs", "dataframe_split", "dataframe_records")
WITHOUT_EFFECT = ("parameters", "params")  # Vertex's and MLflow's clients may send them


class BadRequest(ValueError):
    """A body that holds no instances; `index` names the bad row of a table, else it is None."""

    def __init__(self, why: str, index: int | None = None) -> None:
        self.index = index
        super().__init__(why if index is None else f"instance {index}: {why}")


def instances(body: bytes) -> list[Any]:
    """The instances of a request body, each still as its JSON value; at least one."""
    table = _json(body)
    if not isinstance(table, dict):
        raise BadRequest(f"the body must be a JSON object with one of {', '.join(SPELLINGS)}")
    unknown = sorted(set(table) - {*SPELLINGS, *WITHOUT_EFFECT})
    given = [key for key in SPELLINGS if key in table]
    if unknown:
        raise BadRequest(f"unknown key {unknown[0]!r:.60}; valid: {', '.join(SPELLINGS)}")
    if len(given) != 1:
        raise BadRequest(f"give exactly one of {', '.join(SPELLINGS)}, not {len(given)}")
    rows = _READERS[given[0]](table[given[0]])
    if not rows:
        raise BadRequest(f"{given[0]} holds no instance")
    return rows


def predictions(answers: Sequence[Mapping[str, Any]]) -> bytes:
    """The answer's body. Raises ValueError for a score that is not a number (a broken model)."""
    return json.dumps({"predictions": answers}, ensure_ascii=False, allow_nan=False).encode()


def error(message: str, index: int | None = None) -> bytes:
    """The body of an answer that is no prediction."""
    body = {"error": message} if index is None else {"error": message, "index": index}
    # A message may quote half of a surrogate pair, which UTF-8 cannot hold: escaped as JSON does.
    return json.dumps(body).encode()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except ValueError as problem:  # also UnicodeDecodeError, and integers of thousands of digits
        raise BadRequest(f"the body is not JSON in UTF-8: {problem}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest("the instances must be a list")
    return value


def _inputs(value: Any) -> list[Any]:
    """MLflow's `inputs`: a list, or a table of columns."""
    if not isinstance(value, dict):
        return _list(value)
    columns = {name: _list(column) for name, column in value.items()}
    if len({len(column) for column in columns.values()}) > 1:
        raise BadRequest("the columns of inputs are not of one length")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _split(value: Any) -> list[Any]:
    """pandas' orient="split": `{"columns": [...], "data": [[...], ...]}`."""
    if not isinstance(value, dict) or "data" not in value or "columns" not in value:
        raise BadRequest('dataframe_split must be {"columns": [...], "data": [[...], ...]}')
    columns, rows = _list(value["columns"]), _list(value["data"])
    if not all(isinstance(name, str) for name in columns):
        raise BadRequest("the columns of dataframe_split must be texts")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(columns):
            raise BadRequest(f"must be a list of {len(columns)} values", i)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _records(value: Any) -> list[Any]:
    for i, row in enumerate(_list(value)):
        if not isinstance(row, dict):
            raise BadRequest("must be an object of column: value", i)
    return list(value)


_READERS = {
    "instances": _list,
    "inputs": _inputs,
    "dataframe_split": _split,
    "dataframe_records": _records,
}

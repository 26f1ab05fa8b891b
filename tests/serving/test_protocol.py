"""Request bodies -> instances; every body is either understood or refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.serving import protocol


def _body(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "body",
    [
        {"instances": ["a", {"text": "b"}]},
        {"inputs": ["a", {"text": "b"}]},
        {"instances": ["a", {"text": "b"}], "parameters": None},
    ],
)
def test_lists_are_taken_as_they_are(body: Any) -> None:
    assert protocol.instances(_body(body)) == ["a", {"text": "b"}]


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": {"text": ["a", "b"], "id": [1, 2]}},
        {
            "dataframe_split": {
                "columns": ["text", "id"],
                "index": [0, 1],
                "data": [["a", 1], ["b", 2]],
            }
        },
        {"dataframe_records": [{"text": "a", "id": 1}, {"text": "b", "id": 2}]},
    ],
)
def test_tables_become_one_object_a_row(body: Any) -> None:
    assert protocol.instances(_body(body)) == [{"text": "a", "id": 1}, {"text": "b", "id": 2}]


@pytest.mark.parametrize(
    "body, says",
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"instances": [NaN]}', "NaN is not JSON"),
        (b'{"instances": [-Infinity]}', "-Infinity is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"null", "must be a JSON object"),
        (b'["a"]', "must be a JSON object"),
        (b"{}", "exactly one of"),
        (b'{"instances": ["a"], "inputs": ["a"]}', "exactly one of"),
        (b'{"texts": ["a"]}', "unknown key 'texts'"),
        (b'{"instances": null}', "must be a list"),
        (b'{"instances": "a"}', "must be a list"),
        (b'{"instances": []}', "holds no instance"),
        (b'{"inputs": {}}', "holds no instance"),
        (b'{"inputs": {"text": ["a"], "id": []}}', "not of one length"),
        (b'{"inputs": {"text": "a"}}', "must be a list"),
        (b'{"dataframe_split": []}', "must be {"),
        (b'{"dataframe_split": {"columns": [1], "data": [["a"]]}}', "must be texts"),
        (b'{"dataframe_split": {"columns": ["text"], "data": [["a"], []]}}', "instance 1"),
        (b'{"dataframe_records": [{"text": "a"}, "b"]}', "instance 1"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, says: str) -> None:
    with pytest.raises(protocol.BadRequest) as caught:
        protocol.instances(body)
    assert says in str(caught.value)
    assert caught.value.index == (1 if says == "instance 1" else None)
    assert len(protocol.error(str(caught.value), caught.value.index)) < 1000


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.binary()
    | _json.map(_body)
    | st.builds(lambda key, value: _body({key: value}), st.sampled_from(protocol.SPELLINGS), _json)
)
def test_no_body_does_anything_else(body: bytes) -> None:
    try:
        rows = protocol.instances(body)
    except protocol.BadRequest as problem:
        json.loads(protocol.error(str(problem)))
    else:
        assert rows


def test_an_error_that_quotes_half_a_surrogate_is_still_json() -> None:
    assert json.loads(protocol.error("bad \ud800"))["error"] == "bad \ud800"


def test_a_score_that_is_no_number_is_no_answer() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        protocol.predictions([{"score": float("nan")}])

"""The search-space syntax: what is read, what is refused and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenroom.errors import ConfigError
from greenroom.space import parse_parameter
from greenroom.specs import Parameter


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1e-5->5e-4 log", Parameter("p", "interval", 1e-5, 5e-4, False, "log")),
        ("0.1 -> 0.9", Parameter("p", "interval", 0.1, 0.9, False, "linear")),
        ("1->4", Parameter("p", "interval", 1, 4, True, "linear")),
        ("1->4.0", Parameter("p", "interval", 1, 4, False, "linear")),
        ("0->0.999 reverse_log", Parameter("p", "interval", 0, 0.999, False, "reverse_log")),
        ("-3->-1", Parameter("p", "interval", -3, -1, True, "linear")),
        ("16,32,64", Parameter("p", "choice", values=(16, 32, 64))),
        ("0.1, 0.2", Parameter("p", "choice", values=(0.1, 0.2))),
        ("true,false", Parameter("p", "choice", values=(True, False))),
        ("fp32,bf16", Parameter("p", "choice", values=("fp32", "bf16"))),
    ],
)
def test_reads(text: str, expected: Parameter) -> None:
    assert parse_parameter("p", text) == expected


@pytest.mark.parametrize(
    "text, reason",
    [
        ("5->1", "empty"),
        ("1->1", "empty"),
        ("0->1 log", "above 0"),
        ("-1->1 log", "above 0"),
        ("0.5->1 reverse_log", "high < 1"),
        ("-0.5->0.5 reverse_log", "0 <= low"),
        ("1->2 cubic", "unknown scale"),
        ("a->2", "not a number"),
        ("1->inf", "not a finite number"),
        ("nan->1", "not a finite number"),
        ("->2", "not an interval"),
        ("16", "one value"),
        ("", "empty value"),
        ("16,,32", "empty value"),
        ("16,32,16", "twice"),
        ("1.0,1", "twice"),
    ],
)
def test_refuses_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_parameter("p", text)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_every_interval_that_is_not_empty_comes_back(low: float, high: float) -> None:
    text = f"{low!r}->{high!r}"
    if low < high:
        parsed = parse_parameter("p", text)
        assert (parsed.low, parsed.high, parsed.kind) == (low, high, "interval")
    else:
        with pytest.raises(ConfigError):
            parse_parameter("p", text)


@given(st.text())
def test_any_other_text_is_read_or_refused(text: str) -> None:
    try:
        parsed = parse_parameter("p", text)
    except ConfigError:
        return
    assert parsed.kind in ("interval", "choice")

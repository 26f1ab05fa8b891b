"""The search-space syntax of the experiment file -> `specs.Parameter`. Standard library only.

`"1e-5->5e-4 log"` is an interval (`linear` unless said), integers when both ends are written as
integers; `"16,32,64"` is a choice. The syntax and its rules (log only above 0, reverse log only
inside 0 <= x < 1) are those of the Vertex AI and SageMaker tuners' documentation.
"""

from __future__ import annotations

import math
import re
from typing import Any

from greenroom.errors import ConfigError
from greenroom.specs import Parameter

SCALES = ("linear", "log", "reverse_log")
_INTERVAL = re.compile(r"^(?P<low>[^\s,>]+?)\s*->\s*(?P<high>[^\s,]+)(?:\s+(?P<scale>\S+))?$")
_INTEGER = re.compile(r"^[+-]?\d+$")


def parse_parameter(name: str, text: str) -> Parameter:
    """One dimension from its text; `ConfigError` says what is wrong with it."""
    text = text.strip()
    if "->" in text:
        return _interval(name, text)
    return _choice(name, text)


def _interval(name: str, text: str) -> Parameter:
    match = _INTERVAL.match(text)
    if match is None:
        raise ConfigError(f'{text!r} is not an interval; write "low->high" or "low->high log"')
    scale = match["scale"] or "linear"
    if scale not in SCALES:
        raise ConfigError(f"unknown scale {scale!r}; valid: {', '.join(SCALES)}")
    low, high = _number(match["low"]), _number(match["high"])
    if low >= high:
        raise ConfigError(f"the interval {text!r} is empty: {low:g} is not below {high:g}")
    if scale == "log" and low <= 0:
        raise ConfigError(f"a log scale needs a low end above 0, not {low:g}")
    if scale == "reverse_log" and not (0 <= low and high < 1):
        raise ConfigError(f"a reverse_log scale needs 0 <= low and high < 1, not {text!r}")
    integer = bool(_INTEGER.match(match["low"]) and _INTEGER.match(match["high"]))
    return Parameter(name, "interval", low, high, integer, scale)


def _choice(name: str, text: str) -> Parameter:
    parts = [part.strip() for part in text.split(",")]
    if "" in parts:
        raise ConfigError(f"{text!r} has an empty value; write a choice as 16,32,64")
    if len(parts) < 2:
        raise ConfigError(
            f"{text!r} is one value: nothing to search; set it in [training] instead, "
            'or write a choice "a,b" or an interval "a->b"'
        )
    values = tuple(_scalar(part) for part in parts)
    seen: list[Any] = []
    for value in values:
        if value in seen:
            raise ConfigError(f"{text!r} names {value!r} twice")
        seen.append(value)
    return Parameter(name, "choice", values=values)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ConfigError(f"{text!r} is not a finite number")
    return value


def _scalar(text: str) -> Any:
    if _INTEGER.match(text):
        return int(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text

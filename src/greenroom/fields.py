"""A table of strings and scalars -> a frozen dataclass, with every problem collected.

Owns the type rules that `config` applies to each key: the field's annotation says the type, a
`Check` says the range. Knows nothing of which files or keys exist.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from greenroom.errors import nearest

T = TypeVar("T")
Check = Callable[[Any], str]  # the complaint about a value, "" when it is fine


class Override(str):
    """A value from the command line: text that stands for a scalar of the key's type."""


def at_least(bound: float) -> Check:
    """Values from `bound` up."""
    return lambda v: "" if v >= bound else f"must be at least {bound:g}, not {v:g}"


def above(bound: float) -> Check:
    """Values above `bound`."""
    return lambda v: "" if v > bound else f"must be above {bound:g}, not {v:g}"


def between(low: float, high: float) -> Check:
    """Values in the half-open range [low, high)."""
    return lambda v: "" if low <= v < high else f"must be in [{low:g}, {high:g}), not {v:g}"


def one_of(*valid: str) -> Check:
    """One of the listed names."""
    return lambda v: "" if v in valid else f"unknown value {v!r}; {nearest(v, valid)}"


def not_empty(value: Any) -> str:
    """Any text or list with something in it."""
    return "" if value else "must not be empty"


def scalar(value: Any, kind: type) -> tuple[Any, str]:
    """`value` as `kind` (str, int, float or bool) and the complaint, "" when it fits."""
    wrong = f"{value!r} is not {_A[kind]}"
    if isinstance(value, Override):
        return _from_text(str(value), kind, wrong)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        return None, wrong
    return _finite(value)


_A = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _from_text(text: str, kind: type, wrong: str) -> tuple[Any, str]:
    if kind is str:
        return text, ""
    if kind is bool:
        lower = text.strip().lower()
        return (lower == "true", "") if lower in ("true", "false") else (None, wrong)
    try:
        value = kind(text.strip())
    except ValueError:
        return None, wrong
    return _finite(value)


def _finite(value: Any) -> tuple[Any, str]:
    if isinstance(value, float) and not math.isfinite(value):
        return None, f"{value!r} is not a finite number"
    return value, ""


def build(
    cls: type[T],
    table: Mapping[str, Any],
    where: str,
    checks: Mapping[str, Check],
    problems: list[str],
    *,
    skip: tuple[str, ...] = (),
    **given: Any,
) -> T:
    """`cls` from the scalar keys of `table`; keys in `skip` are the caller's, as `given`.

    A problem is appended to `problems` as `where.key: what`, and the key keeps its default.
    """
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values = dict(given)
    for key, raw in table.items():
        if key in skip:
            continue
        label = f"{where}.{key}" if where else key
        if key not in names or key in given:
            problems.append(f"{label}: unknown key; {nearest(key, names)}")
            continue
        value, complaint = scalar(raw, hints[key])
        if not complaint and key in checks:
            complaint = checks[key](value)
        if complaint:
            problems.append(f"{label}: {complaint}")
        else:
            values[key] = value
    return cls(**values)

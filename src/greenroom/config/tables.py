"""TOML files and the parts that several kinds of them share."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greenroom import specs
from greenroom.errors import ConfigError
from greenroom.fields import Override, scalar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_CONDITION = re.compile(r"^\s*(>=|<=|>|<)\s*(\S+)\s*$")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file (looked in {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def put(table: dict[str, Any], path: Sequence[str], value: Override, key: str) -> None:
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: {part} is not a table")
        table = inner
    table[path[-1]] = value


def section(table: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    section = table.get(name, {})
    if isinstance(section, dict):
        return section
    problems.append(f"{name}: must be a table [{name}], not {section!r}")
    return {}


def conditions(raw: Any, where: str, problems: list[str]) -> tuple[specs.Condition, ...]:
    """A gate table, `f1_macro = ">= 0.85"`, as conditions; complaints go to `problems`."""
    if not isinstance(raw, Mapping):
        problems.append(f"{where}: must be a table of metric = '>= number', not {raw!r}")
        return ()
    gate = []
    for metric, text in raw.items():
        match = _CONDITION.match(text) if isinstance(text, str) else None
        bound, complaint = scalar(Override(match[2]), float) if match else (0.0, "")
        if match is None or complaint:
            complaint = complaint or f"{text!r} is not a condition"
            problems.append(f"{where}.{metric}: {complaint}; write '>= 0.85' or '<= 40'")
        else:
            gate.append(specs.Condition(metric, match[1], bound))
    return tuple(gate)

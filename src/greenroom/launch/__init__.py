"""Where a step runs: the table of launchers, imported when used. Never imports torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from greenroom.errors import ConfigError, nearest
from greenroom.launch.base import Launcher

LAUNCHERS: Mapping[str, str] = {"local": "greenroom.launch.local:LocalLauncher"}


def launcher(place: str) -> Launcher:
    """The launcher of a place; `ConfigError` names the valid ones."""
    if place not in LAUNCHERS:
        raise ConfigError(f"hardware: unknown place {place!r}; {nearest(place, LAUNCHERS)}")
    module, _, name = LAUNCHERS[place].partition(":")
    made: Launcher = getattr(importlib.import_module(module), name)()
    return made

"""Greenroom: the whole life of a Transformers model through MLflow.

The functions of this page are those of the command line, for notebooks and scripts. They are
imported when they are first used: importing greenroom costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_FUNCTIONS = {
    "run": "greenroom.steps",
    "promote": "greenroom.api",
    "production": "greenroom.api",
    "deployments": "greenroom.api",
    "predict": "greenroom.api",
}

__all__ = sorted(_FUNCTIONS)


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_FUNCTIONS[name]), name)

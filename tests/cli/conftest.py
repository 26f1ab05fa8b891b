"""The fixtures of tests/deploykit.py."""

from __future__ import annotations

from deploykit import models, world  # noqa: F401

"""The fixtures of tests/deploykit.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploykit import empty_store, models, world  # noqa: F401

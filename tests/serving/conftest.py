"""A tiny model, and servers of it as real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import modelkit


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return modelkit.write_model(tmp_path_factory.mktemp("model") / "tiny")

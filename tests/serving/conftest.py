"""A tiny model, and servers of it as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import modelkit


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return modelkit.write_model(tmp_path_factory.mktemp("model") / "tiny")

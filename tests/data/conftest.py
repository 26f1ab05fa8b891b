"""Small sources and a home of their own for the data tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty GREENROOM_HOME, with the hub out of bounds."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GREENROOM_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """60 rows of two labels as CSV."""
    lines = ["text,label,owner"]
    for i in range(30):
        lines.append(f"the cat number {i} says meow,cat,o{i % 10}")
        lines.append(f"a dog of {i} years barks,dog,o{i % 10}")
    file = tmp_path / "animals.csv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def python(home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a fresh interpreter; keywords are environment variables."""

    def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run

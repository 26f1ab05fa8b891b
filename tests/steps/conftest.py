"""A small experiment on real files, and ways to run its steps."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

ROOT = Path(__file__).parents[2]

EXPERIMENT = """
name = "small"
models = ["scratch:tiny"]
[data]
source = "{source}"
max_length = 16
[training]
epochs = 2
batch_size = 16
learning_rate = 1e-3
precision = "fp32"
[tuning]
max_trials = 2
[tuning.space]
learning_rate = "5e-4->5e-3 log"
"""


@pytest.fixture
def project(store: Path) -> Path:
    """A folder with data.csv (180 rows, 3 labels) and small.toml, and a store of its own."""
    rng = random.Random(0)
    subjects = {"animal": ("cat", "dog"), "place": ("paris", "rome"), "größe/😀": ("big", "tiny")}
    lines = ["text,label"]
    for i in range(180):
        label = list(subjects)[i % 3]
        lines.append(f"{rng.choice(subjects[label])} number {i} {rng.choice('abcdefgh')},{label}")
    (store / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = EXPERIMENT.format(source=store / "data.csv")
    (store / "small.toml").write_text(text, encoding="utf-8")
    return store


@pytest.fixture
def step(project: Path) -> Callable[..., int]:
    """Runs a step in this process as its entry point would; returns the exit code."""
    from greenroom import steps

    def run(name: str, *argv: str) -> int:
        return steps.main(name, ["--experiment", str(project / "small.toml"), *argv])

    return run


@pytest.fixture
def entry(project: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts an entry point's script in a process of its own."""

    def start(name: str, *argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        script = ROOT / "entrypoints" / f"{name}.py"
        return subprocess.Popen(
            [sys.executable, str(script), "--experiment", str(project / "small.toml"), *argv],
            env={**os.environ, **(env or {})},
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def runs(step: str = "", statuses: Sequence[str] = ()) -> list[Run]:
    """All runs of a step (or all), newest first."""
    client = MlflowClient()
    ids = [e.experiment_id for e in client.search_experiments()]
    found = client.search_runs(ids, order_by=["attributes.start_time DESC"])
    return [
        run
        for run in found
        if (not step or run.data.tags.get("greenroom.step") == step)
        and (not statuses or run.info.status in statuses)
    ]

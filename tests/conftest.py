"""A world of its own for every test: its home, its MLflow store, nothing inherited."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read by OpenMP and MLflow when they are imported. Tests share the machine with each other: two
# threads each, spinning, would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

_INHERITED = (
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "MLFLOW_EXPERIMENT_NAME",
    "GREENROOM_DEPLOYMENTS",
)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database with its tables: making them takes seconds, copying them none."""
    from mlflow import MlflowClient

    file = tmp_path_factory.mktemp("store") / "empty.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def store(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real MLflow store on SQLite and a home, in an empty working folder; MLflow's URI is set."""
    import mlflow

    for name in _INHERITED:
        monkeypatch.delenv(name, raising=False)
    shutil.copyfile(empty_store, tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        # Where the template's default experiment keeps its artifacts is not this test's.
        artifacts = (str(tmp_path / "mlruns/0"),)
        database.execute("UPDATE experiments SET artifact_location = ?", artifacts)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("GREENROOM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    yield tmp_path
    mlflow.set_tracking_uri(None)
    mlflow.set_registry_uri(None)

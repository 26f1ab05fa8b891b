"""The public entry points, by `mlflow run` with its own command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from greenroom import versions

from .conftest import ROOT, runs

pytestmark = pytest.mark.slow


_MLFLOW = [sys.executable, "-m", "mlflow"]


def mlflow_run(project: Path, entry: str, **parameters: str) -> subprocess.CompletedProcess[str]:
    """Runs an entry point of this repository on the experiment in `project`."""
    given = {"experiment": str(project / "small.toml"), **parameters}
    arguments = [word for k, v in given.items() for word in ("-P", f"{k}={v}")]
    # mlflow is called as the module of this interpreter; its command `python` is on the PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [*_MLFLOW, "run", str(ROOT), "--env-manager", "local", "-e", entry, *arguments],
        env={**os.environ, "PATH": path},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_main_leaves_a_registered_and_evaluated_version(project: Path) -> None:
    done = mlflow_run(project, "main", **{"training.learning_rate": "1e-3"})
    assert done.returncode == 0, done.stderr
    (parent,) = runs("main")
    assert parent.info.status == "FINISHED"
    assert "mlflow.project.entryPoint" in parent.data.tags, "it is the run that MLflow made"
    assert {run.info.status for run in runs()} == {"FINISHED"}
    steps = {"main", "data", "tune", "trial", "train", "evaluate"}
    assert {run.data.tags["greenroom.step"] for run in runs()} == steps
    assert len(runs("trial")) == 2, "no child wrote into its parent's run"
    assert versions.latest("small").evaluated


def test_a_step_alone_writes_to_the_run_that_mlflow_made(project: Path) -> None:
    done = mlflow_run(project, "train", **{"training.epochs": "1", "hardware": "cpu"})
    assert done.returncode == 0, done.stderr
    (run,) = runs("train")
    assert run.data.tags["mlflow.project.entryPoint"] == "train"
    assert run.data.params["training.epochs"] == "1"
    assert versions.latest("small").run_id == run.info.run_id


@pytest.mark.parametrize(
    "parameters, part",
    [
        ({"training.epoch": "2"}, "did you mean 'training.epochs'"),
        ({"hardware": "cup"}, "did you mean 'cpu'"),
        ({"data.source": "missing.csv"}, "missing.csv"),
    ],
)
def test_wrong_use_leaves_no_run_running(
    project: Path, parameters: dict[str, str], part: str
) -> None:
    done = mlflow_run(project, "train", **parameters)
    assert done.returncode == 1, "what mlflow makes of the entry point's 2"
    assert part in done.stderr
    client = MlflowClient()
    ids = [e.experiment_id for e in client.search_experiments()]
    assert [run.info.status for run in client.search_runs(ids)] == ["FAILED"]


def test_a_value_is_never_run_by_the_shell(project: Path) -> None:
    name = "$(touch pwned) `touch pwned`; touch pwned"
    done = mlflow_run(project, "data", name=name)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "pwned").exists(), "where mlflow run starts the command"
    assert runs("data")[0].data.tags["greenroom.experiment"] == name

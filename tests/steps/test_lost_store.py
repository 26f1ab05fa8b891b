"""A tracking server that goes away costs nothing but the time until it is back."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from processkit import free_port

pytestmark = pytest.mark.slow
ARGUMENTS = ["--training.epochs", "300", "--training.patience", "0"]


class Server:
    """A real MLflow server on the project's SQLite store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = f"sqlite:///{self.folder / 'mlflow.db'}"
        artifacts = (self.folder / "artifacts").as_uri()
        arguments = ["--port", str(self.port), "--workers", "1", "--serve-artifacts"]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store),
                *("--artifacts-destination", artifacts, *arguments),
            ],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.1)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=30)
            self.process = None


@pytest.fixture
def server(project: Path) -> Iterator[Server]:
    made = Server(project)
    made.start()
    yield made
    made.stop()


def test_training_goes_on_when_the_server_is_back(
    server: Server, entry: Callable[..., subprocess.Popen[str]], project: Path
) -> None:
    env = {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    first = entry("train", *ARGUMENTS, env=env)
    deadline = time.monotonic() + 120
    while not list((project / "home/checkpoints").glob("*/step-*")):
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.05)
    server.stop()
    _, err = first.communicate(timeout=120)
    assert first.returncode == 1, err
    assert f"error: the MLflow store {server.uri} does not take this" in err
    assert "run the same command; it continues" in err
    assert "Traceback" not in err

    server.start()
    again = entry("train", *ARGUMENTS, env=env)
    _, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert "resuming after step" in err
    client = MlflowClient(server.uri)
    ids = [e.experiment_id for e in client.search_experiments()]
    (run,) = client.search_runs(ids)
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert sorted(m.step for m in history) == list(range(1, 301)), "each epoch once"

"""A world for the tests of deploying: a store, a home, models in the registry, endpoints.

The store is MLflow's own, on SQLite; endpoints are real processes, ended after each test.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import mlflow
import mlflow.pyfunc
import pytest

import modelkit
from greenroom import versions
from greenroom.deploy.local import LocalDeployer
from greenroom.serving import scorer
from greenroom.versions import Version

DEPLOYMENTS = """
[[deployment]]
model = "tiny"
stage = "Production"
endpoint = "tiny"
threads = 1
"""


class World:
    """One test's registry, deployments file and home."""

    def __init__(self, root: Path, models: Path) -> None:
        self.root, self._models = root, models
        self.file = root / "deployments.toml"
        self.deployments(DEPLOYMENTS)

    def deployments(self, text: str) -> None:
        """Writes the deployments file."""
        self.file.write_text(text, encoding="utf-8")

    def folder(self, seed: int) -> Path:
        """A model folder; seeds differ in their answers."""
        folder = self._models / str(seed)
        return folder if folder.exists() else modelkit.write_model(folder, seed=seed)

    def version(
        self, seed: int, *, name: str = "tiny", probes: int | None = None, **metrics: float
    ) -> Version:
        """Registers a version as training and evaluation do; `probes` of another seed's model
        are what a broken version has."""
        loader = self.root / "greenroom_scorer_test.py"
        shutil.copy(scorer.__file__, loader)
        folder = self.root / f"log-{seed}"
        shutil.copytree(self.folder(seed), folder, dirs_exist_ok=True)
        if metrics or probes is not None:
            modelkit.write_probes(folder, self.folder(seed if probes is None else probes))
        with mlflow.start_run() as run:
            mlflow.log_params({"seed": seed, "_xE9_": "escaped"})
            info = mlflow.pyfunc.log_model(
                name="model",
                loader_module=loader.stem,
                data_path=str(folder),
                code_paths=[str(loader)],
                pip_requirements=["torch"],
            )
        tags = {versions.SNAPSHOT: "s" * 32, versions.COMMIT: "c" * 40}
        made = versions.register(name, info.model_uri, run.info.run_id, tags)
        for metric, value in metrics.items():
            versions.set_tag(name, made.version, versions.METRIC + metric, repr(value))
        if metrics:
            versions.set_tag(name, made.version, versions.EVALUATED, "2026-01-01T00:00:00+00:00")
        return versions.get(name, made.version)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders by seed."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def world(store: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A fresh world; every endpoint of it is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="gr-") as home:  # short: unix sockets lie there
        monkeypatch.setenv("GREENROOM_HOME", home)
        mlflow.set_experiment("tests")
        yield World(store, models)
        deployer = LocalDeployer()
        for state in deployer.observe():
            deployer.remove(state)

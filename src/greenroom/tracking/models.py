"""MLflow models of runs: logged, completed, dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema, TensorSpec

from greenroom.tracking.runs import Run
from greenroom.tracking.store import client, writing


@dataclass(frozen=True)
class LoggedModel:
    """An MLflow model as it was logged."""

    id: str
    uri: str


@writing()
def log_model(
    run: Run,
    folder: Path,
    loader: Path,
    *,
    text: str,
    example: str,
    requirements: Sequence[str],
    metadata: Mapping[str, Any],
) -> LoggedModel:
    """Logs the scorer's `folder` as an MLflow pyfunc model whose code is the one file `loader`.

    Its input is one column of strings named `text`, of which `example` is one; its output the
    columns label, score and scores. The requirements are given, never inferred: MLflow would load
    the model in another process for seconds, and write versions that no index has
    (`torch==2.13.0+cpu`).
    """
    with _active(run):
        info = mlflow.pyfunc.log_model(
            name="model",
            loader_module=loader.stem,
            data_path=str(folder),
            code_paths=[str(loader)],
            signature=_signature(text),
            input_example={text: [example]},
            pip_requirements=list(requirements),
            metadata=dict(metadata),
        )
    return LoggedModel(str(info.model_id), str(info.model_uri))


def _signature(text: str) -> ModelSignature:
    outputs: list[ColSpec | TensorSpec] = [
        ColSpec(DataType.string, "label"),
        ColSpec(DataType.double, "score"),
        ColSpec(DataType.string, "scores"),
    ]
    return ModelSignature(Schema([ColSpec(DataType.string, text)]), Schema(outputs))


@writing()
def drop_model(model_id: str) -> None:
    """Marks a logged model as deleted; `mlflow gc` removes its files."""
    client().delete_logged_model(model_id)


@contextlib.contextmanager
def _active(run: Run) -> Iterator[None]:
    """MLflow's fluent calls write to `run` inside the block, and the run stays open after it."""
    mlflow.start_run(run_id=run.id, nested=True)
    try:
        yield
    finally:
        mlflow.end_run("RUNNING")


@writing()
def add_to_model(model_id: str, folder: Path, path: str) -> None:
    """Adds the files of `folder` to a logged model's artifacts, below `path`."""
    client().log_model_artifacts(model_id, str(folder), path)

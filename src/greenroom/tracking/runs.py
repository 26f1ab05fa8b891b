"""Runs that are being written: started, filled and ended, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from greenroom import interrupts, names
from greenroom.errors import RetryableError
from greenroom.tracking import liveness
from greenroom.tracking.store import (
    COMMIT,
    ERROR,
    EXPERIMENT,
    HEARTBEAT,
    STEP,
    answers,
    client,
    git_commit,
    writing,
)

BATCH = 1000  # MLflow's limit of metrics in one request
_METRIC_KEY = re.compile(r"[A-Za-z0-9_.\- /]{1,250}")
PARAM_BATCH = 100  # and of parameters or tags


@dataclass(frozen=True)
class Run:
    """A handle on a run that is being written."""

    id: str
    experiment_id: str

    @writing()
    def log_params(self, params: Mapping[str, Any]) -> None:
        """Parameters, as text. A key that the run has already is left as it is: MLflow allows no
        change, and `mlflow run` writes what the user typed (5e-5) before greenroom writes 5e-05.
        """
        there = client().get_run(self.id).data.params
        named = {names.encode(key): _param_text(value) for key, value in params.items()}
        items = [Param(key, value) for key, value in named.items() if key not in there]
        for i in range(0, len(items), PARAM_BATCH):
            client().log_batch(self.id, params=items[i : i + PARAM_BATCH])

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Metrics of one step, in one request."""
        self.log_history([(step, metrics)])

    @writing()
    def log_history(self, history: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Metrics of many steps, in as few requests as MLflow allows."""
        now = int(time.time() * 1000)
        items = [
            Metric(_metric_key(key), float(value), now, step)
            for step, row in history
            for key, value in row.items()
        ]
        for i in range(0, len(items), BATCH):
            client().log_batch(self.id, metrics=items[i : i + BATCH])

    @answers()
    def logged_steps(self, key: str) -> frozenset[int]:
        """The steps for which the run has this metric already."""
        return frozenset(m.step for m in client().get_metric_history(self.id, key))

    @writing()
    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Tags, replacing those of the same name."""
        if tags:
            client().log_batch(self.id, tags=[RunTag(k, str(v)) for k, v in tags.items()])

    @writing()
    def log_artifact(self, path: Path, folder: str = "") -> None:
        """One file, or a folder with all in it."""
        if path.is_dir():
            client().log_artifacts(self.id, str(path), folder or None)
        else:
            client().log_artifact(self.id, str(path), folder or None)

    @writing()
    def log_dict(self, value: Any, name: str) -> None:
        """A JSON or YAML artifact, by the ending of its name."""
        client().log_dict(self.id, value, name)

    @writing()
    def log_inputs(
        self, name: str, digest: str, source: str, rows: Mapping[str, int], schema: str = ""
    ) -> None:
        """The data that this run reads: one MLflow dataset for each split, with its row count."""
        inputs = []
        for split, n in rows.items():
            dataset = Dataset(
                name=f"{name}/{split}"[:500],
                digest=digest,
                source_type="greenroom",
                source=json.dumps({"uri": source, "snapshot": digest, "split": split}),
                schema=schema or None,
                profile=json.dumps({"num_rows": n}),
            )
            context = "training" if split == "train" else split
            inputs.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
        client().log_inputs(self.id, datasets=inputs)


def _metric_key(key: str) -> str:
    """A task may name its metrics as it likes; what MLflow cannot hold is escaped."""
    return key if _METRIC_KEY.fullmatch(key) else names.fit(names.encode(key), 250)


def _param_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:6000]  # MLflow's limit


# -- starting and ending ----------------------------------------------------------------------


@contextlib.contextmanager
def start_run(
    step: str,
    experiment: str,
    *,
    tags: Mapping[str, str] | None = None,
    parent: str = "",
    name: str = "",
    run_id: str = "",
) -> Iterator[Run]:
    """A run that ends with the block: FINISHED, FAILED on an exception, KILLED on an interrupt.

    Under `mlflow run` the outermost block writes to the run that MLflow made (MLFLOW_RUN_ID);
    with `run_id` an earlier run goes on. A block with a `parent` is always a run of its own.
    """
    adopted = "" if parent or run_id else os.environ.pop("MLFLOW_RUN_ID", "")
    all_tags = {STEP: step, EXPERIMENT: experiment, COMMIT: git_commit(), **(tags or {})}
    all_tags[HEARTBEAT] = liveness.beat()
    stop = threading.Event()
    run, status = None, "FAILED"
    try:
        with interrupts.deferred():  # an interrupt finds either no run, or one that is closed below
            run = _open(run_id or adopted, experiment, parent, name or step, all_tags)
        thread = threading.Thread(target=liveness.keep_beating, args=(run.id, stop), daemon=True)
        thread.start()
        yield run
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except BaseException as error:
        if run and not isinstance(error, RetryableError):  # that is most likely this store's own
            run.set_tags({ERROR: f"{type(error).__name__}: {error}"[:5000]})
        raise
    finally:
        stop.set()
        if run:
            with writing():
                client().set_terminated(run.id, status)
        if adopted:
            os.environ["MLFLOW_RUN_ID"] = adopted


def adopts_run() -> bool:
    """Whether the next run without a parent is one that `mlflow run` made."""
    return bool(os.environ.get("MLFLOW_RUN_ID"))


@writing()
def _open(existing: str, experiment: str, parent: str, name: str, tags: dict[str, str]) -> Run:
    if existing:
        found = client().get_run(existing)
        run = Run(existing, found.info.experiment_id)
        if found.info.status != "RUNNING":
            client().update_run(existing, status="RUNNING")
        if found.data.tags.get(MLFLOW_RUN_NAME, "") == "":
            tags[MLFLOW_RUN_NAME] = name
        run.set_tags(tags)
        return run
    if parent:
        tags[MLFLOW_PARENT_RUN_ID] = parent
        experiment_id = client().get_run(parent).info.experiment_id
    else:
        experiment_id = experiment_for(experiment)
    made = client().create_run(experiment_id, tags=resolve_tags(tags), run_name=name)
    return Run(made.info.run_id, experiment_id)


@answers()
def experiment_for(name: str) -> str:
    """The id of the MLflow experiment for new runs: MLflow's own variables, else `name`."""
    if os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return os.environ["MLFLOW_EXPERIMENT_ID"]
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or name
    found = client().get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client().create_experiment(name))
    except MlflowException as error:  # another process made it in between
        found = client().get_experiment_by_name(name)
        if found is None:
            raise RetryableError(f"cannot make the MLflow experiment {name!r}: {error}") from error
        return str(found.experiment_id)


@writing()
def close(run_id: str, status: str, tags: Mapping[str, str] | None = None) -> None:
    """Ends a run whose process is gone."""
    Run(run_id, "").set_tags(tags or {})
    client().set_terminated(run_id, status)

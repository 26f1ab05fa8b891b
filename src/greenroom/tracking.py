"""MLflow runs: start and end them, write to them, find them again. With `versions`, the only
module that speaks to MLflow.

Called by `steps` and `deploy`. A run carries `greenroom.step`, `greenroom.experiment` and, where it
has one, `greenroom.snapshot`; that is how steps find each other's work, across experiments.
A live run has a heartbeat: the tag `greenroom.heartbeat`, renewed while its process works.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import psutil
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.tracking.context.registry import resolve_tags
from mlflow.types import ColSpec, DataType, Schema, TensorSpec
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from greenroom import interrupts, names
from greenroom.errors import NotFoundError, RetryableError

log = logging.getLogger(__name__)

STEP, EXPERIMENT, SNAPSHOT = "greenroom.step", "greenroom.experiment", "greenroom.snapshot"
MODEL, COMMIT, ERROR = "greenroom.model", "greenroom.git_commit", "greenroom.error"
HEARTBEAT, WORK = "greenroom.heartbeat", "greenroom.work"  # WORK: digest of the frozen values

HEARTBEAT_S = 15.0
DEAD_AFTER_S = 90.0  # six missed beats: a store may stall for a minute without the run being dead
BATCH = 1000  # MLflow's limit of metrics in one request
PARAM_BATCH = 100  # and of parameters or tags


def client() -> MlflowClient:
    """A client of the store that MLFLOW_TRACKING_URI names (default: ./mlflow.db)."""
    return MlflowClient()


def store_uri() -> str:
    """Where runs are kept."""
    return str(mlflow.get_tracking_uri())


def ping() -> str:
    """The store's URI, once it has answered; `RetryableError` when it does not."""
    try:
        client().search_experiments(max_results=1)
    except MlflowException as error:
        raise RetryableError(f"the MLflow store {store_uri()} does not answer: {error}") from error
    return store_uri()


@dataclass(frozen=True)
class Run:
    """A handle on a run that is being written."""

    id: str
    experiment_id: str

    @interrupts.deferred()
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

    @interrupts.deferred()
    def log_history(self, history: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Metrics of many steps, in as few requests as MLflow allows."""
        now = int(time.time() * 1000)
        items = [Metric(k, float(v), now, step) for step, row in history for k, v in row.items()]
        for i in range(0, len(items), BATCH):
            client().log_batch(self.id, metrics=items[i : i + BATCH])

    def logged_steps(self, key: str) -> frozenset[int]:
        """The steps for which the run has this metric already."""
        return frozenset(m.step for m in client().get_metric_history(self.id, key))

    @interrupts.deferred()
    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Tags, replacing those of the same name."""
        if tags:
            client().log_batch(self.id, tags=[RunTag(k, str(v)) for k, v in tags.items()])

    @interrupts.deferred()
    def log_artifact(self, path: Path, folder: str = "") -> None:
        """One file, or a folder with all in it."""
        if path.is_dir():
            client().log_artifacts(self.id, str(path), folder or None)
        else:
            client().log_artifact(self.id, str(path), folder or None)

    @interrupts.deferred()
    def log_dict(self, value: Any, name: str) -> None:
        """A JSON or YAML artifact, by the ending of its name."""
        client().log_dict(self.id, value, name)

    @interrupts.deferred()
    def log_text(self, text: str, name: str) -> None:
        """A text artifact."""
        client().log_text(self.id, text, name)

    @interrupts.deferred()
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
    all_tags[HEARTBEAT] = _beat()
    run = _open(run_id or adopted, experiment, parent, name or step, all_tags)
    stop = threading.Event()
    thread = threading.Thread(target=_heartbeat, args=(run.id, stop), daemon=True)
    thread.start()
    status = "FAILED"
    try:
        yield run
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except BaseException as error:
        run.set_tags({ERROR: f"{type(error).__name__}: {error}"[:5000]})
        raise
    finally:
        with interrupts.deferred():
            stop.set()
            thread.join(timeout=HEARTBEAT_S)
            client().set_terminated(run.id, status)
        if adopted:
            os.environ["MLFLOW_RUN_ID"] = adopted


def adopts_run() -> bool:
    """Whether the next run without a parent is one that `mlflow run` made."""
    return bool(os.environ.get("MLFLOW_RUN_ID"))


@interrupts.deferred()
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


@interrupts.deferred()
def close(run_id: str, status: str, tags: Mapping[str, str] | None = None) -> None:
    """Ends a run whose process is gone."""
    Run(run_id, "").set_tags(tags or {})
    client().set_terminated(run_id, status)


# -- liveness ---------------------------------------------------------------------------------


def _beat() -> str:
    me = psutil.Process()
    return json.dumps(
        {
            "host": socket.gethostname(),
            "pid": me.pid,
            "started": round(me.create_time(), 1),
            "time": round(time.time(), 1),
        }
    )


def _heartbeat(run_id: str, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        try:
            client().set_tag(run_id, HEARTBEAT, _beat())
        except MlflowException as error:  # a store that is away for a while must not end training
            log.warning("heartbeat of run %s not written: %s", run_id, error)


def is_alive(run: MlflowRun) -> bool:
    """Whether the process that writes this run still works.

    On the same host its process is looked up; from elsewhere a fresh heartbeat is the sign.
    """
    if run.info.status != "RUNNING":
        return False
    try:
        beat = json.loads(run.data.tags.get(HEARTBEAT, ""))
    except ValueError:
        return False
    if beat["host"] == socket.gethostname():
        try:
            started = psutil.Process(beat["pid"]).create_time()
        except psutil.NoSuchProcess:
            return False
        return abs(started - float(beat["started"])) < 1.0
    return time.time() - float(beat["time"]) < DEAD_AFTER_S


# -- finding ----------------------------------------------------------------------------------


def get_run(run_id: str) -> MlflowRun:
    """The run; `NotFoundError` when the store has none of this id."""
    try:
        return client().get_run(run_id)
    except MlflowException as error:
        raise NotFoundError(f"no run {run_id!r} in {store_uri()}: {error}") from error


def find_runs(
    step: str, experiment: str = "", *, status: str = "", limit: int = 100, **tags: str
) -> list[MlflowRun]:
    """Runs of a step, newest first, in all MLflow experiments.

    A keyword is a tag without its `greenroom.` prefix: `find_runs("train", snapshot=id)`.
    """
    wanted = {STEP: step, **{f"greenroom.{key}": value for key, value in tags.items()}}
    if experiment:
        wanted[EXPERIMENT] = experiment
    parts = [f"tags.`{key}` = {_quoted(value)}" for key, value in wanted.items()]
    if status:
        parts.append(f"attributes.status = '{status}'")
    experiments = [e.experiment_id for e in client().search_experiments()]
    return list(
        client().search_runs(
            experiments,
            " and ".join(parts),
            max_results=limit,
            order_by=["attributes.start_time DESC"],
        )
    )


def children(run_id: str, step: str) -> list[MlflowRun]:
    """The nested runs of a run, oldest first."""
    parent = get_run(run_id)
    found = client().search_runs(
        [parent.info.experiment_id],
        f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' and tags.`{STEP}` = '{step}'",
        max_results=50_000,
        order_by=["attributes.start_time ASC"],
    )
    return list(found)


def latest(step: str, experiment: str, **tags: str) -> MlflowRun:
    """The newest finished run of a step; `NotFoundError` says which command makes one."""
    found = find_runs(step, experiment, status="FINISHED", limit=1, **tags)
    if not found:
        raise NotFoundError(
            f"no finished {step} run of experiment {experiment!r} in {store_uri()}; "
            f"make one with: mlflow run . -e {step}"
        )
    return found[0]


def _quoted(value: str) -> str:
    """A value in MLflow's filter syntax, which has no escapes inside quotes."""
    if "'" not in value:
        return f"'{value}'"
    if '"' not in value:
        return f'"{value}"'
    raise NotFoundError(f"MLflow cannot search for {value!r}: it holds both kinds of quotes")


def artifact(run_id: str, path: str, into: Path) -> Path:
    """A copy of a run's artifact (file or folder) below `into`."""
    return Path(client().download_artifacts(run_id, path, str(into)))


# -- models -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoggedModel:
    """An MLflow model as it was logged."""

    id: str
    uri: str


@interrupts.deferred()
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


@interrupts.deferred()
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


@interrupts.deferred()
def add_to_model(model_id: str, folder: Path, path: str) -> None:
    """Adds the files of `folder` to a logged model's artifacts, below `path`."""
    client().log_model_artifacts(model_id, str(folder), path)


def git_commit() -> str:
    """The commit of the working folder, `-dirty` when files differ from it; "" outside git."""
    git = ["git", "-C", str(Path.cwd())]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        if head.returncode:
            return ""
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
        )
    except FileNotFoundError:  # no git on this machine
        return ""
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")

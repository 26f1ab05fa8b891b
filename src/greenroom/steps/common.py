"""What several steps need: the snapshot, the task, the tags of their runs, earlier work."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenroom import models, paths, specs, tasks, tracking
from greenroom.data import snapshot as snapshots
from greenroom.errors import ConfigError, DataError, NotFoundError, UserError
from greenroom.specs import Experiment, Request
from greenroom.training import checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A request with its data and its model at hand."""

    request: Request
    source: models.ModelSource
    task: tasks.Task
    snapshot: snapshots.Snapshot
    cached: bool  # whether the snapshot was there already

    @property
    def experiment(self) -> Experiment:
        """The experiment of the request."""
        return self.request.experiment

    def tags(self) -> dict[str, str]:
        """The tags by which other steps find a run on this data and model."""
        return {tracking.SNAPSHOT: self.snapshot.id, tracking.MODEL: self.source.source}


def prepare(request: Request) -> Prepared:
    """Resolves the model and makes the snapshot that is lacking; wrong input ends here."""
    experiment = request.experiment
    source = models.resolve(only_model(experiment))
    task = tasks.load_task(experiment.task)
    snapshot, cached = snapshots.prepare(experiment, source.source)
    log.info("snapshot %s (%s)", snapshot.id, "found" if cached else "made")
    return Prepared(request, source, task, snapshot, cached)


def only_model(experiment: Experiment) -> str:
    """The experiment's one model."""
    if len(experiment.models) > 1:
        raise ConfigError(
            f"models: {len(experiment.models)} are named ({', '.join(experiment.models)}), and "
            "this version trains one; choose with -P models=NAME"
        )
    return experiment.models[0]


def stored_snapshot(request: Request, wanted: str) -> snapshots.Snapshot:
    """The snapshot of an earlier run, made again where it is not on this machine."""
    try:
        return snapshots.open_snapshot(wanted)
    except NotFoundError:
        made = prepare(request).snapshot
    if made.id != wanted:
        raise DataError(
            f"snapshot {wanted} is not on this machine, and the source now gives {made.id}: the "
            "data, the split or the tokenizer changed since; train again, or restore the source"
        )
    return made


def parameters(experiment: Experiment) -> dict[str, Any]:
    """Every value of the experiment by its dotted name, as a run's parameters."""
    flat: dict[str, Any] = {"task": experiment.task, "models": ",".join(experiment.models)}
    for section in ("data", "training"):
        for key, value in vars(getattr(experiment, section)).items():
            flat[f"{section}.{key}"] = value
    return flat


def log_inputs(run: tracking.Run, snapshot: snapshots.Snapshot, *splits: str) -> None:
    """Names the splits that a run reads, by the snapshot's digest."""
    rows = {name: info.rows for name, info in snapshot.manifest.splits.items() if name in splits}
    run.log_inputs(snapshot.manifest.source, snapshot.id, snapshot.manifest.source, rows)


# -- work that goes on ------------------------------------------------------------------------


def work_digest(step: str, prepared: Prepared, *values: Any) -> str:
    """The name of a step's work: equal for equal values on equal data in one experiment."""
    return digest(step, prepared.experiment.name, prepared.tags(), prepared.task.name, *values)


def digest(*values: Any) -> str:
    """One name for one piece of work: 32 hexadecimal digits over its frozen values."""
    text = "\n".join(specs.as_json(value) for value in values)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def earlier(step: str, work: str, experiment: str) -> str:
    """The id of the unfinished run to go on from, "" where there is none.

    A live one is an error: two would write the same files.
    """
    found = tracking.find_runs(step, experiment, work=work, limit=1)
    if not found or found[0].info.status == "FINISHED":
        return ""
    if tracking.is_alive(found[0]):
        raise UserError(
            f"the same {step} is at work in run {found[0].info.run_id}; wait for it, or change a "
            "value (training.seed, for one) to start another"
        )
    return str(found[0].info.run_id)


def bury(step: str, experiment: str) -> None:
    """Closes runs of a step that does not go on, whose processes were killed."""
    for run in tracking.find_runs(step, experiment, status="RUNNING"):
        if not tracking.is_alive(run):
            tracking.close(run.info.run_id, "KILLED")


@contextlib.contextmanager
def continued(
    step: str, request: Request, work: str, tags: Mapping[str, str], parent: str = ""
) -> Iterator[tuple[tracking.Run, Path, str]]:
    """A run for `work`, its folder for checkpoints, and the run that it goes on from.

    Under `mlflow run` the new run stays where MLflow put it and the old one is closed, pointing to
    it; otherwise the old run itself goes on. The folder belongs to one process at a time.
    """
    name = request.experiment.name
    folder = paths.checkpoints() / work
    with _locked(folder, step):
        old = earlier(step, work, name)
        if not old:  # a finished training's, killed before it removed them
            checkpoint.remove(folder)
        own = bool(parent) or tracking.adopts_run()
        with tracking.start_run(
            step,
            name,
            parent=parent,
            run_id="" if own else old,
            tags={**tags, tracking.WORK: work},
        ) as run:
            if old and own and old != run.id:
                tracking.close(old, "KILLED", {"greenroom.continued_by": run.id})
            if old:
                log.info("going on from run %s", old)
            yield run, folder, old


@contextlib.contextmanager
def _locked(folder: Path, step: str) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another process on this machine does the same {step} ({folder}); wait for it, or "
                "change a value (training.seed, for one) to start another"
            ) from None
        yield


def with_training(request: Request, values: Mapping[str, Any]) -> Request:
    """The request with some [training] values replaced."""
    experiment = request.experiment
    training = replace(experiment.training, **values)
    return replace(request, experiment=replace(experiment, training=training))

"""The step `tune`: a search whose trials are nested runs, and which goes on where it was killed."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenroom import tracking
from greenroom.errors import ConfigError, DataError, TrainingError
from greenroom.specs import Parameter, Request, StepResult
from greenroom.steps import common, fit
from greenroom.steps.train import BEST, MODEL_ID
from greenroom.training import checkpoint, loop
from greenroom.tuning import search
from greenroom.tuning import space as spaces

log = logging.getLogger(__name__)

TRIAL = "greenroom.trial"  # on a trial's run: its number and raw draws
CONTINUES = "greenroom.continues"  # on a run of `mlflow run`: the search that it went on with


@dataclass(frozen=True)
class Trial:
    """A finished trial."""

    told: search.Told
    run_id: str
    value: float  # the objective at its best epoch; NaN: failed
    epoch: int
    model_id: str = ""


def run(request: Request, parent: str = "") -> StepResult:
    """Searches the experiment's space; the best values are on the returned run."""
    experiment = request.experiment
    if not experiment.tuning.space:
        raise ConfigError(
            "tuning.space: is empty; name what to search, as in "
            "-P 'tuning.space.learning_rate=1e-5->5e-4 log'"
        )
    # Trials are chosen by validation, so they never train on it.
    request = common.with_training(request, {"use_validation": False})
    prepared = common.prepare(request)
    if "validation" not in prepared.snapshot.manifest.splits:
        raise DataError("tune needs a validation split; set data.validation_fraction above 0")
    training, tuning = request.experiment.training, request.experiment.tuning
    for spec in spaces.corners(training, tuning.space):
        fit.check(prepared, spec, request.profile)
    work = common.work_digest("tune", prepared, training, tuning, request.profile)
    old = common.earlier("tune", work, experiment.name)
    if old and not parent and tracking.adopts_run():
        return _point_to(old, prepared, work)
    with common.continued("tune", request, work, prepared.tags(), parent) as (run, folder, old):
        return _search(prepared, run, folder, old)


def _point_to(first: str, prepared: common.Prepared, work: str) -> StepResult:
    """Goes on in the search's own run; the run that `mlflow run` made only points to it."""
    request = prepared.request
    tags = {**prepared.tags(), CONTINUES: first}
    with tracking.start_run("tune", request.experiment.name, tags=tags) as pointer:
        with common.continued("tune", request, work, prepared.tags()) as (run, folder, old):
            result = _search(prepared, run, folder, old)
        pointer.set_tags({BEST: tracking.get_run(result.run_id).data.tags[BEST]})
    return result


def _search(prepared: common.Prepared, run: tracking.Run, folder: Path, earlier: str) -> StepResult:
    tuning = prepared.experiment.tuning
    run.log_params(_search_parameters(prepared))
    common.log_inputs(run, prepared.snapshot, "train", "validation")
    trials = _finished(prepared, earlier or run.id)
    if trials:
        log.info("%d of %d trials were finished before", len(trials), tuning.max_trials)
    for number in range(tuning.max_trials):
        if any(trial.told.number == number for trial in trials):
            continue
        trials.append(_trial(prepared, run, folder / f"trial-{number:04d}", number, trials))
        _log_best_so_far(prepared, trials)
    best = _best(prepared, trials)
    if best is None:
        raise TrainingError(
            f"all {len(trials)} trials failed; the first one's reason is the tag greenroom.error "
            f"of run {trials[0].run_id}. Narrow tuning.space or change [training]"
        )
    values = spaces.values(tuning.space, best.told.raw)
    run.log_params({f"best.{key}": value for key, value in values.items()})
    objective = prepared.experiment.training.objective
    run.log_metrics({f"best_validation_{objective}": best.value, "trials": len(trials)})
    fact = {"parameters": values, "epoch": best.epoch, "run_id": best.run_id, "value": best.value}
    run.set_tags({BEST: json.dumps(fact)})
    checkpoint.remove(folder)
    return StepResult(
        "tune", run.id, prepared.snapshot.id, metrics={objective: best.value}, parameters=values
    )


def _log_best_so_far(prepared: common.Prepared, trials: Sequence[Trial]) -> None:
    best = _best(prepared, trials)
    if best is not None:
        objective, most = prepared.experiment.training.objective, prepared.experiment.tuning
        log.info(
            "%d of %d trials done, best so far: %s %.4g (trial %d)",
            len(trials),
            most.max_trials,
            objective,
            best.value,
            best.told.number + 1,
        )


def _trial(
    prepared: common.Prepared,
    parent: tracking.Run,
    folder: Path,
    number: int,
    before: Sequence[Trial],
) -> Trial:
    """One more trial; one whose training fails is told to the search as failed."""
    tuning = prepared.experiment.tuning
    told = [trial.told for trial in before]
    raw = search.ask(tuning.space, told, number, tuning.seed, tuning.max_trials)
    values = spaces.values(tuning.space, raw)
    log.info("trial %d of %d: %s", number + 1, tuning.max_trials, values)
    tags = {**prepared.tags(), TRIAL: json.dumps({"number": number, "raw": raw})}
    run = None
    try:
        with tracking.start_run(
            "trial",
            prepared.experiment.name,
            tags=tags,
            parent=parent.id,
            name=f"trial {number + 1}",
        ) as run:
            trial = _trained(prepared, run, folder, search.Told(number, raw, None), before)
    except TrainingError as error:
        assert run is not None  # only what runs inside the block raises it
        log.warning("trial %d failed: %s", number + 1, error)
        trial = Trial(search.Told(number, raw, None), run.id, math.nan, 0)
    checkpoint.remove(folder)
    return trial


def _trained(
    prepared: common.Prepared,
    run: tracking.Run,
    folder: Path,
    told: search.Told,
    before: Sequence[Trial],
) -> Trial:
    started = time.perf_counter()
    experiment = prepared.experiment
    values = spaces.values(experiment.tuning.space, told.raw)
    spec = replace(experiment.training, **values)
    run.log_params({**common.parameters(replace(experiment, training=spec)), **values})
    job = fit.make_job(prepared, spec, prepared.request.profile)
    outcome = loop.train(job, folder, fit.log_epoch(run))
    fit.log_outcome(run, outcome)
    value = float(outcome.best[f"validation_{spec.objective}"])
    trial = Trial(
        replace(told, loss=_loss(spec.objective, value)), run.id, value, outcome.best_epoch
    )
    if experiment.tuning.keep_artifacts == "all" or _best(prepared, [*before, trial]) is trial:
        trial = replace(trial, model_id=_keep(prepared, job, outcome, run, before))
    run.log_metrics({"duration_s": time.perf_counter() - started})
    return trial


def _keep(
    prepared: common.Prepared,
    job: loop.Job,
    outcome: loop.Outcome,
    run: tracking.Run,
    before: Sequence[Trial],
) -> str:
    """Logs the trial's TorchScript model; the former best one's goes, unless all are kept.

    Logged as soon as a trial is the best so far: a search that is killed has its best model.
    """
    with tempfile.TemporaryDirectory(prefix="greenroom-") as temporary:
        folder = Path(temporary) / "scorer"
        fit.write_artifact(prepared, job, outcome, run.id, folder)
        model = fit.log_model(prepared, run, folder)
    run.set_tags({MODEL_ID: model.id})
    if prepared.experiment.tuning.keep_artifacts == "best":
        for trial in before:
            if trial.model_id:
                tracking.drop_model(trial.model_id)
    return model.id


def _finished(prepared: common.Prepared, parent: str) -> list[Trial]:
    """The trials that an earlier start of this search finished; its interrupted ones are closed."""
    objective = prepared.experiment.training.objective
    trials = []
    for child in tracking.children(parent, "trial"):
        status, tags, metrics = child.info.status, child.data.tags, child.data.metrics
        if status == "RUNNING":
            tracking.close(child.info.run_id, "KILLED")
        fact = json.loads(tags.get(TRIAL, "{}"))
        if not fact or status not in ("FINISHED", "FAILED"):
            continue
        told = search.Told(fact["number"], fact["raw"], None)
        if status == "FAILED":
            trials.append(Trial(told, child.info.run_id, math.nan, 0))
            continue
        value = metrics[f"best_validation_{objective}"]
        told = replace(told, loss=_loss(objective, value))
        epoch, model_id = int(metrics["best_epoch"]), tags.get(MODEL_ID, "")
        trials.append(Trial(told, child.info.run_id, value, epoch, model_id))
    return trials


def _best(prepared: common.Prepared, trials: Sequence[Trial]) -> Trial | None:
    """The trial with the least loss, the first of equals; None when all failed."""
    good = [trial for trial in trials if trial.told.loss is not None]
    return min(good, key=lambda t: (t.told.loss, t.told.number)) if good else None


def _loss(objective: str, value: float) -> float | None:
    """What the search minimises; None for a value that is no number."""
    if not math.isfinite(value):
        return None
    return value if objective == "loss" else -value


def _search_parameters(prepared: common.Prepared) -> dict[str, Any]:
    tuning = prepared.experiment.tuning
    space = {f"tuning.space.{p.name}": space_text(p) for p in tuning.space}
    fixed = {f"tuning.{key}": v for key, v in vars(tuning).items() if key != "space"}
    return {**common.parameters(prepared.experiment), **fixed, **space}


def space_text(parameter: Parameter) -> str:
    """A parameter as the experiment file writes it."""
    if parameter.kind == "choice":
        return ",".join(str(value) for value in parameter.values)
    return f"{parameter.low:g}->{parameter.high:g} {parameter.scale}"

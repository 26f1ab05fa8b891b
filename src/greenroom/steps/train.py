"""The step `train`: one model, trained, exported, checked, logged and registered."""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path

from greenroom import tracking, versions
from greenroom.errors import NotFoundError
from greenroom.specs import Request, StepResult
from greenroom.steps import common, fit
from greenroom.training import checkpoint, loop

log = logging.getLogger(__name__)

VERSION, MODEL_ID, BEST, TUNED = (
    "greenroom.version",
    "greenroom.model_id",
    "greenroom.best",
    "greenroom.tuned",
)


def run(request: Request, parent: str = "") -> StepResult:
    """Trains the experiment's model to its best epoch and registers it as a new version."""
    request, search = with_tuned(request)
    prepared = common.prepare(request)
    spec, profile = request.experiment.training, request.profile
    fit.check(prepared, spec, profile)
    work = common.work_digest("train", prepared, spec, profile)
    tags = prepared.tags() | ({TUNED: search} if search else {})
    with common.continued("train", request, work, tags, parent) as (run, folder, _):
        run.log_params(common.parameters(request.experiment))
        used = ("train", "validation") if spec.use_validation else ("train",)
        common.log_inputs(run, prepared.snapshot, "train", "validation", "test")
        run.set_tags({"greenroom.trained_on": "+".join(used)})
        job = fit.make_job(prepared, spec, profile)
        seen = run.logged_steps("train_loss")
        outcome = loop.train(job, folder, fit.log_epoch(run, seen))
        fit.log_outcome(run, outcome)
        version = _register(prepared, job, outcome, run)
    checkpoint.remove(folder)
    log.info("registered %s version %s (run %s)", request.experiment.name, version, run.id)
    return StepResult("train", run.id, prepared.snapshot.id, version, dict(outcome.best))


def _register(
    prepared: common.Prepared, job: loop.Job, outcome: loop.Outcome, run: tracking.Run
) -> str:
    """The version of this run's model; a run that was killed after registering has it already."""
    name = prepared.experiment.name
    there = versions.of_run(name, run.id)
    if there is not None:
        run.set_tags({VERSION: there.version, MODEL_ID: there.source.removeprefix("models:/")})
        return there.version
    with tempfile.TemporaryDirectory(prefix="greenroom-") as temporary:
        folder = Path(temporary) / "scorer"
        parity = fit.write_artifact(prepared, job, outcome, run.id, folder)
        run.log_metrics({"parity_max_difference": parity.max_difference})
        model = fit.log_model(prepared, run, folder)
    version = versions.register(
        name,
        model.uri,
        run.id,
        fit.version_tags(prepared, {MODEL_ID: model.id}),
    )
    run.set_tags({VERSION: version.version, MODEL_ID: model.id})
    return version.version


def with_tuned(request: Request) -> tuple[Request, str]:
    """The request with a search's best values, and that search's run; explicit values stay.

    Trained on train + validation there is nothing to choose an epoch on: the best trial's epochs
    are taken, unless the command line names some.
    """
    if not request.tuned:
        return request, ""
    name = request.experiment.name
    if request.tuned == "latest":
        found = tracking.latest("tune", name)
    else:
        found = tracking.get_run(request.tuned)
    if BEST not in found.data.tags:
        raise NotFoundError(
            f"tuned: run {found.info.run_id} is no finished search (it has no tag {BEST}); give "
            "the id of a tune run, or latest"
        )
    searched = found.data.tags.get(tracking.EXPERIMENT, "")
    if searched != name:
        log.warning("tuned: run %s is a search of %r, not %r", found.info.run_id, searched, name)
    best = json.loads(found.data.tags[BEST])
    values = dict(best["parameters"])
    if request.experiment.training.use_validation:
        values.setdefault("epochs", best["epoch"])
        if "training.epochs" not in request.explicit:
            values["epochs"] = best["epoch"]
    for key in [key for key in values if f"training.{key}" in request.explicit]:
        log.warning("training.%s is given, so the search's %r is not used", key, values.pop(key))
    log.info("training with the best values of search %s: %s", found.info.run_id, values)
    return common.with_training(replace(request, tuned=""), values), str(found.info.run_id)

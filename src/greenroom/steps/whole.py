"""The step `main`: data, tune, train and evaluate in order, each a nested run."""

from __future__ import annotations

import logging
from dataclasses import replace

from greenroom import tracking
from greenroom.specs import Request, StepResult
from greenroom.steps import common, data, evaluate, train, tune

log = logging.getLogger(__name__)


def run(request: Request, parent: str = "") -> StepResult:
    """The four steps; without a search space, tune is left out. A killed one goes on.

    What an earlier, unfinished start of the same work finished is not done again.
    """
    prepared = common.prepare(request)
    name = request.experiment.name
    work = common.digest("main", prepared.tags(), request.experiment, request.profile)
    with common.continued("main", request, work, prepared.tags(), parent) as (run, _, old):
        done = _finished(old.run_id)
        if "data" not in done:
            data.run(replace(request, step="data"), run.id)
        training = replace(request, step="train")
        if request.experiment.tuning.space:
            tuned = done.get("tune") or tune.run(replace(request, step="tune"), run.id).run_id
            training = replace(training, tuned=tuned)
        else:
            log.info("no [tuning.space]: the search is left out")
        trained = done.get("train") or train.run(training, run.id).run_id
        result = evaluate.run(replace(request, step="evaluate", run=trained), run.id)
        run.log_metrics(result.metrics)
        run.set_tags({train.VERSION: result.version})
    log.info("%s version %s is registered and evaluated", name, result.version)
    return replace(result, step="main", run_id=run.id)


def _finished(main_run: str) -> dict[str, str]:
    """The steps that an earlier start finished, by name: their runs."""
    if not main_run:
        return {}
    steps = ("data", "tune", "train")
    runs = {step: tracking.children(main_run, step) for step in steps}
    return {
        step: child.info.run_id
        for step, children in runs.items()
        for child in children
        if child.info.status == "FINISHED"
    }

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
    work = common.work_digest("main", prepared, request.experiment, request.profile)
    with common.continued("main", request, work, prepared.tags(), parent) as (run, _, _old):
        done = _finished(name, work)
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


def _finished(name: str, work: str) -> dict[str, str]:
    """The steps that earlier, unfinished starts of this work finished, by name: their runs.

    All starts since the last finished one: under `mlflow run` each start has a run of its own.
    """
    done: dict[str, str] = {}
    for start in tracking.find_runs("main", name, work=work):
        if start.info.status == "FINISHED":
            break
        for step in ("data", "tune", "train", "evaluate"):
            for child in tracking.children(start.info.run_id, step):
                if child.info.status == "FINISHED":
                    done.setdefault(step, child.info.run_id)
                elif child.info.status == "RUNNING" and not tracking.is_alive(child):
                    tracking.close(child.info.run_id, "KILLED")
    return done

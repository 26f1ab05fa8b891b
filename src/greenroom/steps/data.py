"""The step `data`: source -> snapshot, and the run that says what is in it."""

from __future__ import annotations

import json
import time

from greenroom import tracking
from greenroom.specs import Request, StepResult
from greenroom.steps import common


def run(request: Request, parent: str = "") -> StepResult:
    """Makes (or finds) the experiment's snapshot and describes it in a run."""
    started = time.perf_counter()
    prepared = common.prepare(request)
    seconds = time.perf_counter() - started
    manifest = prepared.snapshot.manifest
    name = request.experiment.name
    common.bury("data", name)
    with tracking.start_run("data", name, tags=prepared.tags(), parent=parent) as run:
        values = common.parameters(request.experiment)
        run.log_params({k: v for k, v in values.items() if not k.startswith("training.")})
        metrics = {"seconds": seconds, "cached": float(prepared.cached)}
        for split, info in manifest.splits.items():
            metrics |= {
                f"rows/{split}": info.rows,
                f"truncated/{split}": info.truncated,
                f"tokens/{split}": info.tokens,
            }
        run.log_metrics(metrics)
        common.log_inputs(run, prepared.snapshot, "train", "validation", "test")
        run.log_dict(json.loads(manifest.to_json()), "manifest.json")
    rows = {split: float(info.rows) for split, info in manifest.splits.items()}
    return StepResult("data", run.id, prepared.snapshot.id, metrics=rows)

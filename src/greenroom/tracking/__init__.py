"""MLflow runs: start and end them, write to them, find them again. With `versions`, the only part
that speaks to MLflow.

Called by `steps` and `deploy`. A run carries `greenroom.step`, `greenroom.experiment` and, where it
has one, `greenroom.snapshot`; that is how steps find each other's work, across experiments.
"""

from greenroom.tracking.finding import children, find_runs, get_run, latest
from greenroom.tracking.liveness import is_alive
from greenroom.tracking.models import LoggedModel, add_to_model, drop_model, log_model
from greenroom.tracking.runs import Run, adopts_run, close, experiment_for, start_run
from greenroom.tracking.store import (
    COMMIT,
    ERROR,
    EXPERIMENT,
    HEARTBEAT,
    MODEL,
    SNAPSHOT,
    STEP,
    WORK,
    git_commit,
    ping,
    store_uri,
)

__all__ = [
    "COMMIT",
    "ERROR",
    "EXPERIMENT",
    "HEARTBEAT",
    "MODEL",
    "SNAPSHOT",
    "STEP",
    "WORK",
    "LoggedModel",
    "Run",
    "add_to_model",
    "adopts_run",
    "children",
    "close",
    "drop_model",
    "experiment_for",
    "find_runs",
    "get_run",
    "git_commit",
    "is_alive",
    "latest",
    "log_model",
    "ping",
    "start_run",
    "store_uri",
]

"""Runs found again: by step, experiment and tags, across MLflow experiments."""

from __future__ import annotations

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from greenroom.errors import NotFoundError
from greenroom.tracking.store import EXPERIMENT, STEP, answers, client, store_uri


def get_run(run_id: str) -> Run:
    """The run; `NotFoundError` when the store has none of this id."""
    with answers():
        try:
            return client().get_run(run_id)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            raise NotFoundError(f"no run {run_id!r} in {store_uri()}") from error


@answers()
def find_runs(
    step: str, experiment: str = "", *, status: str = "", limit: int = 100, **tags: str
) -> list[Run]:
    """Runs of a step, newest first, in all MLflow experiments.

    A keyword is a tag without its `greenroom.` prefix: `find_runs("train", snapshot=id)`.
    """
    wanted = {STEP: step, **{f"greenroom.{key}": value for key, value in tags.items()}}
    if experiment:
        wanted[EXPERIMENT] = experiment
    parts = [f"tags.`{k}` = {_quoted(v)}" for k, v in wanted.items() if _quoted(v)]
    if status:
        parts.append(f"attributes.status = '{status}'")
    experiments = [e.experiment_id for e in client().search_experiments()]
    found = client().search_runs(
        experiments,
        " and ".join(parts),
        max_results=limit if all(map(_quoted, wanted.values())) else 10_000,
        order_by=["attributes.start_time DESC"],
    )
    fits = [run for run in found if wanted.items() <= run.data.tags.items()]
    return fits[:limit]


@answers()
def children(run_id: str, step: str) -> list[Run]:
    """The nested runs of a run, oldest first."""
    parent = get_run(run_id)
    found = client().search_runs(
        [parent.info.experiment_id],
        f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{run_id}' and tags.`{STEP}` = '{step}'",
        max_results=50_000,
        order_by=["attributes.start_time ASC"],
    )
    return list(found)


def latest(step: str, experiment: str, **tags: str) -> Run:
    """The newest finished run of a step; `NotFoundError` says which command makes one."""
    found = find_runs(step, experiment, status="FINISHED", limit=1, **tags)
    if not found:
        raise NotFoundError(
            f"no finished {step} run of experiment {experiment!r} in {store_uri()}; "
            f"make one with: mlflow run . -e {step}"
        )
    return found[0]


def _quoted(value: str) -> str:
    """A value in MLflow's filter syntax, which has no escapes: "" for one with both quotes."""
    if "'" not in value:
        return f"'{value}'"
    return f'"{value}"' if '"' not in value else ""

"""The MLflow store: which one, whether it answers, and the tags that greenroom writes to it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from greenroom import interrupts
from greenroom.errors import RetryableError, UserError, first_line

STEP, EXPERIMENT, SNAPSHOT = "greenroom.step", "greenroom.experiment", "greenroom.snapshot"
MODEL, COMMIT, ERROR = "greenroom.model", "greenroom.git_commit", "greenroom.error"
HEARTBEAT, WORK = "greenroom.heartbeat", "greenroom.work"  # WORK: digest of the frozen values

# What trying again cannot change: a deleted experiment, a run that is not there, a bad name.
_OUR_FAULT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE", "BAD_REQUEST")


def client() -> MlflowClient:
    """A client of the store that MLFLOW_TRACKING_URI names (default: ./mlflow.db)."""
    return MlflowClient()


def store_uri() -> str:
    """Where runs are kept."""
    return str(mlflow.get_tracking_uri())


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """MLflow's errors as ours. Its client tries again for about four minutes before it gives up."""
    try:
        yield
    except MlflowException as error:
        if error.error_code in _OUR_FAULT:
            raise UserError(
                f"the MLflow store {store_uri()} refuses this: {error.message}"
            ) from error
        raise RetryableError(
            f"the MLflow store {store_uri()} does not take this: {error.message}. "
            "If it was away: start it again and run the same command; it continues"
        ) from error
    except SQLAlchemyError as error:  # a file that is no database, of which MLflow says nothing
        raise RetryableError(
            f"the MLflow store {store_uri()} cannot be used: {first_line(error)}"
        ) from error


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """The same for a write, which an interrupt does not cut in two."""
    with interrupts.deferred(), answers():
        yield


def ping() -> str:
    """The store's URI, once it has answered; `RetryableError` when it does not."""
    with answers():
        client().search_experiments(max_results=1)
    return store_uri()


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

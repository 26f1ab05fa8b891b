"""What was done to endpoints, as MLflow runs (step "deploy") and tags on versions.

Written by `controller`; `rollback` reads from it what served before.
"""

from __future__ import annotations

import contextlib
import getpass
import time
from collections.abc import Iterator
from dataclasses import dataclass

from greenroom import tracking, versions
from greenroom.deploy.base import Action
from greenroom.deploy.desired import DEPLOY, TRIED

EXPERIMENT = "greenroom-deployments"
REASON_LENGTH = 4900  # with "failed: " or a digest before it, within the 5000 of MLflow's tags
ENDPOINT, VERSION, PHASE = "greenroom.endpoint", "greenroom.version", "greenroom.phase"
ACTION, BEFORE, REASON, ROLLBACK = (
    "greenroom.action",
    "greenroom.from_version",
    "greenroom.reason",
    "greenroom.rollback",
)


class Record:
    """One action's run: its phases with the seconds that each took."""

    def __init__(self, run: tracking.Run) -> None:
        self._run = run

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A step of the action; its time becomes the metric `NAME_s`."""
        self._run.set_tags({PHASE: name})
        began = time.monotonic()
        yield
        self._run.log_metrics({f"{name}_s": time.monotonic() - began})

    def note(self, tags: dict[str, str]) -> None:
        """More tags."""
        self._run.set_tags(tags)


@contextlib.contextmanager
def record(action: Action, reason: str, rollback: bool = False) -> Iterator[Record]:
    """The run of an action; it ends FAILED, with the reason, when the block raises."""
    state = action.after or action.before
    assert state is not None, "an action has a before or an after"
    tags = {
        ACTION: action.kind,
        ENDPOINT: action.endpoint,
        VERSION: state.version,
        "greenroom.registered_model": state.model,
        "greenroom.target": action.target,
        BEFORE: action.before.version if action.before else "",
        REASON: reason,
        ROLLBACK: "true" if rollback else "false",
        "greenroom.user": _user(),
    }
    name = f"{action.kind} {action.endpoint} v{state.version}"
    _close_killed(action.endpoint)
    with tracking.start_run(step="deploy", experiment=EXPERIMENT, tags=tags, name=name) as run:
        recorded = Record(run)
        try:
            yield recorded
        except BaseException as error:
            recorded.note(
                {PHASE: "failed", REASON: str(error)[:REASON_LENGTH] or type(error).__name__}
            )
            raise
        recorded.note({PHASE: {"remove": "removed"}.get(action.kind, "serving")})


def _close_killed(endpoint: str) -> None:
    """Ends the runs of controllers that were killed at the endpoint."""
    for run in tracking.find_runs("deploy", status="RUNNING", endpoint=endpoint):
        if not tracking.is_alive(run):
            tracking.close(run.info.run_id, "KILLED")


def mark(model: str, version: str, endpoint: str, outcome: str) -> None:
    """The version's tag that says what became of it at an endpoint."""
    versions.set_tag(model, version, DEPLOY + endpoint, outcome)


def mark_failed(model: str, version: str, endpoint: str, why: str, attempt: str) -> None:
    """The same for an attempt that is not to be made again."""
    why = why[:REASON_LENGTH].strip()
    mark(model, version, endpoint, f"failed: {why}")
    versions.set_tag(model, version, TRIED + endpoint, f"{attempt} {why}")


@dataclass(frozen=True)
class Served:
    """A version that took an endpoint's traffic."""

    model: str
    version: str
    rollback: bool


def served(endpoint: str) -> tuple[Served, ...]:
    """Every version that took the endpoint's traffic, in the order of time."""
    runs = tracking.find_runs("deploy", status="FINISHED", endpoint=endpoint, limit=1000)
    rows = [run.data.tags for run in reversed(runs)]
    return tuple(
        Served(
            tags.get("greenroom.registered_model", ""),
            tags[VERSION],
            tags.get(ROLLBACK) == "true",
        )
        for tags in rows
        if tags.get(ACTION) in ("create", "replace")
    )


def before(history: tuple[Served, ...], model: str, now: str) -> str:
    """The last good version before `now`; "" when there is none.

    A rollback is a step back in the list, not a new entry: two in a row go back by two.
    """
    stack: list[str] = []
    for entry in history:
        if entry.model != model:
            continue
        if entry.rollback and entry.version in stack:
            del stack[stack.index(entry.version) + 1 :]
        elif not stack or stack[-1] != entry.version:
            stack.append(entry.version)
    if now in stack:
        del stack[len(stack) - 1 - stack[::-1].index(now) :]
    earlier = [version for version in stack if version != now]
    return earlier[-1] if earlier else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user id without a name
        return ""

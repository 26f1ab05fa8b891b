"""The loop: look at the registry and the endpoints, act on the difference, look again.

Level-triggered: it acts on what is, never on what changed, and keeps nothing that it cannot read
back, so it may be killed at any moment and started again, or run twice. Called by `cli`,
registry/controller.py and `rollback`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from greenroom import config, versions
from greenroom.deploy import desired, ledger, package
from greenroom.deploy.base import Action, Deployer, EndpointState, load_deployer
from greenroom.deploy.desired import DEPLOY, OVERRIDE, Wanted
from greenroom.deploy.reconcile import reconcile
from greenroom.deploy.rollout import roll_out
from greenroom.errors import (
    GreenroomError,
    NotFoundError,
    RetryableError,
    StepError,
    UserError,
    nearest,
)
from greenroom.specs import Deployment

log = logging.getLogger(__name__)

LOCK_S = 300.0  # a rollout by another controller takes no longer than this


@dataclass(frozen=True)
class Plan:
    """One look: what is wanted, what was found, and what would be done."""

    wanted: tuple[Wanted, ...]
    found: tuple[EndpointState, ...]
    actions: tuple[Action, ...]

    def state(self, target: str, endpoint: str) -> EndpointState | None:
        """The endpoint as it was found, if it serves."""
        matches = (f for f in self.found if (f.target, f.endpoint) == (target, endpoint))
        return next((f for f in matches if f.serves), None)


@dataclass(frozen=True)
class Outcome:
    """What became of an action, or of a version that was not tried; `error` "" when all is well."""

    endpoint: str
    what: str
    error: str = ""


def plan(path: str | Path | None = None, only: Collection[str] = ()) -> Plan:
    """Looks, and changes nothing. `only`: these endpoints (or deployments), and no other."""
    deployments = config.load_deployments(path)
    if only:
        deployments = _named(deployments, only)
    owner = str(config.deployments_path(path).resolve())
    wants = _wanted(deployments, owner)
    found = tuple(
        state
        for target in sorted({"local", *(d.target for d in deployments)})
        for state in load_deployer(target).observe()
    )
    actions = reconcile([w.state for w in wants], found, "" if only else owner)
    return Plan(wants, found, actions)


def _named(deployments: Sequence[Deployment], only: Collection[str]) -> tuple[Deployment, ...]:
    valid = {d.endpoint for d in deployments} | {d.name for d in deployments}
    for name in only:
        if name not in valid:
            raise NotFoundError(f"no deployment {name!r}; {nearest(name, valid)}")
    return tuple(d for d in deployments if d.endpoint in only or d.name in only)


def _wanted(deployments: Sequence[Deployment], owner: str) -> tuple[Wanted, ...]:
    """One look at each model, however many deployments it has."""
    models: dict[str, versions.Model | str] = {}
    wants = []
    for deployment in deployments:
        name = deployment.model
        if name not in models:
            models[name] = _look(name)
        model = models[name]
        try:
            if isinstance(model, str):
                wants.append(desired.silent(deployment, owner, model))
            else:
                wants.append(desired.wanted(deployment, model, owner))
        except (UserError, RetryableError) as error:
            wants.append(desired.silent(deployment, owner, str(error)))
    return tuple(wants)


def _look(name: str) -> versions.Model | str:
    """The model, or why there is none to be had.

    A missing model is no order to take its endpoint down: a wrong MLFLOW_TRACKING_URI looks just
    like it. Neither is a registry that does not answer.
    """
    try:
        return versions.look(name)
    except (UserError, RetryableError) as error:
        return str(error)


# -- acting -------------------------------------------------------------------------------------


def apply(
    path: str | Path | None = None,
    only: Collection[str] = (),
    *,
    wait_s: float = LOCK_S,
    reason: str = "",
) -> tuple[Outcome, ...]:
    """Looks and acts once; what fails at one endpoint keeps no other from going on."""
    seen = plan(path, only)
    for want in seen.wanted:
        for warning in want.warnings:
            log.warning("%s", warning)
    outcomes = []
    for endpoint in dict.fromkeys(a.endpoint for a in seen.actions):
        outcomes += _act(path, endpoint, wait_s, reason)
    settled = plan(path, only) if seen.actions else seen
    return (*outcomes, *_settle(settled))


def _act(path: str | Path | None, endpoint: str, wait_s: float, reason: str) -> list[Outcome]:
    """Acts at one endpoint, under its lock, on a look taken under it."""
    deployer = load_deployer(_target(path, endpoint))
    with deployer.lock(endpoint, wait_s) as mine:
        if not mine:
            return [Outcome(endpoint, "another controller is at work here; left to it")]
        now = plan(path)
        outcomes = []
        for action in now.actions:
            if action.endpoint == endpoint:
                want = next((w for w in now.wanted if w.state.endpoint == endpoint), None)
                if want is None and (successor := _successor(action, now)):
                    why = f"{successor} of the same model is to be made first, and does not serve"
                    outcomes.append(Outcome(endpoint, f"{endpoint} goes on serving", why))
                else:
                    outcomes.append(_carry_out(deployer, action, want, reason))
        return outcomes


def _successor(action: Action, now: Plan) -> str:
    """The endpoint that a renaming makes in place of the action's, while that is still to come."""
    if action.kind != "remove" or action.heir:
        return ""
    assert action.before is not None
    model = action.before.model
    made = (a for a in now.actions if a.kind == "create" and a.after and a.after.model == model)
    return next((a.endpoint for a in made), "")


def _target(path: str | Path | None, endpoint: str) -> str:
    deployments = config.load_deployments(path)
    return next((d.target for d in deployments if d.endpoint == endpoint), "local")


def _carry_out(deployer: Deployer, action: Action, want: Wanted | None, reason: str) -> Outcome:
    log.info("%s", action)
    try:
        if action.kind == "restart":
            assert action.before is not None
            # No run in the ledger: it must work while MLflow does not, and no version changes.
            deployer.restart(action.before)
        elif action.kind == "remove":
            _remove(deployer, action, reason)
        else:
            assert want is not None
            _replace(deployer, action, want, reason)
    except Exception as error:  # of any kind: the other endpoints' turn comes all the same
        log.error("%s: %s", action.endpoint, error, exc_info=not isinstance(error, StepError))
        return Outcome(action.endpoint, str(action), str(error) or type(error).__name__)
    return Outcome(action.endpoint, str(action))


def _replace(deployer: Deployer, action: Action, want: Wanted, reason: str) -> None:
    version, deployment = want.version, want.deployment
    assert version is not None
    assert action.after is not None
    by_hand = bool(want.overruled)
    why = reason or ("rolled back" if by_hand else f"{deployment.selector} selects the version")
    try:
        folder = package.fetch(version)
        with ledger.record(action, why, by_hand) as run:
            roll_out(deployer, action.after, folder, deployment.rollout, run.phase)
    except RetryableError:
        raise  # nothing is wrong with the version
    except StepError as error:
        attempt = desired.attempt(deployment, version)
        ledger.mark_failed(version.model, version.version, action.endpoint, str(error), attempt)
        raise
    ledger.mark(version.model, version.version, action.endpoint, "serving")


def _remove(deployer: Deployer, action: Action, reason: str) -> None:
    assert action.before is not None
    with ledger.record(action, reason or "the registry selects no version any more"):
        deployer.remove(action.before)


# -- tags that follow ---------------------------------------------------------------------------


def _settle(seen: Plan) -> list[Outcome]:
    """Makes the registry's tags say what is: which version serves, which was refused and why.

    By the look alone, so what a killed controller left unsaid is said by the next one.
    """
    outcomes = []
    for want in seen.wanted:
        endpoint = want.deployment.endpoint
        if want.model is None:
            outcomes.append(Outcome(endpoint, "left as it is", want.refused))
            continue
        found = seen.state(want.state.target, endpoint)
        serving = found.version if found and found.model == want.model.name else ""
        _settle_versions(want, serving)
        if want.stale_override:
            log.info("%s: the registry changed; the rollback no longer counts", endpoint)
            versions.set_model_tag(want.model.name, OVERRIDE + endpoint, "")
        if want.refused and want.version:
            serves = want.version.version == serving
            state = "serves, not as the deployment asks" if serves else "is not deployed"
            what = f"{want.version.model} version {want.version.version} {state}"
            outcomes.append(Outcome(endpoint, what, want.refused))
    return outcomes


def _settle_versions(want: Wanted, serving: str) -> None:
    assert want.model is not None
    endpoint = want.deployment.endpoint
    selected = [want.version] if want.version else []
    for version in {v.version: v for v in [*want.model.seen, *selected]}.values():
        said = version.tags.get(DEPLOY + endpoint, "")
        should = said
        if version.version == serving:
            should = "serving"
        elif want.refused and want.version and version.version == want.version.version:
            should = f"failed: {want.refused}"
        elif said == "serving":
            should = "removed"
        if should != said:
            ledger.mark(version.model, version.version, endpoint, should)


def retry(endpoint: str, path: str | Path | None = None) -> tuple[Outcome, ...]:
    """Tries a failed version again although nothing changed."""
    for want in plan(path, [endpoint]).wanted:
        if want.version and want.failed:
            versions.set_tag(
                want.version.model,
                want.version.version,
                desired.TRIED + want.deployment.endpoint,
                "retry",
            )
    return apply(path, [endpoint], reason="retried by hand")


def stop(endpoint: str, path: str | Path | None = None) -> Outcome:
    """Takes an endpoint down by hand. A running `watch` brings it up again while the registry
    selects a version: demote it to keep it down."""
    known = [s for s in load_deployer("local").observe() if s.serves]
    found = next((s for s in known if s.endpoint == endpoint), None)
    if found is None:
        names = [s.endpoint for s in known]
        raise NotFoundError(f"no endpoint {endpoint!r} serves; {nearest(endpoint, names)}")
    deployer = load_deployer(found.target)
    action = Action("remove", endpoint, found.target, found, None)
    with deployer.lock(endpoint, LOCK_S) as mine:
        if not mine:
            raise RetryableError(f"{endpoint}: another controller is at work; try again")
        deployer.remove(found)
        try:
            with ledger.record(action, "stopped by hand"):
                ledger.mark(found.model, found.version, endpoint, "removed")
        except GreenroomError as error:  # down is down: a store that is away is no reason to fail
            log.warning("%s is down, and the ledger does not say so: %s", endpoint, error)
    return Outcome(endpoint, str(action))


# -- for ever -----------------------------------------------------------------------------------


def watch(
    path: str | Path | None = None,
    interval_s: float = 5.0,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
) -> int:
    """Applies again and again until `stop`; the exit code (with `once`, 1 if anything failed)."""
    stop = stop or threading.Event()
    said: tuple[Outcome, ...] = ()
    while True:
        outcomes = _one_look(path)
        if outcomes != said:  # what stays as it was is said once
            for outcome in outcomes:
                level = logging.WARNING if outcome.error else logging.INFO
                log.log(level, "%s: %s %s", outcome.endpoint, outcome.what, outcome.error)
            said = outcomes
        if once:
            return 1 if any(outcome.error for outcome in outcomes) else 0
        if stop.wait(interval_s):
            return 0


def _one_look(path: str | Path | None) -> tuple[Outcome, ...]:
    """One `apply`; whatever it raises is reported, and the next look comes all the same."""
    try:
        return apply(path, wait_s=0.0)
    except Exception as error:  # a controller outlives its registry, and its own bugs
        log.debug("the look failed", exc_info=True)
        return (Outcome("-", "this look failed; endpoints go on serving:", str(error)),)

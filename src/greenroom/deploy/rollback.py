"""Back to the last good version, against the registry, until the registry changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from greenroom import config, versions
from greenroom.deploy import controller, desired, ledger
from greenroom.deploy.desired import OVERRIDE, TRIED
from greenroom.errors import DeployError, NotFoundError, UserError, nearest
from greenroom.specs import Deployment


@dataclass(frozen=True)
class Rollback:
    """What was done."""

    deployment: str
    endpoint: str
    model: str
    from_version: str
    version: str


def roll_back(name: str, path: str | Path | None = None, to: str = "") -> Rollback:
    """Puts the version that served before (or `to`) back on the endpoint of `name` (an endpoint,
    a deployment or a model) and returns when it serves.

    The model's tag records that the registry is overruled, until its next change of a stage or an
    alias. Raises `DeployError` when the version does not serve; then nothing has changed.
    """
    deployment = find(name, config.load_deployments(path))
    model = versions.look(deployment.model)
    now = _now_serving(deployment, path)
    history = ledger.served(deployment.endpoint)
    version = to or _last_good(history, deployment.model, now)
    if not version:
        raise NotFoundError(
            f"endpoint {deployment.endpoint} has served no other version before {now or 'this'}; "
            f"name one with --to VERSION"
        )
    versions.get(deployment.model, version)
    if version == now:
        raise UserError(f"endpoint {deployment.endpoint} serves version {version} already")
    tag = OVERRIDE + deployment.endpoint
    before = model.tags.get(tag, "")
    versions.set_tag(deployment.model, version, TRIED + deployment.endpoint, "rollback")
    against = {"version": version, "against": desired.selection(model)}
    versions.set_model_tag(deployment.model, tag, json.dumps(against))
    outcomes = controller.apply(path, [deployment.endpoint], reason=f"rolled back from {now}")
    if _now_serving(deployment, path) != version:
        versions.set_model_tag(deployment.model, tag, before)
        raise DeployError(
            f"endpoint {deployment.endpoint} still serves version {now}: "
            + "; ".join(outcome.error for outcome in outcomes if outcome.error)
        )
    return Rollback(deployment.name, deployment.endpoint, deployment.model, now, version)


def _last_good(history: tuple[ledger.Served, ...], model: str, now: str) -> str:
    """The version that served before `now`, of those that are still in the registry; "" for none"""
    while version := ledger.before(history, model, now):
        try:
            return versions.get(model, version).version
        except NotFoundError:
            history = tuple(entry for entry in history if entry.version != version)
    return ""


def forget(model: str) -> None:
    """Ends the rollbacks of all endpoints of a model: the registry rules again."""
    for tag in versions.look(model).tags:
        if tag.startswith(OVERRIDE):
            versions.set_model_tag(model, tag, "")


def find(name: str, deployments: tuple[Deployment, ...]) -> Deployment:
    """The deployment of that endpoint or name; else the model's, the Production one of several."""
    for deployment in deployments:
        if name in (deployment.endpoint, deployment.name) and deployment.model != name:
            return deployment
    of_model = [d for d in deployments if d.model == name]
    of_model += [d for d in deployments if name in (d.endpoint, d.name) and d not in of_model]
    first = [d for d in of_model if d.stage == "Production"] or of_model
    if not first:
        valid = {n for d in deployments for n in (d.endpoint, d.name, d.model)}
        raise NotFoundError(f"no endpoint, deployment or model {name!r}; {nearest(name, valid)}")
    if len(first) > 1:
        choices = ", ".join(d.endpoint for d in first)
        raise UserError(f"{name} has several endpoints; name one of: {choices}")
    return first[0]


def _now_serving(deployment: Deployment, path: str | Path | None) -> str:
    state = controller.plan(path, [deployment.endpoint]).state(
        deployment.target, deployment.endpoint
    )
    return state.version if state else ""

"""The registry and deployments.toml -> what each endpoint should serve, and why.

Pure but for the looks it is given. Called by `controller`, `overview` and `rollback`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from greenroom import versions
from greenroom.deploy.base import EndpointState
from greenroom.errors import NotFoundError
from greenroom.specs import Condition, Deployment, as_json
from greenroom.versions import Model, Version

DEPLOY = "greenroom.deploy."  # on a version, + endpoint: "serving", "failed: why", "removed"
TRIED = "greenroom.tried."  # on a version, + endpoint: the digest of what failed, and why
OVERRIDE = "greenroom.override."  # on a model, + endpoint: a rollback


@dataclass(frozen=True)
class Wanted:
    """What one deployment asks for at this moment."""

    deployment: Deployment
    state: EndpointState
    model: Model | None = None  # None: the registry said nothing
    version: Version | None = None  # the one selected, whether or not it may serve
    refused: str = ""  # why it may not, or fails
    failed: bool = False  # it may, was tried and failed
    warnings: tuple[str, ...] = ()
    overruled: str = ""  # the version that the registry selects, while a rollback stands against it
    stale_override: bool = False  # a rollback's tag that no longer counts


def silent(deployment: Deployment, owner: str, why: str) -> Wanted:
    """The registry says nothing: whatever serves goes on serving."""
    state = replace(_empty(deployment, owner), hold=True)
    return Wanted(deployment, state, refused=why)


def wanted(deployment: Deployment, model: Model, owner: str = "") -> Wanted:
    """What `deployment` asks for, given a look at its model."""
    selected = versions.select(model, stage=deployment.stage, alias=deployment.alias)
    put_back = _put_back(model, deployment.endpoint)
    conflict = model.conflict(deployment.stage) if deployment.stage else ""
    base = Wanted(
        deployment,
        _empty(deployment, owner),
        model,
        warnings=(conflict,) if conflict else (),
        stale_override=put_back is None and OVERRIDE + deployment.endpoint in model.tags,
    )
    if put_back:
        base = replace(base, overruled=selected.version if selected else "none")
        return _judged(base, put_back, by_hand=True)
    return _judged(base, selected, by_hand=False) if selected else base


def _put_back(model: Model, endpoint: str) -> Version | None:
    """The version of a rollback that stands; none for one that was deleted since."""
    override = standing_override(model, endpoint)
    try:
        return versions.get(model.name, override["version"]) if override else None
    except NotFoundError:
        return None


def _judged(base: Wanted, version: Version, by_hand: bool) -> Wanted:
    deployment, state = base.deployment, base.state
    refused = "" if by_hand else refusal(deployment, version)
    failed = "" if refused else failure(deployment, version)
    if refused or failed:
        base = replace(base, refused=refused or failed, failed=bool(failed))
        return replace(base, version=version, state=replace(state, hold=True))
    serving = replace(state, version=version.version, source=version.source)
    warnings = base.warnings
    if not version.evaluated:
        warnings += (f"{deployment.model} version {version.version} was never evaluated",)
    return replace(base, version=version, state=serving, warnings=warnings)


def _empty(deployment: Deployment, owner: str) -> EndpointState:
    return EndpointState(
        endpoint=deployment.endpoint,
        target=deployment.target,
        model=deployment.model,
        workers=deployment.workers,
        threads=deployment.threads,
        port=deployment.port,
        owner=owner,
    )


# -- gate and failures --------------------------------------------------------------------------


def refusal(deployment: Deployment, version: Version) -> str:
    """Why the version may not be deployed; "" when it may."""
    if not version.ready:
        return "the registry has not finished this version"
    if deployment.gate and not version.evaluated:
        return "gate: the version was never evaluated; run: greenroom run evaluate"
    missed = [m for c in deployment.gate if (m := _missed(c, version))]
    return f"gate: {'; '.join(missed)}" if missed else ""


def _missed(condition: Condition, version: Version) -> str:
    value = version.metrics.get(condition.metric)
    if value is None:
        return f"{condition} cannot be judged: evaluation measured no {condition.metric}"
    return "" if condition.holds(value) else f"{condition} is not met, it is {value:g}"


def attempt(deployment: Deployment, version: Version) -> str:
    """A digest of all that decides how a rollout ends: a failed one is not tried again before it
    changes (another promotion, a new evaluation, an edit of the deployment)."""
    parts = [
        as_json(deployment),
        version.source,
        str(version.updated_ms),
        version.tags.get(versions.EVALUATED, ""),
    ]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def failure(deployment: Deployment, version: Version) -> str:
    """Why this very attempt failed; "" when it was not made, or not seen to fail."""
    tried, _, why = version.tags.get(TRIED + deployment.endpoint, "").partition(" ")
    if tried != attempt(deployment, version):
        return ""
    return why or "an earlier attempt failed"


# -- rollbacks ----------------------------------------------------------------------------------


def selection(model: Model) -> dict[str, Any]:
    """What the stages and aliases select: a rollback stands against exactly this."""
    stages = {}
    for stage in ("Staging", "Production", "Archived"):
        first = next(iter(model.in_stage(stage)), None)
        if first:
            stages[stage] = [first.version, first.updated_ms, _digest(first.description)]
    aliases = json.dumps(dict(sorted(model.aliases.items())))
    return {"stages": stages, "aliases": _digest(aliases)}


def standing_override(model: Model, endpoint: str) -> dict[str, Any] | None:
    """The rollback of the endpoint, `{"version", "against"}`, while the registry is unchanged.

    A tag that holds something else (anyone may edit it) counts for nothing.
    """
    try:
        override: dict[str, Any] = json.loads(model.tags.get(OVERRIDE + endpoint, "null"))
        stands = "version" in override and _unchanged(override["against"], selection(model))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return override if stands else None


def _unchanged(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """An edit of a version's description moves its time as a stage change does; only that is no
    reason to undo a rollback (people write there why they rolled back)."""
    if before["aliases"] != now["aliases"] or set(before["stages"]) != set(now["stages"]):
        return False
    for stage, (version, updated_ms, description) in before["stages"].items():
        current, current_ms, text = now["stages"][stage]
        if current != version or (current_ms != updated_ms and text == description):
            return False
    return True


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:12]

"""Desired beside actual, and what is in production. Reads only; called by `cli` and `greenroom`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greenroom import config, versions
from greenroom.deploy import controller
from greenroom.deploy.base import EndpointState, load_deployer
from greenroom.deploy.controller import Plan
from greenroom.deploy.desired import Wanted
from greenroom.deploy.rollback import find
from greenroom.errors import ConfigError, NotFoundError, nearest
from greenroom.specs import Deployment, EndpointStatus, Predictions, Production
from greenroom.versions import Version


def status(path: str | Path | None = None) -> tuple[EndpointStatus, ...]:
    """Every deployment: what the registry selects, what serves, and why they differ."""
    seen = controller.plan(path)
    return tuple(_status(want, seen) for want in seen.wanted)


def _status(want: Wanted, seen: Plan) -> EndpointStatus:
    deployment = want.deployment
    found = seen.state(deployment.target, deployment.endpoint)
    phase, reason = _phase(want, found)
    return EndpointStatus(
        deployment=deployment.name,
        model=deployment.model,
        target=deployment.target,
        endpoint=deployment.endpoint,
        desired_version=want.version.version if want.version else "",
        actual_version=found.version if found else "",
        phase=phase,
        url=found.url if found else "",
        reason=reason,
    )


def _phase(want: Wanted, found: EndpointState | None) -> tuple[str, str]:
    if found and not found.up:
        return "down", "it does not answer; greenroom watch or deploy apply brings it up again"
    if want.model is None:
        return "unknown", want.refused
    if found and not found.ready:
        return "starting", "its workers are being started again"
    if want.refused:
        return ("failed" if want.failed else "refused"), want.refused
    if want.version is None:
        return ("pending" if found else "idle"), f"{want.deployment.selector} selects no version"
    if not found or found.version != want.version.version:
        return "pending", f"{want.deployment.selector} selects version {want.version.version}"
    if want.overruled:
        return "serving", f"rolled back; the registry selects version {want.overruled}"
    return "serving", "; ".join(want.warnings)


def production(name: str, path: str | Path | None = None) -> Production:
    """The version of a model (or of a deployment's model) that is in production.

    That is the one in stage Production, or where a model has none and is deployed by an alias, the
    alias's; after a rollback, the one that was put back. While a gate or a failed rollout keeps
    that one from serving, it is the one that serves instead, and `unserved` says so.
    """
    deployments = _deployments(path)
    model = _model_of(name, deployments)
    own = [d for d in deployments if d.model == model]
    version, overruled, unserved = None, "", ""
    if own:
        main = find(name, tuple(own)) if len(own) == 1 or name != model else _main(own)
        seen = controller.plan(path, [main.endpoint])
        (want,) = seen.wanted
        if want.model is None:
            versions.look(model)  # says what is wrong
        overruled = want.overruled
        version, unserved = _serving(want, seen.state(main.target, main.endpoint))
    found = versions.production(model, version, _endpoints(model, own))
    return dataclasses.replace(found, overruled=overruled, unserved=unserved)


def _serving(want: Wanted, found: EndpointState | None) -> tuple[Version | None, str]:
    """The version to name, and why it is not the selected one, or does not serve."""
    selected, endpoint = want.version, want.deployment.endpoint
    serving = found.version if found and found.model == want.deployment.model else ""
    if selected is None or selected.version == serving:
        return selected, ""
    phase, reason = _phase(want, found)
    other = f"version {serving} serves" if serving else "no version serves"
    note = f"Endpoint {endpoint}: version {selected.version} is {phase} ({reason}); {other}."
    if not (want.refused and serving):
        return selected, note
    try:
        return versions.get(want.deployment.model, serving), note
    except NotFoundError:  # it was deleted, and serves all the same
        return selected, note


def _main(own: Sequence[Deployment]) -> Deployment:
    return next((d for d in own if d.stage == "Production"), own[0])


def _deployments(path: str | Path | None) -> tuple[Deployment, ...]:
    """The deployments; none where there is no file and none was asked for."""
    if path is None and not config.deployments_path(None).exists():
        return ()
    return config.load_deployments(path)


def _model_of(name: str, deployments: Sequence[Deployment]) -> str:
    return next((d.model for d in deployments if name in (d.endpoint, d.name)), name)


def _endpoints(model: str, own: Sequence[Deployment]) -> list[Mapping[str, Any]]:
    names = {d.endpoint: d.name for d in own}
    return [
        {
            "deployment": names.get(state.endpoint, ""),
            "endpoint": state.endpoint,
            "target": state.target,
            "version": state.version,
            "url": state.url,
            "since": state.since,
            "up": state.up and state.ready,
        }
        for state in load_deployer("local").observe()
        if state.model == model
    ]


def predict(name: str, instances: Sequence[Any], path: str | Path | None = None) -> Predictions:
    """The predictions of an endpoint, or of the one that serves a model."""
    return Predictions(tuple(_ask(name, instances, path)))


def _ask(
    name: str, instances: Sequence[Any], path: str | Path | None
) -> Sequence[Mapping[str, Any]]:
    deployer = load_deployer("local")
    serving = [s for s in deployer.observe() if s.serves]
    if name in {s.endpoint for s in serving}:
        return deployer.predict(name, instances)
    of_model = [s.endpoint for s in serving if s.model == name]
    if of_model:
        return deployer.predict(of_model[0], instances)
    own = [d.endpoint for d in _deployments(path) if name in (d.name, d.model)]
    for endpoint in own:
        if endpoint in {s.endpoint for s in serving}:
            return deployer.predict(endpoint, instances)
    valid = {n for s in serving for n in (s.endpoint, s.model)}
    if own:
        raise ConfigError(
            f"{name} is not deployed: promote a version, then: greenroom deploy apply {own[0]}"
        )
    raise NotFoundError(f"nothing that serves is named {name!r}; {nearest(name, valid)}")

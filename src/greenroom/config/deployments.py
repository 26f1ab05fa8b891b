"""deployments.toml -> `specs.Deployment`: what serves where."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from greenroom import specs
from greenroom.config.tables import conditions, read_toml, section
from greenroom.errors import ConfigError
from greenroom.fields import Check, at_least, between, build, not_empty, one_of

TARGETS = ("local",)
STAGES = ("Staging", "Production")
STRATEGIES = ("all-at-once", "blue-green")

CHECKS: Mapping[str, Check] = {
    "name": not_empty,
    "model": not_empty,
    "stage": one_of(*STAGES),
    "target": one_of(*TARGETS),
    "port": between(0, 65536),
    "workers": at_least(1),
    "threads": at_least(0),
}

ROLLOUT: Mapping[str, Check] = {"strategy": one_of(*STRATEGIES), "keep_previous_s": at_least(0)}

_ENDPOINT = re.compile(r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")  # SageMaker's rule for endpoint names
_ALIAS = re.compile(r"^[a-z0-9_-]{1,255}$")


def deployments_path(path: str | Path | None = None) -> Path:
    """Which deployments file is meant: `path`, else GREENROOM_DEPLOYMENTS, else the registry's."""
    return Path(path or os.environ.get("GREENROOM_DEPLOYMENTS") or "registry/deployments.toml")


def load_deployments(path: str | Path | None = None) -> tuple[specs.Deployment, ...]:
    """The deployments of the file, in its order."""
    file = deployments_path(path)
    table = read_toml(file)
    problems: list[str] = []
    for key in table:
        if key != "deployment":
            problems.append(f"{key}: unknown key; valid: [[deployment]]")
    rows = table.get("deployment", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file}: deployment must be written as [[deployment]]")
    deployments = tuple(_deployment(row, i, problems) for i, row in enumerate(rows))
    for what in ("name", "endpoint"):
        seen: set[str] = set()
        for deployment in deployments:
            value = getattr(deployment, what)
            if value in seen:
                problems.append(f"two deployments have the {what} {value!r}")
            seen.add(value)
    for port, number in Counter(d.port for d in deployments if d.port).items():
        if number > 1:
            problems.append(f"{number} deployments have the port {port}; give each its own, or 0")
    if problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    return deployments


def _deployment(row: Mapping[str, Any], index: int, problems: list[str]) -> specs.Deployment:
    where = f"deployment {row.get('name') or row.get('endpoint') or index + 1}"
    endpoint = row.get("endpoint") or row.get("name") or row.get("model") or ""
    name = row.get("name") or endpoint
    deployment = build(
        specs.Deployment,
        {**row, "name": name, "endpoint": endpoint},
        where,
        CHECKS,
        problems,
        skip=("rollout", "gate"),
        rollout=build(
            specs.Rollout,
            section(row, "rollout", problems),
            f"{where}.rollout",
            ROLLOUT,
            problems,
        ),
        gate=conditions(row.get("gate", {}), f"{where}.gate", problems),
    )
    if not row.get("model"):
        problems.append(f"{where}.model: is missing; name the registered model")
    if bool(row.get("stage")) == bool(row.get("alias")):
        problems.append(f"{where}: give either stage or alias; valid stages: {', '.join(STAGES)}")
    if row.get("alias") and not _ALIAS.match(str(row["alias"])):
        problems.append(
            f"{where}.alias: {row['alias']!r}; use lower-case letters, digits, - and _ "
            "(MLflow's UI lower-cases aliases)"
        )
    if not _ENDPOINT.match(str(endpoint)):
        problems.append(
            f"{where}.endpoint: {endpoint!r}; use letters, digits and single hyphens, at most 63"
        )
    return deployment

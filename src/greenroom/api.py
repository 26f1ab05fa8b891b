"""The command line's verbs as functions, for notebooks and scripts: `greenroom.promote(...)`.

Each returns a frozen value; its `to_json()` is what the command prints. Reached through
`greenroom`, which imports this when it is first used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from greenroom import versions
from greenroom.deploy import overview, rollback
from greenroom.specs import EndpointStatus, Predictions, Production, Promotion


def production(name: str, deployments: str | Path | None = None) -> Production:
    """What is in production of a model: the version that is served, also after a rollback."""
    return overview.production(name, deployments)


def promote(name: str, version: str | int, *, stage: str = "", alias: str = "") -> Promotion:
    """Gives a version a stage or an alias; `greenroom watch` makes the endpoints follow.

    Rollbacks of the model end, also where the version has the stage or alias already.
    """
    done = versions.promote(name, version, stage=stage, alias=alias)
    rollback.forget(name)
    return Promotion(done.model, done.version, done.stage, done.aliases)


def deployments(path: str | Path | None = None) -> tuple[EndpointStatus, ...]:
    """Every deployment, desired beside actual."""
    return overview.status(path)


def predict(name: str, instances: Sequence[Any], path: str | Path | None = None) -> Predictions:
    """The predictions of an endpoint, or of the one that serves a model."""
    return overview.predict(name, instances, path)

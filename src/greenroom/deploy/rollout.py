"""One version onto one endpoint: start, probe, switch. Gate and package come before.

Called by `controller`. Until the switch the old version serves alone, and any failure leaves it so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from greenroom.deploy import probes
from greenroom.deploy.base import Deployer, EndpointState
from greenroom.errors import DeployError, StepError
from greenroom.specs import Rollout

Phase = Callable[[str], AbstractContextManager[None]]


def roll_out(
    deployer: Deployer, wanted: EndpointState, folder: Path, rollout: Rollout, phase: Phase
) -> None:
    """Puts the version of a model `folder` in place of whatever serves. `phase` wraps each step.

    Raises `StepError`; then the old version still serves, and nothing of the new one runs.
    """
    recorded = probes.read(folder, f"{wanted.model} version {wanted.version}")
    try:
        with phase("start"):
            deployer.start(wanted, folder)
        if recorded is not None:
            with phase("probe"):
                _probe(deployer, wanted, recorded)
        with phase("switch"):
            keep = rollout.keep_previous_s if rollout.strategy == "blue-green" else 0.0
            deployer.switch(wanted, keep)
    except BaseException:  # an interrupt as well: nothing half-started stays
        with contextlib.suppress(StepError):  # the first failure is the one to tell
            deployer.discard(wanted.endpoint)
        raise


def _probe(deployer: Deployer, wanted: EndpointState, recorded: probes.Probes) -> None:
    problems = probes.compare(recorded, deployer.ask(wanted.endpoint, recorded.instances))
    if problems:
        raise DeployError(
            f"{wanted.model} version {wanted.version} does not answer on {wanted.endpoint} as at "
            f"its evaluation: {'; '.join(problems)}"
        )

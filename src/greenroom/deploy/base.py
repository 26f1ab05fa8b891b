"""What a place that can serve models must offer, and the table of such places.

Add a place: a module with a class that has `Deployer`'s methods, and a line in `TARGETS`. A cloud's
SDK is imported inside that module, so a missing one breaks nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from greenroom.errors import ConfigError, nearest


@dataclass(frozen=True)
class EndpointState:
    """What one endpoint serves: as wanted, or as found."""

    endpoint: str
    target: str = "local"
    model: str = ""
    version: str = ""  # "": nothing is served
    source: str = ""  # MLflow's URI of the files: a version number can be made anew
    workers: int = 1
    threads: int = 0
    port: int = 0  # wanted 0: any
    owner: str = ""  # the deployments file that asks for it, or that made it
    up: bool = True  # found False: it should answer, and does not
    ready: bool = True  # found False: its workers are being started
    hold: bool = False  # wanted True: keep what serves now (the registry is silent, a gate refuses)
    url: str = ""
    since: str = ""  # ISO 8601, UTC

    @property
    def serves(self) -> bool:
        """Whether there is a version here at all."""
        return bool(self.version)


@dataclass(frozen=True)
class Action:
    """One thing to do at one endpoint."""

    kind: str  # create, replace, restart, remove
    endpoint: str
    target: str
    before: EndpointState | None
    after: EndpointState | None
    heir: str = ""  # of a removal: the endpoint that is to have its port, and comes after it

    def __str__(self) -> str:
        old = f"{self.before.model} version {self.before.version}" if self.before else ""
        new = f"{self.after.model} version {self.after.version}" if self.after else ""
        where = f"{self.endpoint} ({self.target})"
        port = f", for {self.heir} takes over its port" if self.heir else ""
        return {
            "create": f"+ {where}: serve {new}",
            "replace": f"~ {where}: {old} -> {new}",
            "restart": f"! {where}: bring {old} up again",
            "remove": f"- {where}: take {old} down{port}",
        }[self.kind]


class Deployer(Protocol):
    """One place. Every method is safe to repeat; one that fails raises `StepError`."""

    def observe(self) -> tuple[EndpointState, ...]:
        """The endpoints of this place that greenroom made, as they are."""

    def lock(self, endpoint: str, wait_s: float) -> AbstractContextManager[bool]:
        """Keeps other controllers from the endpoint; False when one is at it after `wait_s`."""

    def start(self, wanted: EndpointState, package: Path) -> None:
        """Starts the version beside what serves, without traffic, and waits until it is ready."""

    def ask(self, endpoint: str, instances: Sequence[Any]) -> list[Mapping[str, Any]]:
        """The predictions of the version that was started, before it has traffic."""

    def switch(self, wanted: EndpointState, keep_previous_s: float) -> None:
        """Gives the started version all traffic; the old one drains, and goes after the time."""

    def discard(self, endpoint: str) -> None:
        """Ends the started version; what serves is not touched."""

    def restart(self, found: EndpointState) -> None:
        """Brings up again what served, at the same address."""

    def remove(self, found: EndpointState) -> None:
        """Takes the endpoint down once what is in flight is answered."""

    def predict(self, endpoint: str, instances: Sequence[Any]) -> list[Mapping[str, Any]]:
        """The predictions of what serves."""


TARGETS: Mapping[str, str] = {"local": "greenroom.deploy.local:LocalDeployer"}


def load_deployer(target: str) -> Deployer:
    """The deployer of a target, imported now."""
    if target not in TARGETS:
        raise ConfigError(f"unknown target {target!r}; {nearest(target, TARGETS)}")
    module, _, name = TARGETS[target].partition(":")
    return cast(Deployer, getattr(importlib.import_module(module), name)())

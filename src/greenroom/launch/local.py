"""This machine: the base case. The step runs in the process that asked for it."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

from greenroom.errors import ConfigError
from greenroom.launch.base import Work
from greenroom.specs import Profile, Request, StepResult


class LocalLauncher:
    """Runs the step here, on the accelerator that the profile names or the best one found."""

    def check(self, request: Request) -> None:
        """Refuses an accelerator that this machine has not."""
        resolve(request.profile)

    def run(self, request: Request, work: Work) -> StepResult:
        """Does the work in this process."""
        profile = resolve(request.profile)
        if profile.threads:
            # Read by torch's OpenMP when it is first imported, which is after this.
            os.environ["OMP_NUM_THREADS"] = str(profile.threads)
        return work(replace(request, profile=profile))


def accelerators() -> tuple[str, ...]:
    """The accelerators of this machine, best first, found without importing torch."""
    found = ["cpu"]
    if Path("/dev/nvidiactl").exists():
        found.insert(0, "gpu")
    if importlib.util.find_spec("habana_frameworks") is not None and any(
        Path("/dev/accel").glob("accel[0-9]*")
    ):
        found.insert(0, "hpu")
    return tuple(found)


def resolve(profile: Profile) -> Profile:
    """The profile with its accelerator decided; `ConfigError` where this machine lacks it."""
    here = accelerators()
    if profile.accelerator and profile.accelerator not in here:
        raise ConfigError(
            f"hardware {profile.name}: this machine has no {profile.accelerator}; it has: "
            f"{', '.join(here)}; choose another with -P hardware=NAME (greenroom doctor lists what "
            "was found)"
        )
    return replace(profile, accelerator=profile.accelerator or here[0])

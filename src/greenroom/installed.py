"""What is installed, beside what greenroom's own metadata asks for. Called by `doctor`."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement


def requirements(extra: str) -> list[Requirement]:
    """What greenroom's metadata declares for an extra ("": for the core) on this Python."""
    if not version("greenroom"):
        return []
    declared = map(Requirement, importlib.metadata.requires("greenroom") or [])
    found = []
    for requirement in declared:
        marker = requirement.marker
        in_core = marker is None or marker.evaluate({"extra": ""})
        if in_core == (extra == "") and (marker is None or marker.evaluate({"extra": extra})):
            found.append(requirement)
    return found


def complaint(requirement: Requirement) -> str:
    """What is wrong with an installed package; "" when it is as declared."""
    installed = version(requirement.name)
    if not installed:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(installed.partition("+")[0], prereleases=True):
        return f"{requirement.name} {installed} is not {requirement.specifier}"
    return ""


def version(name: str) -> str:
    """The installed version of a package; "" when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""

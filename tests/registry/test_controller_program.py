"""registry/: the shipped deployments file is good, and the program beside it runs the loop."""

from __future__ import annotations

from pathlib import Path

import processkit
from deploykit import World
from greenroom import config, versions
from greenroom.deploy.local import LocalDeployer

REGISTRY = Path(__file__).resolve().parents[2] / "registry"


def test_the_shipped_deployments_follow_a_stage_and_an_alias() -> None:
    by_stage, by_alias = config.load_deployments(REGISTRY / "deployments.toml")
    assert (by_stage.endpoint, by_stage.selector) == ("question-types", "stage Production")
    assert (by_alias.endpoint, by_alias.selector) == ("question-types-champion", "alias champion")
    assert [str(condition) for condition in by_alias.gate] == ["accuracy >= 0.85"]


def test_the_program_deploys_what_is_promoted(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    program = processkit.python(
        str(REGISTRY / "controller.py"), "--once", "--deployments", str(world.file)
    )
    _, log = program.communicate(timeout=120)
    assert program.returncode == 0, log
    assert [state.version for state in LocalDeployer().observe()] == ["1"]

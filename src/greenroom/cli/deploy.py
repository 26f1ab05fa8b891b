"""`deploy plan|apply|retry|stop`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from greenroom.cli.common import Group, deployments_option, json_option, print_json

if TYPE_CHECKING:
    from greenroom.deploy.controller import Outcome


@click.group(cls=Group)
def deploy() -> None:
    """Show, make or undo what the registry and deployments.toml ask for.

    \b
    greenroom deploy plan          # what would change; changes nothing
    greenroom deploy apply         # do it once (watch does it for ever)
    greenroom deploy stop NAME     # take an endpoint down
    """


@deploy.command("plan")
@click.argument("names", nargs=-1)
@json_option
@deployments_option
def deploy_plan(names: tuple[str, ...], as_json: bool, deployments: str | None) -> None:
    """Show what apply would do to all endpoints, or to NAMES. Changes nothing."""
    from greenroom.deploy import controller
    from greenroom.specs import as_plain

    seen = controller.plan(deployments, names)
    refused = [(w.deployment.endpoint, w.refused) for w in seen.wanted if w.refused]
    if as_json:
        reasons = [{"endpoint": endpoint, "reason": why} for endpoint, why in refused]
        print_json({"actions": [as_plain(a) for a in seen.actions], "refused": reasons})
        return
    for action in seen.actions:
        click.echo(str(action))
    for endpoint, why in refused:
        click.echo(f"= {endpoint}: stays as it is: {why}")
    if not seen.actions and not refused:
        click.echo("Nothing to do: every endpoint serves what the registry selects.")


@deploy.command("apply")
@click.argument("names", nargs=-1)
@json_option
@deployments_option
def deploy_apply(names: tuple[str, ...], as_json: bool, deployments: str | None) -> None:
    """Make all endpoints, or NAMES, serve what the registry selects; return when they do."""
    from greenroom.deploy import controller

    _report(controller.apply(deployments, names), as_json)


@deploy.command("retry")
@click.argument("name")
@json_option
@deployments_option
def deploy_retry(name: str, as_json: bool, deployments: str | None) -> None:
    """Try a version that failed on endpoint NAME again, although nothing has changed."""
    from greenroom.deploy import controller

    _report(controller.retry(name, deployments), as_json)


@deploy.command("stop")
@click.argument("name")
@json_option
@deployments_option
def deploy_stop(name: str, as_json: bool, deployments: str | None) -> None:
    """Take endpoint NAME down, once what is in flight is answered.

    A running watch brings it up again while the registry selects a version for it.
    """
    from greenroom.deploy import controller

    _report((controller.stop(name, deployments),), as_json)


def _report(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """Prints what was done; exit code 1 when anything was not."""
    from greenroom.specs import as_plain

    if as_json:
        print_json([as_plain(outcome) for outcome in outcomes])
    for outcome in outcomes:
        if not as_json:
            failed = f"\n  failed: {outcome.error}" if outcome.error else ""
            click.echo(f"{outcome.what}{failed}")
    if not outcomes and not as_json:
        click.echo("Nothing to do: every endpoint serves what the registry selects.")
    sys.exit(1 if any(outcome.error for outcome in outcomes) else 0)

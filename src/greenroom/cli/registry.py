"""`promote`, `production`, `status`: the registry, and what serves of it."""

from __future__ import annotations

import click

from greenroom.cli.common import cell, deployments_option, json_option, print_json


@click.command()
@click.argument("name")
@click.argument("version")
@click.option("--stage", metavar="STAGE", help="Production, Staging, Archived or None.")
@click.option("--alias", metavar="ALIAS", help="An alias, such as champion.")
@json_option
def promote(name: str, version: str, stage: str | None, alias: str | None, as_json: bool) -> None:
    """Give VERSION of model NAME a stage or an alias; endpoints follow (see watch).

    \b
    greenroom promote question-types 3 --stage Production   # 3 replaces what is there
    greenroom promote question-types 3 --alias champion
    greenroom promote question-types 3 --stage Archived     # takes it off: demotion
    """
    from greenroom import api, versions

    if bool(stage) == bool(alias):
        raise click.UsageError("give either --stage or --alias")
    stages = {known.lower(): known for known in versions.STAGES}
    stage = stages.get((stage or "").lower(), stage)
    done = api.promote(name, version, stage=stage or "", alias=alias or "")
    if as_json:
        click.echo(done.to_json())
    else:
        what = f"in stage {done.stage}" if stage else f"alias {alias}"
        click.echo(f"{done.model} version {done.version}: {what}")


@click.command()
@click.argument("name")
@json_option
@deployments_option
def production(name: str, as_json: bool, deployments: str | None) -> None:
    """Say which version of model NAME is in production, and where it came from."""
    from greenroom.deploy import overview

    answer = overview.production(name, deployments)
    if answer.overruled:
        click.echo(
            f"The registry is overruled: it selects version {answer.overruled}, and a rollback put "
            f"version {answer.version} back. Its next change of a stage or an alias "
            f"ends that.",
            err=True,
        )
    if answer.unserved:
        click.echo(answer.unserved, err=True)
    if as_json:
        click.echo(answer.to_json())
        return
    for key, value in answer.to_dict().items():
        click.echo(f"{key:12} {cell(value)}")


@click.command()
@json_option
@deployments_option
def status(as_json: bool, deployments: str | None) -> None:
    """Show every deployment: the version that the registry selects beside the one that serves."""
    from greenroom.deploy import overview
    from greenroom.specs import as_plain

    rows = [as_plain(row) for row in overview.status(deployments)]
    if as_json:
        print_json(rows)
        return
    shown = ("deployment", "model", "desired_version", "actual_version", "phase", "url", "reason")
    heads = ("DEPLOYMENT", "MODEL", "DESIRED", "ACTUAL", "PHASE", "URL", "REASON")
    table = [heads, *(tuple(row[key] or "-" for key in shown) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(heads))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())

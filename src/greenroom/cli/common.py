"""What several commands share: the error-handling group, options, printing."""

from __future__ import annotations

import json
from typing import Any

import click

from greenroom.errors import GreenroomError


class Group(click.Group):
    """Our errors become a message and an exit code; a traceback only with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except GreenroomError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.exit_code)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
deployments_option = click.option(
    "--deployments",
    metavar="FILE",
    help="The deployments file. [default: GREENROOM_DEPLOYMENTS, else registry/deployments.toml]",
)


def print_json(value: Any) -> None:
    """One line of JSON on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))


def cell(value: Any) -> str:
    """A value in a table for people."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

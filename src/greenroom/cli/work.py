"""`run` and `doctor`: the steps, and what this machine has for them."""

from __future__ import annotations

import sys

import click

from greenroom.cli.common import json_option


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("step")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(step: str, arguments: tuple[str, ...]) -> None:
    """Run a STEP here: data, tune, train, evaluate or main.

    \b
    The arguments are those of `mlflow run -P`, as --key value:
      greenroom run train --experiment experiments/question-types.toml --training.epochs 2
    """
    from greenroom import steps

    sys.exit(steps.main(step, list(arguments)))


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say which hardware, stores, credentials and extras are here, and what is missing for what."""
    from greenroom import doctor as program

    sys.exit(program.main(as_json))

"""The command `greenroom`. Everything heavy is imported inside the command that needs it.

stdout carries the answer (with --json, only JSON), stderr logs and errors. Exit codes: 0 done,
1 failed, 2 wrong use.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import click

from greenroom.cli import deploy, endpoints, registry, work
from greenroom.cli.common import Group

_COMPLETION = """
Shell completion: eval "$(_GREENROOM_COMPLETE=bash_source greenroom)", or zsh_source, or
fish_source.
"""


@click.group(
    cls=Group, epilog=_COMPLETION, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="greenroom", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Where models get ready before they go on stage.

    \b
    Examples:
      greenroom run train --training.epochs 2
      greenroom promote question-types 3 --stage Production
      greenroom watch
      greenroom predict question-types "Who wrote Hamlet?"
      greenroom production question-types --json
      greenroom rollback question-types
    """
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    for name in ("alembic", "mlflow.store", "urllib3", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    if context.invoked_subcommand != "run":  # hours of training outlast a store that is away
        # MLflow's client would try for minutes: too long for an answer, and a watch that waits
        # looks after no endpoint.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    cli.main(args=None if argv is None else list(argv), prog_name="greenroom")


for _command in (
    work.run,
    work.doctor,
    registry.promote,
    registry.production,
    registry.status,
    endpoints.predict,
    endpoints.serve,
    endpoints.watch,
    endpoints.rollback,
    deploy.deploy,
):
    cli.add_command(_command)

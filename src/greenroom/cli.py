"""The command `greenroom`. Everything heavy is imported inside the command that needs it.

stdout carries the answer (with --json, only JSON), stderr logs and errors. Exit codes: 0 done,
1 failed, 2 wrong use.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from greenroom.errors import GreenroomError

if TYPE_CHECKING:
    from greenroom.deploy.controller import Outcome

_COMPLETION = """
Shell completion: eval "$(_GREENROOM_COMPLETE=bash_source greenroom)", or zsh_source, or
fish_source.
"""


class _Group(click.Group):
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


@click.group(
    cls=_Group, epilog=_COMPLETION, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="greenroom", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug logs.")
def cli(debug: bool) -> None:
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


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    cli.main(args=None if argv is None else list(argv), prog_name="greenroom")


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
_deployments = click.option(
    "--deployments",
    metavar="FILE",
    help="The deployments file. [default: GREENROOM_DEPLOYMENTS, else registry/deployments.toml]",
)


# -- steps --------------------------------------------------------------------------------------


@cli.command(context_settings={"ignore_unknown_options": True})
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


@cli.command()
@_json
def doctor(as_json: bool) -> None:
    """Say which hardware, stores, credentials and extras are here, and what is missing for what."""
    from greenroom import doctor as program

    sys.exit(program.main(as_json))


# -- the registry -------------------------------------------------------------------------------


@cli.command()
@click.argument("name")
@click.argument("version")
@click.option("--stage", metavar="STAGE", help="Production, Staging, Archived or None.")
@click.option("--alias", metavar="ALIAS", help="An alias, such as champion.")
@_json
def promote(name: str, version: str, stage: str | None, alias: str | None, as_json: bool) -> None:
    """Give VERSION of model NAME a stage or an alias; endpoints follow (see watch).

    \b
    greenroom promote question-types 3 --stage Production   # 3 replaces what is there
    greenroom promote question-types 3 --alias champion
    greenroom promote question-types 3 --stage Archived     # takes it off: demotion
    """
    from greenroom import versions

    if bool(stage) == bool(alias):
        raise click.UsageError("give either --stage or --alias")
    stages = {known.lower(): known for known in versions.STAGES}
    stage = stages.get((stage or "").lower(), stage)
    done = versions.promote(name, version, stage=stage or "", alias=alias or "")
    if as_json:
        _print(
            {
                "model": done.model,
                "version": done.version,
                "stage": done.stage,
                "aliases": list(done.aliases),
            }
        )
    else:
        what = f"in stage {done.stage}" if stage else f"alias {alias}"
        click.echo(f"{done.model} version {done.version}: {what}")


@cli.command()
@click.argument("name")
@_json
@_deployments
def production(name: str, as_json: bool, deployments: str | None) -> None:
    """Say which version of model NAME is in production, and where it came from."""
    from greenroom.deploy import overview
    from greenroom.specs import as_plain

    answer = overview.production(name, deployments)
    if answer.overruled:
        click.echo(
            f"The registry is overruled: it selects version {answer.overruled}, and a rollback put "
            f"version {answer.production.version} back. Its next change of a stage or an alias "
            f"ends that.",
            err=True,
        )
    table = as_plain(answer.to_dict())
    if as_json:
        _print(table)
        return
    for key, value in table.items():
        click.echo(f"{key:12} {_cell(value)}")


@cli.command()
@_json
@_deployments
def status(as_json: bool, deployments: str | None) -> None:
    """Show every deployment: the version that the registry selects beside the one that serves."""
    from greenroom.deploy import overview
    from greenroom.specs import as_plain

    rows = [as_plain(row) for row in overview.status(deployments)]
    if as_json:
        _print(rows)
        return
    shown = ("deployment", "model", "desired_version", "actual_version", "phase", "url", "reason")
    heads = ("DEPLOYMENT", "MODEL", "DESIRED", "ACTUAL", "PHASE", "URL", "REASON")
    table = [heads, *(tuple(row[key] or "-" for key in shown) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(heads))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


# -- endpoints ----------------------------------------------------------------------------------


@cli.command()
@click.argument("name")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@_json
@_deployments
def predict(name: str, texts: tuple[str, ...], as_json: bool, deployments: str | None) -> None:
    """Ask the endpoint NAME (or the one that serves model NAME) about each TEXT.

    \b
    greenroom predict question-types "Who wrote Hamlet?" "Where is Lyon?"
    """
    from greenroom.deploy import overview

    answers = overview.predict(name, list(texts), deployments)
    if as_json:
        _print({"predictions": answers})
        return
    for text, answer in zip(texts, answers, strict=True):
        cut = " (truncated)" if answer.get("truncated") else ""
        click.echo(f"{answer['label']}\t{answer['score']:.4f}\t{text}{cut}")


@cli.command()
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), help="[default: AIP_HTTP_PORT, else 8080]")
@click.option("--socket", metavar="PATH", help="A unix socket, instead of host and port.")
@click.option(
    "--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: torch's choice."
)
def serve(model: str, host: str, port: int | None, socket: str | None, threads: int) -> None:
    """Serve MODEL, a folder or models:/NAME/VERSION, until interrupted.

    \b
    greenroom serve models:/question-types/3 --port 8080
    curl localhost:8080/invocations -d '{"instances": ["Who wrote Hamlet?"]}'
    """
    from greenroom.deploy import package

    folder = str(package.open_model(model))
    argv = ["-m", "greenroom.serving.server", folder, "--host", host, "--threads", str(threads)]
    argv += ["--port", str(port)] if port else []
    argv += ["--socket", socket] if socket else []
    sys.stderr.flush()
    # A process of its own: MLflow, which may have fetched the model, is not carried along.
    os.execv(sys.executable, [sys.executable, *argv])


@cli.command()
@click.option("--interval", type=click.FloatRange(0.1), default=5.0, show_default=True, help="s")
@click.option("--once", is_flag=True, help="Look once, act, and end.")
@_deployments
def watch(interval: float, once: bool, deployments: str | None) -> None:
    """Keep endpoints as the registry selects: look, act on the difference, look again."""
    import signal
    import threading

    # MLflow's client would retry for minutes, and meanwhile no endpoint be looked after.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    from greenroom import config
    from greenroom.deploy import controller

    config.load_deployments(deployments)  # a bad file ends the command; a later edit does not
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sys.exit(controller.watch(deployments, interval, once=once, stop=stop))


@cli.command()
@click.argument("name")
@click.option(
    "--to", "version", metavar="VERSION", help="[default: the version that served before]"
)
@_json
@_deployments
def rollback(name: str, version: str | None, as_json: bool, deployments: str | None) -> None:
    """Put the last good version back on the endpoint of NAME, and return when it serves.

    The registry is overruled until the model's next change of a stage or an alias.
    """
    from greenroom.deploy import rollback as program
    from greenroom.specs import as_plain

    done = program.roll_back(name, deployments, version or "")
    if as_json:
        _print(as_plain(done))
    else:
        click.echo(f"{done.endpoint}: version {done.from_version} -> {done.version}")


@cli.group(cls=_Group)
def deploy() -> None:
    """Show, make or undo what the registry and deployments.toml ask for.

    \b
    greenroom deploy plan          # what would change; changes nothing
    greenroom deploy apply         # do it once (watch does it for ever)
    greenroom deploy stop NAME     # take an endpoint down
    """


@deploy.command("plan")
@click.argument("names", nargs=-1)
@_json
@_deployments
def deploy_plan(names: tuple[str, ...], as_json: bool, deployments: str | None) -> None:
    """Show what apply would do to all endpoints, or to NAMES. Changes nothing."""
    from greenroom.deploy import controller
    from greenroom.specs import as_plain

    seen = controller.plan(deployments, names)
    refused = [(w.deployment.endpoint, w.refused) for w in seen.wanted if w.refused]
    if as_json:
        reasons = [{"endpoint": endpoint, "reason": why} for endpoint, why in refused]
        _print({"actions": [as_plain(a) for a in seen.actions], "refused": reasons})
        return
    for action in seen.actions:
        click.echo(str(action))
    for endpoint, why in refused:
        click.echo(f"= {endpoint}: stays as it is: {why}")
    if not seen.actions and not refused:
        click.echo("Nothing to do: every endpoint serves what the registry selects.")


@deploy.command("apply")
@click.argument("names", nargs=-1)
@_json
@_deployments
def deploy_apply(names: tuple[str, ...], as_json: bool, deployments: str | None) -> None:
    """Make all endpoints, or NAMES, serve what the registry selects; return when they do."""
    from greenroom.deploy import controller

    _report(controller.apply(deployments, names), as_json)


@deploy.command("retry")
@click.argument("name")
@_json
@_deployments
def deploy_retry(name: str, as_json: bool, deployments: str | None) -> None:
    """Try a version that failed on endpoint NAME again, although nothing has changed."""
    from greenroom.deploy import controller

    _report(controller.retry(name, deployments), as_json)


@deploy.command("stop")
@click.argument("name")
@_json
@_deployments
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
        _print([as_plain(outcome) for outcome in outcomes])
    for outcome in outcomes:
        if not as_json:
            failed = f"\n  failed: {outcome.error}" if outcome.error else ""
            click.echo(f"{outcome.what}{failed}")
    if not outcomes and not as_json:
        click.echo("Nothing to do: every endpoint serves what the registry selects.")
    sys.exit(1 if any(outcome.error for outcome in outcomes) else 0)


# -- printing -----------------------------------------------------------------------------------


def _print(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main()

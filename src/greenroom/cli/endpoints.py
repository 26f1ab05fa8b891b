"""`predict`, `serve`, `watch`, `rollback`: endpoints."""

from __future__ import annotations

import os
import sys

import click

from greenroom.cli.common import deployments_option, json_option, print_json


@click.command()
@click.argument("name")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@json_option
@deployments_option
def predict(name: str, texts: tuple[str, ...], as_json: bool, deployments: str | None) -> None:
    """Ask the endpoint NAME (or the one that serves model NAME) about each TEXT.

    \b
    greenroom predict question-types "Who wrote Hamlet?" "Where is Lyon?"
    """
    from greenroom.deploy import overview

    answers = overview.predict(name, list(texts), deployments)
    if as_json:
        click.echo(answers.to_json())
        return
    for text, answer in zip(texts, answers.predictions, strict=True):
        cut = " (truncated)" if answer.get("truncated") else ""
        click.echo(f"{answer['label']}\t{answer['score']:.4f}\t{text}{cut}")


@click.command()
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


@click.command()
@click.option("--interval", type=click.FloatRange(0.1), default=5.0, show_default=True, help="s")
@click.option("--once", is_flag=True, help="Look once, act, and end.")
@deployments_option
def watch(interval: float, once: bool, deployments: str | None) -> None:
    """Keep endpoints as the registry selects: look, act on the difference, look again."""
    import signal
    import threading

    from greenroom import config
    from greenroom.deploy import controller

    config.load_deployments(deployments)  # a bad file ends the command; a later edit does not
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sys.exit(controller.watch(deployments, interval, once=once, stop=stop))


@click.command()
@click.argument("name")
@click.option(
    "--to", "version", metavar="VERSION", help="[default: the version that served before]"
)
@json_option
@deployments_option
def rollback(name: str, version: str | None, as_json: bool, deployments: str | None) -> None:
    """Put the last good version back on the endpoint of NAME, and return when it serves.

    The registry is overruled until the model's next change of a stage or an alias.
    """
    from greenroom.deploy import rollback as program
    from greenroom.specs import as_plain

    done = program.roll_back(name, deployments, version or "")
    if as_json:
        print_json(as_plain(done))
    else:
        click.echo(f"{done.endpoint}: version {done.from_version} -> {done.version}")

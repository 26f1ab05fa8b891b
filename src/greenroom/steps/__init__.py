"""The steps of an experiment, and the one way in: `main(step, argv)`.

Called by the entry points, the command line and `greenroom.run`. Joins data, training and tuning
with MLflow; those know nothing of each other.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import click

from greenroom import config, paths
from greenroom.errors import GreenroomError
from greenroom.launch import launcher
from greenroom.specs import Request, StepResult

log = logging.getLogger(__name__)

_STEPS: Mapping[str, str] = {
    "data": "greenroom.steps.data",
    "tune": "greenroom.steps.tune",
    "train": "greenroom.steps.train",
    "evaluate": "greenroom.steps.evaluate",
    "main": "greenroom.steps.whole",
}


def main(step: str, argv: Sequence[str]) -> int:
    """Runs a step as its entry point: 0 done, 1 failed, 2 wrong use, 130 or 143 interrupted."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    for noisy in ("alembic", "mlflow", "accelerate", "httpx", "matplotlib", "hyperopt"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = execute(config.parse_arguments(step, argv))
    except OSError as error:  # a full disk, a folder that may not be written
        click.echo(f"error: {error}", err=True)
        return 1
    except GreenroomError as error:
        for line in str(error).splitlines():
            click.echo(f"error: {line}", err=True)
        return error.exit_code
    except Terminated:
        click.echo("terminated; run the same command again to continue", err=True)
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        click.echo("interrupted; run the same command again to continue", err=True)
        return 128 + signal.SIGINT
    click.echo(result.to_json())
    return 0


def run(
    step: str,
    experiment: str | None = None,
    hardware: str = "local",
    tuned: str = "",
    run: str = "",
    **overrides: Any,
) -> StepResult:
    """Runs a step from Python; overrides are dotted names: `**{"training.epochs": 2}`."""
    options = {"experiment": experiment or "", "hardware": hardware, "tuned": tuned, "run": run}
    words = [f"--{k}={v}" for k, v in [*options.items(), *_texts(overrides)]]
    return execute(config.parse_arguments(step, words))


def _texts(overrides: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Overrides as they would be typed: a list with commas, a table key by key, None not at all."""
    found: list[tuple[str, str]] = []
    for key, value in overrides.items():
        if isinstance(value, Mapping) and key == "data.splits":
            found.append((key, ",".join(f"{k}={v}" for k, v in value.items())))
        elif isinstance(value, Mapping):
            found += _texts({f"{key}.{inner}": v for inner, v in value.items()})
        elif isinstance(value, (list, tuple)):
            found.append((key, ",".join(map(str, value))))
        elif value is not None:
            found.append((key, str(value)))
    return found


def execute(request: Request) -> StepResult:
    """Checks what can be checked before anything starts, then runs the step at its place."""
    _environment()
    paths.check_home()
    place = launcher(request.profile.place)
    place.check(request)
    module = importlib.import_module(_STEPS[request.step])
    result: StepResult = place.run(request, module.run)
    return result


def _environment() -> None:
    """Settings that libraries read when they are imported; the user's own go before."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # OpenMP's threads spin while they wait, which on a machine with other work takes the time
        # of the very thread waited for. So many rounds (about 10 us) bridge the gaps between the
        # operations of a step, and no more (docs/decisions.md has the figures).
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends like Ctrl-C, so that checkpoints and runs are closed alike."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated

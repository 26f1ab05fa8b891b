"""The demo, step by step: nothing but the public commands, each shown before it runs.

`make demo` runs it, `make clean-demo` runs it with --clean. Everything it makes lies in .demo.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".demo"
MODEL = "question-types"
TRIALS = 2  # each takes 35 s on two idle cores, twice that on busy ones
QUESTION = "Who wrote Hamlet?"


def main() -> None:
    """Runs the demo, or takes it down."""
    parser = argparse.ArgumentParser(description="From a data set to an endpoint that answers")
    parser.add_argument("--clean", action="store_true", help="take the demo's endpoint down")
    if parser.parse_args().clean:
        clean()
        return
    started = time.monotonic()
    prepare()
    main_job = ("mlflow", "run", ".", "--env-manager", "local", "-e", "main")
    call(*main_job, "--experiment-name", MODEL, "-P", f"tuning.max_trials={TRIALS}")
    version = newest_version()
    call("greenroom", "promote", MODEL, version, "--stage", "Production")
    call("greenroom", "deploy", "apply")
    call("greenroom", "status")
    report(time.monotonic() - started)


def environment() -> Mapping[str, str]:
    """This process's environment with everything kept in .demo, and no hub asked."""
    bin_folder = str(Path(sys.executable).parent)
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")},
        "PATH": os.pathsep.join((bin_folder, os.environ.get("PATH", ""))),
        "MLFLOW_TRACKING_URI": store(),
        "GREENROOM_HOME": str(HOME / "home"),
        "HF_HUB_OFFLINE": "1",
    }


def store() -> str:
    """The MLflow store of the demo."""
    return f"sqlite:///{HOME / 'mlflow.db'}"


def prepare() -> None:
    """The folder and the MLflow experiment, whose artifacts would else lie in ./mlruns."""
    from mlflow import MlflowClient

    HOME.mkdir(exist_ok=True)
    client = MlflowClient(store())
    if client.get_experiment_by_name(MODEL) is None:
        client.create_experiment(MODEL, artifact_location=(HOME / "artifacts").as_uri())


def newest_version() -> str:
    """The version that the main job has just registered."""
    from mlflow import MlflowClient

    found = MlflowClient(store()).search_model_versions(f"name = '{MODEL}'")
    return str(max(int(version.version) for version in found))


def report(seconds: float) -> None:
    """What was reached, and where to look."""
    production = answer("greenroom", "production", MODEL, "--json")
    status = answer("greenroom", "status", "--json")
    url = next(row["url"] for row in status if row["endpoint"] == MODEL)
    prediction = answer("greenroom", "predict", MODEL, QUESTION, "--json")["predictions"][0]
    accuracy = production["metrics"]["accuracy"]
    print(f"\nDone in {seconds:.0f} s.")
    print(f"  version     {production['version']} of {MODEL}, run {production['run_id']}")
    print(f"  accuracy    {accuracy:.3f} on test questions that training never saw")
    print(f"  endpoint    {url}")
    print(f"  prediction  {QUESTION!r} asks for {prediction['label']} ({prediction['score']:.2f})")
    body = json.dumps({"instances": [QUESTION]})
    print(f"  ask it      curl {url} -H 'content-type: application/json' -d '{body}'")
    ui = Path(sys.executable).parent / "mlflow"
    print(f"  MLflow UI   {ui} ui --backend-store-uri {store()}")
    print("              and open http://127.0.0.1:5000")
    print("  take down   make clean-demo")


def clean() -> None:
    """Stops the demo's endpoints."""
    if not (HOME / "mlflow.db").exists():
        return
    for row in answer("greenroom", "status", "--json"):
        if row["url"]:
            call("greenroom", "deploy", "stop", row["endpoint"])


def call(*command: str) -> None:
    """Shows a command, runs it and ends the demo when it fails."""
    print(f"\n$ {shlex.join(command)}", flush=True)
    done = subprocess.run(resolved(command), cwd=ROOT, env=environment())
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with exit code {done.returncode}")


def answer(*command: str) -> Any:
    """The JSON that a command prints."""
    done = subprocess.run(
        resolved(command), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def resolved(command: Sequence[str]) -> list[str]:
    """The command with its program taken from this environment."""
    return [str(Path(sys.executable).parent / command[0]), *command[1:]]


if __name__ == "__main__":
    main()

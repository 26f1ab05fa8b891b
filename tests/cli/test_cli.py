"""The command line: what it prints, how it ends, what it imports."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

import processkit
from deploykit import World
from greenroom import paths, versions
from greenroom.cli import cli

HEAVY = {"torch", "mlflow", "transformers", "numpy", "pyarrow", "aiohttp", "pandas", "datasets"}


def _run(world: World | None, *args: str) -> Result:
    where = ["--deployments", str(world.file)] if world else []
    return CliRunner().invoke(cli, [*args, *where])


def _json(world: World, *args: str) -> Any:
    result = _run(world, *args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    program = (
        "import sys\n"
        "from greenroom.cli import cli\n"
        "cli.main(['--help'], standalone_mode=False)\n"
        "print(sorted({n.partition('.')[0] for n in sys.modules}), file=sys.stderr)"
    )
    run: dict[str, Any] = {"env": processkit.env(), "capture_output": True, "text": True}

    def seconds(code: str) -> float:
        times = []
        for _ in range(5):
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", code], check=True, **run)
            times.append(time.monotonic() - began)
        return min(times)

    done = subprocess.run([sys.executable, "-c", program], check=True, **run)
    assert "Examples:" in done.stdout
    assert "_GREENROOM_COMPLETE" in done.stdout
    assert not HEAVY & set(json.loads(done.stderr.replace("'", '"')))
    assert seconds(program) - seconds("pass") < 0.25


@pytest.mark.parametrize("command", [*sorted(cli.commands), "deploy plan", "deploy apply"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_a_whole_life(world: World) -> None:
    world.version(1, accuracy=0.91)
    world.version(2, accuracy=0.95)
    assert _json(world, "deploy", "plan") == {"actions": [], "refused": []}
    result = CliRunner().invoke(cli, ["promote", "tiny", "1", "--stage", "production"])
    assert result.stdout == "tiny version 1: in stage Production\n"
    plan = _run(world, "deploy", "plan")
    assert plan.stdout == "+ tiny (local): serve tiny version 1\n"
    assert not paths.endpoints().exists()
    applied = _run(world, "deploy", "apply")
    assert (applied.exit_code, applied.stdout) == (0, "+ tiny (local): serve tiny version 1\n")
    assert "Nothing to do" in _run(world, "deploy", "apply").stdout

    (status,) = _json(world, "status")
    assert list(status) == [
        *("deployment", "model", "target", "endpoint", "desired_version", "actual_version"),
        *("phase", "url", "reason"),
    ]
    assert (status["desired_version"], status["actual_version"]) == ("1", "1")
    assert status["phase"] == "serving"
    assert "serving" in _run(world, "status").stdout

    predicted = _json(world, "predict", "tiny", "where is paris", "a dog")
    assert len(predicted["predictions"]) == 2
    assert "where is paris" in _run(world, "predict", "tiny", "where is paris").stdout

    CliRunner().invoke(cli, ["promote", "tiny", "2", "--stage", "Production"])
    assert _run(world, "deploy", "apply", "tiny").exit_code == 0
    production = _json(world, "production", "tiny")
    assert list(production) == [
        *("model", "version", "stage", "aliases", "since", "run_id", "parameters", "metrics"),
        *("snapshot", "git_commit", "endpoints"),
    ]
    assert (production["version"], production["stage"]) == ("2", "Production")
    assert production["parameters"] == {"seed": "2", "é": "escaped"}
    assert production["metrics"] == {"accuracy": 0.95}
    assert production["snapshot"] == "s" * 32
    (endpoint,) = production["endpoints"]
    assert (endpoint["endpoint"], endpoint["version"]) == ("tiny", "2")
    assert endpoint["url"] == status["url"]

    rolled = _json(world, "rollback", "tiny")
    assert (rolled["from_version"], rolled["version"]) == ("2", "1")
    overruled = _run(world, "production", "tiny", "--json")
    assert json.loads(overruled.stdout)["version"] == "1"
    assert json.loads(overruled.stdout)["overruled"] is True
    assert "The registry is overruled: it selects version 2" in overruled.stderr

    assert (
        _run(world, "deploy", "stop", "tiny").stdout == "- tiny (local): take tiny version 1 down\n"
    )
    assert _run(world, "predict", "tiny", "a").exit_code == 2


def test_what_fails_ends_with_1_and_says_why(world: World) -> None:
    world.version(1, probes=2, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    result = _run(world, "deploy", "apply")
    assert result.exit_code == 1
    assert "does not answer on tiny as at its evaluation" in result.stdout
    assert _run(world, "deploy", "retry", "tiny").exit_code == 1
    assert _run(world, "watch", "--once").exit_code == 1


@pytest.mark.parametrize(
    "args, says",
    [
        (["promote", "tinny", "1", "--stage", "Production"], "did you mean 'tiny'"),
        (["promote", "tiny", "9", "--stage", "Production"], "no version 9; valid: 1"),
        (["promote", "tiny", "one", "--alias", "a"], "'one' is not a version"),
        (["promote", "tiny", "1", "--stage", "Productoin"], "did you mean 'Production'"),
        (["promote", "tiny", "1", "--alias", "latest"], "reserved"),
        (["promote", "tiny", "1", "--alias", "Best"], "write it in lower case"),
        (["promote", "tiny", "1"], "give either --stage or --alias"),
        (["production", "tinny"], "did you mean 'tiny'"),
        (["production", "tiny"], "no version of 'tiny' is in Production"),
        (["predict", "tinny", "a"], "nothing that serves is named 'tinny'"),
        (["rollback", "tinny"], "did you mean 'tiny'"),
        (["rollback", "tiny"], "has served no other version"),
        (["deploy", "plan", "tinny"], "did you mean 'tiny'"),
        (["deploy", "stop", "tiny"], "no endpoint 'tiny' serves"),
        (["status", "--deployments", "no.toml"], "no such file"),
        (["watch", "--once", "--deployments", "no.toml"], "no such file"),
        (["serve", "no-folder"], "no folder"),
        (["serve", "models:/tiny/7"], "no version 7"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_use_ends_with_2_and_helps(
    world: World, args: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.version(1)
    monkeypatch.setenv("GREENROOM_DEPLOYMENTS", str(world.file))
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_debug_shows_the_traceback(world: World) -> None:
    result = CliRunner().invoke(cli, ["--debug", "production", "tinny"])
    assert type(result.exception).__name__ == "NotFoundError"


def test_serve_serves_a_version_without_mlflow(world: World) -> None:
    world.version(1)
    port = processkit.free_port()
    arguments = ["serve", "models:/tiny/1", "--port", str(port), "--threads", "1"]
    process = processkit.python("-m", "greenroom.cli", *arguments, stderr=subprocess.DEVNULL)
    try:
        processkit.until(lambda: processkit.answers(port), "the server is ready")
        body = b'{"instances": ["a dog"]}'
        assert processkit.request(port, "POST", "/invocations", body)[0] == 200
    finally:
        process.terminate()
        assert process.wait(30) == 0


def _status(world: World, store: str) -> subprocess.Popen[str]:
    """`greenroom status` of a world whose store is elsewhere."""
    env = {k: v for k, v in processkit.env().items() if not k.startswith("MLFLOW_HTTP")}
    command = ["-m", "greenroom.cli", "status", "--deployments", str(world.file)]
    env.update(MLFLOW_TRACKING_URI=store, MLFLOW_REGISTRY_URI=store)
    return processkit.python(*command, env=env, stdout=subprocess.PIPE)


def test_a_store_that_is_down_is_said_within_seconds(world: World) -> None:
    process = _status(world, f"http://127.0.0.1:{processkit.free_port()}")
    out, err = process.communicate(timeout=60)  # by itself, MLflow's client tries for 4 minutes
    assert process.returncode == 0, err
    assert "unknown" in out
    assert "does not answer" in out


def test_a_question_to_a_silent_store_ends_with_the_first_sigterm(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = _status(world, f"http://127.0.0.1:{silent.getsockname()[1]}")
        silent.settimeout(60)
        try:
            question, _ = silent.accept()  # and no answer comes
        finally:
            process.terminate()
            process.communicate(timeout=10)
        question.close()
    assert process.returncode == -signal.SIGTERM


def test_production_says_on_stderr_that_nothing_serves(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    result = _run(world, "production", "tiny", "--json")
    assert (result.exit_code, json.loads(result.stdout)["version"]) == (0, "1")
    assert "version 1 is pending" in result.stderr
    assert "no version serves" in result.stderr

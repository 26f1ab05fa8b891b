"""Kill a step at any moment and run it again: it goes on, and ends as if never killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from greenroom import tracking, versions
from greenroom.steps import tune
from greenroom.training import loop

from .conftest import runs

Step = Callable[..., int]
Entry = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.slow
LONG = ["--training.epochs", "6", "--training.patience", "0"]


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def epochs_logged(project: Path) -> int:
    return len(list((project / "home/checkpoints").glob("*/step-*")))


def values(run: Run) -> dict[str, list[float]]:
    keys = ("train_loss", "validation_loss", "validation_f1_macro")
    histories = {k: MlflowClient().get_metric_history(run.info.run_id, k) for k in keys}
    return {k: [m.value for m in sorted(h, key=lambda m: m.step)] for k, h in histories.items()}


def test_a_killed_training_goes_on_in_its_run(entry: Entry, step: Step, project: Path) -> None:
    assert step("train", *LONG) == 0
    expected = values(runs("train")[0])
    assert len(expected["train_loss"]) == 6
    process = entry("train", *LONG)
    wait_for(lambda: epochs_logged(project) > 0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.communicate()
    killed = runs("train")[0]
    assert killed.info.status == "RUNNING", "nobody could close it"

    again = entry("train", *LONG)
    _, err = again.communicate(timeout=180)
    assert again.returncode == 0, err
    assert f"going on from run {killed.info.run_id}" in err
    assert "resuming after step" in err
    finished = runs("train")[0]
    assert finished.info.run_id == killed.info.run_id
    assert finished.info.status == "FINISHED"
    # Two processes may sum in another order, by where their memory lies; a lost random state moves
    # these values by percents. Inside one process tests/training asks for equality bit for bit.
    for key, row in values(finished).items():
        assert row == pytest.approx(expected[key], rel=1e-3), key
    assert len(runs("train")) == 2
    assert versions.latest("small").version == "2"


def test_under_mlflow_run_the_new_run_goes_on_and_the_old_one_is_closed(
    entry: Entry, project: Path
) -> None:
    experiment = tracking.experiment_for("elsewhere")
    old, new = (MlflowClient().create_run(experiment).info.run_id for _ in range(2))
    process = entry("train", *LONG, env={"MLFLOW_RUN_ID": old})
    wait_for(lambda: epochs_logged(project) > 0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = entry("train", *LONG, env={"MLFLOW_RUN_ID": new})
    _, err = again.communicate(timeout=180)
    assert again.returncode == 0, err
    closed, finished = (MlflowClient().get_run(run_id) for run_id in (old, new))
    assert closed.info.status == "KILLED"
    assert closed.data.tags["greenroom.continued_by"] == new
    assert finished.info.status == "FINISHED"
    assert len(values(finished)["train_loss"]) == 6, "the earlier epochs are told again"


@pytest.mark.parametrize("sign, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_terminated_training_closes_its_run(
    entry: Entry, project: Path, sign: signal.Signals, code: int
) -> None:
    process = entry("train", *LONG)
    wait_for(lambda: epochs_logged(project) > 0)
    process.send_signal(sign)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "run the same command again to continue" in err
    assert runs("train")[0].info.status == "KILLED"
    again = entry("train", *LONG)
    _, err = again.communicate(timeout=180)
    assert again.returncode == 0, err
    assert "resuming after step" in err
    assert [run.info.status for run in runs("train")] == ["FINISHED"]


def test_the_same_training_twice_at_once_is_refused(entry: Entry, project: Path) -> None:
    endless = ["--training.epochs", "100000", "--training.patience", "0"]
    first = entry("train", *endless)
    wait_for(lambda: epochs_logged(project) > 0)
    second = entry("train", *endless)
    _, err = second.communicate(timeout=60)
    first.terminate()
    first.communicate(timeout=60)
    assert second.returncode == 2, err
    assert "does the same train" in err
    assert len(runs("train")) == 1


class Killed(BaseException):
    """Stands for a kill."""


def test_a_search_goes_on_after_its_finished_trials(
    step: Step, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["--tuning.max_trials", "4"]
    assert step("tune", *argv) == 0
    expected = [run.data.params["learning_rate"] for run in reversed(runs("trial"))]
    shutil.rmtree(project / "home/checkpoints")
    before = {run.info.run_id for run in runs()}

    real, started = loop.train, 0

    def third_is_killed(*args: object, **options: object) -> object:
        nonlocal started
        started += 1
        if started == 3:
            raise Killed
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tune.loop, "train", third_is_killed)
    with pytest.raises(Killed):
        step("tune", *argv)
    monkeypatch.setattr(tune.loop, "train", real)
    parent = next(r for r in runs("tune") if r.info.run_id not in before)
    reopen_as_dead(parent)
    interrupted = next(r for r in runs("trial", ["FAILED"]))
    reopen_as_dead(interrupted)

    assert step("tune", *argv) == 0
    new = [run for run in runs("trial") if run.info.run_id not in before]
    finished = [run for run in reversed(new) if run.info.status == "FINISHED"]
    assert [run.data.params["learning_rate"] for run in finished] == expected
    assert [run.info.status for run in new if run not in finished] == ["KILLED"]
    assert {run.data.tags["mlflow.parentRunId"] for run in new} == {parent.info.run_id}
    assert MlflowClient().get_run(parent.info.run_id).info.status == "FINISHED"
    assert runs(statuses=["RUNNING"]) == []


def test_under_mlflow_run_a_search_goes_on_in_its_first_run(
    step: Step, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started = loop.train, 0

    def second_is_killed(*args: object, **options: object) -> object:
        nonlocal started
        started += 1
        if started == 2:
            raise Killed
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tune.loop, "train", second_is_killed)
    with pytest.raises(Killed):
        step("tune")
    monkeypatch.setattr(tune.loop, "train", real)
    (first,) = runs("tune")
    reopen_as_dead(first)
    made = MlflowClient().create_run(tracking.experiment_for("elsewhere")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", made)
    assert step("tune") == 0
    monkeypatch.delenv("MLFLOW_RUN_ID")
    finished, pointer = (MlflowClient().get_run(i) for i in (first.info.run_id, made))
    assert finished.info.status == "FINISHED"
    assert pointer.data.tags["greenroom.continues"] == first.info.run_id
    assert pointer.data.tags["greenroom.best"] == finished.data.tags["greenroom.best"]
    parents = {run.data.tags["mlflow.parentRunId"] for run in runs("trial")}
    assert parents == {first.info.run_id}
    assert step("train", "--tuned", "latest") == 0


def reopen_as_dead(run: Run) -> None:
    """The state that SIGKILL leaves: RUNNING, with the heartbeat of a process that is gone."""
    client = MlflowClient()
    beat = f'{{"host": "{os.uname().nodename}", "pid": 999999999, "started": 1, "time": 1}}'
    client.set_tag(run.info.run_id, tracking.HEARTBEAT, beat)
    client.update_run(run.info.run_id, status="RUNNING")


def test_main_does_not_repeat_what_it_finished(
    step: Step, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenroom.steps import evaluate

    real = evaluate.run

    def killed(*args: object, **options: object) -> object:
        raise Killed

    monkeypatch.setattr(evaluate, "run", killed)
    with pytest.raises(Killed):
        step("main")
    parent = runs("main")[0]
    reopen_as_dead(parent)
    monkeypatch.setattr(evaluate, "run", real)
    assert step("main") == 0
    for name in ("main", "data", "tune", "train", "evaluate"):
        assert [run.info.status for run in runs(name)] == ["FINISHED"], name

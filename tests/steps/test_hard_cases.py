"""Kills between two writes, names of any length, stores and folders that are not as they should."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

import greenroom
from greenroom import names, tracking, versions
from greenroom.errors import ConfigError
from greenroom.steps import evaluate, train
from greenroom.tracking import runs as tracking_runs

from .conftest import runs
from .test_interrupted import Killed, reopen_as_dead

Step = Callable[..., int]


def test_labels_of_any_length_and_script(step: Step, project: Path) -> None:
    labels = ["x" * 300, "日本語" * 20, "привет " * 10]
    lines = [json.dumps({"text": f"word{i % 3} {i}", "label": labels[i % 3]}) for i in range(90)]
    (project / "long.jsonl").write_text("\n".join(lines), encoding="utf-8")
    source = ["--data.source", str(project / "long.jsonl")]
    assert step("train", *source) == 0
    assert step("evaluate", *source) == 0
    (run,) = runs("evaluate")
    rows = MlflowClient().download_artifacts(run.info.run_id, "labels.json", str(project))
    table = {row["label"].strip(): row for row in json.loads(Path(rows).read_text("utf-8"))}
    assert set(table) == {label.strip() for label in labels}
    for row in table.values():
        assert run.data.metrics[f"f1/{row['metric_name']}"] == row["f1"]


def test_a_name_is_shortened_only_where_it_must_be() -> None:
    assert names.fit("a" * 200, 200) == "a" * 200
    one, other = (names.fit("a" * 300 + end, 200) for end in "bc")
    assert len(one) == len(other) == 200
    assert one != other


def test_main_killed_twice_under_mlflow_run_repeats_nothing(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = evaluate._measure, []

    def killed(*args: object) -> object:
        raise Killed

    for attempt in range(3):
        monkeypatch.setattr(evaluate, "_measure", killed if attempt < 2 else real)
        run_id = MlflowClient().create_run(tracking.experiment_for("elsewhere")).info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
        made.append(run_id)
        if attempt < 2:
            with pytest.raises(Killed):
                step("main")
            for run in runs(statuses=["FAILED"]):  # as SIGKILL would have left them
                reopen_as_dead(run)
        else:
            assert step("main") == 0
    assert len(runs("train")) == len(runs("tune")) == len(runs("data")) == 1
    assert versions.latest("small").version == "1"
    assert runs(statuses=["RUNNING"]) == []
    assert MlflowClient().get_run(made[-1]).info.status == "FINISHED"


def test_killed_between_registering_and_saying_so_it_registers_once(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = versions.register

    def registered_then_killed(*args: object, **options: object) -> object:
        real(*args, **options)  # type: ignore[arg-type]
        raise Killed

    monkeypatch.setattr(train.versions, "register", registered_then_killed)
    with pytest.raises(Killed):
        step("train")
    reopen_as_dead(runs("train")[0])
    monkeypatch.setattr(train.versions, "register", real)
    assert step("train") == 0
    (run,) = runs("train")
    assert versions.latest("small").version == run.data.tags["greenroom.version"] == "1"
    assert step("evaluate") == 0, "the version's model is known too"


@pytest.mark.parametrize("signum, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupt_while_the_run_is_opened_closes_it(
    step: Step, monkeypatch: pytest.MonkeyPatch, signum: int, code: int
) -> None:
    # Test runners put a handler of their own in the place of Python's.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    real = tracking_runs._open

    def interrupted(*args: str) -> object:
        run = real(*args)  # type: ignore[arg-type]
        os.kill(os.getpid(), signum)
        time.sleep(0)  # where Python would deliver it
        return run

    monkeypatch.setattr(tracking_runs, "_open", interrupted)
    try:
        assert step("data") == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert [run.info.status for run in runs("data")] == ["KILLED"]


def test_evaluate_closes_a_killed_one(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    assert step("train") == 0
    real = evaluate._measure

    def killed(*args: object) -> object:
        raise Killed

    monkeypatch.setattr(evaluate, "_measure", killed)
    with pytest.raises(Killed):
        step("evaluate")
    reopen_as_dead(runs("evaluate")[0])
    monkeypatch.setattr(evaluate, "_measure", real)
    assert step("evaluate") == 0
    assert [run.info.status for run in runs("evaluate")] == ["FINISHED", "KILLED"]


def test_a_version_of_another_run_is_not_taken_for_this_ones(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step("train") == 0
    first = runs("train")[0].info.run_id
    MlflowClient().delete_registered_model("small")
    assert step("train", "--training.seed", "14") == 0
    assert step("evaluate", "--run", first) == 2
    assert "deleted and made anew" in capsys.readouterr().err
    assert step("evaluate", "--name", "other", "--run", runs("train")[0].info.run_id) == 2
    assert "belongs to experiment 'small'" in capsys.readouterr().err


def test_a_home_that_cannot_be_written_is_wrong_use(
    step: Step,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GREENROOM_HOME", str(project / "data.csv" / "x"))
    assert step("data") == 2
    assert "GREENROOM_HOME" in capsys.readouterr().err


def test_damaged_snapshots_are_said_to_be_or_made_again(
    step: Step, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step("data") == 0
    (folder,) = (project / "home/snapshots").iterdir()
    (folder / "train.arrow").unlink()
    assert step("train") == 2
    assert "is damaged" in capsys.readouterr().err
    (folder / "manifest.json").unlink()
    assert step("train") == 0


def test_a_deleted_experiment_is_not_a_store_that_is_away(
    step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step("data") == 0
    MlflowClient().delete_experiment(runs("data")[0].info.experiment_id)
    assert step("data") == 2
    err = capsys.readouterr().err
    assert "refuses this" in err
    assert "it continues" not in err


def test_names_with_both_kinds_of_quotes(step: Step) -> None:
    name = """it's "quoted" """.strip()
    assert step("train", "--name", name) == 0
    assert step("evaluate", "--name", name) == 0
    assert versions.latest(name).evaluated


def test_overrides_from_python_may_be_lists_tables_and_none(project: Path) -> None:
    result = greenroom.run(
        "tune",
        str(project / "small.toml"),
        **{
            "hardware.threads": 1,
            "models": ["scratch:tiny"],
            "data.group": None,
            "tuning.max_trials": 1,
            "tuning.space": {"learning_rate": "1e-3->2e-3"},
        },
    )
    assert 1e-3 <= result.parameters["learning_rate"] <= 2e-3
    with pytest.raises(ConfigError, match=r"did you mean 'training\.epochs'"):
        greenroom.run("train", str(project / "small.toml"), **{"training.epoch": 1})


def test_a_word_without_an_end_does_not_stop_tokenizer_training() -> None:
    from greenroom.data import tokenizer

    started = time.monotonic()
    made = tokenizer.train(["a cat", "x" * 2_000_000, "a dog"], 100)
    assert time.monotonic() - started < 20, "it took minutes: time grew with the word's square"
    assert made.encode("a cat").tokens[1:-1] == ["a", "cat"]

"""data, tune, train and evaluate on one small experiment, with a real MLflow store."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import mlflow
import pandas
import pytest
from mlflow import MlflowClient

from greenroom import versions
from greenroom.serving.scorer import Scorer

from .conftest import runs

Step = Callable[..., int]


@pytest.fixture
def trained(step: Step, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The result of one training."""
    assert step("train") == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_data_describes_the_snapshot_and_names_its_splits(step: Step, project: Path) -> None:
    assert step("data") == 0
    (run,) = runs("data")
    metrics = run.data.metrics
    assert metrics["rows/train"] + metrics["rows/validation"] + metrics["rows/test"] == 180
    assert metrics["cached"] == 0
    inputs = {i.dataset.name.rpartition("/")[2]: i.dataset for i in run.inputs.dataset_inputs}
    assert set(inputs) == {"train", "validation", "test"}
    assert {d.digest for d in inputs.values()} == {run.data.tags["greenroom.snapshot"]}
    assert json.loads(inputs["train"].profile) == {"num_rows": metrics["rows/train"]}
    assert step("data") == 0
    assert runs("data")[0].data.metrics["cached"] == 1
    assert runs("data")[0].data.metrics["seconds"] < 1


def test_train_registers_a_complete_version(trained: dict[str, object], project: Path) -> None:
    (run,) = runs("train")
    assert run.info.status == "FINISHED"
    assert run.data.params["training.learning_rate"] == "0.001"
    history = MlflowClient().get_metric_history(run.info.run_id, "validation_f1_macro")
    assert [m.step for m in history] == [1, 2]
    curves = [f.path for f in MlflowClient().list_artifacts(run.info.run_id, "curves")]
    assert "curves/validation_f1_macro.png" in curves
    assert "curves/validation_loss.png" in curves
    version = versions.get("small", str(trained["version"]))
    assert version.run_id == run.info.run_id
    assert version.tags["greenroom.snapshot"] == run.data.tags["greenroom.snapshot"]
    assert version.tags["greenroom.model"] == "scratch:tiny"
    assert not version.evaluated
    folder = versions.model_folder(version)
    about = json.loads((folder / "greenroom.json").read_text("utf-8"))
    assert about["labels"] == ["animal", "größe/😀", "place"]
    assert about["input_keys"] == ["input_ids", "attention_mask"]
    assert (folder / "README.md").read_text("utf-8").startswith("# small")
    requirements = (folder.parents[1] / "requirements.txt").read_text("utf-8")
    assert "torch==" in requirements
    assert "+cpu" not in requirements
    assert not list((project / "home/checkpoints").glob("*/step-*")), "checkpoints are removed"


def test_the_version_loads_as_pyfunc(trained: dict[str, object]) -> None:
    version = versions.get("small", str(trained["version"]))
    scorer = Scorer.load(versions.model_folder(version))
    texts = ["cat number 9", "rome number 3", "tiny number 1"]
    loaded = mlflow.pyfunc.load_model(version.source)
    answer = loaded.predict(pandas.DataFrame({"text": texts}))
    expected = scorer.score(texts)
    assert answer["label"].tolist() == [a["label"] for a in expected]
    assert answer["score"].tolist() == pytest.approx([a["score"] for a in expected])
    assert [json.loads(s) for s in answer["scores"]] == [a["scores"] for a in expected]
    carried = [name for name in sys.modules if name.startswith("greenroom_scorer_")]
    assert carried, "the loader comes with the model"


def test_evaluate_measures_the_artifact_on_the_test_split(
    trained: dict[str, object], step: Step, project: Path
) -> None:
    assert step("evaluate") == 0
    (run,) = runs("evaluate")
    version = versions.get("small", str(trained["version"]))
    assert version.evaluated
    assert version.tags["greenroom.evaluation.run_id"] == run.info.run_id
    assert version.metrics["accuracy"] == run.data.metrics["accuracy"]

    # the same figures, computed from the folder and the snapshot by hand
    import pyarrow as pa

    folder = versions.model_folder(version)
    snapshot = project / "home/snapshots" / run.data.tags["greenroom.snapshot"]
    with pa.memory_map(str(snapshot / "test.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all().to_pydict()
    answers = Scorer.load(folder).score(rows["text"])
    labels = json.loads((folder / "greenroom.json").read_text("utf-8"))["labels"]
    right = [a["label"] == labels[i] for a, i in zip(answers, rows["label"], strict=True)]
    assert run.data.metrics["accuracy"] == pytest.approx(sum(right) / len(right))
    assert run.data.metrics["examples"] == len(right)
    source = {
        row["text"]: row["label"]
        for row in csv.DictReader((project / "data.csv").read_text("utf-8").splitlines())
    }
    assert [labels[i] for i in rows["label"]] == [source[t] for t in rows["text"]]

    probes = json.loads((folder / "probes.json").read_text("utf-8"))
    assert len(probes["probes"]) == 8
    for probe in probes["probes"]:
        assert Scorer.load(folder).score([probe["instance"]])[0]["label"] == probe["label"]
    assert "f1/gr_xF6__xDF_e_x2F__x1F600_" in run.data.metrics
    names = {f.path for f in MlflowClient().list_artifacts(run.info.run_id)}
    assert {"confusion.png", "confusion.json", "labels.json", "probes.json"} <= names


def test_a_gate_that_is_not_met_fails_and_says_so_on_the_version(
    trained: dict[str, object], step: Step, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step("evaluate", "--evaluation.gate.f1_macro", ">= 1.1") == 1
    assert "does not meet evaluation.gate: f1_macro >= 1.1: it is" in capsys.readouterr().err
    version = versions.get("small", str(trained["version"]))
    assert version.evaluated, "the results are kept"
    assert version.tags["greenroom.gate"].startswith("failed: f1_macro >= 1.1")
    assert runs("evaluate")[0].info.status == "FAILED"
    assert step("evaluate", "--evaluation.gate.f1_macro", ">= 0") == 0
    tags = versions.get("small", str(trained["version"])).tags
    assert tags["greenroom.gate"] == "passed"


def test_tune_keeps_every_trial_and_train_uses_the_best(step: Step, project: Path) -> None:
    assert step("tune", "--tuning.max_trials", "3") == 0
    (search,) = runs("tune")
    trials = runs("trial")
    assert len(trials) == 3
    for trial in trials:
        assert trial.data.tags["mlflow.parentRunId"] == search.info.run_id
        assert trial.data.metrics["duration_s"] > 0
        assert 5e-4 <= float(trial.data.params["learning_rate"]) <= 5e-3
        assert trial.data.params["training.learning_rate"] == trial.data.params["learning_rate"]
    best = max(trials, key=lambda t: t.data.metrics["best_validation_f1_macro"])
    told = json.loads(search.data.tags["greenroom.best"])
    assert told["value"] == best.data.metrics["best_validation_f1_macro"]
    winner = next(t for t in trials if t.info.run_id == told["run_id"])
    assert told["parameters"] == {"learning_rate": float(winner.data.params["learning_rate"])}
    model = MlflowClient().get_logged_model(winner.data.tags["greenroom.model_id"])
    folder = Path(mlflow.artifacts.download_artifacts(f"models:/{model.model_id}"))
    assert Scorer.load(folder / "data/scorer").score(["cat"])

    assert step("train", "--tuned", "latest") == 0
    (run,) = runs("train")
    assert run.data.params["training.learning_rate"] == winner.data.params["learning_rate"]
    assert run.data.tags["greenroom.tuned"] == search.info.run_id


def test_every_trial_keeps_its_model_when_told_so(step: Step) -> None:
    assert step("tune", "--tuning.keep_artifacts", "all") == 0
    assert all("greenroom.model_id" in trial.data.tags for trial in runs("trial"))
    assert len(MlflowClient().search_logged_models([runs("tune")[0].info.experiment_id])) == 2


def test_training_on_validation_too_takes_the_searchs_epochs(step: Step) -> None:
    assert step("tune") == 0
    told = json.loads(runs("tune")[0].data.tags["greenroom.best"])
    assert step("train", "--tuned", "latest", "--training.use_validation", "true") == 0
    (run,) = runs("train")
    assert run.data.params["training.epochs"] == str(told["epoch"])
    assert run.data.tags["greenroom.trained_on"] == "train+validation"
    assert not [key for key in run.data.metrics if key.startswith("validation")]


def test_main_is_the_four_in_order(step: Step) -> None:
    assert step("main") == 0
    (parent,) = runs("main")
    nested = [r for r in runs() if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    order = [r.data.tags["greenroom.step"] for r in reversed(nested)]
    assert order == ["data", "tune", "train", "evaluate"]
    assert parent.data.metrics["accuracy"] == runs("evaluate")[0].data.metrics["accuracy"]
    assert {r.info.status for r in runs()} == {"FINISHED"}


def test_a_finished_training_is_done_anew(step: Step) -> None:
    assert step("train") == 0
    assert step("train") == 0
    one, two = runs("train")
    assert one.data.metrics["best_validation_loss"] == two.data.metrics["best_validation_loss"]
    assert versions.latest("small").version == "2"


def test_from_python(project: Path) -> None:
    import greenroom

    result = greenroom.run(
        "train", str(project / "small.toml"), hardware="cpu", **{"training.epochs": 1}
    )
    assert (result.step, result.version) == ("train", "1")
    assert json.loads(result.to_json())["metrics"]["train_loss"] > 0


def test_a_name_that_mlflow_cannot_hold(step: Step) -> None:
    assert step("train", "--name", "org/model: größe 😀") == 0
    assert versions.list_models() == ("org/model: größe 😀",)
    (stored,) = MlflowClient().search_registered_models()
    assert stored.name == "org_x2F_model_x3A_ gr_xF6__xDF_e _x1F600_"
    assert step("evaluate", "--name", "org/model: größe 😀") == 0
    assert versions.latest("org/model: größe 😀").evaluated

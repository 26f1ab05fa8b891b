"""Versions, stages and aliases on a real MLflow store."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from deploykit import World
from greenroom import names, tracking, versions
from greenroom.errors import DeployError, NotFoundError, RetryableError, UserError


def test_register_get_latest(world: World) -> None:
    first, second = world.version(1, name="org/mödel"), world.version(2, name="org/mödel")
    assert (first.model, first.version, second.version) == ("org/mödel", "1", "2")
    assert versions.get("org/mödel", 1) == first
    assert versions.latest("org/mödel").version == "2"
    assert versions.list_models() == ("org/mödel",)
    stored = MlflowClient().search_registered_models()[0].name
    assert stored == names.encode("org/mödel")
    assert first.source.startswith("models:/m-")
    assert first.run_id
    assert first.created.endswith("+00:00")


def test_promotion_by_stage_archives_what_was_there(world: World) -> None:
    world.version(1)
    world.version(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # MLflow's deprecation of stages is silenced where it is due
        assert versions.promote("tiny", 1, stage="Production").stage == "Production"
    assert versions.promote("tiny", 2, stage="Production").stage == "Production"
    assert versions.get("tiny", 1).stage == "Archived"
    found = versions.desired("tiny", stage="Production")
    assert found is not None
    assert found.version == "2"
    versions.promote("tiny", 2, stage="None")
    assert versions.desired("tiny", stage="Production") is None


@pytest.mark.filterwarnings("ignore:.*deprecated since 2.9:FutureWarning")
def test_of_two_in_one_stage_the_latest_transition_counts(world: World) -> None:
    for seed in (1, 2, 3):
        world.version(seed)
    for version in ("3", "1"):  # as the API can: nothing is archived
        MlflowClient().transition_model_version_stage("tiny", version, "Production")
    model = versions.look("tiny")
    assert [v.version for v in model.in_stage("Production")] == ["1", "3"]
    assert "versions 1 and 3 are all in Production; 1 got there last" in model.conflict(
        "Production"
    )
    assert model.conflict("Staging") == ""
    MlflowClient().transition_model_version_stage("tiny", "3", "Production")
    found = versions.desired("tiny", stage="Production")
    assert found is not None
    assert found.version == "3"


def test_aliases_move_and_go(world: World) -> None:
    world.version(1)
    world.version(2)
    assert versions.promote("tiny", 1, alias="champion").aliases == ("champion",)
    versions.promote("tiny", 2, alias="champion")
    found = versions.desired("tiny", alias="champion")
    assert found is not None
    assert (found.version, found.aliases) == ("2", ("champion",))
    versions.drop_alias("tiny", "champion")
    assert versions.desired("tiny", alias="champion") is None
    with pytest.raises(NotFoundError, match="no alias 'champion'"):
        versions.drop_alias("tiny", "champion")


def test_a_look_costs_the_same_however_many_versions_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = world.version(1)
    calls: list[str] = []
    for method in ("get_registered_model", "search_model_versions", "get_model_version"):
        original = getattr(MlflowClient, method)

        def counted(*args: object, _name: str = method, _call: object = original, **kw: object):  # type: ignore[no-untyped-def]
            calls.append(_name)
            return _call(*args, **kw)  # type: ignore[operator]

        monkeypatch.setattr(MlflowClient, method, counted)
    versions.look("tiny")
    few = list(calls)
    for _ in range(30):
        versions.register("tiny", version.source)
    versions.promote("tiny", 1, stage="Production")
    calls.clear()
    found = versions.desired("tiny", stage="Production")
    assert found is not None
    assert found.version == "1"
    assert calls == few == ["get_registered_model", "search_model_versions"]


def test_what_is_missing_is_named_with_what_exists(world: World) -> None:
    with pytest.raises(NotFoundError, match=r"no registered model 'tiny'; valid: \(none\)"):
        versions.look("tiny")
    world.version(1)
    with pytest.raises(NotFoundError, match="did you mean 'tiny'"):
        versions.get("tinny", 1)
    with pytest.raises(NotFoundError, match="no version 2; valid: 1"):
        versions.promote("tiny", 2, stage="Production")
    with pytest.raises(UserError, match="did you mean 'Staging'"):
        versions.promote("tiny", 1, stage="staging")
    with pytest.raises(UserError, match="either a stage or an alias"):
        versions.promote("tiny", 1)
    with pytest.raises(UserError, match="MLflow refuses"):
        versions.promote("tiny", 1, alias="not an alias")
    with pytest.raises(NotFoundError, match="no version of 'tiny' is in Production"):
        versions.production("tiny")


def test_a_registry_that_is_away_may_answer_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_registry_uri("http://127.0.0.1:9")
    with pytest.raises(RetryableError, match=r"http://127.0.0.1:9 does not answer"):
        versions.look("tiny")


def test_model_tags_come_and_go(world: World) -> None:
    world.version(1)
    versions.set_model_tag("tiny", "note", "x")
    assert versions.look("tiny").tags["note"] == "x"
    for _ in range(2):
        versions.set_model_tag("tiny", "note", "")
        assert "note" not in versions.look("tiny").tags


def test_the_folder_is_complete_and_has_what_evaluation_adds(world: World) -> None:
    version = world.version(1)
    folder = versions.model_folder(version)
    files = {path.name for path in folder.iterdir()}
    assert files == {"module.pt", "tokenizer.json", "greenroom.json", "README.md"}
    key = versions.package_key(version)
    probes = world.root / "probes.json"
    probes.write_text("{}")
    model_id = version.source.rpartition("/")[2]
    MlflowClient().log_model_artifact(model_id, str(probes), f"data/{folder.name}")
    versions.set_tag("tiny", "1", versions.EVALUATED, "2026-01-01T00:00:00+00:00")
    evaluated = versions.get("tiny", 1)
    assert (versions.model_folder(evaluated) / "probes.json").exists()
    assert versions.package_key(evaluated) != key


def test_a_version_whose_files_are_gone_is_named(world: World) -> None:
    gone = world.version(1)
    MlflowClient().delete_logged_model(gone.source.rpartition("/")[2])
    with pytest.raises(DeployError, match="tiny version 1: its files"):
        versions.model_folder(gone)


def test_production_is_what_scripts_count_on(world: World) -> None:
    version = world.version(7, accuracy=0.93)
    versions.promote("tiny", 1, alias="best")
    promoted = versions.promote("tiny", 1, stage="Production")
    answer = json.loads(versions.production("tiny").to_json())
    assert answer == {
        "model": "tiny",
        "version": "1",
        "stage": "Production",
        "aliases": ["best"],
        "since": promoted.updated,
        "run_id": version.run_id,
        "parameters": {"seed": "7", "é": "escaped"},
        "metrics": {"accuracy": 0.93},
        "snapshot": "s" * 32,
        "git_commit": "c" * 40,
        "endpoints": [],
    }
    mlflow.delete_run(version.run_id)
    assert versions.production("tiny").version == "1"


def test_a_file_that_is_no_database_is_a_store_that_does_not_answer(store: Path) -> None:
    (store / "text.db").write_text("This is no database. " * 100)
    uri = f"sqlite:///{store / 'text.db'}"
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    for ask in (
        lambda: versions.look("tiny"),
        lambda: versions.set_tag("tiny", "1", "a", "b"),
        lambda: tracking.find_runs("train"),
        tracking.ping,
    ):
        with pytest.raises(RetryableError, match=r"text\.db .*file is not a database"):
            ask()


def test_an_alias_that_no_deployment_can_name_is_refused(world: World) -> None:
    world.version(1)
    with pytest.raises(UserError, match="'Best': write it in lower case"):
        versions.promote("tiny", 1, alias="Best")
    assert versions.look("tiny").aliases == {}

"""From promotion to endpoint and back: real MLflow on SQLite, real endpoint processes."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import mlflow
import psutil
import pytest

import greenroom
import processkit
from deploykit import DEPLOYMENTS, World
from greenroom import paths, tracking, versions
from greenroom.deploy import controller, ledger, overview, rollback
from greenroom.deploy.base import EndpointState
from greenroom.deploy.desired import DEPLOY, OVERRIDE
from greenroom.deploy.local import LocalDeployer
from greenroom.errors import ConfigError, DeployError, NotFoundError, UserError
from greenroom.serving.endpoint import EndpointFolder

GATED = """
[[deployment]]
model = "tiny"
alias = "champion"
endpoint = "gated"
[deployment.gate]
accuracy = ">= 0.9"
"""


def _apply(world: World) -> tuple[controller.Outcome, ...]:
    return controller.apply(world.file)


def _serving(endpoint: str = "tiny") -> str:
    found = {s.endpoint: s for s in LocalDeployer().observe()}
    return found[endpoint].version if endpoint in found else ""


def _tag(version: str, endpoint: str = "tiny") -> str:
    return versions.get("tiny", version).tags.get(DEPLOY + endpoint, "")


def test_promotion_deploys_replaces_and_archiving_takes_down(world: World) -> None:
    world.version(1, accuracy=0.95)
    world.version(2, accuracy=0.96)
    assert _apply(world) == ()  # nothing is promoted
    versions.promote("tiny", 1, stage="Production")
    (done,) = _apply(world)
    assert (done.endpoint, done.error) == ("tiny", "")
    assert _serving() == "1"
    assert _apply(world) == ()  # settled
    port = LocalDeployer().observe()[0].port
    versions.promote("tiny", 2, stage="Production")
    assert versions.get("tiny", 1).stage == "Archived"
    _apply(world)
    assert (_serving(), _tag("1"), _tag("2")) == ("2", "removed", "serving")
    versions.promote("tiny", 2, stage="Archived")
    _apply(world)
    assert (_serving(), _tag("2")) == ("", "removed")
    assert _apply(world) == ()
    assert not processkit.answers(port)
    versions.promote("tiny", 2, stage="Production")
    _apply(world)
    assert LocalDeployer().observe()[0].port == port  # kept


def test_the_ledger_holds_every_rollout(world: World) -> None:
    for seed in (1, 2):
        world.version(seed, accuracy=0.9)
        versions.promote("tiny", seed, stage="Production")
        _apply(world)
    assert [s.version for s in ledger.served("tiny")] == ["1", "2"]
    runs = mlflow.search_runs(
        search_all_experiments=True,
        filter_string="tags.`greenroom.step` = 'deploy'",
        output_format="list",
    )
    last = runs[0]
    assert last.info.status == "FINISHED"
    assert last.data.tags["greenroom.endpoint"] == "tiny"
    assert last.data.tags["greenroom.version"] == "2"
    assert last.data.tags["greenroom.from_version"] == "1"
    assert last.data.tags["greenroom.phase"] == "serving"
    assert last.data.tags["greenroom.reason"] == "stage Production selects the version"
    assert {"start_s", "probe_s", "switch_s"} <= set(last.data.metrics)


def test_plan_prints_what_apply_does_and_changes_nothing(world: World) -> None:
    version = world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    seen = controller.plan(world.file)
    assert [str(a) for a in seen.actions] == ["+ tiny (local): serve tiny version 1"]
    assert not paths.endpoints().exists()
    assert versions.get("tiny", 1).tags == version.tags
    assert ledger.served("tiny") == ()


def test_a_gate_refuses_says_why_and_lets_the_old_one_serve(world: World) -> None:
    world.deployments(GATED)
    world.version(1, accuracy=0.95)
    versions.promote("tiny", 1, alias="champion")
    _apply(world)
    world.version(2, accuracy=0.5)
    world.version(3)
    for number, why in ((2, "accuracy >= 0.9 is not met, it is 0.5"), (3, "never evaluated")):
        versions.promote("tiny", number, alias="champion")
        (outcome,) = _apply(world)
        assert why in outcome.error
        assert _serving("gated") == "1"
        assert _tag(str(number), "gated").startswith("failed: gate: ")
        (status,) = overview.status(world.file)
        assert (status.desired_version, status.actual_version) == (str(number), "1")
        assert (status.phase, why in status.reason) == ("refused", True)
    # An evaluation arrives: nothing else has to happen.
    versions.set_tag("tiny", "3", versions.METRIC + "accuracy", "0.99")
    versions.set_tag("tiny", "3", versions.EVALUATED, "2026-01-01T00:00:00+00:00")
    _apply(world)
    assert (_serving("gated"), _tag("3", "gated")) == ("3", "serving")


def test_failed_probes_leave_the_old_one_and_are_not_tried_again(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    world.version(2, probes=3, accuracy=0.9)  # answers otherwise than at its evaluation
    versions.promote("tiny", 2, stage="Production")
    failed = _apply(world)
    assert "does not answer on tiny as at its evaluation" in failed[0].error
    assert _serving() == "1"
    assert _tag("2").startswith("failed: ")
    assert controller.plan(world.file).actions == ()
    assert overview.status(world.file)[0].phase == "failed"
    front = _front()
    assert len(front.children()) == 1  # nothing of 2 runs
    retried = controller.retry("tiny", world.file)
    assert "does not answer" in retried[0].error
    versions.promote("tiny", 2, stage="Production")  # a change: it is tried again
    assert [a.kind for a in controller.plan(world.file).actions] == ["replace"]
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    assert (_serving(), _tag("1")) == ("1", "serving")


def test_files_that_are_gone_fail_the_version(world: World) -> None:
    version = world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    folder = mlflow.artifacts.download_artifacts(version.source)
    for file in Path(folder).rglob("greenroom.json"):
        file.unlink()
    (failed, *_) = _apply(world)
    assert "not a model of greenroom" in failed.error
    assert _tag("1").startswith("failed: ")
    assert controller.plan(world.file).actions == ()


def test_rollback_puts_the_last_good_one_back_until_the_registry_changes(world: World) -> None:
    for seed in (1, 2, 3):
        world.version(seed, accuracy=0.9)
        versions.promote("tiny", seed, stage="Production")
        _apply(world)
    done = rollback.roll_back("tiny", world.file)
    assert (done.from_version, done.version, _serving()) == ("3", "2", "2")
    assert _apply(world) == ()  # and it stays
    answer = overview.production("tiny", world.file)
    assert (answer.version, answer.overruled) == ("2", "3")
    assert answer.to_dict()["overruled"] is True
    assert "rolled back" in overview.status(world.file)[0].reason
    assert rollback.roll_back("tiny", world.file).version == "1"
    with pytest.raises(NotFoundError, match="no other version"):
        rollback.roll_back("tiny", world.file)
    assert rollback.roll_back("tiny", world.file, to="2").version == "2"
    with pytest.raises(UserError, match="already"):
        rollback.roll_back("tiny", world.file, to="2")
    # The next promotion rules again; so would archiving.
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    assert _serving() == "1"
    assert OVERRIDE + "tiny" not in versions.look("tiny").tags
    assert overview.production("tiny", world.file).overruled == ""


def test_archiving_after_a_rollback_takes_the_endpoint_down(world: World) -> None:
    for seed in (1, 2):
        world.version(seed, accuracy=0.9)
        versions.promote("tiny", seed, stage="Production")
        _apply(world)
    rollback.roll_back("tiny", world.file)
    versions.promote("tiny", 2, stage="Archived")
    _apply(world)
    assert _serving() == ""


def test_a_rollback_that_fails_changes_nothing(world: World) -> None:
    world.version(1, probes=3, accuracy=0.9)
    world.version(2, accuracy=0.9)
    versions.promote("tiny", 2, stage="Production")
    _apply(world)
    with pytest.raises(DeployError, match="still serves version 2"):
        rollback.roll_back("tiny", world.file, to="1")
    assert _serving() == "2"
    assert OVERRIDE + "tiny" not in versions.look("tiny").tags
    with pytest.raises(NotFoundError, match="no version 9; valid: 2, 1"):
        rollback.roll_back("tiny", world.file, to="9")


def _front() -> psutil.Process:
    state = EndpointFolder(paths.endpoints() / "tiny").state()
    assert state is not None
    return psutil.Process(state.pid)


def test_a_killed_endpoint_comes_back_even_while_the_registry_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    port = LocalDeployer().observe()[0].port
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    here, away = mlflow.get_registry_uri(), f"http://127.0.0.1:{processkit.free_port()}"
    mlflow.set_tracking_uri(away)
    mlflow.set_registry_uri(away)
    _front().kill()
    outcomes = controller.apply(world.file)
    assert "bring tiny version 1 up again" in outcomes[0].what
    assert processkit.answers(port)
    assert "does not answer" in outcomes[-1].error
    assert overview.status(world.file)[0].phase == "unknown"
    mlflow.set_tracking_uri(here)
    mlflow.set_registry_uri(here)
    assert _apply(world) == ()


def test_a_model_that_is_missing_is_no_order_to_stop(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    mlflow.MlflowClient().delete_registered_model("tiny")
    (outcome,) = _apply(world)
    assert "no registered model 'tiny'" in outcome.error
    assert _serving() == "1"
    # Made anew, version 1 is another one.
    world.version(2, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    assert [a.kind for a in controller.plan(world.file).actions] == ["replace"]


def test_an_endpoint_that_left_the_file_goes_and_others_files_stay(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    other = world.root / "other.toml"
    other.write_text('[[deployment]]\nmodel = "tiny"\nstage = "Staging"\nendpoint = "staging"\n')
    assert controller.apply(other) == ()
    assert _serving() == "1"
    world.deployments("")
    _apply(world)
    assert _serving() == ""


def test_two_controllers_at_once_do_no_harm(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    together = threading.Barrier(2)
    results: list[tuple[controller.Outcome, ...]] = []

    def act() -> None:
        together.wait()
        results.append(controller.apply(world.file))

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(not outcome.error for outcomes in results for outcome in outcomes)
    assert _serving() == "1"
    assert len(ledger.served("tiny")) == 1  # done once
    assert len(_front().children()) == 1


@pytest.mark.parametrize("killed_in", ["start", "probe", "switch"])
def test_a_controller_killed_in_a_rollout_is_made_good_by_the_next_look(
    world: World, killed_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    world.version(2, accuracy=0.9)
    versions.promote("tiny", 2, stage="Production")
    found = LocalDeployer().observe()[0]
    # What a controller leaves that is killed after the phase's work: it can say nothing any more.
    deployer = LocalDeployer()
    folder = controller.package.fetch(versions.get("tiny", 2))
    wanted = controller.plan(world.file).actions[0].after
    assert isinstance(wanted, EndpointState)
    steps: list[Callable[[], object]] = [
        lambda: deployer.start(wanted, folder),
        lambda: deployer.ask("tiny", ["a dog"]),
        lambda: deployer.switch(wanted, 0.0),
    ]
    for step in steps[: ["start", "probe", "switch"].index(killed_in) + 1]:
        step()
    assert processkit.answers(found.port)
    _apply(world)
    assert (_serving(), _tag("1"), _tag("2")) == ("2", "removed", "serving")
    processkit.until(lambda: len(_front().children()) == 1, "one version runs")


def test_watch_follows_the_registry_and_outlives_bad_edits(world: World) -> None:
    world.version(1, accuracy=0.9)
    command = [
        "-m",
        "greenroom.cli",
        "watch",
        "--interval",
        "0.2",
        "--deployments",
        str(world.file),
    ]
    with (world.root / "watch.log").open("w") as log:
        watch = processkit.python(*command, stderr=log)
    try:
        versions.promote("tiny", 1, stage="Production")
        processkit.until(lambda: _serving() == "1", "version 1 serves")
        world.deployments("[[deployment]]\nmodel = 3\n")
        processkit.until(lambda: "is not a text" in _read(world), "the bad file is reported")
        world.deployments('[[deployment]]\nmodel = "tiny"\nstage = "Production"\n')
        versions.promote("tiny", 1, stage="Archived")
        processkit.until(lambda: _serving() == "", "the endpoint is down")
    finally:
        watch.terminate()
        assert watch.wait(30) == 0


def _read(world: World) -> str:
    return (world.root / "watch.log").read_text()


def test_stop_takes_down_and_apply_brings_back(world: World) -> None:
    world.version(1, accuracy=0.9)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    controller.stop("tiny", world.file)
    assert _serving() == ""
    with pytest.raises(NotFoundError, match="no endpoint 'tiny' serves"):
        controller.stop("tiny", world.file)
    _apply(world)
    assert _serving() == "1"


def test_a_damaged_package_is_fetched_again(world: World) -> None:
    version = world.version(1, accuracy=0.9)
    folder = controller.package.fetch(version)
    (folder / "module.pt").write_bytes(b"damaged")
    again = controller.package.fetch(version)
    assert again == folder
    assert (folder / "module.pt").stat().st_size > 100
    assert sorted(p.name for p in folder.parent.iterdir()) == [folder.name]


def test_wrong_names_are_answered_with_the_nearest(world: World) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'tiny'"):
        controller.plan(world.file, ["tinny"])
    with pytest.raises(NotFoundError, match="did you mean 'tiny'"):
        rollback.roll_back("tinny", world.file)
    with pytest.raises(ConfigError, match="no such file"):
        controller.plan(world.root / "missing.toml")
    world.version(1)
    with pytest.raises(ConfigError, match="greenroom deploy apply tiny"):
        overview.predict("tiny", ["a"], world.file)


def test_the_functions_of_the_package_answer_as_the_commands(world: World) -> None:
    world.version(1, accuracy=0.9)
    greenroom.promote("tiny", 1, stage="Production")
    _apply(world)
    assert greenroom.production("tiny", world.file).version == "1"
    assert [row.actual_version for row in greenroom.deployments(world.file)] == ["1"]
    assert list(
        greenroom.predict("tiny", ["a dog"], world.file).predictions
    ) == LocalDeployer().predict("tiny", ["a dog"])


# -- what hostile testing found -------------------------------------------------------------------

FIXED = """
[[deployment]]
model = "tiny"
stage = "Production"
endpoint = "{name}"
threads = 1
port = {port}
"""


def _promoted(world: World, *seeds: int) -> None:
    """Versions, each in Production after the other, deployed."""
    for seed in seeds:
        world.version(seed, accuracy=0.9)
        versions.promote("tiny", seed, stage="Production")
        _apply(world)


def test_a_renamed_endpoint_keeps_its_fixed_port(world: World) -> None:
    port = processkit.free_port()
    world.deployments(FIXED.format(name="aa", port=port))
    _promoted(world, 1)
    assert _serving("aa") == "1"
    world.deployments(FIXED.format(name="bb", port=port))
    outcomes = _apply(world)
    assert [o.what[:4] for o in outcomes] == ["- aa", "+ bb"]
    assert [o.error for o in outcomes] == ["", ""]
    assert (_serving("aa"), _serving("bb")) == ("", "1")
    assert processkit.answers(port)
    assert _apply(world) == ()


def test_a_renaming_that_fails_leaves_the_old_endpoint_and_is_tried_again(world: World) -> None:
    _promoted(world, 1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        world.deployments(FIXED.format(name="bb", port=port))
        for _ in range(2):
            created, kept = _apply(world)
            assert "in use" in created.error
            assert (kept.what, "bb" in kept.error) == ("tiny goes on serving", True)
            assert (_serving(), _serving("bb")) == ("1", "")
    outcomes = _apply(world)  # the port is free again
    assert all(not outcome.error for outcome in outcomes)
    assert (_serving(), _serving("bb")) == ("", "1")


def test_a_failed_edit_keeps_its_reason_and_the_version_goes_on_serving(world: World) -> None:
    _promoted(world, 1)
    (package,) = (p for p in (paths.endpoints() / ".packages").iterdir())
    (package / "probes.json").write_text("{}")
    manifest = package / controller.package.MANIFEST
    manifest.write_text(json.dumps(controller.package._digests(package)))
    world.deployments(DEPLOYMENTS + "workers = 2\n")
    failed = _apply(world)
    again = _apply(world)
    for outcome in (failed[0], *again):
        assert "probes.json holds no probes" in outcome.error
        assert "failed" not in outcome.error
    (said,) = again
    assert said.what == "tiny version 1 serves, not as the deployment asks"
    assert (_serving(), _tag("1")) == ("1", "serving")
    (row,) = overview.status(world.file)
    assert (row.phase, "holds no probes" in row.reason) == ("failed", True)


def test_a_rollback_whose_version_is_deleted_blocks_no_deployment(world: World) -> None:
    world.deployments(DEPLOYMENTS + GATED.replace("0.9", "0.5"))
    _promoted(world, 1, 2)
    rollback.roll_back("tiny", world.file)
    mlflow.MlflowClient().delete_model_version("tiny", "1")
    versions.set_model_tag("tiny", OVERRIDE + "gated", "{no json")
    _apply(world)
    assert _serving() == "2"
    assert OVERRIDE + "tiny" not in versions.look("tiny").tags
    assert {row.phase for row in overview.status(world.file)} == {"serving", "idle"}


def test_a_rollback_skips_versions_that_were_deleted(world: World) -> None:
    _promoted(world, 1, 2, 3)
    mlflow.MlflowClient().delete_model_version("tiny", "2")
    assert rollback.roll_back("tiny", world.file).version == "1"


def test_an_explicit_promotion_ends_a_rollback_though_nothing_moves(world: World) -> None:
    world.deployments(DEPLOYMENTS.replace('stage = "Production"', 'alias = "champion"'))
    for seed in (1, 2):
        world.version(seed, accuracy=0.9)
        greenroom.promote("tiny", seed, alias="champion")
        _apply(world)
    rollback.roll_back("tiny", world.file)
    greenroom.promote("tiny", 2, alias="champion")
    _apply(world)
    assert _serving() == "2"


def test_production_names_what_serves_and_says_what_was_refused(world: World) -> None:
    world.version(1, accuracy=0.9, probes=3)
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    answer = overview.production("tiny", world.file)
    assert answer.version == "1"
    assert "version 1 is failed (tiny version 1 does not answer" in answer.unserved
    assert answer.unserved.endswith("no version serves.")
    _promoted(world, 2)
    assert overview.production("tiny", world.file).unserved == ""
    versions.promote("tiny", 1, stage="Production")
    _apply(world)
    answer = overview.production("tiny", world.file)
    assert (answer.version, answer.metrics) == ("2", {"accuracy": 0.9})
    assert "version 1 is failed" in answer.unserved
    assert answer.unserved.endswith("version 2 serves.")
    assert "unserved" not in answer.to_dict()


@pytest.mark.parametrize("wrong", ["foo://bar", "no database"])
def test_a_store_that_is_none_holds_endpoints_and_restarts_them(world: World, wrong: str) -> None:
    _promoted(world, 1)
    text = world.root / "text.db"
    text.write_text("This is no database. " * 100)
    uri = f"sqlite:///{text}" if wrong == "no database" else wrong
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    _front().kill()
    outcomes = _apply(world)
    assert "bring tiny version 1 up again" in outcomes[0].what
    assert outcomes[-1].what == "left as it is"
    assert outcomes[-1].error
    (found,) = LocalDeployer().observe()
    assert found.up


def test_stopping_by_hand_is_in_the_ledger_and_in_the_tag(world: World) -> None:
    _promoted(world, 1)
    controller.stop("tiny", world.file)
    (run, _) = tracking.find_runs("deploy", endpoint="tiny")
    tags = run.data.tags
    assert (tags[ledger.ACTION], tags[ledger.REASON]) == ("remove", "stopped by hand")
    assert _tag("1") == "removed"


def test_stopping_by_hand_needs_no_store(world: World, caplog: pytest.LogCaptureFixture) -> None:
    _promoted(world, 1)
    mlflow.set_tracking_uri("foo://bar")
    mlflow.set_registry_uri("foo://bar")
    controller.stop("tiny", world.file)
    assert _serving() == ""
    assert "the ledger does not say so" in caplog.text


def test_an_endpoint_that_hangs_is_said_not_to_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _promoted(world, 1)
    monkeypatch.setattr("greenroom.deploy.local.ASK_S", 0.5)
    front = _front()
    front.suspend()
    try:
        (row,) = overview.status(world.file)
    finally:
        front.resume()
    assert (row.phase, row.reason.partition(";")[0]) == ("down", "it does not answer")


def test_a_killed_controllers_run_is_closed_by_the_next_one(world: World) -> None:
    client = mlflow.MlflowClient()
    dead = json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1, "started": 0, "time": 0})
    tags = {"greenroom.step": "deploy", ledger.ENDPOINT: "tiny", "greenroom.heartbeat": dead}
    run = client.create_run(tracking.experiment_for(ledger.EXPERIMENT), tags=tags)
    _promoted(world, 1)
    assert client.get_run(run.info.run_id).info.status == "KILLED"


def test_packages_are_their_owners_alone(world: World) -> None:
    controller.package.fetch(world.version(1))
    assert (paths.endpoints() / ".packages").stat().st_mode & 0o777 == 0o700

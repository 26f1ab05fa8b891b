"""Local endpoints as real processes: swaps under load, crashes, ports, long paths, locks.

Nothing here needs MLflow: the deployer is given model folders.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest

import modelkit
import processkit
from greenroom import paths
from greenroom.deploy.base import EndpointState
from greenroom.deploy.local import LocalDeployer
from greenroom.errors import DeployError, NotFoundError, RetryableError, UserError
from greenroom.serving.endpoint import EndpointFolder

TEXT = "where is the big dog"


@pytest.fixture
def deployer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalDeployer]:
    """A deployer with a home of its own; its endpoints end with the test."""
    monkeypatch.setenv("GREENROOM_HOME", str(tmp_path_factory.mktemp("h")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = LocalDeployer()
    yield made
    for state in made.observe():
        made.remove(state)


def _wanted(version: str, endpoint: str = "web", **changes: object) -> EndpointState:
    state = EndpointState(endpoint, model="m", version=version, source=f"models:/m-{version}")
    return replace(state, threads=1, owner="/d.toml", **changes)  # type: ignore[arg-type]


def _folder(models: Path, seed: int) -> Path:
    folder = models / str(seed)
    return folder if folder.exists() else modelkit.write_model(folder, seed=seed)


def _deploy(
    deployer: LocalDeployer, wanted: EndpointState, folder: Path, keep_s: float = 0
) -> None:
    deployer.start(wanted, folder)
    deployer.switch(wanted, keep_s)


def _found(deployer: LocalDeployer, endpoint: str = "web") -> EndpointState:
    return next(state for state in deployer.observe() if state.endpoint == endpoint)


def _front(endpoint: str = "web") -> psutil.Process:
    state = EndpointFolder(paths.endpoints() / endpoint).state()
    assert state is not None
    return psutil.Process(state.pid)


def _gone(process: psutil.Process) -> bool:
    """Ended; where process 1 reaps no orphans, its zombie may stay."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _version(port: int) -> str:
    body = json.dumps({"instances": [TEXT]}).encode()
    status, headers, _ = processkit.request(port, "POST", "/invocations", body)
    return headers.get("X-Greenroom-Version", "") if status == 200 else f"status {status}"


def test_an_endpoint_lives(deployer: LocalDeployer, models: Path) -> None:
    assert deployer.observe() == ()
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    found = _found(deployer)
    assert (found.model, found.version, found.owner) == ("m", "1", "/d.toml")
    assert found.up
    assert found.ready
    assert found.url == f"http://127.0.0.1:{found.port}/invocations"
    assert _version(found.port) == "1"
    assert deployer.predict("web", [TEXT])[0]["label"] in modelkit.LABELS
    with pytest.raises(UserError, match="instance 1"):
        deployer.predict("web", [TEXT, 3])
    front = _front()
    assert front.pid != os.getpid()
    assert os.getsid(front.pid) == front.pid  # it outlives the terminal
    workers = front.children()
    deployer.remove(found)
    assert not _found(deployer).serves
    assert all(_gone(p) for p in (front, *workers))
    assert not processkit.answers(found.port)
    with pytest.raises(NotFoundError, match="no endpoint 'web'"):
        deployer.predict("web", [TEXT])


def test_only_the_owner_may_give_orders(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    folder = paths.endpoints() / "web"
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (folder, folder / "state.json")]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"endpoint": "web", "live": 3}'])
def test_a_state_that_holds_none_is_no_state(
    deployer: LocalDeployer, models: Path, text: str
) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    state = paths.endpoints() / "web" / "state.json"
    state.write_text(text)
    found = _found(deployer)  # the front itself knows
    assert (found.version, found.up) == ("1", True)
    deployer.remove(found)
    assert not _found(deployer).serves
    state.write_text(text)
    assert deployer.observe() == ()
    assert EndpointFolder(state.parent).state() is None


@dataclass
class Load:
    """Clients that ask without a pause, each over one kept connection."""

    port: int
    stop: threading.Event = field(default_factory=threading.Event)
    served: list[tuple[float, str]] = field(default_factory=list)  # when sent, by which version
    failures: list[str] = field(default_factory=list)

    def client(self) -> None:
        """One client's life."""
        body = json.dumps({"instances": [TEXT]}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while not self.stop.is_set():
            sent = time.monotonic()
            try:
                connection.request("POST", "/invocations", body)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as problem:
                self.failures.append(repr(problem))
                connection.close()
                continue
            if answer.status != 200:
                self.failures.append(f"{answer.status} {text!r}")
            self.served.append((sent, answer.headers["X-Greenroom-Version"] or ""))
        connection.close()


def test_swaps_fail_no_request(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("0"), _folder(models, 0))
    load = Load(_found(deployer).port)
    clients = [threading.Thread(target=load.client) for _ in range(6)]
    for client in clients:
        client.start()
    try:
        for version in range(1, 6):
            _deploy(deployer, _wanted(str(version)), _folder(models, version % 3))
            # No request that is sent once the switch was answered gets the old version.
            switched, mark = time.monotonic(), len(load.served) + 100
            processkit.until(lambda m=mark: len(load.served) > m, "requests go on")
            assert {by for sent, by in load.served if sent > switched} == {str(version)}
    finally:
        load.stop.set()
        for client in clients:
            client.join()
    assert load.failures == []
    assert {by for _, by in load.served} == {str(v) for v in range(6)}
    print(f"\nswaps under load: {len(load.served)} requests, {len(load.failures)} failures")
    processkit.until(lambda: len(_front().children()) == 1, "the old workers end")


def test_two_workers_share_the_load(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("1", workers=2), _folder(models, 1))
    assert len(_front().children()) == 2
    assert _version(_found(deployer).port) == "1"


def test_a_kept_version_comes_back_without_a_start(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    first = {p.pid for p in _front().children()}
    _deploy(deployer, _wanted("2"), _folder(models, 2), keep_s=600)
    assert first < {p.pid for p in _front().children()}
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    assert _version(_found(deployer).port) == "1"
    processkit.until(lambda: {p.pid for p in _front().children()} == first, "2 ends, 1 stays")


def test_a_version_that_cannot_start_leaves_the_old_one(
    deployer: LocalDeployer, models: Path, tmp_path: Path
) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    with pytest.raises(DeployError, match="not a model folder"):
        deployer.start(_wanted("2"), tmp_path)
    with pytest.raises(DeployError, match="not ready"):
        deployer.switch(_wanted("2"), 0)
    assert _version(_found(deployer).port) == "1"
    deployer.start(_wanted("3"), _folder(models, 2))
    deployer.discard("web")
    assert _version(_found(deployer).port) == "1"
    assert len(_front().children()) == 1


def test_a_first_version_that_cannot_start_leaves_nothing(
    deployer: LocalDeployer, tmp_path: Path
) -> None:
    with pytest.raises(DeployError, match="not a model folder"):
        deployer.start(_wanted("1"), tmp_path)
    front = _front()
    deployer.discard("web")
    assert _gone(front)
    assert not _found(deployer).serves


def test_a_killed_worker_is_started_again(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    port = _found(deployer).port
    for worker in _front().children():
        worker.kill()
    seen = set()

    def served() -> bool:
        body = json.dumps({"instances": [TEXT]}).encode()
        status, headers, _ = processkit.request(port, "POST", "/invocations", body)
        seen.add((status, headers.get("Retry-After")))
        return status == 200

    processkit.until(served, "the endpoint serves again")
    assert seen <= {(200, None), (503, "1")}


def test_a_killed_front_takes_its_workers_along_and_comes_back_on_its_port(
    deployer: LocalDeployer, models: Path
) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    found, front = _found(deployer), _front()
    workers = front.children()
    front.send_signal(signal.SIGKILL)
    processkit.until(lambda: all(_gone(p) for p in workers), "the workers end")
    down = _found(deployer)
    assert (down.version, down.up) == ("1", False)
    deployer.restart(down)
    again = _found(deployer)
    assert (again.version, again.port, again.up) == ("1", found.port, True)
    assert _version(found.port) == "1"
    deployer.restart(again)  # safe to repeat
    assert _front().pid != front.pid


def test_a_hung_front_is_replaced(
    deployer: LocalDeployer, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("greenroom.deploy.local.ASK_S", 0.5)
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    port, front = _found(deployer).port, _front()
    front.suspend()
    assert not _found(deployer).up
    monkeypatch.setattr("greenroom.deploy.local.ASK_S", 2.0)
    deployer.restart(_found(deployer))
    assert _version(port) == "1"
    assert _gone(front)


def test_the_port_can_be_chosen_and_changed(deployer: LocalDeployer, models: Path) -> None:
    first, second = processkit.free_port(), processkit.free_port()
    _deploy(deployer, _wanted("1", port=first), _folder(models, 1))
    assert _version(first) == "1"
    _deploy(deployer, _wanted("1", port=second), _folder(models, 1))
    assert _found(deployer).port == second
    assert _version(second) == "1"
    assert not processkit.answers(first)


def test_a_taken_port_is_refused_and_named(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    port = _found(deployer).port
    with pytest.raises(RetryableError, match="in use"):  # no fault of the version
        deployer.start(_wanted("1", "other", port=port), _folder(models, 1))
    _deploy(deployer, _wanted("2", "third"), _folder(models, 1))
    with pytest.raises(RetryableError, match=f"port {port}"):
        deployer.start(_wanted("2", "third", port=port), _folder(models, 1))
    assert _version(port) == "1"


def test_a_long_home_is_no_hindrance(
    deployer: LocalDeployer, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREENROOM_HOME", str(tmp_path / ("long" * 40) / "home"))
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    found = _found(deployer)
    assert _version(found.port) == "1"
    folder = EndpointFolder(paths.endpoints() / "web")
    assert stat.S_IMODE(folder.sockets().stat().st_mode) == 0o700
    assert len(os.fsencode(folder.admin_socket)) <= 100
    deployer.remove(found)


def test_one_controller_at_a_time(deployer: LocalDeployer) -> None:
    with deployer.lock("web", 0) as first:
        assert first
        began = time.monotonic()
        with LocalDeployer().lock("web", 0.2) as second:
            assert not second
        assert time.monotonic() - began >= 0.2
        with LocalDeployer().lock("other", 0) as other:
            assert other
    with deployer.lock("web", 0) as again:
        assert again


def test_a_pid_of_another_process_is_not_killed(deployer: LocalDeployer, models: Path) -> None:
    _deploy(deployer, _wanted("1"), _folder(models, 1))
    front = _front()
    front.kill()
    folder = EndpointFolder(paths.endpoints() / "web")
    processkit.until(lambda: _gone(front), "the front is gone")
    state = folder.state()
    assert state is not None
    # As after a restart of the machine: the number now belongs to someone else, here to us.
    folder.write_state(replace(state, pid=os.getpid()))
    deployer.restart(_found(deployer))
    assert _found(deployer).up

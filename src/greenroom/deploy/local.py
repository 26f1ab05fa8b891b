"""Endpoints on this machine: one front process each, which lives on after the command.

Speaks to the fronts on their admin sockets; the front itself is `greenroom.serving.front`.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from greenroom import paths
from greenroom.deploy.base import EndpointState
from greenroom.errors import DeployError, NotFoundError, RetryableError, UserError, nearest
from greenroom.serving.endpoint import EndpointFolder, State, VariantSpec, state_from

START_S = 130.0  # the front itself gives a worker 120 s
STOP_S = 75.0  # the front gives what is in flight 60 s
ASK_S = 15.0  # a front that is silent for so long is taken for hung


class LocalDeployer:
    """The endpoints below GREENROOM_HOME."""

    def observe(self) -> tuple[EndpointState, ...]:
        """Every endpoint that has a front, or should have one."""
        if not paths.endpoints().is_dir():
            return ()
        folders = sorted(p for p in paths.endpoints().iterdir() if not p.name.startswith("."))
        states = [self._observe(EndpointFolder(folder)) for folder in folders if folder.is_dir()]
        return tuple(state for state in states if state is not None)

    def _observe(self, folder: EndpointFolder) -> EndpointState | None:
        answering = _state(folder)
        state = answering or folder.state()
        if state is None:
            return None
        live = state.live or VariantSpec("", "", "", "")
        return EndpointState(
            endpoint=folder.name,
            model=live.model,
            version=live.version,
            source=live.source,
            workers=live.workers,
            threads=live.threads,
            port=state.port,
            owner=state.owner,
            up=answering is not None,
            ready=state.ready,
            url=state.url,
            since=state.since,
        )

    @contextlib.contextmanager
    def lock(self, endpoint: str, wait_s: float) -> Iterator[bool]:
        """A lock on a file in the endpoint's folder; it goes with the process that holds it."""
        folder = _folder(endpoint)
        folder.make()
        deadline = time.monotonic() + wait_s
        with (folder.path / "lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        yield False
                        return
                    time.sleep(0.1)
                else:
                    yield True
                    return

    def start(self, wanted: EndpointState, package: Path) -> None:
        """Starts the version beside what serves; the front as well where there is none."""
        folder = _folder(wanted.endpoint)
        if _state(folder) is None:
            _bring_up(folder, wanted.owner, wanted.port)
        if wanted.port:
            _order(folder, "POST", "/listen", {"port": wanted.port})
        spec = VariantSpec(
            wanted.model,
            wanted.version,
            wanted.source,
            str(package),
            wanted.workers,
            wanted.threads,
        )
        _order(folder, "POST", "/candidate", asdict(spec), START_S)

    def ask(self, endpoint: str, instances: Sequence[Any]) -> list[Mapping[str, Any]]:
        """The started version's predictions."""
        body = {"instances": list(instances)}
        try:
            answer = _order(_folder(endpoint), "POST", "/candidate/invocations", body, START_S)
        except RetryableError as problem:  # the version's worker ended, or answered 503
            raise DeployError(f"endpoint {endpoint}: the probes failed: {problem}") from problem
        return list(answer["predictions"])

    def switch(self, wanted: EndpointState, keep_previous_s: float) -> None:
        """Gives the started version the traffic."""
        order = {
            "version": wanted.version,
            "owner": wanted.owner,
            "keep_previous_s": keep_previous_s,
        }
        _order(_folder(wanted.endpoint), "POST", "/switch", order)

    def discard(self, endpoint: str) -> None:
        """Ends the started version; a front that then serves nothing ends as well."""
        folder = _folder(endpoint)
        if _state(folder) is None:
            return
        _order(folder, "DELETE", "/candidate", None, STOP_S)
        state = _state(folder)
        if state is not None and state.live is None:
            _stop(folder, state)

    def restart(self, found: EndpointState) -> None:
        """Starts the front again, which serves what its state names, and waits until it does."""
        folder = _folder(found.endpoint)
        if _state(folder) is None:
            _bring_up(folder, found.owner, found.port)
        deadline = time.monotonic() + START_S
        while not ((state := _state(folder)) and state.ready):
            if state is None or time.monotonic() > deadline:
                raise DeployError(
                    f"endpoint {found.endpoint}: version {found.version} does not come up again; "
                    f"the log, {folder.log}, ends:\n{folder.log_tail()}"
                )
            time.sleep(0.05)

    def remove(self, found: EndpointState) -> None:
        """Ends the front; its port is kept for the next time."""
        folder = _folder(found.endpoint)
        state = _state(folder) or folder.state()
        if state is not None:
            _stop(folder, state)

    def predict(self, endpoint: str, instances: Sequence[Any]) -> list[Mapping[str, Any]]:
        """Predictions over the endpoint's own port, as any client gets them."""
        folder = _folder(endpoint)
        state = _state(folder)
        if state is None:
            known = [s.endpoint for s in self.observe() if s.serves]
            if endpoint not in known:
                raise NotFoundError(f"no endpoint {endpoint!r} serves; {nearest(endpoint, known)}")
            raise RetryableError(
                f"endpoint {endpoint} is down; bring it up with: greenroom deploy apply {endpoint}"
            )
        connection = http.client.HTTPConnection(state.host, state.port, timeout=60)
        answer = _post(connection, "POST", "/invocations", {"instances": list(instances)})
        return list(answer["predictions"])


def _folder(endpoint: str) -> EndpointFolder:
    return EndpointFolder(paths.endpoints() / endpoint)


# -- orders to a front --------------------------------------------------------------------------


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("front", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _state(folder: EndpointFolder) -> State | None:
    """The front's own answer; None when there is none to answer."""
    try:
        return state_from(_order(folder, "GET", "/state", None))
    except (RetryableError, DeployError):
        return None


def _order(
    folder: EndpointFolder, method: str, path: str, body: Any, timeout_s: float = 0.0
) -> Any:
    return _post(_UnixConnection(folder.admin_socket, timeout_s or ASK_S), method, path, body)


def _post(connection: http.client.HTTPConnection, method: str, path: str, body: Any) -> Any:
    """The JSON answer. Raises `UserError` for 400 and 413, `DeployError` for a refused order, and
    `RetryableError` when nothing answers or it is not ready."""
    data = None if body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except TimeoutError as problem:
        raise DeployError(f"{method} {path}: no answer in {connection.timeout:g} s") from problem
    except (OSError, http.client.HTTPException) as problem:
        raise RetryableError(f"{method} {path}: no answer: {problem}") from problem
    finally:
        connection.close()
    if answer.status == 200:
        return json.loads(text)
    message = _message(text)
    kinds = {400: UserError, 413: UserError, 503: RetryableError}
    raise kinds.get(answer.status, DeployError)(message)


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text.decode("utf-8", "replace")


# -- the front's process ------------------------------------------------------------------------


def _bring_up(folder: EndpointFolder, owner: str, port: int) -> None:
    """Starts the front; it is listening when this returns."""
    folder.make()
    state = folder.state()
    if state is not None:
        _kill(state)  # one that lives and does not answer
    command = [sys.executable, "-m", "greenroom.serving.front", str(folder.path)]
    source = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [*command, "--owner", owner, "--port", str(port)],
        cwd=folder.path,  # -m puts the working folder first on sys.path: this one holds no code
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    if done.returncode:
        # The front has seen no version yet: a port that is taken, a disk that is full.
        raise RetryableError(
            f"endpoint {folder.name} cannot start: {done.stderr.strip()} (log: {folder.log})"
        )


def _stop(folder: EndpointFolder, state: State) -> None:
    """Ends the front in its own time, at last by force; its state says that it should not run."""
    with contextlib.suppress(RetryableError):  # it may be down already
        _order(folder, "POST", "/stop", None)
        _wait_gone(state, STOP_S)
    _kill(state)
    folder.write_state(replace(folder.state() or state, live=None, since="", pid=0, candidate=""))


def _process(state: State) -> psutil.Process | None:
    try:
        process = psutil.Process(state.pid) if state.pid else None
        if process is None or abs(process.create_time() - state.started) > 1.0:
            return None
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.NoSuchProcess:
        return None


def _wait_gone(state: State, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while _process(state) is not None and time.monotonic() < deadline:
        time.sleep(0.02)


def _kill(state: State) -> None:
    process = _process(state)
    if process is not None:
        process.kill()
        _wait_gone(state, 10.0)

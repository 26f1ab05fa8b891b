"""Real processes and HTTP for tests, with deadlines instead of sleeps."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"


def until(true: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """The first truthy value of `true`; AssertionError after the time."""
    deadline = time.monotonic() + timeout_s
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return value


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def env(**more: str) -> dict[str, str]:
    """This environment, with the sources of greenroom on the path."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}


def python(*args: str, **options: Any) -> subprocess.Popen[str]:
    """A python process with the sources of greenroom on its path."""
    options = {"env": env(), "text": True, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, *args], **options)


def request(
    port: int, method: str, path: str, body: bytes | None = None
) -> tuple[int, Mapping[str, str], Any]:
    """One request over a connection of its own: status, headers, JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), json.loads(answer.read())
    finally:
        connection.close()


def answers(port: int, path: str = "/ping", status: int = 200) -> bool:
    """Whether something on the port answers so."""
    try:
        return request(port, "GET", path)[0] == status
    except (OSError, http.client.HTTPException):
        return False

"""The folder of an endpoint of this machine: what lies where, and the state that is read back.

Shared by the front, which writes the state, and `deploy.local`, which reads it. Standard library
only.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

# A unix socket's path must fit in 104 bytes on macOS, 108 on Linux.
SOCKET_PATH_BYTES = 100


@dataclass(frozen=True)
class VariantSpec:
    """One version as an endpoint serves it."""

    model: str
    version: str
    source: str  # MLflow's URI: a deleted and re-made version 1 is another one
    package: str  # the model folder
    workers: int = 1
    threads: int = 0  # CPU threads of each worker; 0: torch's choice


@dataclass(frozen=True)
class State:
    """What the front last wrote about itself."""

    endpoint: str
    owner: str = ""  # the deployments file that made the endpoint
    pid: int = 0  # 0: stopped on purpose
    started: float = 0.0  # the process's start time: a pid alone may be another process by now
    host: str = "127.0.0.1"
    port: int = 0  # kept over stops and starts
    live: VariantSpec | None = None
    since: str = ""  # ISO 8601, UTC: when `live` took the traffic
    candidate: str = ""  # a version that is being started beside it
    ready: bool = field(default=False, compare=False)  # asked of the front, not in the file

    @property
    def url(self) -> str:
        """Where predictions are posted; "" before the first start."""
        return f"http://{self.host}:{self.port}/invocations" if self.port else ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


def state_from(table: Mapping[str, Any]) -> State:
    """The state of a JSON object; keys of a later greenroom are left out."""
    known = {f.name for f in fields(State)}
    values = {key: value for key, value in table.items() if key in known}
    if values.get("live"):
        values["live"] = VariantSpec(**values["live"])
    return State(**values)


@dataclass(frozen=True)
class EndpointFolder:
    """The files of one endpoint."""

    path: Path

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.path.name

    @property
    def log(self) -> Path:
        """The log of the front and its workers."""
        return self.path / "log.txt"

    @property
    def admin_socket(self) -> Path:
        """Where the front takes orders."""
        return self.sockets() / "admin.sock"

    def make(self) -> None:
        """Makes the folder; only its owner may read it or give the front orders."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def sockets(self) -> Path:
        """The folder of the sockets: this one, or a short one where its path is too long."""
        if len(os.fsencode(self.path)) + len("/w-4194304-00000.sock") <= SOCKET_PATH_BYTES:
            return self.path
        digest = sha256(os.fsencode(self.path)).hexdigest()[:12]
        short = Path(tempfile.gettempdir()) / f"greenroom-{os.getuid()}-{digest}"
        short.mkdir(mode=0o700, exist_ok=True)
        if short.stat().st_uid != os.getuid() or short.is_symlink():
            raise OSError(
                f"{short} belongs to someone else; set TMPDIR or a shorter GREENROOM_HOME"
            )
        return short

    def state(self) -> State | None:
        """The state as last written; None where no endpoint was ever started, or where a machine
        that lost its power left no state in the file."""
        try:
            return state_from(json.loads((self.path / "state.json").read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None

    def write_state(self, state: State) -> None:
        """Replaces the state: a reader sees the old or the new one, never half."""
        new = self.path / f".state.{os.getpid()}.json"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(state.to_dict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())  # else the renaming may reach the disk before the text
        os.replace(new, self.path / "state.json")

    def log_tail(self, lines: int = 15) -> str:
        """The log's last lines, for an error message."""
        try:
            text = self.log.read_bytes()[-8192:].decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

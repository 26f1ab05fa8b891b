"""The folders that greenroom keeps on this machine. Imported by whatever reads or writes them.

Everything lies below GREENROOM_HOME (default: a `greenroom` folder in the user's data folder).
A function only names its folder; whoever writes there makes it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

from greenroom.errors import ConfigError


def home() -> Path:
    """GREENROOM_HOME, else the user's data folder for greenroom; always absolute."""
    given = os.environ.get("GREENROOM_HOME", "").strip()
    folder = Path(given).expanduser() if given else Path(platformdirs.user_data_dir("greenroom"))
    return folder.absolute()


def check_home() -> None:
    """Raises `ConfigError` where greenroom's folder cannot be made or written."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home()):
            pass
    except OSError as error:
        raise ConfigError(
            f"GREENROOM_HOME: {home()} cannot be written ({error.strerror}); set it to a folder of "
            "yours"
        ) from error


def snapshots() -> Path:
    """One folder for each data snapshot, named by its id."""
    return home() / "snapshots"


def endpoints() -> Path:
    """One folder for each endpoint of this machine: its versions, state and log."""
    return home() / "endpoints"


def checkpoints() -> Path:
    """One folder for each training that may have to be resumed."""
    return home() / "checkpoints"

"""A process that outlives the command that started it. Standard library only; called by `front`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def telling(opened: int) -> Iterator[None]:
    """Says to the first process how the block went: "ok", or the OSError that it raised."""
    try:
        yield
        os.write(opened, b"ok")
    except OSError as problem:
        os.write(opened, str(problem).encode())
        raise
    finally:
        os.close(opened)


def detach(log_file: Path) -> int:
    """Goes on in a process of its own session; the first one ends when that one is open.

    The result is the end of a pipe to write "ok" or a problem to. Nothing but this module's
    imports has run: there is no thread and no loop to lose in the fork.
    """
    listen, tell = os.pipe()
    if os.fork():
        os.close(tell)
        said = b"".join(iter(lambda: os.read(listen, 4096), b""))
        if said != b"ok":
            sys.stderr.write(said.decode() or f"it ended at once; see {log_file}")
        os._exit(0 if said == b"ok" else 1)
    os.close(listen)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, out), (2, out)):
        os.dup2(source, target)
    return tell

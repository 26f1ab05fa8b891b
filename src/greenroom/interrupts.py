"""Interrupts that wait for a write to end. Standard library only; used by `tracking`, `versions`.

Ctrl-C inside a database transaction leaves it open, and the run cannot be closed any more: SQLite
answered "database is locked" for 20 s, and the run stayed RUNNING.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """SIGINT and SIGTERM that come inside the block take effect when it ends, a second one at once
    (a write to a store that is away may take minutes).

    Outside the main thread, where Python delivers no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        pending.append(signum)
        if len(pending) > 1:
            restore()
            os.kill(os.getpid(), signum)

    def restore() -> None:
        for known, handler in before.items():
            signal.signal(known, handler)

    # A handler that was not installed from Python is None, and could not be put back.
    before: dict[int, Any] = {s: h for s in _SIGNALS if (h := signal.getsignal(s)) is not None}
    for signum in before:
        signal.signal(signum, note)
    try:
        yield
    finally:
        restore()
        if len(pending) == 1:
            os.kill(os.getpid(), pending[0])

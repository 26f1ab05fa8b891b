"""Whether the process that writes a run still works: the tag `greenroom.heartbeat`."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time

import psutil
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from greenroom.tracking.store import HEARTBEAT, client

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
DEAD_AFTER_S = 90.0  # six missed beats: a store may stall for a minute without the run being dead


def beat() -> str:
    """The heartbeat of this process, now."""
    me = psutil.Process()
    return json.dumps(
        {
            "host": socket.gethostname(),
            "pid": me.pid,
            "started": round(me.create_time(), 1),
            "time": round(time.time(), 1),
        }
    )


def keep_beating(run_id: str, stop: threading.Event) -> None:
    """Renews the heartbeat until `stop`; the thread of a run."""
    while not stop.wait(HEARTBEAT_S):
        try:
            client().set_tag(run_id, HEARTBEAT, beat())
        except MlflowException as error:  # a store that is away for a while must not end training
            log.warning("heartbeat of run %s not written: %s", run_id, error)


def is_alive(run: Run) -> bool:
    """Whether the process that writes this run still works.

    On the same host its process is looked up; from elsewhere a fresh heartbeat is the sign.
    """
    if run.info.status != "RUNNING":
        return False
    try:
        beat = json.loads(run.data.tags.get(HEARTBEAT, ""))
    except ValueError:
        return False
    if beat["host"] == socket.gethostname():
        try:
            started = psutil.Process(beat["pid"]).create_time()
        except psutil.NoSuchProcess:
            return False
        return abs(started - float(beat["started"])) < 1.0
    return time.time() - float(beat["time"]) < DEAD_AFTER_S

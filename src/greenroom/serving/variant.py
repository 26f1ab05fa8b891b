"""Worker processes of one version behind the front: started, watched, asked, drained.

A worker is `greenroom.serving.server` on a unix socket. It ends by itself when its standard input
closes, so none outlives a front that was killed. Imports aiohttp only.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from greenroom.serving.endpoint import VariantSpec

log = logging.getLogger("greenroom.front")

START_S = 120.0  # a worker that is not ready by then is taken for hung
REQUEST_S = 60.0
BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # pauses before the restarts of a crashing worker
STEADY_S = 60.0  # one that ran for so long starts again with the shortest pause
_numbers = itertools.count()


class NoWorker(Exception):
    """No worker can take the request now; a second later one may."""


class StartFailed(Exception):
    """A worker ended, or did not get ready, at its first start."""


@dataclass(frozen=True)
class Answer:
    """What a worker answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Worker:
    """One supervised process."""

    def __init__(self, spec: VariantSpec, sockets: Path) -> None:
        self.spec = spec
        # The pid: workers of a front that was killed may still be ending beside the new ones.
        self.socket = sockets / f"w-{os.getpid()}-{next(_numbers)}.sock"
        self.ready = False
        self.in_flight = 0
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Starts the process and waits until it would answer. Raises `StartFailed`."""
        self.socket.unlink(missing_ok=True)
        command = [sys.executable, "-m", "greenroom.serving.server", self.spec.package]
        options = ["--socket", str(self.socket), "--threads", str(self.spec.threads)]
        self._process = await asyncio.create_subprocess_exec(
            *command, *options, "--follow-stdin", stdin=asyncio.subprocess.PIPE
        )
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self.socket), limit=0)
            timeout = aiohttp.ClientTimeout(total=REQUEST_S)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        deadline = time.monotonic() + START_S
        while self._code() is None:
            if await self._answers():
                self.ready = True
                return
            if time.monotonic() > deadline:
                self._process.kill()
                raise StartFailed(f"the worker was not ready after {START_S:g} s")
            await asyncio.sleep(0.05)
        raise StartFailed(f"the worker ended with code {self._code()}")

    def _code(self) -> int | None:
        return self._process.returncode if self._process else None

    async def _answers(self) -> bool:
        assert self._session is not None
        try:
            async with self._session.get("http://worker/ping") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):  # not listening yet
            return False

    async def supervise(self) -> None:
        """Starts the process again whenever it ends, with growing pauses, until `stop`."""
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if not self.ready:
                    await self.start()
                assert self._process is not None
                code = await self._process.wait()
                problem = f"the worker of version {self.spec.version} ended with code {code}"
            except (StartFailed, OSError) as failure:  # OSError: no memory for a process
                problem = str(failure)
            self.ready = False
            if self._stopping.is_set():
                return
            crashes = 0 if time.monotonic() - began > STEADY_S else crashes
            pause = BACKOFF_S[min(crashes, len(BACKOFF_S) - 1)]
            crashes += 1
            log.error("%s; it is started again in %g s", problem, pause)
            await asyncio.sleep(pause)

    async def ask(self, method: str, path: str, body: bytes) -> Answer:
        """The worker's answer. Raises aiohttp.ClientError when it ends meanwhile."""
        assert self._session is not None
        self.in_flight += 1
        try:
            async with self._session.request(method, f"http://worker{path}", data=body) as answer:
                kept = {
                    key: answer.headers[key]
                    for key in ("Content-Type", "Retry-After")
                    if key in answer.headers
                }
                return Answer(answer.status, await answer.read(), kept)
        finally:
            self.in_flight -= 1

    async def stop(self) -> None:
        """Lets the process answer what is in flight and end."""
        self._stopping.set()
        self.ready = False
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), REQUEST_S + 5)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._session is not None:
            await self._session.close()
        self.socket.unlink(missing_ok=True)


class Variant:
    """All workers of one version."""

    def __init__(self, spec: VariantSpec, sockets: Path) -> None:
        self.spec = spec
        self.in_flight = 0  # requests that this variant was chosen for and that are unanswered
        self._workers = [Worker(spec, sockets) for _ in range(spec.workers)]
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """Whether a request would be answered."""
        return any(worker.ready for worker in self._workers)

    async def start(self) -> None:
        """Starts all workers and waits for them. Raises `StartFailed`, with none left running."""
        results = await asyncio.gather(
            *(worker.start() for worker in self._workers), return_exceptions=True
        )
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            await self.stop()
            raise failed[0]
        self.keep_up()

    def keep_up(self) -> None:
        """Supervises the workers from now on; starts those that do not run."""
        self._tasks = [asyncio.ensure_future(worker.supervise()) for worker in self._workers]

    async def ask(self, method: str, path: str, body: bytes) -> Answer:
        """The answer of the least busy worker; one that dies meanwhile is replaced by another
        (a prediction changes nothing, so asking twice is safe). Raises `NoWorker`."""
        self.in_flight += 1
        try:
            tried: set[Worker] = set()
            while ready := [w for w in self._workers if w.ready and w not in tried]:
                worker = min(ready, key=lambda w: w.in_flight)
                try:
                    return await worker.ask(method, path, body)
                except (aiohttp.ClientError, asyncio.TimeoutError) as problem:
                    tried.add(worker)
                    log.warning("a worker did not answer: %s", problem or type(problem).__name__)
            raise NoWorker(f"no worker of version {self.spec.version} is ready")
        finally:
            self.in_flight -= 1

    async def drain(self) -> None:
        """Waits until nothing is in flight, then stops the workers."""
        deadline = time.monotonic() + REQUEST_S
        while self.in_flight and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self.stop()

    async def stop(self) -> None:
        """Stops the workers."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

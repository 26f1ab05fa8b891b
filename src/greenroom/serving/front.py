"""A local endpoint's lasting process: owns the port, watches the workers, swaps versions.

Started detached by `deploy.local`, which gives it orders on the admin socket in the endpoint's
folder. The order of a swap: `POST /candidate` starts a version without traffic,
`POST /candidate/invocations` asks it (the rollout's probes), `POST /switch` gives it all traffic
between two requests and lets the old one drain. A front that is started again serves what its
state names, at the same port. Imports aiohttp only.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import psutil
from aiohttp import web

from greenroom.serving import answers, daemon
from greenroom.serving.drain import Drain
from greenroom.serving.endpoint import EndpointFolder, State, VariantSpec
from greenroom.serving.server import BODY_LIMIT, DRAIN_S
from greenroom.serving.variant import NoWorker, StartFailed, Variant

log = logging.getLogger("greenroom.front")

# A candidate whose rollout never came back (the controller was killed) goes after this time.
CANDIDATE_S = 300.0


class Front:
    """The live variant, the candidate, and those that drain."""

    def __init__(self, folder: EndpointFolder, owner: str, port: int) -> None:
        me = psutil.Process()
        before = folder.state() or State(folder.name)
        self.folder = folder
        self.state = replace(
            before,
            owner=owner or before.owner,
            port=port or before.port,
            pid=me.pid,
            started=me.create_time(),
            candidate="",
        )
        self.stop = asyncio.Event()
        self.live: Variant | None = None
        self.candidate: Variant | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._retiring: dict[Variant, asyncio.Task[None]] = {}
        self._drain = Drain()
        self._runner = web.AppRunner(self._public(), access_log=None, shutdown_timeout=DRAIN_S)
        self._admin_runner = web.AppRunner(self._admin(), access_log=None, shutdown_timeout=1.0)
        self._draining: set[asyncio.Task[None]] = set()
        self._site: web.SockSite | None = None

    # -- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Listens, and starts what the state says was served. Raises OSError for a taken port."""
        await self._runner.setup()
        await self._listen(self.state.port)
        await self._admin_runner.setup()
        for left in self.folder.sockets().glob("*.sock"):  # by a front that was killed
            left.unlink()
        await web.UnixSite(self._admin_runner, str(self.folder.admin_socket)).start()
        if self.state.live:
            self.live = Variant(self.state.live, self.folder.sockets())
            self.live.keep_up()
        self._write()

    async def close(self) -> None:
        """Answers what is in flight, then ends every worker."""
        await self._drain.finish(self._runner, DRAIN_S)
        for task in self._retiring.values():
            task.cancel()
        variants = [v for v in (self.live, self.candidate, *self._retiring) if v]
        await asyncio.gather(*(variant.stop() for variant in variants), *self._draining)
        await self._admin_runner.cleanup()
        self.folder.admin_socket.unlink(missing_ok=True)
        self._write(pid=0)

    async def _listen(self, port: int) -> None:
        """Moves to a port: the new one listens before the old one closes."""
        bound = socket.create_server((self.state.host, port))
        site = web.SockSite(self._runner, bound)
        await site.start()
        old, self._site = self._site, site
        self._write(port=bound.getsockname()[1])
        if old:
            await old.stop()

    def _write(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        self.folder.write_state(self.state)

    # -- public: predictions ------------------------------------------------------------------

    def _public(self) -> web.Application:
        app = web.Application(
            client_max_size=BODY_LIMIT, middlewares=[self._drain.middleware(), answers.as_json]
        )
        for path in ("/ping", "/health"):
            app.router.add_get(path, self._health)
        app.router.add_post("/invocations", self._predict)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        ready = self.live is not None and self.live.ready
        return web.json_response(
            {"status": "ok" if ready else "starting", "version": self._version()},
            status=200 if ready else 503,
        )

    async def _predict(self, request: web.Request) -> web.Response:
        body = await request.read()
        # From here to the variant's own count nothing awaits: a switch comes before or after.
        return await _asked(self.live, body)

    def _version(self) -> str:
        return self.live.spec.version if self.live else ""

    # -- admin: orders ------------------------------------------------------------------------

    def _admin(self) -> web.Application:
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_get("/state", self._get_state)
        app.router.add_post("/candidate", self._start_candidate)
        app.router.add_post("/candidate/invocations", self._ask_candidate)
        app.router.add_delete("/candidate", self._drop_candidate)
        app.router.add_post("/switch", self._switch)
        app.router.add_post("/listen", self._move)
        app.router.add_post("/stop", self._stop)
        return app

    async def _get_state(self, request: web.Request) -> web.Response:
        ready = self.live is not None and self.live.ready
        return web.json_response({**self.state.to_dict(), "ready": ready})

    async def _start_candidate(self, request: web.Request) -> web.Response:
        spec = VariantSpec(**await request.json())
        await self._discard()
        kept = next((v for v in self._retiring if v.spec == spec and v.ready), None)
        if kept:  # the previous version, still warm
            self._retiring.pop(kept).cancel()
            self.candidate = kept
        else:
            self.candidate = Variant(spec, self.folder.sockets())
        candidate = self.candidate
        self._write(candidate=spec.version)
        try:
            if not kept:
                await candidate.start()
        except StartFailed as problem:
            if self.candidate is candidate:
                self.candidate = None
                self._write(candidate="")
            return answers.error(
                409, f"{problem}; the log, {self.folder.log}, ends:\n" + self._tail()
            )
        loop = asyncio.get_running_loop()
        self._expiry = loop.call_later(CANDIDATE_S, self._expire, candidate)
        log.info("version %s is ready, without traffic", spec.version)
        return web.json_response({"version": spec.version})

    def _tail(self) -> str:
        return self.folder.log_tail()

    async def _ask_candidate(self, request: web.Request) -> web.Response:
        return await _asked(self.candidate, await request.read())

    async def _drop_candidate(self, request: web.Request) -> web.Response:
        await self._discard()
        return web.json_response({})

    def _expire(self, candidate: Variant) -> None:
        if self.candidate is candidate:
            log.warning("version %s was never switched to; it ends", candidate.spec.version)
            self.candidate = None
            self._write(candidate="")
            self._retire(candidate, 0.0)

    async def _discard(self) -> None:
        candidate, self.candidate = self.candidate, None
        if self._expiry:
            self._expiry.cancel()
        if candidate:
            self._write(candidate="")
            await candidate.stop()

    async def _switch(self, request: web.Request) -> web.Response:
        asked = await request.json()
        new = self.candidate
        if new is None or new.spec.version != asked["version"] or not new.ready:
            return answers.error(
                409, f"version {asked['version']} is not ready to take the traffic"
            )
        old, self.live, self.candidate = self.live, new, None
        if self._expiry:
            self._expiry.cancel()
        self._write(live=new.spec, since=_now(), candidate="", owner=asked["owner"])
        log.info("version %s has the traffic", new.spec.version)
        if old:
            self._retire(old, float(asked["keep_previous_s"]))
        return await self._get_state(request)

    def _retire(self, old: Variant, keep_s: float) -> None:
        async def after() -> None:
            await asyncio.sleep(keep_s)
            del self._retiring[old]  # from here it cannot be taken back
            drain = asyncio.ensure_future(old.drain())
            self._draining.add(drain)
            drain.add_done_callback(self._draining.discard)

        self._retiring[old] = asyncio.ensure_future(after())

    async def _move(self, request: web.Request) -> web.Response:
        port = int((await request.json())["port"])
        try:
            if port != self.state.port:
                await self._listen(port)
        except OSError as problem:
            return answers.error(503, f"port {port}: {problem}")  # it may be free a moment later
        return await self._get_state(request)

    async def _stop(self, request: web.Request) -> web.Response:
        self._write(live=None, since="")
        self.stop.set()
        return await self._get_state(request)


async def _asked(variant: Variant | None, body: bytes) -> web.Response:
    """A variant's answer, with the header that names its version."""
    if variant is None:
        return answers.error(503, "no version is being served", retry_after=1)
    headers = {"X-Greenroom-Version": variant.spec.version}
    try:
        answer = await variant.ask("POST", "/invocations", body)
    except NoWorker as problem:
        return answers.error(503, f"{problem}; it is being started", retry_after=1)
    return web.Response(
        status=answer.status, body=answer.body, headers={**answer.headers, **headers}
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


# -- the process --------------------------------------------------------------------------------


async def run(folder: EndpointFolder, owner: str, port: int, opened: int) -> int:
    """Serves until SIGTERM or the order to stop; "ok" or the problem goes to `opened`."""
    front = Front(folder, owner, port)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, front.stop.set)
    with daemon.telling(opened):
        await front.open()
    log.info("endpoint %s listens on %s:%d", folder.name, front.state.host, front.state.port)
    await front.stop.wait()
    log.info("endpoint %s ends", folder.name)
    await front.close()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m greenroom.serving.front FOLDER [--owner FILE] [--port N]`."""
    parser = argparse.ArgumentParser("greenroom.serving.front")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--owner", default="")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args(argv)
    folder = EndpointFolder(given.folder.absolute())
    folder.make()
    opened = daemon.detach(folder.log)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    answers.quiet()
    return asyncio.run(run(folder, given.owner, given.port, opened))


if __name__ == "__main__":
    sys.exit(main())

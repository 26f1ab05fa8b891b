"""A model folder behind HTTP: `python -m greenroom.serving.server FOLDER`.

One contract for Vertex AI, SageMaker and MLflow's clients (docs/serving.md). The same program is
`greenroom serve`, a local endpoint's worker and a container's command, so it starts fast: aiohttp,
torch, tokenizers and numpy are all that it imports, and it listens (answering "not ready") while
the model still loads.

Routes and port come from the environment where a cloud sets them:
https://docs.cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from greenroom.serving import answers, protocol
from greenroom.serving.batcher import Batcher, QueueFull
from greenroom.serving.drain import Drain

if TYPE_CHECKING:
    from greenroom.serving.scorer import Scorer

log = logging.getLogger("greenroom.serving")

SAGEMAKER_FOLDER = "/opt/ml/model"
BODY_LIMIT = 6_291_456  # SageMaker's limit of an InvokeEndpoint body
DRAIN_S = 60.0  # SageMaker's limit of one invocation: none can be in flight for longer


@dataclass(frozen=True)
class Settings:
    """What one server listens on and how much it takes."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8080
    socket: str = ""  # a unix socket's path, instead of host and port
    health_route: str = "/health"
    predict_route: str = "/invocations"
    threads: int = 0  # CPU threads; 0: torch's choice
    max_batch: int = 32
    max_queue: int = 1024  # texts
    body_limit: int = BODY_LIMIT
    follow_stdin: bool = False  # end when stdin closes: the parent process is gone


class Server:
    """The handlers and what they share."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.scorer: Scorer | None = None
        self.batcher: Batcher | None = None
        self.drain = Drain()

    def app(self) -> web.Application:
        """The aiohttp application; its model loads in the background once it runs."""
        app = web.Application(
            client_max_size=self.settings.body_limit,
            middlewares=[self.drain.middleware(), answers.as_json],
        )
        for route in {"/ping", "/health", self.settings.health_route}:
            app.router.add_get(route, self.health)
        for route in {"/invocations", self.settings.predict_route}:
            app.router.add_post(route, self.predict)
        return app

    async def load(self) -> None:
        """Loads the model and warms it up. Raises ValueError for a folder that holds none."""
        loop = asyncio.get_running_loop()
        scorer = await loop.run_in_executor(None, _load, self.settings)
        self.batcher = Batcher(
            scorer.score, max_batch=self.settings.max_batch, max_queue=self.settings.max_queue
        )
        # The first calls of a TorchScript module profile and specialise it: not a user's wait.
        for texts in (["warm-up"], ["warm-up", "a longer text to warm up with"]):
            await self.batcher.score(texts)
        self.scorer = scorer
        log.info("ready: %s", self.settings.folder)

    async def close(self) -> None:
        """Ends the scoring thread."""
        if self.batcher:
            await self.batcher.close()

    async def health(self, request: web.Request) -> web.Response:
        """200 when a prediction would be answered."""
        if self.scorer is None:
            return answers.error(503, "the model is loading", retry_after=1)
        return web.json_response({"status": "ok"})

    async def predict(self, request: web.Request) -> web.Response:
        """The predictions for the request's instances, in their order."""
        if self.scorer is None or self.batcher is None:
            return answers.error(503, "the model is loading", retry_after=1)
        body = await request.read()
        from greenroom.serving.scorer import BadInstance  # loaded by now

        try:
            texts = self.scorer.texts(protocol.instances(body))
            scored = await self.batcher.score(texts)
        except (protocol.BadRequest, BadInstance) as problem:
            return answers.error(400, str(problem), index=problem.index)
        except QueueFull as problem:
            return answers.error(503, f"overloaded: {problem}", retry_after=1)
        return web.Response(body=protocol.predictions(scored), content_type="application/json")


def _load(settings: Settings) -> Scorer:
    from greenroom.serving.scorer import Scorer  # torch: seconds, in this thread

    return Scorer.load(find_folder(settings.folder), settings.threads)


def find_folder(path: Path) -> Path:
    """The scorer's folder: `path` itself, or the one inside an MLflow model at `path`."""
    if (path / "greenroom.json").is_file():
        return path
    inside = sorted(path.glob("data/*/greenroom.json"))
    return inside[0].parent if inside else path


async def serve(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT, then answers what is in flight; the exit code."""
    server = Server(settings)
    # Access lines would cost more than a small model's forward pass.
    runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=DRAIN_S)
    await runner.setup()
    stop = _stop_event(settings)
    try:
        site = _site(runner, settings)
        await site.start()
        log.info("listening on %s", site.name)
        load = asyncio.ensure_future(server.load())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([load, stopping], return_when=asyncio.FIRST_COMPLETED)
        if load.done():
            load.result()
        await stopping
        log.info("stopping: answering what is in flight")
    except (ValueError, OSError) as problem:
        log.error("cannot serve: %s", problem)
        return 1
    finally:
        await server.drain.finish(runner, DRAIN_S)
        await server.close()
    return 0


def _site(runner: web.AppRunner, settings: Settings) -> web.BaseSite:
    if settings.socket:
        return web.UnixSite(runner, settings.socket)
    return web.TCPSite(runner, settings.host, settings.port)


def _stop_event(settings: Settings) -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.follow_stdin:
        # A parent that was killed says nothing, but its end of the pipe closes.
        loop.add_reader(sys.stdin.fileno(), _stop_at_end, stop)
    return stop


def _stop_at_end(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop.set()


def parse(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Command line and environment as settings."""
    parser = argparse.ArgumentParser("greenroom serve", description="Serve a model folder.")
    parser.add_argument("folder", nargs="?", default=SAGEMAKER_FOLDER)
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--socket", default="")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-batch", type=int, default=Settings.max_batch)
    parser.add_argument("--max-queue", type=int, default=Settings.max_queue)
    parser.add_argument("--body-limit", type=int, default=Settings.body_limit)
    parser.add_argument("--follow-stdin", action="store_true")
    given = parser.parse_args(argv)
    in_cloud = "AIP_HTTP_PORT" in env or given.folder == SAGEMAKER_FOLDER
    port = env.get("AIP_HTTP_PORT") or env.get("SAGEMAKER_BIND_TO_PORT") or "8080"
    return Settings(
        folder=Path(given.folder),
        host=given.host or ("0.0.0.0" if in_cloud else Settings.host),
        port=given.port or int(port),
        socket=given.socket,
        health_route=env.get("AIP_HEALTH_ROUTE") or Settings.health_route,
        predict_route=env.get("AIP_PREDICT_ROUTE") or Settings.predict_route,
        threads=given.threads,
        max_batch=given.max_batch,
        max_queue=given.max_queue,
        body_limit=given.body_limit,
        follow_stdin=given.follow_stdin,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The program; the exit code is 0 after SIGTERM, 1 when the model or port is not to be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    answers.quiet()
    return asyncio.run(serve(parse(sys.argv[1:] if argv is None else argv, os.environ)))


if __name__ == "__main__":
    sys.exit(main())

"""Ending a server without failing a request. Shared by `server` and `front`.

aiohttp's own cleanup answers requests that it has read; one whose body is still arriving would be
cut off. So: stop listening, let clients go with their next answer, wait, and then clean up.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

# A request that was sent before the end began may not have been read yet: for so long nothing must
# be in flight.
QUIET_S = 0.25


class Drain:
    """Counts an application's requests in flight, from their headers to their answers."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._ending = False

    def middleware(self) -> Middleware:
        """To be an application's first middleware."""

        @web.middleware
        async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
            self.in_flight += 1
            try:
                answer = await handler(request)
            finally:
                self.in_flight -= 1
            if self._ending:
                answer.force_close()
            return answer

        return count

    async def finish(self, runner: web.AppRunner, timeout_s: float) -> None:
        """Takes no new connection, answers what is in flight (up to the time), and cleans up."""
        self._ending = True
        for site in list(runner.sites):
            await site.stop()
        deadline = time.monotonic() + timeout_s
        quiet = time.monotonic()
        while time.monotonic() < min(deadline, quiet + QUIET_S):
            if self.in_flight:
                quiet = time.monotonic()
            await asyncio.sleep(0.02)
        await runner.cleanup()

"""Texts of many requests -> batches for one scoring thread. Standard library only.

What waits when the thread becomes free goes together, up to `max_batch` texts; nothing waits for
company, so an idle server adds no delay. `server` owns one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Score = Callable[[Sequence[str]], list[dict[str, Any]]]


class QueueFull(Exception):
    """Too many texts wait already; the same request may succeed a second later."""


@dataclass(frozen=True)
class _Chunk:
    texts: Sequence[str]
    answer: asyncio.Future[list[dict[str, Any]]]


class Batcher:
    """A bounded queue in front of `score`, which runs in one thread: torch spreads inside it."""

    def __init__(self, score: Score, *, max_batch: int = 32, max_queue: int = 1024) -> None:
        self._score = score
        self._max_batch, self._max_queue = max_batch, max_queue
        self._chunks: deque[_Chunk] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "score")
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def waiting(self) -> int:
        """Texts in the queue."""
        return sum(len(chunk.texts) for chunk in self._chunks)

    async def score(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The answers, in order. Raises `QueueFull`; an empty queue takes a request of any size."""
        waiting = self.waiting
        if waiting and waiting + len(texts) > self._max_queue:
            raise QueueFull(f"{waiting} texts are waiting")
        loop = asyncio.get_running_loop()
        chunks = [
            _Chunk(texts[i : i + self._max_batch], loop.create_future())
            for i in range(0, len(texts), self._max_batch)
        ]
        self._chunks.extend(chunks)
        self._arrived.set()
        answers = await asyncio.gather(*(chunk.answer for chunk in chunks))
        return [answer for part in answers for answer in part]

    async def close(self) -> None:
        """Ends the thread; call it when no request is left."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            batch = self._take()
            texts = [text for chunk in batch for text in chunk.texts]
            if not texts:
                continue
            try:
                answers = await loop.run_in_executor(self._thread, self._score, texts)
            except Exception as error:  # noqa: BLE001 - goes to the requests that it concerns
                for chunk in batch:
                    if not chunk.answer.done():
                        chunk.answer.set_exception(error)
                continue
            start = 0
            for chunk in batch:
                end = start + len(chunk.texts)
                if not chunk.answer.done():
                    chunk.answer.set_result(answers[start:end])
                start = end

    def _take(self) -> list[_Chunk]:
        """The chunks of the next batch; those whose client has gone are left out."""
        batch: list[_Chunk] = []
        room = self._max_batch
        while self._chunks and len(self._chunks[0].texts) <= room:
            chunk = self._chunks.popleft()
            if not chunk.answer.cancelled():
                batch.append(chunk)
                room -= len(chunk.texts)
        if not self._chunks:
            self._arrived.clear()
        return batch

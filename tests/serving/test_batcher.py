"""The batcher: who gets which answer, how large batches are, when the queue is full."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom.serving.batcher import Batcher, QueueFull


def _echo(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"label": text} for text in texts]


def _run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


@given(st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=9), max_size=12))
@settings(deadline=None, max_examples=30)
def test_every_request_gets_its_own_answers(requests: list[list[str]]) -> None:
    sizes: list[int] = []

    def score(texts: Sequence[str]) -> list[dict[str, Any]]:
        sizes.append(len(texts))
        return _echo(texts)

    async def work() -> None:
        batcher = Batcher(score, max_batch=4)
        answers = await asyncio.gather(*(batcher.score(texts) for texts in requests))
        assert [[a["label"] for a in answer] for answer in answers] == requests
        await batcher.close()

    _run(work)
    assert all(size <= 4 for size in sizes)


def test_what_waits_goes_together_and_a_full_queue_refuses() -> None:
    gate, sizes = threading.Event(), []

    def score(texts: Sequence[str]) -> list[dict[str, Any]]:
        sizes.append(len(texts))
        assert gate.wait(30)
        return _echo(texts)

    async def work() -> None:
        batcher = Batcher(score, max_batch=8, max_queue=3)
        tasks = [asyncio.ensure_future(batcher.score(["first"]))]
        while not sizes:
            await asyncio.sleep(0.001)
        tasks += [asyncio.ensure_future(batcher.score([str(i)])) for i in range(3)]
        while batcher.waiting < 3:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFull):
            await batcher.score(["one too many"])
        gate.set()
        await asyncio.gather(*tasks)
        await batcher.score([str(i) for i in range(20)])  # an empty queue takes any size
        await batcher.close()

    _run(work)
    assert sizes == [1, 3, 8, 8, 4]


def test_an_error_reaches_its_requests_and_the_next_ones_are_answered() -> None:
    def score(texts: Sequence[str]) -> list[dict[str, Any]]:
        if "bad" in texts:
            raise RuntimeError("no")
        return _echo(texts)

    async def work() -> None:
        batcher = Batcher(score)
        with pytest.raises(RuntimeError, match="no"):
            await batcher.score(["bad"])
        assert await batcher.score(["good"]) == [{"label": "good"}]
        await batcher.close()

    _run(work)


def test_a_client_that_left_costs_nothing() -> None:
    gate, seen = threading.Event(), []

    def score(texts: Sequence[str]) -> list[dict[str, Any]]:
        seen.extend(texts)
        assert gate.wait(30)
        return _echo(texts)

    async def work() -> None:
        batcher = Batcher(score)
        first = asyncio.ensure_future(batcher.score(["first"]))
        while not seen:
            await asyncio.sleep(0.001)
        left = asyncio.ensure_future(batcher.score(["left"]))
        await asyncio.sleep(0)
        left.cancel()
        last = asyncio.ensure_future(batcher.score(["last"]))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, last)
        await batcher.close()

    _run(work)
    assert seen == ["first", "last"]

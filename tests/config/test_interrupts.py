"""A signal inside a deferred block waits for its end; none is lost."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from greenroom import interrupts


class Stopped(BaseException):
    """What the handler of these tests raises."""


@pytest.fixture(autouse=True)
def _handlers(monkeypatch: pytest.MonkeyPatch) -> object:
    def stop(signum: int, frame: object) -> None:
        raise Stopped(signum)

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("depth", [1, 2])
def test_it_waits_for_the_end_of_the_outermost_block(signum: int, depth: int) -> None:
    done = []

    def nested(levels: int) -> None:
        with interrupts.deferred():
            if levels > 1:
                nested(levels - 1)
            else:
                os.kill(os.getpid(), signum)
            done.append(levels)

    with pytest.raises(Stopped):
        nested(depth)
    assert done == list(range(1, depth + 1))


def test_it_is_not_lost_when_the_block_fails() -> None:
    @interrupts.deferred()
    def write() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("the write failed too")

    with pytest.raises(Stopped) as caught:
        write()
    assert isinstance(caught.value.__context__, ValueError)


def test_a_second_one_does_not_wait() -> None:
    reached = []

    @interrupts.deferred()
    def write() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("first")
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("second")

    with pytest.raises(Stopped):
        write()
    assert reached == ["first"]


def test_outside_the_main_thread_nothing_changes() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with interrupts.deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]

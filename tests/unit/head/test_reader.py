"""The reader: one thread for all descriptors, of which none harms another."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator.head.reach.reader import Reader
from tests.patience import comes

SOON_S = 10.0


def until(condition: Callable[[], object]) -> None:
    assert comes(condition, SOON_S, 0.005)


class Pipe:
    def __init__(self) -> None:
        self.out, self.into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.heard = b""
        self.pause_s = 0.0
        self.threads: set[str] = set()

    def ready(self) -> float:
        self.heard += os.read(self.out, 4)
        self.threads.add(threading.current_thread().name)
        return self.pause_s


@pytest.fixture
def pipes() -> Iterator[list[Pipe]]:
    made = [Pipe(), Pipe()]
    yield made
    for pipe in made:
        os.close(pipe.out)
        os.close(pipe.into)


def test_each_is_read_by_turns_in_one_thread(pipes: list[Pipe]) -> None:
    reader = Reader()
    for pipe in pipes:
        os.write(pipe.into, b"0123456789")
        reader.watch(pipe.out, pipe.ready)
    until(lambda: all(pipe.heard == b"0123456789" for pipe in pipes))
    assert [pipe.threads for pipe in pipes] == [{"reader"}] * 2
    for pipe in pipes:
        reader.leave(pipe.out)


def test_a_fault_with_one_takes_the_thread_from_no_other(pipes: list[Pipe]) -> None:
    reader, (bad, good) = Reader(), pipes

    def fail() -> float:
        raise RuntimeError("a fault of ours")

    reader.watch(bad.out, fail)
    reader.watch(good.out, good.ready)
    os.write(bad.into, b"x")
    os.write(good.into, b"one")
    until(lambda: good.heard == b"one")
    reader.soon(fail)
    os.write(good.into, b"two")
    until(lambda: good.heard == b"onetwo")
    reader.leave(good.out)


def test_who_pauses_is_left_alone_for_so_long_and_who_has_left_for_ever(pipes: list[Pipe]) -> None:
    reader, (slow, fast) = Reader(), pipes
    slow.pause_s = 0.2
    reader.watch(slow.out, slow.ready)
    reader.watch(fast.out, fast.ready)
    os.write(slow.into, b"12345678")
    until(lambda: slow.heard == b"1234")
    began_at = time.monotonic()
    os.write(fast.into, b"abcdefgh")
    until(lambda: fast.heard == b"abcdefgh")
    until(lambda: slow.heard == b"12345678")
    assert time.monotonic() - began_at > 0.1
    reader.leave(slow.out)  # in its pause
    reader.leave(fast.out)
    for pipe in pipes:
        os.write(pipe.into, b"more")
    done = threading.Event()
    reader.soon(done.set)
    assert done.wait(SOON_S)
    assert (slow.heard, fast.heard) == (b"12345678", b"abcdefgh")


def test_a_reader_that_could_not_begin_begins_later(
    pipes: list[Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader()

    def refuse(*_: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", refuse)
        with pytest.raises(OSError, match="too many"):
            reader.watch(pipes[0].out, pipes[0].ready)
    os.write(pipes[0].into, b"one")
    reader.watch(pipes[0].out, pipes[0].ready)
    until(lambda: pipes[0].heard == b"one")
    reader.leave(pipes[0].out)

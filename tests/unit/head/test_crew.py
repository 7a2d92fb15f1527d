"""Threads that connections share."""

from __future__ import annotations

import threading

import pytest

from orchestrator.head.links import crew as crew_module
from orchestrator.head.links.crew import IDLE_MAX, Crew

HOSTS = 40


def test_work_that_blocks_keeps_no_other_waiting_and_its_threads_do_not_stay() -> None:
    crew, together, ended = Crew(), threading.Barrier(HOSTS), threading.Semaphore(0)
    threads: list[threading.Thread] = []

    def block(number: int) -> None:
        threads.append(threading.current_thread())
        together.wait(20.0)
        ended.release()
        if number == 0:
            raise ValueError("a fault of one costs the others nothing")

    for number in range(HOSTS):
        crew.submit(block, number)
    for _ in range(HOSTS):
        assert ended.acquire(timeout=20.0)
    leaving = [thread for thread in threads if not _stays(thread)]
    assert len(leaving) >= HOSTS - IDLE_MAX


def test_work_for_which_the_machine_allows_no_thread_is_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "NO_THREAD_S", 0.05)
    crew, looked, refused, done = Crew(), threading.Event(), threading.Event(), threading.Event()
    crew.again(looked.set, 0.01)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("connection-crew"):
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        crew.later(0.0, done.set)
        assert refused.wait(20.0)
    assert done.wait(20.0)
    looked.clear()
    assert looked.wait(20.0), "the thread of the timers goes on"
    crew.no_more(looked.set)


def test_what_is_not_wanted_any_more_is_not_done() -> None:
    crew, unwanted, done = Crew(), threading.Event(), threading.Event()
    crew.later(0.05, unwanted.set)
    crew.no_more(unwanted.set)
    crew.later(0.1, done.set)
    assert done.wait(20.0)
    assert not unwanted.is_set()


def test_work_is_done_later_though_no_thread_at_all_could_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "NO_THREAD_S", 0.0)
    crew, done = Crew(), threading.Event()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        crew.do(done.set)  # must not raise: the caller's connection would end
    crew.do(lambda: None)
    assert done.wait(20.0), "the next work starts what waits"


def _stays(thread: threading.Thread) -> bool:
    thread.join(0.5)
    return thread.is_alive()

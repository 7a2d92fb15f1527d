"""Threads that connections share."""

from __future__ import annotations

import threading

from orchestrator.daemon.connection.crew import IDLE_MAX, Crew

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


def _stays(thread: threading.Thread) -> bool:
    thread.join(0.5)
    return thread.is_alive()

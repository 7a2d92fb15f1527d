"""What is asked for every host of a run is found once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.head.hosts.preparation import GOOD_FOR_S, SharedAnswers


def test_threads_that_ask_at_once_wait_for_one_answer() -> None:
    shared, began, found = SharedAnswers(), threading.Event(), []

    def find() -> str:
        began.wait(5.0)
        found.append("once")
        return "answer"

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(shared.get, "question", find) for _ in range(8)]
        began.set()
        assert [answer.result() for answer in answers] == ["answer"] * 8
    assert found == ["once"]


def test_an_answer_counts_for_a_moment_only() -> None:
    clock = [0.0]
    shared = SharedAnswers(now=lambda: clock[0])
    assert shared.get("question", lambda: 1) == 1
    clock[0] = GOOD_FOR_S - 0.1
    assert shared.get("question", lambda: 2) == 1
    clock[0] += GOOD_FOR_S
    assert shared.get("question", lambda: 4) == 4


def test_what_cannot_be_found_is_looked_for_again() -> None:
    shared = SharedAnswers()
    with pytest.raises(OSError):
        shared.get("question", lambda: _missing())
    assert shared.get("question", lambda: 1) == 1


def _missing() -> int:
    raise OSError("no such file")

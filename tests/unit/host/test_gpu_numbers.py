"""GPUs that are named by UUID get their numbers one after another, and nothing waits for ever for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from orchestrator.host.agent.handlers import Orders
from orchestrator.host.agent.jobs import Result


class Jobs:
    """Forks that end when the test says so, or that the host refuses."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.waiting: list[Callable[[Result], None]] = []

    def function(self, _work: object, done: Callable[[Result], None], *, deadline_s: float) -> None:
        assert deadline_s > 0
        if self.refuses:
            raise BlockingIOError(11, "fork")
        self.waiting.append(done)


def orders(jobs: Jobs) -> Orders:
    made = Orders.__new__(Orders)
    made._unnumbered, made._jobs = [], cast("Any", jobs)
    return made


def test_where_the_host_has_no_process_left_the_names_stay_and_the_next_order_is_answered() -> None:
    done: list[object] = []
    agent = orders(Jobs(refuses=True))
    agent._numbered(["GPU-a"], done.append)
    agent._numbered([], done.append)
    assert done == [["GPU-a"], []]
    assert agent._unnumbered == []


def test_what_follows_waits_and_keeps_its_order() -> None:
    done: list[object] = []
    jobs = Jobs()
    agent = orders(jobs)
    for names in ([1], ["GPU-a"], [], [2]):
        agent._numbered(names, done.append)  # type: ignore[arg-type]
    assert done == [[1]], "numbers need nobody"
    jobs.waiting.pop()(Result(0, b'{"numbers": [0]}', False))
    assert done == [[1], [0], [], [2]]

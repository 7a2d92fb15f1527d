"""The inbox: an order that nothing changes, and who wakes the thread that takes."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import HostReported, TaskReport
from orchestrator.core.plan import TaskId
from orchestrator.core.state.task import Progress
from orchestrator.head.coordinator.inbox import UNHURRIED_S, Inbox
from orchestrator.head.coordinator.report_queue import Reports

W0 = TaskId("worker", 0)


def drained(inbox: Inbox[str]) -> list[str]:
    taken = []
    while True:
        try:
            taken.append(inbox.get_nowait())
        except queue.Empty:
            return taken


def test_the_order_is_that_of_the_posts_hurried_or_not() -> None:
    inbox: Inbox[str] = Inbox()
    for item in ("a", "b", "c!", "d", "e!", "f"):
        (inbox.put if item.endswith("!") else inbox.put_unhurried)(item)
    assert drained(inbox) == ["a", "b", "c!", "d", "e!", "f"]


def test_a_deadline_takes_what_has_waited() -> None:
    inbox: Inbox[str] = Inbox()
    inbox.put_unhurried("wakes")
    assert inbox.get(None) == "wakes"
    inbox.put_unhurried("waits")
    assert inbox.get(0.0) == "waits"
    with pytest.raises(queue.Empty):
        inbox.get(0.0)


def test_what_is_hurried_wakes_at_once_and_what_is_not_soon() -> None:
    inbox: Inbox[str] = Inbox()
    taken: list[tuple[float, str]] = []
    done = threading.Event()

    def take() -> None:
        while (item := inbox.get(None)) != "end":
            taken.append((time.monotonic(), item))
        done.set()

    threading.Thread(target=take, daemon=True).start()
    began_at = time.monotonic()
    inbox.put_unhurried("first")  # nobody looks soon: it wakes
    inbox.put_unhurried("second")
    while len(taken) < 2:
        assert time.monotonic() < began_at + 20 * UNHURRIED_S
        time.sleep(0.01)
    inbox.put("end")
    assert done.wait(20 * UNHURRIED_S)
    assert [item for _, item in taken] == ["first", "second"]


def report(**changes: object) -> HostReported:
    progress = Progress(global_step=7, began_step=0, metrics={"loss": 1.0})
    task = TaskReport(W0, 1, "running", pid=7, port=20000, progress=progress)
    return HostReported(1.0, "a", (replace(task, **changes),))  # type: ignore[arg-type]


ENDED = Exit(cause=Cause.SIGNAL, code=137, signal=9, ordered=False, at=1.0)


def test_numbers_alone_are_no_news_and_whatever_somebody_waits_for_is() -> None:
    reports = Reports()
    assert reports.is_news("r", report())
    assert not reports.is_news("r", report(progress=Progress(global_step=9, began_step=0)))
    for news in (
        report(phase="exited", exit=ENDED),
        report(pid=8),
        report(generation=2),
        report(progress=Progress(global_step=0, began_step=0)),
        report(progress=Progress(global_step=9, nonfinite={"loss": (9, "nan")})),
        report(said=(("k", "words"),)),
        replace(report(), tasks=()),
        replace(report(), gpu_faults=((0, 79),)),
    ):
        assert reports.is_news("r", news)
        assert reports.is_news("r", report())
    reports.close("r", "b")
    assert not reports.is_news("r", report()), "it is another host that something has happened to"
    reports.close("r", "a")
    assert reports.is_news("r", report())

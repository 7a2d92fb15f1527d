"""What is done for a heartbeat does not grow with the number of hosts. Work is counted, not timed.

`python -m tests.unit.core.test_work` prints the figures of docs/heartbeat.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import core
from orchestrator.core import decide
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.decision import Weight
from orchestrator.core.events import (
    Event,
    HostDown,
    HostPrepared,
    HostReported,
    HostUp,
    Submitted,
    TaskReport,
)
from orchestrator.core.state.host import Facts
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress
from orchestrator.head.coordinator.loop import Loop
from orchestrator.head.journal.journal import Journal
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"
GROWTH_MAX = 1.1


def counted(work: Callable[[], object]) -> int:
    """Return how many instructions of Python it takes."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def after(run: Run, *events: Event) -> Run:
    for event in events:
        run, _, _ = decide.step(run, event)
    return run


def report(run: Run, host: int, at: float, phase: str = "running", step: int | None = None) -> HostReported:
    task = run.tasks[host]
    told = TaskReport(task.id, run.generation, phase, pid=7, port=20000, progress=Progress(global_step=step))
    return HostReported(at, task.host, (told,))


def training(n_hosts: int) -> Run:
    run = released(n_hosts)
    for host in range(n_hosts):
        run = after(run, report(run, host, 1.0, step=1))
    return run


def released(n_hosts: int) -> Run:
    names = [f"h{number}" for number in range(n_hosts)]
    run = after(new_run(RUN, make_plan(names, checkpoint=False), epoch=1, at=0.0), Submitted(0.0))
    for name in names:
        run = after(run, HostUp(0.0, name, "boot"), HostPrepared(0.0, name, Facts()))
    for phase in ("ready", "running"):
        for host in range(n_hosts):
            run = after(run, report(run, host, 1.0, phase))
    assert run.phase is Phase.RUNNING
    return run


PER_HOST_MAX = 200
"""How many instructions a decision may take for each host that has nothing to do with it: some 120, when it was set."""


def test_a_decision_about_all_hosts_asks_little_of_each() -> None:
    few, many = training(4), training(64)
    work = [counted(lambda run=run: decide.step(run, report(run, 0, 2.0, step=5))) for run in (few, many)]  # type: ignore[misc]
    assert work[0] > 100
    assert (work[1] - work[0]) / 60 <= PER_HOST_MAX, work


def test_a_decision_about_a_heartbeat_visits_no_other_host() -> None:
    few, many = training(4), training(64)
    work = [counted(lambda run=run: decide.step(run, report(run, 2, 2.0, step=5))) for run in (few, many)]  # type: ignore[misc]
    assert work[0] > 100
    assert work[1] <= GROWTH_MAX * work[0], work


def test_nor_does_one_about_the_first_step_of_a_task() -> None:
    work = []
    for n_hosts in (4, 64):
        run = released(n_hosts)
        first = report(run, 2, 2.0, step=1)
        work.append(counted(lambda run=run, first=first: decide.step(run, first)))  # type: ignore[misc]
        assert after(run, first).tasks[2].first_step == 1
    assert work[0] > 100
    assert work[1] <= GROWTH_MAX * work[0], work


def test_nor_does_a_turn_of_the_loop(tmp_path: Path) -> None:
    work = []
    for n_hosts in (4, 64):
        journal = Journal(str(tmp_path / f"journal-{n_hosts}.db"))
        loop = Loop(journal, lambda run, action: None, changed=lambda before, after: None, now=lambda: 2.0)  # noqa: ARG005
        run = training(n_hosts)
        loop.runs = {RUN: run}
        loop.post(RUN, report(run, 2, 2.0, step=5))
        loop.turn(0.0)
        loop.post(RUN, report(run, 3, 2.0, step=6))

        def turn(loop: Loop = loop) -> None:
            loop.sleep_s()
            loop.turn(0.0)

        work.append(counted(turn))
        assert loop.runs[RUN].tasks[3].progress.global_step == 6
        journal.close()
    assert work[0] > 100
    assert work[1] <= GROWTH_MAX * work[0], work


def test_the_end_of_a_task_is_decided_at_once() -> None:
    run = training(4)
    assert after(run, report(run, 2, 2.0, "exited", step=5)).phase is not Phase.RUNNING


def figures() -> dict[str, int]:
    """Return the instructions of a turn at 300 hosts, with the next deadline where the loop asks for it."""
    run = core.training(300)
    for at in (5.0, 7.0):
        _, run = core.heard(run, range(300), at)
    events: dict[str, Event] = {
        "a heartbeat that only moves numbers": core.report(run, 2, "running", 9.0, 400),
        "a heartbeat of the chief": core.report(run, 0, "running", 9.0, 400),
        "a connection that breaks": HostDown(9.0, run.tasks[2].host, "it broke"),
        "a task that dies": core.report(run, 2, "exited", 9.0, 400),
    }

    def turn(event: Event) -> None:
        decided, _, weight = decide.step(run, event)
        if weight is not Weight.NUMBERS:
            next_deadline(decided)

    return {what: counted(lambda event=event: turn(event)) for what, event in events.items()}  # type: ignore[misc]


if __name__ == "__main__":
    for what, count in figures().items():
        print(f"{what}: {count:,}")

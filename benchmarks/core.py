"""What a heartbeat costs in the core alone, in one process: the decision, and what the loop asks the core after it.

Each of five parts has 200 heartbeats, at 300 and 1,000 hosts always of the same 200 hosts. The first part has each
host's first heartbeat in the generation, which is kept in the journal and costs more: it is the "most" of each row. The
others nearly all only move numbers, and decide the median.
"""

from __future__ import annotations

import time

from benchmarks.figure import Figure, Point
from benchmarks.limits import LIMITS
from orchestrator.core import decide
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.decision import is_worth_keeping
from orchestrator.core.events import Event, HostPrepared, HostReported, HostUp, Submitted, TaskReport
from orchestrator.core.host import Facts
from orchestrator.core.model import Run, new_run
from orchestrator.core.phase_states import Phase
from orchestrator.core.phases.quiet import is_quiet
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.task import Progress

HOSTS = (10, 100, 300, 1000)
BEATS = 1000


def measure() -> list[Figure]:
    """Measure 1,000 heartbeats at each size."""
    samples = {hosts: _beats_ms(training(hosts)) for hosts in HOSTS}
    figures = [
        Figure(
            f"a heartbeat in the core at {hosts} hosts",
            "ms",
            LIMITS["core: heartbeat"],
            tuple(found),
            point=Point("a heartbeat in the core alone", "core", hosts),
        )
        for hosts, found in samples.items()
    ]
    base = Figure("", "", 0.0, tuple(samples[HOSTS[0]])).measured
    growth = tuple(found / base for found in samples[HOSTS[-1]])
    what = f"growth of a heartbeat in the core, from {HOSTS[0]} to {HOSTS[-1]} hosts"
    return [*figures, Figure(what, "x", LIMITS["core: growth"], growth)]


def _beats_ms(run: Run) -> list[float]:
    found = []
    step, at = 0, 5.0
    for _ in range(5):
        began = time.process_time()
        for number in range(BEATS // 5):
            host = number % len(run.hosts)
            step, at = step + 1, at + 2.0 / len(run.hosts)
            event = report(run, host, "running", at, step)
            after, actions = decide.step(run, event)
            if not is_quiet(run, after, event):  # as the loop does
                is_worth_keeping(run, after, event, actions)
                next_deadline(after)
            run = after
        found.append((time.process_time() - began) * 1000 / (BEATS // 5))
    return found


def training(n_hosts: int) -> Run:
    """Return a run on so many hosts, with a task each, that trains."""
    names = [f"h{number}" for number in range(n_hosts)]
    hosts = tuple(HostPlan(name=name, address=name, data_address=name) for name in names)
    tasks = tuple(TaskPlan(id=TaskId("worker", number), host=name) for number, name in enumerate(names))
    plan = Plan(name="t", strategy="multi_worker_mirrored", hosts=hosts, tasks=tasks, script="train.py")
    run = new_run("t-1", plan, epoch=1, at=0.0)
    run = _after(run, Submitted(at=0.0))
    for name in names:
        run = _after(run, HostUp(at=1.0, host=name, boot_id="1"))
        run = _after(run, HostPrepared(at=2.0, host=name, facts=Facts(code="c0de")))
    for phase, at in (("starting", 3.0), ("ready", 4.0), ("running", 5.0)):
        for number in range(n_hosts):
            run = _after(run, report(run, number, phase, at, 0))
    assert run.phase is Phase.RUNNING
    return run


def _after(run: Run, event: Event) -> Run:
    return decide.step(run, event)[0]


def report(run: Run, host: int, phase: str, at: float, step: int) -> HostReported:
    """Return the heartbeat of a host with its task."""
    task = TaskReport(
        task=TaskId("worker", host),
        generation=run.generation,
        phase=phase,
        pid=4242,
        port=20000,
        progress=Progress(global_step=step, metrics={"loss": 1.0 / (step + 1)}) if step else Progress(),
    )
    return HostReported(at=at, host=run.hosts[host].name, tasks=(task,), cpu_percent=step % 100)


__all__ = ["measure", "report", "training"]

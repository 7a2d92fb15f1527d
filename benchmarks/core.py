"""What a heartbeat costs in the core alone, in one process: the decision, and what the loop asks the core after it.

Every host sends a first heartbeat of its generation, which has its task's first step, and then 1,000 follow, of all
hosts by turns: at 1,000 hosts one of each. The two are figures of their own. Nearly all only move numbers; those of the
chief's host are decided upon each time, and are among them as often as any other host's. The sizes take turns, and
growth is the ratio of two that were measured one after the other.
"""

from __future__ import annotations

import json
import time
import timeit
from collections.abc import Mapping, Sequence
from statistics import mean

from benchmarks.figure import Figure, Point
from benchmarks.limits import LIMITS
from orchestrator.core import decide
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.decision import Weight
from orchestrator.core.events import Event, HostPrepared, HostReported, HostUp, Submitted, TaskReport
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.state.host import Facts
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress
from orchestrator.protocol.check import check_of
from orchestrator.protocol.reports import Report
from tests.protocol_values import valid

HOSTS = (10, 100, 300, 1000)
BEATS = 1000
PARTS = 5
"""A sample is the mean of the heartbeats of a part, or of as many first ones: those of all hosts, time after time."""


def measure() -> list[Figure]:
    """Measure the first heartbeat of each host in a generation, and 1,000 later ones, at each size."""
    released = {hosts: training(hosts) for hosts in HOSTS}
    runs: dict[int, Run] = {}
    firsts: dict[int, list[float]] = {hosts: [] for hosts in HOSTS}
    later: dict[int, list[float]] = {hosts: [] for hosts in HOSTS}
    for part in range(PARTS):
        numbers = range(part * BEATS // PARTS, (part + 1) * BEATS // PARTS)
        for hosts in HOSTS:
            begun = [heard(released[hosts], range(hosts), 5.0) for _ in range(max(1, len(numbers) // hosts))]
            firsts[hosts].append(mean(ms for ms, _ in begun))
            ms, runs[hosts] = heard(runs.get(hosts, begun[-1][1]), numbers, 7.0)
            later[hosts].append(ms)
    return [
        *_figures("a heartbeat in the core", later),
        *_figures("a host's first heartbeat in the core", firsts),
        _check_of_a_report(),
    ]


def _check_of_a_report() -> Figure:
    report, check = valid(Report), check_of(Report)
    text = json.dumps(report)
    checked, parsed = (
        timeit.repeat(what, number=200, repeat=PARTS)
        for what in (lambda: check(report), lambda: json.loads(text))
    )
    return Figure(
        "the check of a report against the protocol, of the time that its JSON takes",
        "x",
        LIMITS["core: check of a report"],
        tuple(check_s / json_s for check_s, json_s in zip(checked, parsed, strict=True)),
    )


def _figures(what: str, samples: Mapping[int, Sequence[float]]) -> list[Figure]:
    figures = [
        Figure(
            f"{what} at {hosts} hosts",
            "ms",
            LIMITS["core: heartbeat"],
            tuple(found),
            point=Point("a heartbeat in the core alone", what, hosts),
        )
        for hosts, found in samples.items()
    ]
    growth = tuple(many / few for few, many in zip(samples[HOSTS[0]], samples[HOSTS[-1]], strict=True))
    claim = f"growth of {what} from {HOSTS[0]} to {HOSTS[-1]} hosts"
    return [*figures, Figure(claim, "x", LIMITS["core: growth"], growth)]


def heard(run: Run, numbers: range, since_at: float) -> tuple[float, Run]:
    """Let the hosts by turns send heartbeats of these numbers; return the milliseconds of one, and the run then."""
    began = time.process_time()
    for number in numbers:
        host = number % len(run.hosts)
        at = since_at + 2.0 * number / len(run.hosts)
        event = report(run, host, "running", at, number + 1)
        run, _, weight = decide.step(run, event)
        if weight is not Weight.NUMBERS:  # as the loop does
            next_deadline(run)
    return (time.process_time() - began) * 1000 / len(numbers), run


def training(n_hosts: int) -> Run:
    """Return a run on so many hosts, with a task each, that has been released and has told no step."""
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
    return HostReported(
        at=at, host=run.hosts[host].name, tasks=(task,), measured={"cpu_percent": float(step % 100)}
    )


__all__ = ["heard", "measure", "report", "training"]

"""Replays a drawn trace of a GPU cluster on a pool, by the queue as it is and by two simpler ways, into docs/pool.md.

`python -m tests.pool_trace` writes the table. The traces of Philly and Helios are published, but as large files
that a test cannot fetch. So the jobs are drawn, with rough proportions of such a cluster: 70 % have one GPU, 25
% two or four, 5 % eight; 80 % last between 10^1.5 and 10^3 minutes and 20 % up to 10^4, evenly by the exponent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles

from orchestrator.core import decide
from orchestrator.core.events import Admitted
from orchestrator.core.launching.placement import place
from orchestrator.core.plan import Ask, HostPlan, Plan, QueuePlan, TaskPlan
from orchestrator.core.pool import NOTHING, Held, Placed, find
from orchestrator.core.queue import turns
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import PlannedEnd, Run, new_run

GPUS_OF_A_HOST = 8
PAGE = Path(__file__).resolve().parent.parent / "docs" / "pool.md"
BEGIN, END = "<!-- drawn trace -->", "<!-- /drawn trace -->"


@dataclass(frozen=True)
class Job:
    """What somebody wants to train."""

    number: int
    comes_at: float
    lasts_s: float
    limit_s: float
    gpus: int


def draw(seed: int, jobs: int, hosts: int, load: float) -> list[Job]:
    """Return jobs that would use such a part of the pool, if none had to wait."""
    chance = Random(seed)
    drawn: list[tuple[float, float, int]] = []
    for _ in range(jobs):
        exponent = chance.uniform(1.5, 3.0) if chance.random() < 0.8 else chance.uniform(3.0, 4.0)
        lasts_s = 60.0 * 10.0**exponent
        gpus = chance.choices((1, 2, 4, 8), (0.70, 0.10, 0.15, 0.05))[0]
        drawn.append((lasts_s, lasts_s * chance.uniform(1.0, 3.0), gpus))
    every_s = sum(lasts * gpus for lasts, _, gpus in drawn) / jobs / (hosts * GPUS_OF_A_HOST * load)
    now, made = 0.0, []
    for number, (lasts_s, limit_s, gpus) in enumerate(drawn):
        now += chance.expovariate(1.0 / every_s)
        made.append(Job(number, now, lasts_s, limit_s, gpus))
    return made


class Pool:
    """Hosts, and the runs that wait and train there. What is always so is checked at each step."""

    def __init__(self, hosts: int) -> None:
        gpus = tuple(range(GPUS_OF_A_HOST))
        of = [HostPlan(f"h{number}", address=f"h{number}", gpus=gpus) for number in range(hosts)]
        self.hosts = Roster(of, lambda host: host.name)
        self.waiting: dict[str, tuple[Job, Run]] = {}
        self.training: dict[str, tuple[Job, Run]] = {}
        self.used = 0

    def come(self, job: Job) -> None:
        """Let a run of the job wait."""
        needs = (Ask("worker", 1, job.gpus),)
        tasks, _ = place(self.hosts, needs, equal_gpus=True)
        name = f"j{job.number:06d}"
        plan = Plan(
            name,
            "multi_worker_mirrored",
            self.hosts,
            tasks,
            "t.py",
            needs=needs,
            queue=QueuePlan(),
            time_limit_s=job.limit_s,
        )
        self.waiting[name] = job, new_run(name, plan, epoch=1, at=job.comes_at)

    def begin(self, name: str, where: Placed, now: float) -> None:
        """Let a run train there."""
        job, run = self.waiting.pop(name)
        run = decide.step(run, Admitted(now, place=where)).run
        held = {gpu for other in self.training.values() for gpu in _gpus(other[1].plan.tasks)}
        assert not held & set(_gpus(run.plan.tasks)), "no GPU is leased twice"
        ends = PlannedEnd("time_limit", now + job.limit_s, None)
        self.training[name] = job, replace(run, planned_end=ends)
        self.used += job.gpus

    def end(self, name: str) -> None:
        """Let its GPUs go."""
        self.used -= self.training.pop(name)[0].gpus

    def place_of(self, name: str) -> Placed | None:
        """Return the best place that is free for a run; None if there is none."""
        held = Held()
        for other, (_, run) in self.training.items():
            held.add({task.host: dict.fromkeys(task.gpus, other) for task in run.plan.tasks}, ())
        found = find(self.waiting[name][1].plan, held, NOTHING, 0.0)
        return found if isinstance(found, Placed) else None


def _gpus(tasks: Sequence[TaskPlan]) -> list[tuple[str, int | str]]:
    return [(task.host, gpu) for task in tasks for gpu in task.gpus]


Way = Callable[[Pool, float], Iterator[tuple[str, Placed]]]
"""How it is chosen which runs begin, and where."""


def as_it_is(pool: Pool, now: float) -> Iterator[tuple[str, Placed]]:
    """Choose by the queue of the product. Nobody waits whose need is free, if nobody is before him."""
    runs = [run for _, run in (*pool.waiting.values(), *pool.training.values())]
    found = turns(runs, now)
    if found and not found[0].has_come:
        assert pool.place_of(found[0].ask.run_id) is None, f"{found[0].ask.run_id} is first, fits, and waits"
    for turn in found:
        if turn.has_come and turn.ask.place is not None:
            yield turn.ask.run_id, turn.ask.place


def first_come(pool: Pool, _now: float) -> Iterator[tuple[str, Placed]]:
    """Choose the first; while it does not fit, nobody else begins."""
    for name in list(pool.waiting):
        where = pool.place_of(name)
        if where is None:
            return
        yield name, where


def best_fit(pool: Pool, _now: float) -> Iterator[tuple[str, Placed]]:
    """Choose whoever fits, and hold back nothing."""
    for name in list(pool.waiting):
        where = pool.place_of(name) if pool.used < len(pool.hosts) * GPUS_OF_A_HOST else None
        if where is not None:
            yield name, where


@dataclass(frozen=True)
class Replayed:
    """How it went."""

    used: float
    """The part of the pool that trained while jobs came."""
    waited_s: list[float]
    large_waited_s: list[float]
    """Of jobs that need a whole host."""


def replay(jobs: Sequence[Job], hosts: int, way: Way) -> Replayed:
    """Play the jobs to their ends. Every one of them begins, or this raises."""
    pool, now, trained = Pool(hosts), 0.0, 0.0
    last_at = jobs[-1].comes_at
    waited: dict[int, float] = {}
    to_come, ends = list(reversed(jobs)), list[tuple[float, str]]()
    while to_come or ends:
        at = min([*(job.comes_at for job in to_come[-1:]), *(at for at, _ in ends[:1])])
        trained += pool.used * (min(at, last_at) - min(now, last_at))
        now = at
        while ends and ends[0][0] <= now:
            pool.end(heapq.heappop(ends)[1])
        while to_come and to_come[-1].comes_at <= now:
            pool.come(to_come.pop())
        for name, where in way(pool, now):
            job = pool.waiting[name][0]
            pool.begin(name, where, now)
            waited[job.number] = now - job.comes_at
            heapq.heappush(ends, (now + job.lasts_s, name))
    assert not pool.waiting, "no run starves"
    large = [waited[job.number] for job in jobs if job.gpus == GPUS_OF_A_HOST]
    return Replayed(trained / (hosts * GPUS_OF_A_HOST * last_at), list(waited.values()), large)


def table(seeds: Sequence[int], count: int, hosts: int, load: float) -> str:
    """Return the lines of the page."""
    drawn = [draw(seed, count, hosts, load) for seed in seeds]
    ways: dict[str, Way] = {
        "orch: first come, first served, with backfill": as_it_is,
        "first come, first served, without backfill": first_come,
        "best fit, whoever fits first": best_fit,
    }
    lines = [
        f"{len(seeds)} times {count} jobs on {hosts} hosts with {GPUS_OF_A_HOST} GPUs each, drawn with rough "
        f"proportions of a research cluster (`tests/pool_trace.py`, seeds {seeds[0]} to {seeds[-1]}), with a load of "
        f"{load:.0%}; each has a `time_limit` of one to three times what it takes:",
        "",
        "| | GPUs in use | waits: mean | median | 95 % | of jobs with a whole host: mean | 95 % | longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, way in ways.items():
        went = [replay(jobs, hosts, way) for jobs in drawn]
        waits = [wait for each in went for wait in each.waited_s]
        large = [wait for each in went for wait in each.large_waited_s]
        part = [mean(waits), median(waits), _most(waits), mean(large), _most(large), max(large)]
        shown = " | ".join(f"{seconds / 3600:.1f} h" for seconds in part)
        lines.append(f"| {name} | {mean(each.used for each in went):.1%} | {shown} |")
    return "\n".join(lines)


def _most(waited: Sequence[float]) -> float:
    return quantiles(waited, n=20)[-1] if len(waited) > 1 else sum(waited)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    told = table(range(1, 13), count=600, hosts=16, load=0.95)
    PAGE.write_text(f"{head}{BEGIN}\n{told}\n{END}{tail}", encoding="utf-8")

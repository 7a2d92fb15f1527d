"""Draws a scenario from a seed: sizes, times, the kind of script, and the faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from orchestrator.core.launching.placement import place
from orchestrator.core.plan import (
    PRIORITIES,
    Ask,
    CheckpointPlan,
    HostPlan,
    Plan,
    QueuePlan,
    RestartPolicy,
    TaskId,
    TaskPlan,
    Timing,
)
from tests.sim.hush import NAME

TASKS_MAX = 8
SLOTS_MAX = 4

KINDS = (
    *("calm", "harmless", "harmless", "alone", "beside", "lies", "apart", "long", "long"),
    *("chaos", "chaos", "chaos", "chaos", "chaos", "chaos"),
)
"""calm: no faults. harmless: faults that must not end a training. alone: faults that end only tasks that are restarted
alone. beside: all that can be wrong with one run, whose neighbours on the same hosts must not notice. lies: a run whose
hosts lie, beside others that must not notice. chaos: all faults, but no lies. apart: chaos, and more often, among hosts
that share no checkpoint directory. long: days of training with slow heartbeats, and few faults."""

ASKED = (*KINDS, "queue", "pool")
"""Those that can be asked for. queue: chaos among runs that want the same GPUs, and wait in the queue for them. pool:
the same, where their places are chosen on a pool of hosts, of which free ones stand in for lost ones. They are drawn by
no seed, since the worlds of all seeds would be others."""

WILD = ("chaos", "apart", "long", "queue", "pool")
"""The kinds in which anything may happen."""

SCRIPTS = ("good",) * 8 + ("fails-early", "fails-at-a-step", "restores-nothing", "good")


@dataclass(frozen=True)
class RunScenario:
    """What a seed decides about one run."""

    kind: str
    """What may happen to it, and so what is demanded of it: see KINDS."""
    plan: Plan
    begins_at: float
    script: str
    steps: int
    steps_per_s: float
    save_every_s: float
    save_s: float
    import_s: float
    first_step_s: float
    kill_at: float | None
    force_kill: bool
    tears: float
    """The chance that a checkpoint is torn although its writer succeeded."""

    @property
    def bound_s(self) -> float:
        """How long after the healing the run may take to end."""
        plan, timing = self.plan, self.plan.timing
        training_s = self.steps / self.steps_per_s
        starting_s = timing.start_after_s + timing.lost_after_s + plan.restart.backoff_max_s
        return 1.5 * training_s + 4 * plan.restart.without_progress_max * starting_s + 7200.0


@dataclass(frozen=True)
class Scenario:
    """What a seed decides."""

    seed: int
    kind: str
    runs: tuple[RunScenario, ...]
    latency_s: float
    clock_skew: float
    fault_every_s: float
    faults_s: float
    """How long faults are injected; then all of them heal."""
    misfit: bool
    """Whether hosts that lie say what fits no type; else it is only false."""
    dies_at_write: float
    """The chance that the coordinator dies at a write of the journal."""

    @property
    def bound_s(self) -> float:
        """How long after the healing all runs may take to end."""
        bounds = [run.bound_s for run in self.runs]
        return sum(bounds) if self.kind in ("queue", "pool") else max(bounds)


def draw(seed: int, workdir: str, kind: str | None = None) -> Scenario:
    """Return the scenario of a seed, which stays the same as long as this function does."""
    chance = Random(seed)
    kind = kind or chance.choice(KINDS)
    count = {
        "beside": (2, 3),
        "lies": (2, 3),
        "chaos": (1, 1, 1, 2, 3),
        "apart": (1, 1, 2),
        "queue": (4, 5),
        "pool": (3, 5),
    }.get(kind, (1,))
    timing = _slow(chance) if kind == "long" else _timing(chance, kind == "harmless")
    # Each heartbeat costs the same to simulate, so scenarios with frequent heartbeats are shorter.
    hours = chance.uniform(0.5, 4.0) * (1.0 if timing.heartbeat_s >= 10.0 else 0.2)
    if kind == "long":
        hours = chance.uniform(30.0, 120.0)
    names = ["sim", *(f"sim{number}" for number in range(1, chance.choice(count)))]
    runs = []
    for number, name in enumerate(names):
        own = "chaos" if kind in WILD else kind
        own = ("chaos" if number == 0 else "calm") if kind in ("beside", "lies") else own
        waits = kind in ("queue", "pool")
        run = _run(chance, own, name, 0 if waits else number, workdir, timing, hours)
        run = _queued(chance, run, hours) if waits else _lent(run)
        run = _pooled(run) if kind == "pool" else run
        runs.append(_without_share(run) if kind == "apart" else run)
    misfit = kind == "lies" and chance.random() < 0.6
    if misfit:  # the link to a host that lies so is dropped, and whoever shares it is cut off
        runs = [runs[0], *map(_elsewhere, runs[1:])]
    return Scenario(
        seed=seed,
        kind=kind,
        runs=tuple(runs),
        latency_s=chance.choice((0.0005, 0.02, 0.2, 1.0)),
        clock_skew=chance.choice((0.0, 1e-4, 1e-3)),
        fault_every_s=_fault_every_s(chance, kind),
        faults_s=chance.uniform(0.3, 1.2) * hours * 3600,
        misfit=misfit,
        dies_at_write=(
            chance.choice((0.0, 0.0, 0.003, 0.02, 0.1)) if kind in (*WILD, "harmless", "lies") else 0.0
        ),
    )


def _lent(run: RunScenario) -> RunScenario:
    """Let an engine lend the hosts: no leases are taken there, and the worlds of all seeds are what they were."""
    hosts = tuple(replace(host, transport="lent") for host in run.plan.hosts)
    return replace(run, plan=replace(run.plan, hosts=hosts))


def _queued(chance: Random, run: RunScenario, hours: float) -> RunScenario:
    """Let a run wait for the GPUs that all want; half of them have a limit."""
    preempt = Random(f"preempt {run.plan.name} {hours}").random() < 0.5
    queue = QueuePlan(chance.choice(PRIORITIES), preempt=preempt)
    limit_s = chance.uniform(0.2, 2.0) * hours * 3600 if chance.random() < 0.5 else None
    plan = replace(run.plan, queue=queue, time_limit_s=limit_s)
    return replace(run, plan=plan, begins_at=chance.uniform(0.0, 0.3 * hours * 3600))


def _pooled(run: RunScenario) -> RunScenario:
    """Let a run be placed on what is free of more hosts than it needs."""
    plan = run.plan
    counts = Counter(task.id.type for task in plan.tasks)
    needs = tuple(Ask(type_, count, 1) for type_, count in counts.items())
    gpus = tuple(range(SLOTS_MAX))
    slots = max(host.slots for host in plan.hosts)
    hosts = tuple(
        HostPlan(name=f"h{i}", address=f"h{i}", data_address=f"10.0.0.{i + 1}", slots=slots, gpus=gpus)
        for i in range(TASKS_MAX + 2)
    )
    tasks, problems = place(hosts, needs, equal_gpus=True)
    assert tasks, problems
    return replace(run, plan=replace(plan, hosts=hosts, tasks=tasks, needs=needs))


def _fault_every_s(chance: Random, kind: str) -> float:
    if kind == "apart":
        return chance.choice((60.0, 120.0, 300.0))
    if kind == "long":
        return chance.choice((2.0, 6.0, 24.0)) * 3600
    return chance.choice((120.0, 400.0, 1200.0)) if kind in ("chaos", "beside", "lies") else 900.0


def _elsewhere(run: RunScenario) -> RunScenario:
    """Place a run on hosts of its own."""
    hosts = tuple(replace(h, name=f"g{h.name}", address=f"g{h.name}") for h in run.plan.hosts)
    hosts = tuple(replace(h, data_address=h.data_address.replace("10.0.0.", "10.0.1.")) for h in hosts)
    tasks = tuple(replace(task, host=f"g{task.host}") for task in run.plan.tasks)
    return replace(run, plan=replace(run.plan, hosts=hosts, tasks=tasks))


def _without_share(run: RunScenario) -> RunScenario:
    checkpoint = run.plan.checkpoint
    assert checkpoint is not None
    return replace(run, plan=replace(run.plan, checkpoint=replace(checkpoint, shared=False)))


def _run(
    chance: Random, kind: str, name: str, number: int, workdir: str, timing: Timing, hours: float
) -> RunScenario:
    strategy, ids = _tasks(chance, kind, 2 if hours > 20.0 else TASKS_MAX)
    hosts, tasks = _place(chance, ids, number)
    plan = Plan(
        name=name,
        strategy=strategy,
        hosts=hosts,
        tasks=tasks,
        script="train.py",
        workdir=workdir,
        secrets=(NAME,),
        checkpoint=CheckpointPlan(
            f"/shared/{name}", keep=chance.choice((1, 2, 3)), shared=chance.random() < 0.7
        ),
        restart=RestartPolicy(
            without_progress_max=chance.choice((2, 3, 5)) if kind == "chaos" else 5,
            backoff_s=chance.choice((1.0, 5.0, 20.0)),
            backoff_max_s=chance.choice((60.0, 300.0)),
            standby="on" if Random(f"standby {hours}").random() < 0.5 else "off",
            on_stall="notify" if chance.random() < 0.05 and kind == "chaos" else "restart",
        ),
        timing=timing,
    )
    plan = replace(plan, **_spare_parts(chance, plan, number)) if kind == "chaos" else plan
    if strategy == "multi_worker_mirrored" and Random(f"rescue {hours}").random() < 0.5:
        rescue_s = Random(f"bound {hours}").choice((2.0, 30.0))
        plan = replace(
            plan,
            restart=replace(plan.restart, rescue_s=rescue_s),
            options=replace(plan.options, transparent=True),
        )
    steps_per_s = chance.choice((0.5, 2.0, 10.0))
    return RunScenario(
        kind=kind,
        plan=plan,
        begins_at=0.0 if number == 0 else chance.uniform(0.0, 0.3 * hours * 3600),
        script=chance.choice(SCRIPTS) if kind == "chaos" and hours <= 20.0 else "good",
        steps=int(hours * 3600 * steps_per_s),
        steps_per_s=steps_per_s,
        save_every_s=chance.choice((60.0, 120.0, 300.0, 900.0)) * (12 if hours > 20.0 else 1),
        save_s=chance.choice((0.2, 5.0, 30.0)),
        import_s=chance.choice((1.0, 10.0, 25.0)),
        first_step_s=chance.choice((1.0, 15.0, 40.0)),
        kill_at=chance.uniform(1.0, hours * 3600) if chance.random() < 0.2 and kind == "chaos" else None,
        force_kill=chance.random() < 0.3,
        tears=chance.choice((0.02, 0.02, 0.02, 0.5, 1.0)) if kind == "chaos" else 0.0,
    )


def _tasks(chance: Random, kind: str, most: int) -> tuple[str, list[TaskId]]:
    most = min(most, chance.choice((2, 4, TASKS_MAX, TASKS_MAX)))
    if kind == "alone" or (kind != "harmless" and chance.random() < 0.4):
        servers = 2 if most > 4 else 1
        ids = [TaskId("chief", 0), *(TaskId("ps", i) for i in range(servers))]
        ids += [TaskId("worker", i) for i in range(max(1, most - servers - 1))]
        if chance.random() < 0.3 and most > 2:
            ids[-1] = TaskId("evaluator", 0) if ids[-1].index else ids[-1]
        return "parameter_server", ids
    workers = [TaskId("worker", i) for i in range(most)]
    if kind != "harmless" and chance.random() < 0.3:
        workers[-1] = TaskId("evaluator", 0)
    return "multi_worker_mirrored", workers


def _place(
    chance: Random, ids: list[TaskId], number: int
) -> tuple[tuple[HostPlan, ...], tuple[TaskPlan, ...]]:
    """Place the tasks of a run. All runs use the same hosts, and each has its own GPUs there."""
    slots = chance.choice((1, 2, 4))
    count = -(-len(ids) // slots)
    gpus = _gpus(number, slots)
    hosts = tuple(
        HostPlan(name=f"h{i}", address=f"h{i}", data_address=f"10.0.0.{i + 1}", slots=slots, gpus=gpus)
        for i in range(count)
    )
    tasks = tuple(
        TaskPlan(task, hosts[i // slots].name, slot=i % slots, gpus=(gpus[i % slots],))
        for i, task in enumerate(ids)
    )
    return hosts, tasks


def _gpus(number: int, slots: int) -> tuple[int, ...]:
    return tuple(range(number * SLOTS_MAX, number * SLOTS_MAX + slots))


def _spare_parts(chance: Random, plan: Plan, number: int) -> dict[str, Any]:
    """Draw a spare host, and the permission to continue with fewer workers."""
    parts: dict[str, Any] = {}
    if chance.random() < 0.3:
        slots = max(host.slots for host in plan.hosts)
        spare = HostPlan(
            name="s0",
            address="s0",
            data_address="10.0.0.99",
            slots=slots,
            spare=True,
            gpus=_gpus(number, slots),
        )
        parts["hosts"] = (*plan.hosts, spare)
    workers = sum(task.id.type == "worker" for task in plan.tasks)
    if chance.random() < 0.3 and workers > 1:
        parts["replicas_min"] = {"worker": workers // 2}
    return parts


def _slow(chance: Random) -> Timing:
    heartbeat_s = chance.choice((30.0, 60.0))
    return Timing(heartbeat_s=heartbeat_s, unreachable_after_s=5 * heartbeat_s, lost_after_s=30 * heartbeat_s)


def _timing(chance: Random, harmless: bool) -> Timing:
    if chance.random() < 0.25:
        return Timing(start_after_s=1200.0 if harmless else 300.0)  # what people get who say nothing
    heartbeat_s = chance.choice((2.0, 10.0, 20.0, 30.0, 30.0))
    unreachable_after_s = heartbeat_s * chance.choice((3, 5))
    return Timing(
        heartbeat_s=heartbeat_s,
        unreachable_after_s=unreachable_after_s,
        lost_after_s=unreachable_after_s * chance.choice((2, 6)),
        start_after_s=1200.0 if harmless else chance.choice((180.0, 300.0, 600.0)),
        kill_grace_s=chance.choice((2.0, 10.0, 30.0)),
    )

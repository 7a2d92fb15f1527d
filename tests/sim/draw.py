"""Draws a scenario from a seed: sizes, times, the kind of script, and the faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from orchestrator.core.plan import (
    CheckpointPlan,
    HostPlan,
    Plan,
    RestartPolicy,
    TaskId,
    TaskPlan,
    Timing,
)

TASKS_MAX = 8

KINDS = ("calm", "harmless", "harmless", "alone", "chaos", "chaos", "chaos", "chaos", "chaos", "chaos")
"""calm: no faults. harmless: faults that must not end a training. alone: faults that end only tasks that are restarted
alone. chaos: all faults."""

SCRIPTS = ("good",) * 8 + ("fails-early", "fails-at-a-step", "restores-nothing", "good")


@dataclass(frozen=True)
class Scenario:
    """What a seed decides."""

    seed: int
    kind: str
    plan: Plan
    script: str
    steps: int
    steps_per_s: float
    save_every_s: float
    save_s: float
    import_s: float
    first_step_s: float
    latency_s: float
    clock_skew: float
    fault_every_s: float
    faults_s: float
    """How long faults are injected; then all of them heal."""
    kill_at: float | None
    force_kill: bool
    dies_at_write: float
    """The chance that the coordinator dies at a write of the journal."""
    tears: float
    """The chance that a checkpoint is torn although its writer succeeded."""

    @property
    def bound_s(self) -> float:
        """How long after the healing the run may take to end."""
        plan, timing = self.plan, self.plan.timing
        training_s = self.steps / self.steps_per_s
        starting_s = timing.start_after_s + timing.lost_after_s + plan.restart.backoff_max_s
        return 1.5 * training_s + 4 * plan.restart.without_progress_max * starting_s + 7200.0


def draw(seed: int, workdir: str, kind: str | None = None) -> Scenario:
    """Return the scenario of a seed, which stays the same as long as this function does."""
    chance = Random(seed)
    kind = kind or chance.choice(KINDS)
    strategy, ids = _tasks(chance, kind)
    hosts, tasks = _place(chance, ids)
    harmless = kind == "harmless"
    timing = _timing(chance, harmless)
    plan = Plan(
        name="sim",
        strategy=strategy,
        hosts=hosts,
        tasks=tasks,
        script="train.py",
        workdir=workdir,
        checkpoint=CheckpointPlan("/shared/sim", keep=chance.choice((1, 2, 3))),
        restart=RestartPolicy(
            without_progress_max=chance.choice((2, 3, 5)) if kind == "chaos" else 5,
            backoff_s=chance.choice((1.0, 5.0, 20.0)),
            backoff_max_s=chance.choice((60.0, 300.0)),
            on_stall="notify" if chance.random() < 0.05 and kind == "chaos" else "restart",
        ),
        timing=timing,
    )
    plan = replace(plan, **_spare_parts(chance, plan)) if kind == "chaos" else plan
    steps_per_s = chance.choice((0.5, 2.0, 10.0))
    # Each heartbeat costs the same to simulate, so scenarios with frequent heartbeats are shorter.
    hours = chance.uniform(0.5, 4.0) * (1.0 if timing.heartbeat_s >= 10.0 else 0.2)
    return Scenario(
        seed=seed,
        kind=kind,
        plan=plan,
        script=chance.choice(SCRIPTS) if kind == "chaos" else "good",
        steps=int(hours * 3600 * steps_per_s),
        steps_per_s=steps_per_s,
        save_every_s=chance.choice((60.0, 120.0, 300.0, 900.0)),
        save_s=chance.choice((0.2, 5.0, 30.0)),
        import_s=chance.choice((1.0, 10.0, 25.0)),
        first_step_s=chance.choice((1.0, 15.0, 40.0)),
        latency_s=chance.choice((0.0005, 0.02, 0.2, 1.0)),
        clock_skew=chance.choice((0.0, 1e-4, 1e-3)),
        fault_every_s=chance.choice((120.0, 400.0, 1200.0)) if kind == "chaos" else 900.0,
        faults_s=chance.uniform(0.3, 1.2) * hours * 3600,
        kill_at=chance.uniform(1.0, hours * 3600) if chance.random() < 0.2 and kind == "chaos" else None,
        force_kill=chance.random() < 0.3,
        dies_at_write=chance.choice((0.0, 0.0, 0.003, 0.02, 0.1)) if kind in ("chaos", "harmless") else 0.0,
        tears=chance.choice((0.02, 0.02, 0.02, 0.5, 1.0)) if kind == "chaos" else 0.0,
    )


def _tasks(chance: Random, kind: str) -> tuple[str, list[TaskId]]:
    most = chance.choice((2, 4, TASKS_MAX, TASKS_MAX))
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


def _place(chance: Random, ids: list[TaskId]) -> tuple[tuple[HostPlan, ...], tuple[TaskPlan, ...]]:
    slots = chance.choice((1, 2, 4))
    count = -(-len(ids) // slots)
    hosts = tuple(
        HostPlan(name=f"h{i}", address=f"h{i}", data_address=f"10.0.0.{i + 1}", slots=slots)
        for i in range(count)
    )
    tasks = tuple(TaskPlan(task, hosts[i // slots].name, slot=i % slots) for i, task in enumerate(ids))
    return hosts, tasks


def _spare_parts(chance: Random, plan: Plan) -> dict[str, Any]:
    """Draw a spare host, and the permission to continue with fewer workers."""
    parts: dict[str, Any] = {}
    if chance.random() < 0.3:
        slots = max(host.slots for host in plan.hosts)
        spare = HostPlan(name="s0", address="s0", data_address="10.0.0.99", slots=slots, spare=True)
        parts["hosts"] = (*plan.hosts, spare)
    workers = sum(task.id.type == "worker" for task in plan.tasks)
    if chance.random() < 0.3 and workers > 1:
        parts["replicas_min"] = {"worker": workers // 2}
    return parts


def _timing(chance: Random, harmless: bool) -> Timing:
    heartbeat_s = chance.choice((2.0, 10.0, 20.0, 30.0, 30.0))
    unreachable_after_s = heartbeat_s * chance.choice((3, 5))
    return Timing(
        heartbeat_s=heartbeat_s,
        unreachable_after_s=unreachable_after_s,
        lost_after_s=unreachable_after_s * chance.choice((2, 6)),
        start_after_s=1200.0 if harmless else chance.choice((180.0, 300.0, 600.0)),
        kill_grace_s=chance.choice((2.0, 10.0, 30.0)),
    )

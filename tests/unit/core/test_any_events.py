"""Whatever happens, in whatever order, doubled or stale: the invariants hold, and every wait ends."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from orchestrator.core import actions as do
from orchestrator.core import decide, invariants
from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.concerns import HEARS
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.decision import Weight
from orchestrator.core.ends import Exit
from orchestrator.core.errors import AllocationGone
from orchestrator.core.gang import is_individual
from orchestrator.core.plan import HostPlan, TaskId, TaskPlan
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts, HostState, Leaving, Link
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.phase_states import Phase, Swept
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.core.state.task import Progress
from orchestrator.core.turn import Turn
from tests.unit.core.transcript import make_plan

HOSTS = ["a", "b", "c"]
KINDS = (
    "report",
    "report",
    "report",
    "report",
    "up",
    "down",
    "refused",
    "prepared",
    "prepared",
    "seeded",
    "verified",
    "failed",
    "swept",
    "stacks",
    "kill",
    "drain",
    "undrain",
    "rolled-back",
    "seeding",
    "epoch",
    "submit",
    "tick",
)
SEEDS = int(os.environ.get("ORCH_SEEDS", "30"))
_RUN: TypeAdapter[Run] = TypeAdapter(Run)
_EVENTS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in ev.EVENTS.values()}


@dataclass(frozen=True)
class Draw:
    """What hypothesis shrinks: small numbers, read in the light of the state in which they come."""

    kind: str
    passes_s: float
    choice: int


draws = st.builds(
    Draw,
    kind=st.sampled_from(KINDS),
    passes_s=st.sampled_from([0.0, 0.1, 2.0, 7.0, 11.0, 65.0, 400.0]),
    choice=st.integers(0, 10_000),
)


class Chaos:
    """A run, and whoever tells it lies as far as the wire allows."""

    def __init__(
        self, hosts: int, checkpoint: bool, parameter_server: bool, spares: int, may_shrink: bool
    ) -> None:
        plan = make_plan(HOSTS[:hosts], checkpoint=checkpoint, failures=3)
        plan = replace(
            plan,
            hosts=(*plan.hosts, *(HostPlan(f"s{i}", slots=4, spare=True) for i in range(spares))),
            replicas_min={"worker": 1} if may_shrink else {},
        )
        if parameter_server:
            kinds = ("chief", "ps", "worker", "evaluator")
            tasks = tuple(TaskPlan(TaskId(kind, 0), HOSTS[i % hosts]) for i, kind in enumerate(kinds))
            plan = replace(plan, strategy="parameter_server", tasks=tasks)
        self.run = new_run("t", plan, epoch=1, at=0.0)
        self.now = 0.0
        self.living: dict[TaskId, int] = {}
        """The generation that the task's host said, the last time, lives."""
        self.ended: set[tuple[TaskId, int]] = set()
        self.step(ev.Submitted(0.0))

    def come_to(self, stage: int) -> None:
        """1: all is being started; 2: all trains. From there on, chaos."""
        if stage == 0:
            return
        for host in self.run.hosts:
            self.step(ev.HostUp(self.now, host.name, "boot-1"))
            self.step(ev.HostReported(self.now, host.name, ()))
            facts = Facts("3.11.2", {"tensorflow": "2.21.0"}, "c0de", 2)
            self.step(ev.HostPrepared(self.now, host.name, facts))
        for phase in ("ready", "running")[: 2 * (stage - 1)]:
            for host in self.run.hosts:
                told = tuple(
                    ev.TaskReport(task.id, task.generation, phase, pid=7, port=20000)
                    for task in self.run.tasks
                    if task.host == host.name
                )
                self.step(ev.HostReported(self.now, host.name, told))
            if self.run.phase is Phase.RENDEZVOUS:
                self.step(ev.CheckpointSeeded(self.now, Seed(self.run.generation, 10, "ckpt-10")))
        assert self.run.phase is (Phase.RENDEZVOUS if stage == 1 else Phase.RUNNING)

    def step(self, event: ev.Event) -> None:
        kept = _EVENTS[type(event)].validate_json(_EVENTS[type(event)].dump_json(event))
        assert kept == event, "kept and read, it is the same"
        before = self.run
        self.run, actions, weight = decide.step(before, event)
        invariants.check(self.run)
        if weight is Weight.NUMBERS:
            self.check_quiet(before, event)
        if before.phase.is_terminal:
            assert self.run.phase is before.phase, "a terminal phase is for ever"
            assert not any(isinstance(action, do.StartTask) for action in actions)
        for action in actions:
            if isinstance(action, do.StartTask):
                self.check_start(before, action)
        known = {host.name for host in self.run.hosts}
        assert all(isinstance(a, do.Note | do.CollectStacks) or a.host in known for a in actions)

    def check_quiet(self, before: Run, event: ev.Event) -> None:
        was, due = next_deadline(before), next_deadline(self.run)
        assert was is None if due is None else was is None or was <= due, "it only moves deadlines away"
        if due is None or due > event.at:
            turn = Turn(self.run, event.at, HEARS)
            decide._advance(turn)
            assert turn.run == self.run, "what was left out would have decided nothing"
            assert not turn.actions

    def check_start(self, before: Run, action: do.StartTask) -> None:
        assert action.generation == self.run.task(action.task).generation, "only the newest is started"
        if is_individual(self.run, self.run.task(action.task)):
            return
        assert self.run.host(action.host).state not in (HostState.LOST, HostState.STUCK), action
        for task in before.tasks:
            if self.run.host(task.host).link is Link.CONNECTED:
                lives = self.living.get(task.id, action.generation)
                assert lives >= action.generation, f"{task.host} says that {task.id} lives"

    def pass_time(self, until: float) -> None:
        for _ in range(200):
            due = next_deadline(self.run)
            if due is None or due > until:
                self.now = until
                return
            self.now = max(self.now, due)
            before = self.run
            self.step(ev.Ticked(self.now))
            assert self.run != before, "a tick at its own deadline must change something"
        raise AssertionError("deadlines without end")

    def happen(self, draw: Draw) -> None:
        self.pass_time(self.now + draw.passes_s)
        chance = Random(draw.choice)
        event = self.event(draw.kind, chance)
        if isinstance(event, ev.EpochBegan) and chance.random() < 0.8:  # mostly as it is: another process
            kept = _RUN.validate_json(_RUN.dump_json(self.run))
            assert kept == self.run
            self.run = rebased(rebased(kept, 1e6), -1e6) if chance.random() < 0.5 else kept
        if isinstance(event, ev.OrderFailed) and event.task is not None:
            self.ended.add((event.task, event.generation))
            self.living.pop(event.task, None)
        if isinstance(event, ev.HostRefused) and event.problem.code == AllocationGone.code:
            # Its engine has ended the tasks, whatever the host said before.
            for task in self.run.tasks_on(event.host):
                self.living.pop(task.id, None)
        if isinstance(event, ev.HostReported):
            for task in self.run.tasks:
                if task.host == event.host:
                    self.living.pop(task.id, None)
            for told in event.tasks:
                if told.phase == "exited":  # which is for ever: whoever says otherwise is not believed
                    self.ended.add((told.task, told.generation))
                    self.living.pop(told.task, None)
                elif (told.task, told.generation) in self.ended:
                    continue
                elif told.generation == self.run.task(told.task).generation:
                    self.living[told.task] = told.generation
        self.step(event)
        if chance.random() < 0.2:
            self.step(event)

    def event(self, kind: str, chance: Random) -> ev.Event:
        host = chance.choice(self.run.hosts).name
        generation = max(0, chance.choice(self.run.tasks).generation - chance.choice((0, 0, 0, 1)))
        problem = Problem(
            chance.choice(("no-task", "gone", "failed", "superseded", AllocationGone.code)), "it did not work"
        )
        match kind:
            case "up":
                return ev.HostUp(self.now, host, chance.choice(("boot-1", "boot-1", "boot-2")))
            case "down":
                return ev.HostDown(self.now, host, "connection lost")
            case "refused":
                return ev.HostRefused(self.now, host, problem)
            case "prepared":
                tensorflow = chance.choice(("2.21.0",) * 9 + ("2.20.0",))
                return ev.HostPrepared(self.now, host, Facts("3.11.2", {"tensorflow": tensorflow}, "c0de", 2))
            case "seeded":
                return ev.CheckpointSeeded(self.now, self.seed(generation, chance))
            case "verified":
                step = chance.choice((None, 10, 20, 300))
                return ev.CheckpointVerified(self.now, generation, step, f"ckpt-{step}" if step else "")
            case "failed":
                order = chance.choice(("start", "stop", "release", "seed", "verify", "sweep"))
                here = [t.id for t in self.run.tasks if t.host == host]
                # Where the host has no task, any other: it may have moved since the order.
                task = chance.choice(here or [t.id for t in self.run.plan.tasks])
                return ev.OrderFailed(self.now, host, order, generation, problem, task)
            case "swept":
                return ev.HostSwept(self.now, host, Swept(chance.choice(((), ("pid 9: D state",)))))
            case "stacks":
                told = tuple((task.id, chance.choice(("", "x"))) for task in self.run.tasks)
                return ev.StacksCollected(self.now, generation, told)
            case "kill":
                return ev.KillRequested(self.now, force=chance.random() < 0.3)
            case "seeding":
                return ev.SeedProgressed(self.now, generation, "it is on its way")
            case "rolled-back":
                went_back = ev.RolledBack(self.now, 1, chance.choice((None, 5, 20)), "ckpt-5", (2, 3))
                did_not = ev.NotGoneBack(self.now, self.run.generation, "there is none")
                return chance.choice((went_back, went_back, did_not))
            case "drain":
                return ev.DrainRequested(self.now, host, now=chance.random() < 0.5)
            case "undrain":
                return ev.UndrainRequested(self.now, host)
            case "epoch":
                return ev.EpochBegan(self.now, self.run.epoch + chance.choice((0, 1)))
            case "submit":
                return ev.Submitted(self.now)
            case "tick":
                return ev.Ticked(self.now)
        leaves = (
            Leaving("it is taken away", chance.choice((0.0, 5.0, 120.0))) if chance.random() < 0.1 else None
        )
        return ev.HostReported(self.now, host, self.reports(host, chance), leaving=leaves)

    def seed(self, generation: int, chance: Random) -> Seed:
        step = chance.choice((None, 10, 200))
        return Seed(
            generation, step, f"ckpt-{step}" if step else None, "gen", (("torn", "torn"),) * (step == 10)
        )

    def reports(self, host: str, chance: Random) -> tuple[ev.TaskReport, ...]:
        told = []
        for task in self.run.tasks:
            if task.host != host or chance.random() < 0.1:
                continue
            phase = chance.choice(("starting", "ready", "ready", "running", "running", "exited", "unknown"))
            told.append(
                ev.TaskReport(
                    task=task.id,
                    generation=max(1, task.generation - chance.choice((0, 0, 0, 0, 1))),  # hosts know no 0
                    phase=phase,
                    pid=chance.choice((None, 7, 7)) if phase != "unknown" else None,
                    port=20000 if phase not in ("starting", "unknown") else None,
                    progress=Progress(
                        global_step=chance.choice((None, 5, 150, 500)),
                        runtime_age_s=chance.choice((None, 0.5, 30.0)),
                    ),
                    exit=self.exit(chance) if phase == "exited" else None,
                    said=(("says", "hello"),) * chance.choice((0, 1)),
                )
            )
        return tuple(told)

    def exit(self, chance: Random) -> Exit | None:
        cause = chance.choice(
            (Cause.SCRIPT, Cause.SCRIPT, Cause.SIGNAL, Cause.ORDERED, Cause.SHIM, Cause.REBOOTED)
        )
        code = chance.choice((0, 1, 42)) if cause is Cause.SCRIPT else None
        at = self.now - chance.choice((0.0, 3.0))
        ended = Exit(
            cause=cause, code=code, at=at, last_lines=(chance.choice(("", "boom", "UnavailableError")),)
        )
        return chance.choice((ended, ended, ended, None))


# The same examples each time, unless more are asked for: then others, too.
@settings(max_examples=10 * SEEDS, derandomize="ORCH_SEEDS" not in os.environ, deadline=None)
@given(
    hosts=st.integers(1, 3),
    checkpoint=st.booleans(),
    parameter_server=st.booleans(),
    spares=st.integers(0, 2),
    may_shrink=st.booleans(),
    stage=st.integers(0, 2),
    happens=st.lists(draws, max_size=60),
)
def test_whatever_happens_the_invariants_hold(
    hosts: int,
    checkpoint: bool,
    parameter_server: bool,
    spares: int,
    may_shrink: bool,
    stage: int,
    happens: list[Draw],
) -> None:
    chaos = Chaos(hosts, checkpoint, parameter_server, spares, may_shrink)
    chaos.come_to(stage)
    for draw in happens:
        chaos.happen(draw)
    assert _RUN.validate_json(_RUN.dump_json(chaos.run)) == chaos.run, "kept and read, it is the same"

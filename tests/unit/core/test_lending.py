"""Free hosts of the pool stand in for hosts that a run has lost or that are drained, and are given back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from orchestrator.core import conflicts, decide
from orchestrator.core import events as ev
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit
from orchestrator.core.launching.placement import place
from orchestrator.core.plan import Ask, CheckpointPlan, Gpu, HostPlan, Plan
from orchestrator.core.pool import NOTHING, Known, Seen, machine
from orchestrator.core.queue import pool_replacements
from orchestrator.core.state.host import HostState, Link
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Problem, Run
from tests.unit.core.world import Machine, World

GPUS: tuple[Gpu, ...] = (0, 1, 2, 3)
POOL = tuple(HostPlan(name, address=f"10.0.0.{i}", gpus=GPUS) for i, name in enumerate("abcd"))


def plan_of(*asks: Ask, hosts: Sequence[HostPlan] = POOL, **more: Any) -> Plan:
    needs = asks or (Ask("worker", 2, 2, together=False),)
    tasks, problems = place(hosts, needs, equal_gpus=True)
    assert tasks, problems
    more = {"checkpoint": CheckpointPlan("/shared/t")} | more
    return Plan("t", "multi_worker_mirrored", tuple(hosts), tasks, "t.py", needs=needs, **more)


class PoolWorld(World):
    """A world in which runs are lent hosts, as the loop does each second."""

    def __init__(self, plan: Plan, *, known: Known = NOTHING, steps: int = 3000) -> None:
        super().__init__(plan, steps=steps)
        self.known = known
        self.refuses: dict[str, int] = {}
        """How often a host refuses to be prepared."""
        self.others: list[Run] = []

    def connect(self, machine: Machine) -> None:
        if any(host.name == machine.name for host in self.run.hosts):
            super().connect(machine)

    def tell(self, event: ev.Event) -> None:
        if (name := getattr(event, "host", None)) is None or any(h.name == name for h in self.run.hosts):
            super().tell(event)

    def begin(self) -> None:
        super().begin()
        self._lend()

    def _lend(self) -> None:
        if not self.run.phase.is_terminal:
            if self.alive:
                for run_id, event in pool_replacements([self.run, *self.others], self.now, self.known):
                    assert run_id == self.run.run_id
                    self.tell(event)
                    self.connect(self.machines[event.lent.name])
            self.after(1.0, self._lend)

    def _handle(self, machine: Machine, action: Any) -> None:
        if type(action).__name__ == "PrepareHost" and self.refuses.get(machine.name, 0) > 0:
            self.refuses[machine.name] -= 1
            plan = self.run.submitted.host(machine.name)
            held = tuple((gpu, "z") for gpu in self.run.plan.host(machine.name).gpus)
            problem = Problem("gpu-leased", f"{machine.name}: z holds {held}", held=held)
            self.known = self.known.heard(plan, problem, self.now, self.now + 20.0)
            self._hear(machine, ev.HostRefused(self.now, machine.name, problem))
            return
        super()._handle(machine, action)

    @property
    def where(self) -> list[tuple[str, tuple[Gpu, ...]]]:
        return [(task.host, task.gpus) for task in self.run.placed.tasks]

    @property
    def leases(self) -> dict[str, list[Gpu]]:
        names = [host.name for host in self.run.plan.hosts]
        held = {name: conflicts.leased_gpus(self.run, name) for name in names}
        return {name: gpus for name, gpus in held.items() if gpus}

    def said(self, kind: str) -> list[str]:
        return [note.message for note in self.notes if note.kind.value == kind]


def lose(world: World, name: str, at: float) -> None:
    """Take a host away for good."""

    def gone() -> None:
        machine = world.machines[name]
        machine.cut = True
        machine.connection = 0
        for _, process in machine.all():
            process.exit = process.exit or Exit(cause=Cause.REBOOTED, at=world.now)
        world.tell(ev.HostDown(world.now, name, "no route to host"))

    world.at(at, gone)


def test_a_lost_host_is_replaced_by_a_free_host_of_the_pool_which_has_its_place_for_good() -> None:
    world = PoolWorld(plan_of())
    assert world.where == [("a", (0, 1)), ("b", (0, 1))]
    lose(world, "b", 30.0)
    world.begin()
    world.go(250.0)
    assert world.run.phase is Phase.RUNNING
    assert world.where == [("a", (0, 1)), ("c", (0, 1))]
    assert world.leases == {"a": [0, 1], "b": [0, 1], "c": [0, 1]}, "b may live on, and is not proven empty"
    world.machines["b"].cut = False
    world.connect(world.machines["b"])
    world.go(300.0)
    assert world.run.host("b").state is HostState.OPEN
    assert world.leases == {"a": [0, 1], "c": [0, 1]}, "b is the pool's again"
    assert not world.run.replacements
    assert world.run.is_of(plan_of())
    world.go(2000.0)
    assert world.is_over


def test_only_what_is_free_of_a_host_is_lent_and_the_fewest_gpus_are_left_over() -> None:
    seen = {
        machine(POOL[2]): Seen(1e9, {0: "z-1 of user bob"}),
        machine(POOL[3]): Seen(1e9, {0: "z", 2: "z"}),
    }
    world = PoolWorld(plan_of(), known=Known(seen))
    lose(world, "b", 30.0)
    world.begin()
    world.go(250.0)
    assert world.where == [("a", (0, 1)), ("d", (1, 3))]


def test_one_host_alone_that_falls_silent_is_lost_once_a_host_that_is_lent_shows_that_the_head_is_not_cut_off() -> (
    None
):
    world = PoolWorld(plan_of(Ask("worker", 1, 2)))
    lose(world, "a", 30.0)
    world.begin()
    world.go(250.0)
    assert (world.run.phase, world.where) == (Phase.RUNNING, [("b", (0, 1))])


def test_a_head_that_is_cut_off_loses_nobody_and_gives_back_what_it_was_lent() -> None:
    world = PoolWorld(plan_of(), steps=6000)
    for name in "abcd":
        world.at(30.0, lambda name=name: world.cut(name, 120.0))  # type: ignore[misc]
    world.begin()
    world.go(400.0)
    assert (world.run.generation, world.where) == (1, [("a", (0, 1)), ("b", (0, 1))])
    assert world.leases == {"a": [0, 1], "b": [0, 1]}


def test_a_host_that_comes_back_in_time_keeps_its_place_and_the_lent_one_is_given_back() -> None:
    world = PoolWorld(plan_of())
    world.refuses = {"c": 100, "d": 100}
    lose(world, "b", 30.0)
    world.begin()
    world.go(150.0)
    assert world.run.phase is Phase.BACKOFF
    assert world.said("placed").count("c is the pool's again: t-20260101-000000 does not need it") >= 1
    world.machines["b"].cut = False
    world.connect(world.machines["b"])
    world.go(200.0)
    assert (world.run.phase, world.where) == (Phase.RUNNING, [("a", (0, 1)), ("b", (0, 1))])
    assert world.leases == {"a": [0, 1], "b": [0, 1]}


def test_where_a_lease_is_refused_the_next_host_is_tried_at_once() -> None:
    world = PoolWorld(plan_of())
    world.refuses = {"c": 100}
    lose(world, "b", 30.0)
    world.begin()
    world.go(150.0)
    assert (world.run.phase, world.where) == (Phase.RUNNING, [("a", (0, 1)), ("d", (0, 1))])


def test_a_run_that_shrank_grows_again_on_any_host_that_becomes_free() -> None:
    full = {machine(host): Seen(100.0, dict.fromkeys(GPUS, "z")) for host in POOL[2:]}
    world = PoolWorld(plan_of(replicas_min={"worker": 1}), known=Known(full))
    lose(world, "b", 30.0)
    world.begin()
    world.go(99.0)
    assert (world.run.phase, world.where) == (Phase.RUNNING, [("a", (0, 1))])
    world.go(300.0)
    assert (world.run.phase, world.where) == (Phase.RUNNING, [("a", (0, 1)), ("c", (0, 1))])


def test_a_drained_host_is_left_for_a_free_one_at_the_next_checkpoint_and_its_gpus_are_free_for_others() -> (
    None
):
    world = PoolWorld(plan_of())
    world.begin()
    world.at(30.0, lambda: world.tell(ev.DrainRequested(world.now, "a")))
    world.go(150.0)
    assert (world.run.phase, world.where) == (Phase.RUNNING, [("c", (0, 1)), ("b", (0, 1))])
    assert world.leases == {"b": [0, 1], "c": [0, 1]}
    assert world.run.host("a").state is HostState.DRAINED
    world.tell(ev.UndrainRequested(world.now, "a"))
    world.go(200.0)
    assert world.where == [("c", (0, 1)), ("b", (0, 1))], "nothing is moved without need"


def test_without_checkpoints_a_drain_now_moves_as_soon_as_the_free_host_is_ready() -> None:
    world = PoolWorld(plan_of(checkpoint=None))
    world.begin()
    world.at(30.0, lambda: world.tell(ev.DrainRequested(world.now, "a", now=True)))
    world.go(60.0)
    assert (world.run.generation, world.where) == (2, [("c", (0, 1)), ("b", (0, 1))])


def test_slots_labels_and_the_hosts_of_on_are_kept_where_a_host_stands_in() -> None:
    hosts = [HostPlan(name, address=f"10.1.0.{i}", slots=2, tasks_max=2) for i, name in enumerate("abcd")]
    hosts[3] = replace(hosts[3], labels=(("room", "2"),))
    plan = plan_of(Ask("worker", 2, together=False, on=("a", "b", "d")), hosts=hosts)
    seen = {machine(hosts[3]): Seen(1e9, {"slot-0": "z"})}
    world = PoolWorld(plan, known=Known(seen))
    lose(world, "b", 30.0)
    world.begin()
    world.go(250.0)
    assert [(task.host, task.host_slot) for task in world.run.placed.tasks] == [("a", 0), ("d", 1)]
    assert world.leases["d"] == ["slot-1"]


def test_two_runs_that_lack_a_host_are_not_lent_the_same_gpus() -> None:
    worlds = [PoolWorld(replace(plan_of(), name=name)) for name in "tu"]
    for world in worlds:
        lose(world, "b", 30.0)
        world.known = Known({machine(POOL[3]): Seen(1e9, why="is away")})
        world._lend = lambda: None  # type: ignore[method-assign]
        world.begin()
        world.go(200.0)
    runs = [replace(world.run, run_id=name) for world, name in zip(worlds, "tu", strict=True)]
    events = dict(pool_replacements(runs, 200.0, worlds[0].known))
    assert {run_id: event.lent.gpus for run_id, event in events.items()} == {"t": (0, 1), "u": (2, 3)}


def test_a_run_that_is_ending_is_lent_nothing() -> None:
    world = PoolWorld(plan_of())
    lose(world, "b", 30.0)
    world.begin()
    world.go(29.0)
    world.tell(ev.KillRequested(world.now))
    world.go(500.0)
    assert not [note for note in world.notes if note.kind.value == "placed"]


def _fault(world: PoolWorld, chance: Random) -> Callable[[], None]:
    name = chance.choice("abcd")
    match chance.randrange(6):
        case 0:
            return lambda: world.cut(name, chance.uniform(1.0, 300.0))
        case 1:
            return lambda: world.reboot(name) if not world.machines[name].cut else None
        case 2:
            return lambda: world.crash() if world.alive else None
        case 3:
            return lambda: world.refuses.update({name: chance.randrange(3)})
        case 4:
            return lambda: _of(world, ev.UndrainRequested(world.now, name))
        case _:
            return lambda: _of(world, ev.DrainRequested(world.now, name, now=chance.random() < 0.5))


def _of(world: PoolWorld, event: Any) -> None:
    if any(host.name == event.host for host in world.run.hosts) and not world.run.phase.is_terminal:
        world.tell(event)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_befalls_the_pool_the_run_ends_and_holds_no_more_than_it_needs(seed: int) -> None:
    chance = Random(seed)
    fewest = {"worker": 1} if chance.random() < 0.5 else {}
    world = PoolWorld(plan_of(replicas_min=fewest), steps=chance.randrange(200, 3000))
    for _ in range(chance.randrange(2, 12)):
        world.at(chance.uniform(10.0, 600.0), _fault(world, chance))
    world.at(700.0, lambda: world.refuses.clear())
    for name in "abcd":
        world.at(710.0, lambda name=name: _of(world, ev.UndrainRequested(world.now, name)))  # type: ignore[misc]
    world.begin()
    world.go(1200.0)
    if not world.run.phase.is_terminal:
        assert sum(map(len, world.leases.values())) <= 4, world.leases
    world.go(20_000.0)
    assert world.run.phase is Phase.SUCCEEDED, world.run.reason


def test_the_event_and_the_run_are_the_same_after_the_journal() -> None:
    from pydantic import TypeAdapter

    world = PoolWorld(plan_of())
    lose(world, "b", 30.0)
    world.begin()
    world.go(250.0)
    events = [ev.HostLent(1.0, replace(POOL[2], gpus=(0, 1), slots_lent=(1,)), "b")]
    for value, type_ in ((world.run, Run), (events[0], ev.HostLent)):
        known = TypeAdapter(type_)
        assert known.validate_json(known.dump_json(value)) == value
    after = decide.step(world.run, ev.HostDown(world.now, "c", "gone")).run
    assert after.host("c").link is not Link.CONNECTING

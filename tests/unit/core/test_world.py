"""The core in a world of hosts: cut at every action, and under any mix of faults, it ends as it should."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from orchestrator.core.events import KillRequested
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.state.phase_states import Phase
from tests.unit.core.transcript import make_plan
from tests.unit.core.world import World

SEEDS = int(os.environ.get("ORCH_SEEDS", "30"))
"""Per batch; more of them find more, and take longer."""

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)


def _trains(world: World) -> None:
    """Nothing happens."""


def _worker_killed(world: World) -> None:
    world.at(30.0, lambda: world.kill_process(W1))


def _killed_by_the_user(world: World) -> None:
    world.at(20.0, lambda: _kill(world))


def _kill(world: World) -> None:
    """Kill the run; while no coordinator lives, try again."""
    if not world.alive:
        world.after(0.5, lambda: _kill(world))
        return
    world.tell(KillRequested(at=world.now))


def _rebooted(world: World) -> None:
    world.at(25.0, lambda: world.reboot("b"))


def _cut_off_for_a_while(world: World) -> None:
    world.at(15.0, lambda: world.cut("b", 30.0))


def _script_fails(world: World) -> None:
    world.fails_at[W1] = 7


SCENES: dict[str, tuple[Callable[[World], None], Phase]] = {
    "trains": (_trains, Phase.SUCCEEDED),
    "worker-killed": (_worker_killed, Phase.SUCCEEDED),
    "killed-by-the-user": (_killed_by_the_user, Phase.KILLED),
    "rebooted": (_rebooted, Phase.SUCCEEDED),
    "cut-off-for-a-while": (_cut_off_for_a_while, Phase.SUCCEEDED),
    "script-fails": (_script_fails, Phase.FAILED),
}


def _play(scene: str, crash_before: int | None = None) -> World:
    world = World(make_plan(["a", "b"], checkpoint=True, failures=3))
    SCENES[scene][0](world)
    world.crash_before = crash_before
    world.begin()
    world.go(2000.0)
    return world


@pytest.mark.parametrize("scene", SCENES)
def test_it_ends_as_it_should_whichever_action_the_coordinator_dies_before(scene: str) -> None:
    calm = _play(scene)
    assert calm.run.phase is SCENES[scene][1]
    assert calm.performed > 10
    for cut in range(calm.performed):
        world = _play(scene, crash_before=cut)
        assert world.crash_before is None, f"cut {cut}: it did die"
        assert world.run.phase is calm.run.phase, f"cut {cut}: {world.run}"
        assert world.run.budget.restarts == calm.run.budget.restarts, f"cut {cut}: a crash is no restart"
        assert world.living() == {}, f"cut {cut}"
        assert set(world.run.proof or {}) == {"a", "b"}, f"cut {cut}: nothing is left, and it is proven"


def test_a_worker_killed_is_one_restart_from_the_checkpoint() -> None:
    world = _play("worker-killed")
    assert world.run.budget.restarts == 1
    (resumed,) = [note for note in world.notes if note.kind is NoteKind.RESUMED]
    assert resumed.data["global_step"] in world.saved


def _savage(seed: int) -> World:
    """Faults at random times and rates, then peace."""
    chance = Random(seed)
    hosts = ["a", "b", "c"][: chance.choice((1, 2, 3))]
    plan = make_plan(hosts, checkpoint=chance.random() < 0.7, failures=50)
    if chance.random() < 0.5:
        spares = tuple(
            replace(plan.hosts[0], name=name, spare=True) for name in ("y", "z")[: chance.choice((1, 2))]
        )
        plan = replace(plan, hosts=(*plan.hosts, *spares))
    if chance.random() < 0.5:
        plan = replace(plan, replicas_min={"worker": 1})
    hosts = [host.name for host in plan.hosts]
    world = World(plan, steps=3000)
    world.begin()
    for _ in range(chance.choice((1, 4, 12))):
        at, host = chance.uniform(0.0, 200.0), chance.choice(hosts)
        fault = chance.choice(("crash", "cut", "long-cut", "reboot", "kill", "cut-all", "drain"))
        match fault:
            case "crash":
                world.at(at, lambda: world.crash(chance.uniform(0.1, 40.0)) if world.alive else None)
            case "cut":
                world.at(at, lambda host=host: world.cut(host, chance.uniform(0.1, 12.0)))  # type: ignore[misc]
            case "long-cut":
                world.at(at, lambda host=host: world.cut(host, chance.uniform(12.0, 150.0)))  # type: ignore[misc]
            case "reboot":
                world.at(at, lambda host=host: world.reboot(host))  # type: ignore[misc]
            case "drain":
                world.at(at, lambda host=host: world.drain(host))  # type: ignore[misc]
                world.at(at + 60.0, lambda host=host: world.undrain(host))  # type: ignore[misc]
            case "kill":
                world.at(at, lambda: world.kill_process(chance.choice(world.machines_tasks)))
            case _:
                for name in hosts:
                    world.at(at, lambda name=name: world.cut(name, 90.0))  # type: ignore[misc]
    return world


@pytest.mark.parametrize("batch", range(4))
def test_after_any_faults_and_then_peace_the_training_succeeds(batch: int) -> None:
    for seed in range(batch * SEEDS, batch * SEEDS + SEEDS):
        world = _savage(seed)
        world.go(5000.0)
        assert world.run.phase is Phase.SUCCEEDED, f"seed {seed}: {world.run.phase} {world.run.reason}"
        assert world.living() == {}, f"seed {seed}"

"""The table of faults: how often each occurs, what it must not harm, and how it heals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.strategy import STRATEGIES
from tests.sim import person
from tests.sim.apart import Apart
from tests.sim.draw import WILD
from tests.sim.liar import Liar
from tests.sim.machine import Machine
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

Heal = Callable[[], None]


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    name: str
    weight: int
    happen: Callable[[World, float], Heal | None]
    """Injects the fault, given how long it lasts, and returns how it heals."""
    harmless: bool = False
    alone: bool = False
    """Whether it ends only tasks that are restarted alone."""
    lies: bool = False
    """Whether it may happen to those who lie, and their neighbours are not to notice."""
    beside: bool = False
    """Whether it harms one run only, and not its neighbours on the same hosts."""
    queue: bool = False
    """Whether it happens only where runs wait for GPUs."""


def _machine(world: World) -> Machine:
    return world.chance.choice(list(world.machines.values()))


def _process(world: World) -> Process | None:
    living = world.living_of("chaos")
    return world.chance.choice(living) if living else None


def _cut(world: World, machines: list[Machine], up: bool, down: bool, peers: bool) -> Heal:
    for machine in machines:
        machine.cut_up |= up
        machine.cut_down |= down
        machine.cut_peers |= peers
    world.network_changed()

    def heal() -> None:
        for machine in machines:
            machine.cut_up = machine.cut_down = machine.cut_peers = False
            for wire in world.wires[machine.name]:
                wire.heal()
        world.network_changed()

    return heal


def _cut_from_head(world: World, _lasts_s: float) -> Heal:
    return _cut(world, [_machine(world)], True, True, False)


def _cut_one_way(world: World, _lasts_s: float) -> Heal:
    up = world.chance.random() < 0.5
    return _cut(world, [_machine(world)], up, not up, False)


def _cut_from_all(world: World, _lasts_s: float) -> Heal:
    return _cut(world, [_machine(world)], True, True, True)


def _cut_head_off(world: World, _lasts_s: float) -> Heal:
    machines = list(world.machines.values())
    world.chance.shuffle(machines)
    most = machines[: len(machines) // 2 + 1]
    return _cut(world, machines if world.chance.random() < 0.5 else most, True, True, False)


def _reset(world: World, _lasts_s: float) -> None:
    channels = world.head.transport.channels if world.head is not None else []
    if channels:
        world.chance.choice(channels).reset()


def _kill_agent(world: World, _lasts_s: float) -> None:
    for agent in list(_machine(world).agents):
        agent.end()


def _freeze_agent(world: World, _lasts_s: float) -> Heal:
    agents = list(_machine(world).agents)
    for agent in agents:
        agent.freeze(True)

    def heal() -> None:
        for agent in agents:
            if agent.alive:
                agent.freeze(False)

    return heal


def _freeze_shim(world: World, _lasts_s: float) -> Heal | None:
    process = _process(world)
    if process is None or not process.shim.alive:
        return None
    shim = process.shim
    shim.freeze(True)
    return lambda: shim.freeze(False)


def _freeze_process(world: World, _lasts_s: float) -> Heal | None:
    process = _process(world)
    if process is None:
        return None
    process.freeze(True)
    return lambda: process.freeze(False) if process.alive else None


def _stick(world: World, _lasts_s: float) -> None:
    process = _process(world)
    if process is not None and process.released:
        process.stuck = True
        process.run.training.changed(process)


def _unkillable(world: World, _lasts_s: float) -> Heal | None:
    process = _process(world)
    if process is None:
        return None
    process.unkillable = process.stuck = process.machine.was_unkillable = True
    process.run.training.changed(process)

    def heal() -> None:
        process.unkillable = False
        if process.alive and not process.shim.alive:
            process.end(signal=9)  # the uninterruptible wait is over, and the pending SIGKILL is delivered

    return heal


def _kill_process(world: World, _lasts_s: float) -> None:
    process = _process(world)
    if process is not None:
        process.killed()


def _kill_alone(world: World, _lasts_s: float) -> None:
    mine = [
        process
        for process in world.living_of(world.kind)
        if process.released and process.task.type in STRATEGIES[process.run.scenario.plan.strategy].alone
    ]
    if mine:
        world.chance.choice(mine).killed()


def _kill_shim(world: World, _lasts_s: float) -> None:
    process = _process(world)
    if process is not None and process.shim.alive:
        process.shim.killed()


def _exit(code: int, line: str) -> Callable[[World, float], None]:
    def happen(world: World, _lasts_s: float) -> None:
        process = _process(world)
        if process is not None and process.released and not process.frozen:
            process.fail(line, code)

    return happen


def _reboot(world: World, lasts_s: float) -> Heal:
    machine = _machine(world)
    if not machine.up:
        return lambda: None
    machine.crash()
    world.network_changed()

    def back() -> None:
        machine.come_back()
        world.network_changed()

    world.heap.after(20.0 + lasts_s, back)
    return lambda: None


def _leave(world: World, lasts_s: float) -> None:
    """Warn of the end of a machine, and take it away. It comes back as another boot."""
    machine = _machine(world)
    if not machine.up or machine.leaves_at is not None:
        return
    warned_s = world.chance.choice((5.0, 30.0, 120.0))
    machine.leaves_at = leaves_at = world.heap.now + warned_s
    for run in world.runs.values():
        run.checks.may_be_left |= run.uses(machine.name)

    def take() -> None:
        if machine.leaves_at != leaves_at:
            return  # it was rebooted meanwhile
        if world.chance.random() < 0.1:
            machine.leaves_at = None  # it stays after all
        elif machine.up:
            machine.crash()
            world.network_changed()
            world.heap.after(20.0 + lasts_s, back)

    def back() -> None:
        machine.come_back()
        world.network_changed()

    world.heap.after(warned_s, take)


def _die(world: World, _lasts_s: float) -> None:
    world.head_dies(whole_machine=world.chance.random() < 0.3)


def _live_on(world: World, lasts_s: float) -> None:
    world.head_lives_on(60.0 + 3.0 * lasts_s)


def _stutter(world: World, _lasts_s: float) -> Heal:
    machine = _machine(world)
    machine.stutters = True

    def heal() -> None:
        machine.stutters = False

    return heal


def _lie(world: World, _lasts_s: float) -> Heal:
    first, *others = world.runs.values()
    machine = world.machines[world.chance.choice(first.scenario.plan.hosts).name]
    elsewhere = [run.run_id for run in others if not run.uses(machine.name)]
    machine.liar = Liar(world.chance, machine.name, first.run_id, elsewhere, misfit=world.scenario.misfit)
    first.is_lied_about = True

    def heal() -> None:
        machine.liar = None

    return heal


def _fill_disk(world: World, _lasts_s: float) -> Heal:
    world.disk_full = True

    def heal() -> None:
        world.disk_full = False

    return heal


def _hang_share(world: World, _lasts_s: float) -> Heal:
    for machine in world.machines.values():
        machine.share_hangs = True

    def heal() -> None:
        for machine in world.machines.values():
            machine.share_hangs = False

    return heal


def _start_fails(world: World, _lasts_s: float) -> Heal:
    machine = _machine(world)
    machine.start_fails = True

    def heal() -> None:
        machine.start_fails = False

    return heal


def _tear(world: World, _lasts_s: float) -> None:
    run = world.chance.choice([run for run in world.runs.values() if run.kind == "chaos"])
    run.share.tear(world.chance)


def _fill_host(world: World, _lasts_s: float) -> Heal:
    machine = _machine(world)
    machine.disk_full = True

    def heal() -> None:
        machine.disk_full = False

    return heal


def _lose_directory(world: World, _lasts_s: float) -> None:
    machine = _machine(world)
    for run in world.runs.values():
        if isinstance(run.share, Apart) and not any(p.machine is machine for p in run.living()):
            run.share.lose(machine)


def _take_gpus(world: World, _lasts_s: float) -> Heal:
    """Let another user take what is free of a machine's GPUs."""
    machine = _machine(world)
    taken = {gpu for gpu in range(8) if machine.lessee(gpu) is None}
    machine.foreign |= taken

    def heal() -> None:
        machine.foreign -= taken

    return heal


FAULTS = (
    Fault("cut from the head", 6, _cut_from_head, harmless=True),
    Fault("cut one way", 4, _cut_one_way, harmless=True),
    Fault("cut from all", 4, _cut_from_all),
    Fault("head cut off", 3, _cut_head_off, harmless=True),
    Fault("reset", 4, _reset, harmless=True),
    Fault("agent killed", 3, _kill_agent, harmless=True),
    Fault("agent frozen", 3, _freeze_agent, harmless=True),
    Fault("shim frozen", 2, _freeze_shim, beside=True),
    Fault("shim killed", 2, _kill_shim, beside=True),
    Fault("task frozen", 2, _freeze_process, beside=True),
    Fault("task stuck", 2, _stick, beside=True),
    Fault("task unkillable", 1, _unkillable, beside=True),
    Fault("task killed", 4, _kill_process, beside=True),
    Fault("task killed alone", 2, _kill_alone, alone=True),
    Fault("script fails", 3, _exit(1, "ValueError: by chance"), beside=True),
    Fault("script saves and asks", 2, _exit(42, ""), beside=True),
    Fault("script ends early", 1, _exit(0, ""), beside=True),
    Fault("host rebooted", 3, _reboot),
    Fault("host taken away", 3, _leave),
    Fault("coordinator killed", 5, _die, harmless=True, lies=True),
    Fault("coordinator lives on beside its successor", 2, _live_on),
    Fault("frames doubled, replies late", 2, _stutter, harmless=True),
    Fault("host lies", 20, _lie, lies=True),
    Fault("journal's disk full", 2, _fill_disk, harmless=True),
    Fault("share hangs", 1, _hang_share),
    Fault("starts fail", 1, _start_fails),
    Fault("checkpoint torn", 2, _tear, beside=True),
    Fault("host's disk full", 2, _fill_host),
    Fault("host's checkpoints lost", 2, _lose_directory),
    Fault("host drained", 3, person.drain, beside=True),
    Fault("gone back to a checkpoint", 1, person.go_back, beside=True),
    Fault("another user takes the free GPUs", 15, _take_gpus, queue=True),
)


class Injector:
    """Injects random faults until it is told to heal."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heals: list[Heal] = []
        kind = world.scenario.kind
        self._table = [
            fault
            for fault in FAULTS
            if (kind in WILD and not fault.lies and not fault.queue) or getattr(fault, kind, False)
        ]
        self._over = not self._table
        if not self._over:
            self._again()

    def _again(self) -> None:
        scenario, chance = self._world.scenario, self._world.chance
        wait_s = chance.expovariate(1 / scenario.fault_every_s)
        if scenario.kind in ("harmless", "alone"):
            wait_s += 900.0  # these faults must not overlap: several at once may do harm
        self._world.heap.after(wait_s, self._strike)

    def _strike(self) -> None:
        if self._over:
            return
        scenario, chance = self._world.scenario, self._world.chance
        fault = chance.choices(self._table, [fault.weight for fault in self._table])[0]
        longest_s = 600.0
        if scenario.kind == "harmless":
            longest_s = 120.0
        lasts_s = min(
            longest_s, chance.expovariate(1 / 60.0) if chance.random() < 0.7 else chance.uniform(0, 600.0)
        )
        self._world.say(f"** {fault.name}, {lasts_s:.0f} s")
        self._world.counts[fault.name] = self._world.counts.get(fault.name, 0) + 1
        heal = fault.happen(self._world, lasts_s)
        if heal is not None:
            self._heals.append(heal)
            self._world.heap.after(lasts_s, lambda: self._heal(heal))
        self._again()

    def _heal(self, heal: Heal) -> None:
        if heal in self._heals:
            self._heals.remove(heal)
            self._world.say("** patched")
            heal()

    def heal(self) -> None:
        """Heal all faults, and inject no more."""
        self._over = True
        for heal in list(self._heals):
            self._heal(heal)

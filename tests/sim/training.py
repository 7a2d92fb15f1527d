"""What TensorFlow does: tasks that find each other through TF_CONFIG train and save together, and fail together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.core.plan import TaskId
from tests.sim.process import UNAVAILABLE

if TYPE_CHECKING:
    from orchestrator.protocol.reports import Holds
    from tests.sim.machine import Machine
    from tests.sim.process import Process
    from tests.sim.run import SimRun


class Gang:
    """The tasks whose TF_CONFIG names the same chief. They make progress while all tasks that they need are well."""

    def __init__(self, training: Training, config: dict[str, Any] | None) -> None:
        self._training = training
        self._world = training.run.world
        self._run = training.run
        self.config = config
        self.members: dict[TaskId, Process] = {}
        self.position = 0.0
        self.began = False
        self.aborted = False
        """Whether a survivor has ended all collectives."""
        self._since = 0.0
        self._runs = False
        self._version = 0
        self._save_at = 0.0
        self._asked: set[TaskId] = set()

    # -- who -----------------------------------------------------------------------------------------------

    @property
    def chief(self) -> Process | None:
        return min(self.members.values(), key=lambda p: p.task, default=None)

    def is_needed(self, task: TaskId) -> bool:
        """Return whether there is no progress without that task."""
        return self._run.scenario.plan.strategy != "parameter_server" or task.type in ("chief", "ps")

    def join(self, process: Process) -> None:
        """Let a released process look for its peers at the addresses in its TF_CONFIG."""
        for address in self.addresses():
            self._meet(process, *address)
        self.members[process.task] = process
        chief = self.chief
        if chief is process:
            self._begin(process)
        self.update()

    def addresses(self) -> list[tuple[TaskId, str, int]]:
        """Return (task, data address, port) of each member in TF_CONFIG."""
        cluster = (self.config or {}).get("cluster", {})
        found = []
        for type_, listed in cluster.items():
            for index, address in enumerate(listed):
                host, _, port = address.rpartition(":")
                found.append((TaskId(type_, index), host, int(port)))
        return found

    def _meet(self, process: Process, peer: TaskId, address: str, port: int) -> None:
        """Check who holds the peer's port: TensorFlow would take it for the peer."""
        machine = self._training.machine_at(address)
        for record in machine.records.values():
            holder = record.process
            if record.port != port or holder is None or not holder.alive:
                continue
            older = min(holder.generation, process.generation)
            if holder.run is not self._run:
                self._run.checks.demand(
                    False,
                    "met-a-stranger",
                    f"{process!r} finds {holder!r} of another run at {address}:{port}",
                )
            if holder.task != peer or (self.is_needed(peer) and older < self._gang_of(process, holder)):
                self._run.checks.demand(
                    False, "met-a-stranger", f"{process!r} finds {holder!r} where it looks for {peer}"
                )
        if process.shim.record.start["hold"] and not any(
            record.port == port and (record.was_ready or record.task is not None)
            for record in machine.records.values()
        ):
            self._run.checks.demand(
                False, "released-before-all-joined", f"{process!r} looks for {peer}, which never was ready"
            )

    def _gang_of(self, process: Process, holder: Process) -> int:
        """Return the generation of the gang. A task that was restarted alone has a newer one."""
        if not self.is_needed(process.task):
            return holder.generation
        return max(process.generation, holder.generation)

    # -- position ------------------------------------------------------------------------------------------

    def _begin(self, chief: Process) -> None:
        scenario, checks = self._run.scenario, self._run.checks
        found, whole = None, True
        if chief.directory is not None:
            found, whole = self._run.share.begins(chief)
        checks.restored(chief, found, whole=whole)
        if scenario.script == "restores-nothing":
            found = None
        self.position = float(found or 0)
        self.began = False
        self._save_at = self.position + scenario.save_every_s * scenario.steps_per_s
        delay_s = scenario.first_step_s * self._world.chance.uniform(0.7, 1.3)

        def first_step() -> None:
            if chief.alive and self.chief is chief:
                self.began = True
                self.update()

        self._world.heap.after(delay_s, first_step)

    def step_of(self, process: Process) -> int | None:
        """Return the step that the runtime of a process reports."""
        serves = self._run.scenario.plan.strategy == "parameter_server" and process.task.type != "chief"
        if serves or not self.began or process.task.type == "evaluator":
            return None
        self._settle()
        return int(self.position)

    def _settle(self) -> None:
        now = self._world.heap.now
        if self._runs:
            self.position += (now - self._since) * self._run.scenario.steps_per_s
        self._since = now

    def _is_well(self) -> bool:
        chief = self.chief
        if not self.began or self.aborted or chief is None or not chief.trains:
            return False
        needed = [task for task, _, _ in self.addresses() if self.is_needed(task)] or [chief.task]
        members = [self.members.get(task) for task in needed]
        if not all(member is not None and member.trains and member.machine.up for member in members):
            return False
        machines = {member.machine.name: member.machine for member in members if member is not None}
        return len(machines) == 1 or not any(machine.cut_peers for machine in machines.values())

    def update(self) -> None:
        """React to a change of a process, a machine, or the network between machines."""
        self._settle()
        self._runs = self._is_well()
        self._version += 1
        self._follow()
        if self._runs:
            self._arm()

    def _arm(self) -> None:
        scenario, version = self._run.scenario, self._version
        target = min(self._save_at, scenario.steps, self._fails_at())
        wait_s = max(0.0, (target - self.position) / scenario.steps_per_s)

        def due() -> None:
            if version == self._version:
                self._settle()
                self.position = max(self.position, target)
                self._arrive()

        self._world.heap.after(wait_s, due)

    def _fails_at(self) -> float:
        scenario = self._run.scenario
        return scenario.steps * 0.4 if scenario.script == "fails-at-a-step" else float("inf")

    def _arrive(self) -> None:
        chief = self.chief
        assert chief is not None
        scenario = self._run.scenario
        if self.position >= self._fails_at():
            chief.fail("ValueError: cannot go on at this step")
        elif self.position >= scenario.steps:
            self._save(chief, 0.0)
            chief.end(code=0)
        else:
            self._save_at += scenario.save_every_s * scenario.steps_per_s
            self._save(chief, scenario.save_s * self._world.chance.uniform(0.5, 1.5))
            self.update()

    def _save(self, chief: Process, takes_s: float) -> None:
        if chief.directory is None:
            return
        self._run.checks.saves(chief)
        for member in self.members.values():
            for _ in range(self._world.chance.choice((0, 0, 1, 40))):
                member.print(f"step {int(self.position)}")
        end = self._run.share.save(chief, int(self.position))

        def finished() -> None:
            if chief.alive or takes_s == 0.0:
                end(not self._run.tears())

        if takes_s == 0.0:
            finished()
        else:
            self._world.heap.after(takes_s, finished)

    def holds(self) -> Holds:
        """Return what a survivor holds: the step that was reached or the next; few have other weights than the rest."""
        self._settle()
        chance, self.aborted = self._world.chance, True
        self.update()
        return {"step": int(self.position) + chance.choice((0, 1)), "checksum": int(chance.random() < 0.05)}

    def hand_over(self, survivor: Process) -> tuple[int, Callable[[bool], None]]:
        """Begin to write what a survivor holds. Return the step, and what ends the writing."""
        self._settle()
        self.aborted = True
        self.update()
        step = survivor.holds["step"] if survivor.holds else int(self.position)
        self._run.checks.hands_over(survivor)
        return step, self._run.share.save(survivor, step)

    # -- dying of each other -------------------------------------------------------------------------------

    def ended(self, process: Process, code: int | None) -> None:
        """React to the end of a member."""
        if self.members.get(process.task) is not process:
            return
        chance = self._world.chance
        if process is self.chief and code == 0:
            for member in list(self.members.values()):
                if member.task.type == "ps" or (member.task.type == "worker" and self._serves(member)):
                    continue
                late = 1 if chance.random() < 0.15 else 0
                line = UNAVAILABLE if late else ""
                member.fail_later(chance.uniform(0.0, 2.0), line, late, lambda: True)
        self.update()

    def _serves(self, process: Process) -> bool:
        return self._run.scenario.plan.strategy == "parameter_server" and process.task.type == "worker"

    def _follow(self) -> None:
        """Let members fail if one that they need has died. If it is only unreachable, they may fail."""
        dead = [p for p in self.members.values() if not p.alive and self.is_needed(p.task)]
        away = [p for p in self.members.values() if p.machine.cut_peers or not p.machine.up]
        chance = self._world.chance
        for member in list(self.members.values()):
            if not member.trains or not self.is_needed(member.task) or member.task in self._asked:
                continue
            if member.task.type == "ps" or not (dead or (away and len(self.members) > 1)):
                continue
            self._asked.add(member.task)
            if dead:
                delay_s = chance.uniform(0.5, 38.0)
            elif chance.random() < 0.5:
                delay_s = chance.uniform(10.0, 120.0)
            else:
                continue
            member.fail_later(delay_s, UNAVAILABLE, 1, lambda: not self._runs and not self._is_well())
        if not dead and not away:
            self._asked.clear()


class Training:
    """All gangs of a run, by the address of their chief."""

    def __init__(self, run: SimRun) -> None:
        self.run = run
        self.world = run.world
        self.gangs: dict[str, Gang] = {}
        self._by_address: dict[str, Machine] = {}

    def machine_at(self, address: str) -> Machine:
        """Return the machine with that data address."""
        if not self._by_address:
            self._by_address = {m.data_address: m for m in self.world.machines.values()}
        return self._by_address[address]

    def join(self, process: Process, config: dict[str, Any] | None) -> None:
        """Add a released process to its gang."""
        if process.task.type == "evaluator":
            process.gang = Gang(self, None)
            return
        cluster = (config or {}).get("cluster", {})
        first = (cluster.get("chief") or cluster.get("worker") or [f"alone/{process.generation}"])[0]
        gang = self.gangs.get(first)
        if gang is None or (gang.chief is not None and not gang.chief.alive):
            gang = self.gangs[first] = Gang(self, config)
        process.gang = gang
        gang.join(process)

    def ended(self, process: Process, code: int | None) -> None:
        """React to the end of a process."""
        if process.gang is not None:
            process.gang.ended(process, code)
        if code == 0 and process.task == self.run.chief:
            self.run.checks.finished()
            for other in self.run.processes():  # an evaluator ends after the last checkpoint
                if other.task.type == "evaluator" and other.released:
                    other.fail_later(self.world.chance.uniform(0.5, 5.0), "", 0, lambda: True)

    def changed(self, process: Process) -> None:
        """React to a process that was frozen or continued."""
        if process.gang is not None:
            process.gang.update()

    def network_changed(self) -> None:
        """React to a machine that was cut off or is back."""
        for gang in list(self.gangs.values()):
            gang.update()

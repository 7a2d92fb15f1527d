"""The simulated world of a seed, with one heap and one thread. Faults occur for a while; then the run must end."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from random import Random

from orchestrator.adapters.bundle import Bundle
from orchestrator.core.errors import JournalError
from orchestrator.core.events import KillRequested
from orchestrator.core.model import Run, new_run
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import TaskId
from orchestrator.core.strategy import chief_of
from tests.sim.checks import Checks
from tests.sim.draw import Scenario
from tests.sim.faults import Injector
from tests.sim.head import Died, Head
from tests.sim.heap import Heap, Violation
from tests.sim.machine import Machine
from tests.sim.process import Process
from tests.sim.share import Share
from tests.sim.training import Training
from tests.sim.wires import Wire

RUN_ID = "sim-20260101-000000"
LAST_EVENTS = 60
SPINS_MAX = 2000
SPIN_S = 0.05
"""More than SPINS_MAX turns in this time are an endless loop: an expired deadline that changes nothing."""


class World:
    """The world around a real coordinator. Everything else is fake."""

    def __init__(
        self, scenario: Scenario, directory: str, trace: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.heap = Heap()
        self.chance = Random(scenario.seed + 1)
        self.chief: TaskId = chief_of(scenario.plan.tasks)
        self.last: deque[str] = deque(maxlen=LAST_EVENTS)
        self.counts: dict[str, int] = {}
        self.turns = 0
        self.disk_full = False
        self.share = Share()
        self.wires: dict[str, list[Wire]] = {host.name: [] for host in scenario.plan.hosts}
        self.machines = {host.name: Machine(self, host) for host in scenario.plan.hosts}
        self.checks = Checks(self)
        self.training = Training(self)
        self.head: Head | None = None
        self.head_since = 0.0
        self._trace = trace
        self._directory = directory
        self._journals = 0
        self._path = self._new_path()
        self._healed_at: float | None = None
        self._spins = (0.0, 0)
        self._injector = Injector(self)

    # -- what others ask -----------------------------------------------------------------------------------

    def say(self, sentence: str) -> None:
        """Record what happens, to be shown after a failure."""
        line = f"{self.heap.now:10.2f}  {sentence}"
        self.last.append(line)
        if self._trace is not None:
            self._trace(line)

    def processes(self) -> list[Process]:
        """Return all processes that ever ran."""
        return [
            r.process for m in self.machines.values() for r in m.records.values() if r.process is not None
        ]

    def processes_living(self) -> list[Process]:
        """Return all living processes."""
        return [process for process in self.processes() if process.alive]

    def tears(self) -> bool:
        """Draw whether a checkpoint is torn although its writer succeeded."""
        return self._healed_at is None and self.chance.random() < self.scenario.tears

    def fate_of_write(self) -> str:
        """Draw what happens at a write of the journal."""
        if self._healed_at is not None or self.chance.random() >= self.scenario.dies_at_write:
            return "lives"
        return self.chance.choice(("before", "torn", "after"))

    def dies_between(self) -> bool:
        """Draw whether the coordinator dies between a commit and an action."""
        return self._healed_at is None and self.chance.random() < self.scenario.dies_at_write / 2

    def no_bundle(self) -> Bundle:
        """Fail: the fake agents need no bundle."""
        raise NotImplementedError

    @property
    def run_now(self) -> Run | None:
        """The run as the current coordinator knows it; None while there is none."""
        return self.head.loop.runs.get(RUN_ID) if self.head is not None else None

    # -- the coordinator's life ----------------------------------------------------------------------------

    def guarded(self, head: Head, work: Callable[[], object]) -> bool:
        """Do work of the coordinator. Return False where it dies of it."""
        self.turns += 1
        at, count = self._spins
        self._spins = (at, count + 1) if self.heap.now < at + SPIN_S else (self.heap.now, 0)
        if self._spins[1] > SPINS_MAX:
            raise Violation("spins", "the coordinator turns and turns, and no time passes")
        try:
            work()
        except Died:
            self.head_dies(whole_machine=False)
            return False
        except queue.Empty:
            pass
        finally:
            for halt in head.loop.halted.values():
                raise Violation("invariant", halt.error)
        head.look()
        return True

    def head_dies(self, *, whole_machine: bool) -> None:
        """Kill the coordinator, and start one again after a while with what is on the disk."""
        head = self.head
        if head is None:
            return
        self.say(f"** the coordinator of epoch {head.epoch} is dead")
        self.head = None
        kept = list(head.journal.kept)
        head.die(whole_machine)
        self._path = head.journal.survive(self._new_path())
        away_s = (
            self.chance.choice((0.5, 3.0, 20.0))
            if self.chance.random() < 0.8
            else self.chance.uniform(60, 2000)
        )
        if self.scenario.kind == "harmless":
            away_s = min(away_s, 300.0)
        self.heap.after(away_s, lambda: self._head_begins(kept))

    def _new_path(self) -> str:
        self._journals += 1
        return os.path.join(self._directory, f"journal-{self._journals}.db")

    def _head_begins(self, kept: list[Run]) -> None:
        head = self.head = Head(self, self._path)
        self.head_since = self.heap.now
        self.say(f"** a coordinator of epoch {head.epoch}")
        found = [k.run for k in head.journal.runs()]
        self.checks.after_a_crash(kept, found)
        head.journal.kept = found
        try:
            if self.guarded(head, head.take_up) and not found:
                self._submit(head)
        except JournalError:  # it reports the error and ends, and is started again
            self.head_dies(whole_machine=False)

    def _submit(self, head: Head) -> None:
        """Do what `Coordinator._submit` does, until it is acknowledged."""
        run = new_run(RUN_ID, self.scenario.plan, epoch=head.epoch, at=head.clock())

        def work() -> None:
            head.loop.submit(run)
            head.executor.open(run, [host.name for host in run.hosts])

        try:
            if self.guarded(head, work):
                self.checks.submitted = True
        except JournalError:
            self.heap.after(5.0, lambda: self._submit(head) if head is self.head else None)

    def _kill(self) -> None:
        """Kill the run, and repeat until it is acknowledged."""
        head = self.head
        if head is None or RUN_ID not in head.loop.runs:
            self.heap.after(10.0, self._kill)
            return
        event = KillRequested(at=head.clock(), force=self.scenario.force_kill)
        self.say("** the user kills the run")
        try:
            if self.guarded(head, lambda: head.loop.decide(RUN_ID, event)):
                self.checks.killed = True
                if self._healed_at is None and self.chance.random() < 0.4:
                    self.head_dies(whole_machine=False)  # right after an acknowledgement, which must hold
                return
        except JournalError:
            pass
        self.heap.after(10.0, self._kill)

    # -- time ----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Simulate until the run has ended, or its bound has passed."""
        self._head_begins([])
        if self.scenario.kill_at is not None:
            self.heap.at(self.scenario.kill_at, self._kill)
        self.heap.at(self.scenario.faults_s, self._heal)
        while not self._is_over():
            head = self.head
            if head is not None and head.due_at <= self.heap.next_at:
                self.heap.now = max(self.heap.now, head.due_at)
                head.turn()
            else:
                self.heap.pop()()
        self.checks.at_the_end(self.run_now)
        if self.head is not None:
            self.checks.replayed(self.head.journal.entries(RUN_ID))

    def _heal(self) -> None:
        self.say("** all is healed")
        self._healed_at = self.heap.now
        self._injector.heal()
        if self.scenario.plan.restart.on_stall == "notify":
            for process in self.processes_living():  # a person who is notified of a stall acts on it
                if process.stuck:
                    process.killed()

    def _is_over(self) -> bool:
        if self._healed_at is None:
            return False
        if self.heap.now > self._healed_at + self.scenario.bound_s:
            return True
        run = self.run_now
        if run is None or not run.phase.is_terminal or self.processes_living():
            return False
        return not unproven(run)


def scratch() -> str:
    """Make a directory for journals; in memory where possible, so that fsync does not wait for a disk."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.mkdtemp(prefix="orch-sim-", dir=where)


def remove(directory: str) -> None:
    """Remove the directory."""
    shutil.rmtree(directory, ignore_errors=True)

"""The simulated world of a seed, with one heap and one thread. Faults occur for a while; then the run must end."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from orchestrator.core.errors import JournalError
from orchestrator.core.state.run import Run
from orchestrator.head.records.checkpoint_store import CheckpointStore
from tests.sim import hush, logs
from tests.sim.apart import CHUNK_BYTES, PULL_BYTES
from tests.sim.draw import Scenario
from tests.sim.faults import Injector
from tests.sim.fibers import Fibers, Threading, played
from tests.sim.head import Died, Head
from tests.sim.heap import Heap, Violation
from tests.sim.machine import Machine
from tests.sim.process import Process
from tests.sim.run import SimRun
from tests.sim.transport import Boot
from tests.sim.wires import Wire

LAST_EVENTS = 60
SPINS_MAX = 2000
LOOK_S = 10.0
AFTERWARDS_S = 1800.0
"""So long faults may still occur after all runs have ended."""
SPIN_S = 0.05
"""More than SPINS_MAX turns in this time are an endless loop: an expired deadline that changes nothing."""


class SimStore(CheckpointStore):
    """The real one, on a disk that may be full."""

    def __init__(self, world: World, *args: Any) -> None:
        super().__init__(*args)
        self._world = world

    def append(self, chunk: str, data: bytes) -> None:
        """Append half of it, and fail, where the disk is full."""
        if self._world.disk_full:
            super().append(chunk, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(chunk, data)


class World:
    """The world around a real coordinator. Everything else is fake."""

    def __init__(
        self, scenario: Scenario, directory: str, trace: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.heap = Heap()
        self.chance = Random(scenario.seed + 1)
        self.last: deque[str] = deque(maxlen=LAST_EVENTS)
        self.counts: dict[str, int] = {}
        self.turns = 0
        self.played_s = 0.0
        """The time in which heartbeats were played: of a stretch without one, no more than two heartbeats count."""
        self._reported_at = 0.0
        self.disk_full = False
        self.files = os.path.join(directory, "hosts")
        """The files of all hosts, a directory each."""
        self.state_dir = os.path.join(directory, "state-1")
        hosts = {host.name: host for run in scenario.runs for host in run.plan.hosts}
        self.wires: dict[str, list[Wire]] = {name: [] for name in hosts}
        self.machines = {name: Machine(self, name, host.data_address) for name, host in hosts.items()}
        self.runs = {run.run_id: run for run in (SimRun(self, told) for told in scenario.runs)}
        self.fibers = Fibers(self.heap)
        self._played = played(
            Threading(self.fibers).names()
            | {"random": self.chance, "bootstrap": Boot, "CheckpointStore": self._store}
            | {"CHUNK_BYTES": CHUNK_BYTES, "PULL_BYTES": PULL_BYTES}
        )
        self._played.__enter__()
        self.head: Head | None = None
        self.stale: dict[int, Head] = {}
        """By epoch, the coordinators that live on although they have a successor."""
        self.head_since = 0.0
        self._trace = trace
        self._directory = directory
        self._journals = 0
        self._path = self._new_path()
        self._healed_at: float | None = None
        self._spins = (0.0, 0)
        self._look_at = 0.0
        self._over_since: float | None = None
        self._injector = Injector(self)

    # -- what others ask -----------------------------------------------------------------------------------

    def say(self, sentence: str) -> None:
        """Record what happens, to be shown after a failure."""
        line = f"{self.heap.now:10.2f}  {sentence}"
        self.last.append(line)
        if self._trace is not None:
            self._trace(line)

    def reported(self, heartbeat_s: float) -> None:
        """Count the time up to a heartbeat that the coordinator has heard."""
        self.played_s += min(self.heap.now - self._reported_at, 2 * heartbeat_s)
        self._reported_at = self.heap.now

    def processes(self) -> list[Process]:
        """Return all processes that ever ran."""
        return [process for run in self.runs.values() for process in run.processes()]

    def processes_living(self) -> list[Process]:
        """Return all living processes."""
        return [process for process in self.processes() if process.alive]

    def living_of(self, kind: str) -> list[Process]:
        """Return the living processes of the runs of that kind."""
        return [process for process in self.processes_living() if process.run.kind == kind]

    @property
    def kind(self) -> str:
        """The kind of the scenario."""
        return self.scenario.kind

    @property
    def is_healed(self) -> bool:
        """Whether all faults are over."""
        return self._healed_at is not None

    def network_changed(self) -> None:
        """Let all trainings notice that a machine was cut off or is back."""
        for run in self.runs.values():
            run.training.network_changed()

    def fate_of_write(self) -> str:
        """Draw what happens at a write of the journal."""
        if self.is_healed or self.chance.random() >= self.scenario.dies_at_write:
            return "lives"
        return self.chance.choice(("before", "torn", "after"))

    def dies_between(self) -> bool:
        """Draw whether the coordinator dies between a commit and an action."""
        return not self.is_healed and self.chance.random() < self.scenario.dies_at_write / 2

    def _store(self, *args: Any) -> CheckpointStore:
        return SimStore(self, *args)

    # -- the coordinator's life ----------------------------------------------------------------------------

    def guarded(self, head: Head, work: Callable[[], object]) -> bool:
        """Do work of the coordinator. Return False where it dies of it."""
        self.turns += 1
        self.fibers.group = head.fibers
        at, count = self._spins
        self._spins = (at, count + 1) if self.heap.now < at + SPIN_S else (self.heap.now, 0)
        if self._spins[1] > SPINS_MAX:
            raise Violation("spins", "the coordinator turns and turns, and no time passes")
        try:
            work()
        except Died:
            assert head is self.head
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
        kept = dict(head.journal.kept)
        head.die(whole_machine)
        if whole_machine:
            tear_parts(self.state_dir, self.chance)
        self._path = head.journal.copy(self._new_path())
        head.journal.close()
        away_s = (
            self.chance.choice((0.5, 3.0, 20.0))
            if self.chance.random() < 0.8
            else self.chance.uniform(60, 2000)
        )
        if self.scenario.kind in ("harmless", "lies"):
            away_s = min(away_s, 300.0)
        self.heap.after(away_s, lambda: self._head_begins(kept))

    def head_lives_on(self, lasts_s: float) -> None:
        """Let a coordinator begin with a copy of the journal while the other lives on, unaware of it.

        So it is after a failover to another head node, whose first one was only cut off or asleep.
        """
        head = self.head
        if head is None:
            return
        self.say(
            f"** the coordinator of epoch {head.epoch} has a successor, and lives on for {lasts_s:.0f} s"
        )
        head.is_stale = head.journal.is_stale = True
        self.head, self.stale[head.epoch] = None, head
        kept = dict(head.journal.kept)
        self._path = head.journal.copy(self._new_path())
        before, self.state_dir = self.state_dir, os.path.join(self._directory, f"state-{self._journals}")
        if os.path.isdir(before):
            shutil.copytree(before, self.state_dir)
        self.heap.after(self.chance.uniform(0.0, 60.0), lambda: self._head_begins(kept))
        self.heap.after(lasts_s, lambda: self._stale_dies(head))

    def _stale_dies(self, head: Head) -> None:
        if self.stale.pop(head.epoch, None) is not None:
            self.say(f"** the coordinator of epoch {head.epoch} is dead at last")
            head.die(whole_machine=False)
            head.journal.close()

    def _new_path(self) -> str:
        self._journals += 1
        return os.path.join(self._directory, f"journal-{self._journals}.db")

    def _head_begins(self, kept: dict[str, list[Run]]) -> None:
        head = self.head = Head(self, self._path)
        self.head_since = self.heap.now
        self.say(f"** a coordinator of epoch {head.epoch}")
        found = {k.run.run_id: k.run for k in head.journal.runs()}
        for run_id, run in self.runs.items():
            run.checks.after_a_crash(kept.get(run_id, []), found.get(run_id))
        head.journal.kept = {run_id: [run] for run_id, run in found.items()}
        try:
            if self.guarded(head, head.take_up):
                for run in self.runs.values():
                    if run.scenario.begins_at <= self.heap.now:
                        run.submit(head)
        except JournalError:  # it reports the error and ends, and is started again
            self.head_dies(whole_machine=False)

    # -- time ----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Simulate until the run has ended, or its bound has passed."""
        self._head_begins({})
        for run in self.runs.values():
            self.heap.at(run.scenario.begins_at, run.begin)
        self.heap.at(self.scenario.faults_s, self._heal)
        while not self._is_over():
            heads = [self.head, *self.stale.values()] if self.head is not None else [*self.stale.values()]
            head = min(heads, key=lambda head: head.due_at, default=None)
            if head is not None and head.due_at <= self.heap.next_at:
                self.heap.now = max(self.heap.now, head.due_at)
                head.turn()
            else:
                self.heap.pop()()
        for run in self.runs.values():
            run.checks.at_the_end(run.now)
            if self.head is not None:
                run.checks.replayed(self.head.journal.entries(run.run_id))
        if self.head is not None:
            for run in self.runs.values():
                self.counts["logs copied"] = logs.check(run, self.head.state_dir)
            hush.check_documents(self.head)
            hush.check_files(self._directory)
            for one in self.head.journal.contents().unreadable:
                raise Violation("unreadable", one.sentence)

    def close(self) -> None:
        """End all threads, and close the files."""
        for head in [*self.stale.values(), *([self.head] if self.head is not None else [])]:
            head.die(whole_machine=False)
            head.journal.close()
        self._played.__exit__(None, None, None)

    def _heal(self) -> None:
        self.say("** all is healed")
        self._healed_at = self.heap.now
        self._injector.heal()
        for head in list(self.stale.values()):
            self._stale_dies(head)
        for process in self.processes_living():
            if process.stuck and process.run.scenario.plan.restart.on_stall == "notify":
                process.killed()  # a person who is notified of a stall acts on it

    def _is_over(self) -> bool:
        """Return whether nothing is left to play. It is looked at now and then only: it takes long."""
        if self.heap.now < self._look_at:
            return False
        self._look_at = self.heap.now + LOOK_S
        if self._healed_at is not None and self.heap.now > self._healed_at + self.scenario.bound_s:
            return True
        if not all(run.is_over for run in self.runs.values()):
            self._over_since = None
            return False
        self._over_since = self.heap.now if self._over_since is None else self._over_since
        return self.is_healed or self.heap.now > self._over_since + AFTERWARDS_S


def tear_parts(state_dir: str, chance: Random) -> None:
    """Do to the files that were not synced what the loss of power does."""
    for folder, _, names in os.walk(state_dir):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".part") and (size := os.path.getsize(path)):
                keep = chance.randrange(size)
                os.truncate(path, keep)
                if chance.random() < 0.5:
                    os.truncate(path, size)  # the end is there, and holds zeros


def scratch() -> str:
    """Make a directory for journals; in memory where possible, so that fsync does not wait for a disk."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.mkdtemp(prefix="orch-sim-", dir=where)


def remove(directory: str) -> None:
    """Remove the directory."""
    shutil.rmtree(directory, ignore_errors=True)

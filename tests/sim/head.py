"""The coordinator: the real loop, journal, executor and links over a simulated transport. It may die at any write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestrator.core.actions import Action, Note
from orchestrator.core.errors import JournalError
from orchestrator.core.events import Event, LimitReached
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import TaskId
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.head.coordinator.executor import Executor
from orchestrator.head.coordinator.loop import Loop
from orchestrator.head.journal.journal import Journal
from orchestrator.head.links.link import HostLink, Pace
from orchestrator.head.node.secrets import Secrets
from orchestrator.head.transfer.logcopy import LogCopier
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.reports import Report
from tests.sim.fibers import Fiber, Pool
from tests.sim.heap import Clock
from tests.sim.logs import SimLogs
from tests.sim.transport import BUNDLE, SimTransport

if TYPE_CHECKING:
    from tests.sim.world import World


class Died(BaseException):
    """The coordinator was killed at this point."""


class SimJournal(Journal):
    """The real journal in a temporary file. At its writes, the coordinator may die."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self.is_stale = False
        self.tear: tuple[int, int] | None = None
        """The range of the write-ahead log in which it is torn: what the last write added."""
        self.kept: dict[str, list[Run]] = {}
        """By run, the states that may be found afterwards: the last one written, and one that was being written."""
        self._written: dict[str, Run] = {}
        """By run, the state of the transaction that goes on."""
        self.is_open = False
        """Whether a transaction goes on."""
        super().__init__(path)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Take several commits as the real journal does, or die before, after or in the middle of it."""
        self._written.clear()
        before = _size(self.path + "-wal")
        with super().together():
            self.is_open = True
            try:
                yield
            finally:
                self.is_open = False
            fate = "lives" if self.is_stale or not self._written else self._world.fate_of_write()
            if fate == "before":
                raise Died
        after = _size(self.path + "-wal")
        if fate == "torn" and after > before:
            self.tear = (before, after)
            for run_id, run in self._written.items():
                self.kept[run_id] = [*self.kept.get(run_id, [])[-1:], run]
            raise Died
        self.kept |= {run_id: [run] for run_id, run in self._written.items()}
        if fate != "lives":
            raise Died

    def commit(self, run: Run, event: Event, notes: Sequence[Note], **more: Any) -> int:
        """Commit as the real journal does."""
        if self._world.disk_full:
            raise JournalError("the disk of the journal is full")
        entry = super().commit(run, event, notes, **more)
        self._written[run.run_id] = run
        return entry

    def copy(self, path: str) -> str:
        """Copy the files as a crash leaves them to `path`."""
        shutil.copy(self.path, path)
        if os.path.exists(self.path + "-wal"):
            shutil.copy(self.path + "-wal", path + "-wal")
            if self.tear is not None:
                with open(path + "-wal", "r+b") as wal:
                    wal.truncate(self._world.chance.randrange(*self.tear))
        return path


def _size(path: str) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0


class SimLogCopier(LogCopier):
    """The real copier, but for its wait, which would stop the simulated time."""

    def __init__(self, world: World, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._fibers = world.fibers

    def wait_for_the_rest(self, run_id: str, tasks: Collection[str], until: float) -> None:
        """Look every 50 ms."""
        while self.is_behind(run_id, tasks) and self._now() < until:
            self._fibers.wait(0.05)


class SimPerformer(Executor):
    """The real executor. It tells the rules what it hears."""

    def __init__(self, head: Head, *args: Any, **more: Any) -> None:
        self.head = head
        self.world = head.world
        super().__init__(*args, **more)

    def up(self, run_id: str, host: str, hello: Greeting) -> None:
        """See Listener."""
        self.world.say(f"{host} is connected for {run_id}")
        super().up(run_id, host, hello)

    def down(self, run_id: str, host: str, problem: str) -> None:
        """See Listener."""
        self.world.say(f"{host} is not connected for {run_id}: {problem}")
        super().down(run_id, host, problem)

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        """See Listener."""
        if not self.head.is_stale:
            run = self.world.runs[run_id]
            run.checks.heard(host, report["runs"][run_id])
            self.world.reported(run.scenario.plan.timing.heartbeat_s)
        super().reported(run_id, host, report, link)

    def stacks(self, run: Run) -> dict[str, str]:
        """Return no stacks for any task: no agent answers that order."""
        return {str(task.id): "no stacks" for task in run.tasks}


class Head:
    """A process of the coordinator."""

    def __init__(self, world: World, path: str) -> None:
        self.world = world
        self.alive = True
        chance, skew = world.chance, world.scenario.clock_skew
        self.clock = Clock(world.heap, 1.0 + chance.uniform(-skew, skew), chance.uniform(0.0, 1e6))
        self.journal = SimJournal(world, path)
        self.epoch = self.journal.take_epoch()
        self.loop = Loop(self.journal, self._execute, changed=self._changed, now=self.clock)
        self.is_stale = False
        """Whether a successor has begun while it lives on."""
        self.fibers: list[Fiber] = []
        world.fibers.group = self.fibers
        self.transport = SimTransport(self)
        silence_s = min(run.plan.timing.unreachable_after_s for run in world.scenario.runs)
        self.state_dir = world.state_dir
        self.secrets = Secrets(world.state_dir)
        self.executor = SimPerformer(
            self,
            {"ssh": self.transport, "lent": self.transport},
            lambda: BUNDLE,
            SimLogCopier(
                world,
                SimLogs(world, world.state_dir),
                self._say_limit,
                now=self.clock,
                unix_time=lambda: 1_700_000_000 + world.heap.now,
            ),
            self.secrets,
            self._post,
            Pace(silence_check_s=silence_s / 3),
            workers=Pool(world.fibers, self.fibers, lambda: chance.uniform(0.05, 1.0)),
            now=self.clock,
            unix_time=self.clock,
            state_dir=world.state_dir,
            is_known=lambda _: True,
        )
        self.due_at = float("inf")

    def take_up(self) -> None:
        """Do what `Coordinator.take_up` does."""
        self.loop.take_up(self.journal.runs(), self.epoch)
        for run in self.loop.runs.values():
            if run.phase is not Phase.QUEUED:
                names = unproven(run) if run.phase.is_terminal else [host.name for host in run.hosts]
                self.executor.open(run, names)
        self.look()

    def _post(self, run_id: str, event: Event) -> None:
        self.loop.post(run_id, event)
        if not self.is_stale:
            self.world.runs[run_id].checks.posted(event)
        self.world.heap.after(0.0, self.turn)

    def _say_limit(self, run_id: str, host: str, task: TaskId, message: str) -> None:
        self._post(run_id, LimitReached(at=self.clock(), host=host, message=message, task=task))

    def turn(self) -> None:
        """Do one turn of the loop."""
        if self.alive:
            self.world.guarded(self, lambda: self.loop.turn(0.0))

    def look(self) -> None:
        """Compute when the loop would wake by itself."""
        sleep_s = self.loop.sleep_s()
        self.due_at = (
            float("inf") if sleep_s is None else self.world.heap.now + sleep_s / self.clock.rate + 1e-6
        )

    def _execute(self, run: Run, action: Action) -> None:
        if not self.is_stale:
            checks = self.world.runs[run.run_id].checks
            checks.demand(
                not self.journal.is_open, "acted-unwritten", f"{action} before its decision is kept"
            )
            checks.performed(run, action)
            if self.world.dies_between():
                raise Died
        self.executor.execute(run, action)

    def _changed(self, before: Run, after: Run) -> None:
        if not self.is_stale:
            checks = self.world.runs[after.run_id].checks
            is_mine = after.epoch == self.epoch or after.phase.is_terminal
            checks.demand(is_mine, "epoch", f"epoch {self.epoch} decides as epoch {after.epoch}")
            checks.changed(before, after)
        if before.phase is Phase.QUEUED and after.phase is Phase.PENDING:
            self.executor.open(after, [host.name for host in after.hosts])
        self.executor.reopen(before, after)
        if after.phase.is_terminal and not before.phase.is_terminal:
            self.secrets.remove(after.run_id)

    def die(self, whole_machine: bool) -> None:
        """Kill the coordinator. Its kernel closes the connections, unless the whole machine dies."""
        self.alive = False
        for channel in list(self.transport.channels):
            if whole_machine:
                channel.lose()
                self.world.heap.after(self.world.chance.uniform(1.0, 900.0), channel.agent.end)
            else:
                channel.close()
        self.transport.channels.clear()
        self.world.fibers.kill(self.fibers)

"""The loop that carries the core: wait, `step`, persist, perform. One thread decides; all others post to it.

Nothing is done before the journal has it. Where the journal cannot be written (a full disk) nothing is decided
either: the event is tried again, tasks train on, and a person's command is answered with the reason.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from orchestrator.adapters.journal import Journal, Kept
from orchestrator.core import group
from orchestrator.core.actions import Action, Note
from orchestrator.core.errors import JournalError, OrchestratorError
from orchestrator.core.events import EpochBegan, Event, HostReported, Submitted, Ticked
from orchestrator.core.model import Run
from orchestrator.core.plan import TaskId

log = logging.getLogger(__name__)

JOURNAL_RETRY_S = 1.0

Command = Callable[[], Any]


class Loop:
    """Owns the runs. Only the thread in `run` changes them; `runs` may be read by any."""

    def __init__(
        self,
        journal: Journal,
        perform: Callable[[Run, Action], None],
        *,
        changed: Callable[[Run, Run], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._perform = perform
        self._changed = changed
        self._now = now
        self._inbox: queue.SimpleQueue[tuple[str, Event] | tuple[Command, Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self.runs: Mapping[str, Run] = {}
        self.seq = 0
        """Counts the turns that were journaled: who waits for news compares it."""

    # -- posted from other threads -------------------------------------------------------------------------

    def post(self, run_id: str, event: Event) -> None:
        """Something has happened."""
        self._inbox.put((run_id, event))

    def call(self, command: Command, *, timeout_s: float = 15.0) -> Any:
        """Run `command` in the deciding thread and wait for what it returns or raises."""
        future: Future[Any] = Future()
        self._inbox.put((command, future))
        return future.result(timeout_s)

    def stop(self) -> None:
        """End the loop after what was posted before."""
        self._inbox.put(None)

    # -- the deciding thread -------------------------------------------------------------------------------

    def take_up(self, kept: list[Kept], epoch: int) -> None:
        """Go on with the runs of the journal, as a new epoch."""
        now = self._now()
        self.runs = {k.run.run_id: group.rebased(k.run, now - k.written_at) for k in kept}
        for run_id in list(self.runs):
            self.decide(run_id, EpochBegan(at=now, epoch=epoch))

    def submit(self, run: Run) -> None:
        """Add a run and let it begin. Deciding thread only."""
        try:
            self._journal.add(run, at=self._now())
        except sqlite3.Error as e:
            raise _full(self._journal.path, e) from e
        self.runs = {**self.runs, run.run_id: run}
        self.decide(run.run_id, Submitted(at=self._now()))

    def run(self) -> None:
        """Until `stop`."""
        while True:
            try:
                item = self._inbox.get(timeout=self._sleep_s())
            except queue.Empty:
                self._tick()
                continue
            if item is None:
                return
            if isinstance(item[0], str):
                self._decide_for_sure(item[0], item[1])
            else:
                _answer(item[0], item[1])
            self._tick()

    def decide(self, run_id: str, event: Event) -> None:
        """One turn: step, persist, perform. OrchestratorError where the journal cannot take it."""
        before = self.runs.get(run_id)
        if before is None:
            return
        after, actions = group.step(before, event)
        if after is before and not actions:
            return
        notes = [action for action in actions if isinstance(action, Note)]
        if _is_worth_keeping(before, after, event, actions):
            try:
                self._journal.commit(after, event, notes)
            except sqlite3.Error as e:
                raise _full(self._journal.path, e) from e
            self.seq += 1
        self.runs = {**self.runs, run_id: after}
        for note in notes:
            log.info("%s %s%s: %s", run_id, note.kind, f" {note.task}" if note.task else "", note.message)
        self._changed(before, after)
        for action in actions:
            if not isinstance(action, Note):
                self._perform(after, action)

    def _decide_for_sure(self, run_id: str, event: Event) -> None:
        """An event of the world must not be lost: where the disk is full it waits here, and so do the others."""
        while True:
            try:
                self.decide(run_id, event)
                return
            except JournalError as e:
                log.error("%s", e)
                if isinstance(event, HostReported):
                    return  # a level: the next one says it again
                time.sleep(JOURNAL_RETRY_S)

    def _sleep_s(self) -> float | None:
        due = [at for run in self.runs.values() if (at := group.next_deadline(run)) is not None]
        return max(0.0, min(due) - self._now()) if due else None

    def _tick(self) -> None:
        now = self._now()
        for run_id, run in list(self.runs.items()):
            due = group.next_deadline(run)
            if due is not None and due <= now:
                self._decide_for_sure(run_id, Ticked(at=now))


def _is_worth_keeping(before: Run, after: Run, event: Event, actions: list[Action]) -> bool:
    """A heartbeat that only moves numbers is not journaled: the next one brings them anyway."""
    if actions or not isinstance(event, HostReported):
        return True
    return _decided(before) != _decided(after)


def _decided(run: Run) -> tuple[object, ...]:
    tasks: tuple[tuple[TaskId, object, object, object, bool], ...] = tuple(
        (t.id, t.phase, t.pid, t.port, t.first_step is None) for t in run.tasks
    )
    return run.phase, run.generation, run.reason, tasks, tuple(host.link for host in run.hosts)


def _answer(command: Command, future: Future[Any]) -> None:
    try:
        future.set_result(command())
    except OrchestratorError as e:
        future.set_exception(e)


def _full(path: str, error: sqlite3.Error) -> JournalError:
    if "full" in str(error):
        return JournalError(
            f"state disk full: {path} cannot be written",
            hint="free some space; training goes on meanwhile, and nothing that was acknowledged is lost",
        )
    return JournalError(f"the journal {path} cannot be written: {error}")

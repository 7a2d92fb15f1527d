"""The loop that carries the core: wait, `step`, persist, execute. One thread decides; all others post to it.

Nothing is done before the journal has it. Where the journal cannot be written (a full disk) nothing is decided
either: what has happened is held and tried again, in order; tasks train on, what only reads is answered, and what a
person would change is refused at once, with the reason.

Where the core raises, or comes to a state that breaks an invariant, that is a fault of ours in one run. Nothing is
decided about that run any more: it stays as it was, its tasks train on, and it is said with what led to it. All others
go on.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from orchestrator.adapters.head.journal import Journal
from orchestrator.adapters.head.journal_entries import Outcome
from orchestrator.adapters.head.journal_states import Kept
from orchestrator.core import decide
from orchestrator.core.abandon import abandoned
from orchestrator.core.actions import Action, Note
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.decision import decided, is_worth_keeping
from orchestrator.core.errors import JournalError
from orchestrator.core.events import EpochBegan, Event, HostReported, KillRequested, Submitted, Ticked
from orchestrator.core.instants import Deadline, rebased, stood_still
from orchestrator.core.model import Run
from orchestrator.core.notes import NoteKind
from orchestrator.daemon.coordinator.halts import Halt, Stories

log = logging.getLogger(__name__)

JOURNAL_RETRY_S = 1.0

Command = Callable[[], Any]


class Loop:
    """Owns the runs. Only the thread in `run` changes them; `runs` may be read by any."""

    def __init__(
        self,
        journal: Journal,
        execute: Callable[[Run, Action], None],
        *,
        changed: Callable[[Run, Run], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._execute = execute
        self._changed = changed
        self._now = now
        self._inbox: queue.SimpleQueue[tuple[str, Event] | tuple[Command, Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self.runs: Mapping[str, Run] = {}
        self.halted: Mapping[str, Halt] = {}
        """By id, those of the runs about which nothing is decided any more."""
        self._stories = Stories()
        self._held: deque[tuple[str, Event]] = deque()
        """What has happened and the journal could not take."""
        self._reports: dict[tuple[str, str], HostReported] = {}
        """The last of each run's host that it could not take either."""
        self._retry_at: float | None = None
        """When it is tried again; None while the journal can be written."""
        self._stood_at = 0.0
        """Until when the runs know of the time in which nothing could be decided."""
        self._complained = False
        self.ending = False
        """Whether it was told to stop."""
        self.seq = 0
        """Counts the turns that were journaled: who waits for news compares it."""

    # -- posted from other threads -------------------------------------------------------------------------

    def post(self, run_id: str, event: Event) -> None:
        """Something has happened."""
        self._inbox.put((run_id, event))

    def call(self, command: Command, *, timeout_s: float = 15.0) -> Any:
        """Run `command` in the deciding thread and wait for what it returns or raises.

        TimeoutError where the thread is busy; then the command is never run.
        """
        future: Future[Any] = Future()
        self._inbox.put((command, future))
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.cancel():
                raise
            return future.result()  # it had just begun

    def stop(self) -> None:
        """End the loop after what was posted before."""
        self.ending = True
        self._inbox.put(None)

    # -- the deciding thread -------------------------------------------------------------------------------

    def take_up(self, kept: Sequence[Kept], epoch: int) -> None:
        """Go on with the runs of the journal, as a new epoch."""
        now = self._now()
        self.runs = {k.run.run_id: rebased(k.run, now - k.written_at) for k in kept}
        for run in list(self.runs.values()):
            self._decide(run, EpochBegan(at=now, epoch=epoch))

    def submit(self, run: Run) -> None:
        """Add a run and let it begin, or neither. Deciding thread only."""
        self._decide(run, Submitted(at=self._now()))

    def forget(self, run_ids: Collection[str]) -> None:
        """Drop runs that the journal has no more. Deciding thread only."""
        if run_ids:
            self.runs = {run_id: run for run_id, run in self.runs.items() if run_id not in run_ids}
            self.halted = {run_id: halt for run_id, halt in self.halted.items() if run_id not in run_ids}
            self._stories.forget(run_ids)

    def abandon(self, run_id: str) -> None:
        """End a run about which nothing is decided any more: its hosts are swept. Deciding thread only."""
        before, event = self.runs[run_id], KillRequested(at=self._now(), force=True)
        after, actions = abandoned(before, event.at)
        self._journal.commit(after, event, [action for action in actions if isinstance(action, Note)])
        self.seq += 1
        self.halted = {other: halt for other, halt in self.halted.items() if other != run_id}
        self._carry_out(before, after, actions)

    def run(self) -> None:
        """Until `stop`."""
        while self.turn(self.sleep_s()):
            pass

    def turn(self, wait_s: float | None) -> bool:
        """Take what was posted next, after `wait_s` at most, and what is due. False: it was told to stop."""
        try:
            item = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            self._tick()
            return True
        if item is None:
            return False
        if isinstance(item[0], str):
            self._happened(item[0], item[1])
        else:
            _answer(item[0], item[1])
        self._tick()
        return True

    def decide(self, run_id: str, event: Event) -> None:
        """Take one turn for a person: step, persist, execute.

        JournalError where the journal cannot take it: nothing has changed. DecisionsStopped where a fault of ours has
        stopped the decisions about that run, or does so now.
        """
        run = self.runs.get(run_id)
        if run is None:
            return
        if run_id not in self.halted:
            self._decide(run, event)
        if run_id in self.halted:
            raise self.halted[run_id].refusal(run)

    def _decide(self, before: Run, event: Event) -> None:
        try:
            after, actions = decide.step(before, event)
            if after == before and not actions:
                return
            self._keep(before, after, event, actions)
        except JournalError:
            raise
        except Exception as e:
            if before.run_id not in self.runs:
                raise  # it has not begun, and whoever submits it is told
            self._halt(before, event, e)
            return
        self._carry_out(before, after, actions)

    def _keep(self, before: Run, after: Run, event: Event, actions: Sequence[Action]) -> None:
        """Write a turn down before anything is done about it."""
        if not is_worth_keeping(before, after, event, actions):
            return
        decision = decided(before, after, actions)
        notes = [action for action in actions if isinstance(action, Note)]
        self._journal.commit(after, event, notes, before=before, outcome=Outcome(decision))
        self._stories.add(before.run_id, event, decision)
        self.seq += 1
        if self._complained:
            log.info("the journal can be written again")
            self._complained = False

    def _carry_out(self, before: Run, after: Run, actions: Sequence[Action]) -> None:
        self.runs = {**self.runs, after.run_id: after}
        for note in actions:
            if isinstance(note, Note):
                whose = f" {note.task}" if note.task else ""
                log.info("%s %s%s: %s", after.run_id, note.kind.value, whose, note.message)
        self._changed(before, after)
        for action in actions:
            if not isinstance(action, Note):
                self._execute(after, action)

    def _halt(self, run: Run, event: Event, error: Exception) -> None:
        """Decide nothing about the run any more, and say why, with what led to it."""
        halt = self._stories.halt(run.run_id, event, error)
        self.halted = {**self.halted, run.run_id: halt}
        error.add_note("\n".join(("what led to it:", *halt.story)))
        log.critical("%s", halt.sentence(run), exc_info=error)
        note = Note(
            NoteKind.DECISIONS_STOPPED, halt.sentence(run), data={"error": halt.error, "story": halt.story}
        )
        try:
            self._journal.commit(run, event, [note], before=run, outcome=Outcome(raised=halt.error))
            self.seq += 1
        except Exception:
            log.exception("%s: the journal does not have it", run.run_id)

    def _happened(self, run_id: str, event: Event) -> None:
        """Decide an event of the world. Where the disk is full it is held, with those behind it, and not lost."""
        if isinstance(
            event, HostReported
        ):  # a level: the next one says it again, so it need not wait its turn
            if self._try(run_id, event):
                self._reports.pop((run_id, event.host), None)
            else:
                self._reports[run_id, event.host] = event
            return
        self._held.append((run_id, event))
        if self._retry_at is None:
            self._catch_up()

    def _catch_up(self) -> None:
        """Decide what is held, in its order, as far as the journal takes it; then what was reported last."""
        while self._held:
            if not self._try(*self._held[0]):
                return
            self._held.popleft()
        while self._reports:
            (run_id, host), report = next(iter(self._reports.items()))
            if not self._try(run_id, replace(report, at=self._now())):
                return
            del self._reports[run_id, host]

    def _try(self, run_id: str, event: Event) -> bool:
        run = self.runs.get(run_id)
        if run is None or run_id in self.halted:
            return True
        try:
            self._decide(run, event)
        except JournalError as e:
            if not self._complained:
                log.error("%s; what happens is held until it can be", e)
            self._complained = True
            if self._retry_at is None:
                self._stood_at = self._now()
                self._retry_at = self._stood_at + JOURNAL_RETRY_S
            return False
        return True

    def sleep_s(self) -> float | None:
        """Until the next deadline; while the journal cannot be written, until it is tried again."""
        if self._retry_at is not None:
            return max(0.0, self._retry_at - self._now())
        due = [at for run in self.runs.values() if (at := self._due_at(run)) is not None]
        return max(0.0, min(due) - self._now()) if due else None

    def _due_at(self, run: Run) -> Deadline | None:
        """Return when the run is to be looked at; None too where nothing is decided about it any more."""
        if run.run_id in self.halted:
            return None
        try:
            return next_deadline(run)
        except Exception as e:
            self._halt(run, Ticked(at=self._now()), e)
            return None

    def _tick(self) -> None:
        now = self._now()
        if self._retry_at is not None:
            if now < self._retry_at:
                return
            self._retry_at = None
            # Hosts have spoken meanwhile and were not heard: nobody is to be given up for that.
            waited_s = now - self._stood_at
            self.runs = {run_id: stood_still(run, waited_s, now) for run_id, run in self.runs.items()}
            # Waits that follow from what was held begin now: it is only now that anything is done about it.
            self._held = deque((run_id, replace(event, at=now)) for run_id, event in self._held)
            self._catch_up()
        for run_id, run in list(self.runs.items()):
            due = self._due_at(run)
            if due is not None and due <= now and self._retry_at is None:
                self._try(run_id, Ticked(at=now))


def _answer(command: Command, future: Future[Any]) -> None:
    """Run it, unless whoever asked has given up. What it raises is for them, and ends nothing."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(command())
    except Exception as e:
        future.set_exception(e)

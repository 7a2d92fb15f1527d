"""The loop around the core: wait for events, `step`, persist, execute. One thread decides; all others post to it.

A turn decides the events in the inbox, one after the other. All of them are journaled in one transaction, since each
transaction costs a write to the disk. No action is executed before its event is journaled. While the journal cannot be
written (a full disk), nothing is decided: events are held and tried again in their order, tasks keep training, requests
that only read are answered, and requests to change something are refused at once, with the reason.

If the core raises, or reaches a state that breaks an invariant, orch has a fault that concerns one run. Nothing is
decided about that run any more: its state stays as it was, its tasks train on, and the status says so, with the events
that led to it. All other runs go on.

A turn has one instant, which is read once, after its wait. All that it decides, it decides by that instant: a pause of
this process within a turn shows in the next one, which excuses it before it judges anybody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any, NamedTuple
from zlib import crc32

from orchestrator.core import decide
from orchestrator.core.abandon import abandoned
from orchestrator.core.actions import Action, Note
from orchestrator.core.deadlines import next_deadline
from orchestrator.core.decision import Decision, Weight
from orchestrator.core.errors import JournalError
from orchestrator.core.events import (
    Admitted,
    EpochBegan,
    Event,
    HostRefused,
    HostReported,
    KillRequested,
    NoPlaceFound,
    PreemptionRequested,
    Submitted,
    Ticked,
)
from orchestrator.core.hosts.pool_hosts import is_lent
from orchestrator.core.in_words import decided
from orchestrator.core.notes import NoteKind
from orchestrator.core.pool import Known
from orchestrator.core.queue import QueueTurn, pool_replacements, turns, ways
from orchestrator.core.queue import rank as queue_rank
from orchestrator.core.state.instants import Deadline, is_due, stood_still
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import Pending, Phase, Queued
from orchestrator.core.state.run import Run, taken_up
from orchestrator.core.words import duration
from orchestrator.head.coordinator.halts import Halt, Stories
from orchestrator.head.coordinator.inbox import Backlog, Inbox
from orchestrator.head.coordinator.news import TurnCount
from orchestrator.head.coordinator.report_queue import Reports, Waiting
from orchestrator.head.journal.entries import Outcome
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.states import Kept

log = logging.getLogger(__name__)

AWAKE_S = 1.0
"""While a run is active, the loop wakes at least this often."""

ABSENT_S = 1.0
"""If the loop wakes this late, the process was not running: it was stopped or swapped out, or a disk hung.

What is shorter than both together counts as silence of the hosts; `lost_after` is longer."""

EVENTS_OF_A_TURN_MAX = 100
"""It bounds the time of a turn, for which a person's command may have to wait."""

RECKON_S = 1.0
"""How often it is reckoned whose turn has come, while no run changes its phase."""

BELIEVED_S = 20.0
"""How long it is believed what a host has said of what others hold."""

Command = Callable[[], Any]


class _Asked(NamedTuple):
    """A person's command, and the future that gets its result."""

    command: Command
    future: Future[Any]

    def answer(self) -> None:
        """Run the command, unless the caller has given up. Exceptions go to the caller and do not end the loop."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.command())
        except Exception as e:
            self.future.set_exception(e)


def _is_patient(run: Run) -> bool:
    return not isinstance(run.phase_state, Queued) or run.phase_state.is_patient


class _Decided(NamedTuple):
    """A decided event whose actions have not been carried out yet."""

    before: Run
    event: Event
    decision: Decision
    entry: int | None = None
    """The number in the journal, which `orch events` and `orch replay` show."""


class Loop:
    """Owns the runs. Only the thread in `run` changes them; any thread may read `runs`."""

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
        self._inbox: Inbox[tuple[str, Event] | Waiting | _Asked | None] = Inbox()
        self._unread = Reports()
        self.runs: Mapping[str, Run] = {}
        self.halted: Mapping[str, Halt] = {}
        """The halted runs, by run id."""
        self._due: dict[str, Deadline | None] = {}
        """By run id, a lower bound of the next deadline. A report that only changes numbers can only postpone it."""
        self._decided: list[_Decided] = []
        """The events of this turn that are not journaled yet."""
        self._ahead: dict[str, Run] = {}
        """The runs after these events, by run id."""
        self._stories = Stories()
        self._backlog = Backlog()
        self.complaint: str | None = None
        """Why the journal cannot be written; None while it is writable."""
        self._complained_at = 0.0
        self._at = now()
        """The instant of this turn."""
        self._returned_at = self._at
        """Until when nothing could be decided, the last time. What was posted before counts as posted then."""
        self.ending = False
        """Whether the loop was told to stop."""
        self.news = TurnCount()
        """Counts journaled turns, and wakes the requests that wait for one."""
        self._waits: frozenset[str] = frozenset()
        """Ids of the runs in the queue."""
        self.known = Known()
        """What hosts have said of what others hold there."""
        self._reckoned: tuple[float, list[object]] = (0.0, [])
        """Until when it holds who of them begins, and of which states."""
        self.turns: Sequence[QueueTurn] = ()
        """What was reckoned then; any thread may read it."""
        self._lent_at = 0.0
        """When it was last reckoned which runs lack a host."""

    # -- posted from other threads -------------------------------------------------------------------------

    def post(self, run_id: str, event: Event) -> None:
        """Add an event to be decided."""
        if isinstance(event, HostReported):
            is_news = self._unread.is_news(run_id, event)
            waiting = self._unread.add(run_id, event)
            if waiting is not None:
                (self._inbox.put if is_news else self._inbox.put_unhurried)(waiting)
            elif is_news:
                self._inbox.hurry()
            return
        # No report is decided before earlier events.
        self._unread.close(run_id, getattr(event, "host", None))
        self._inbox.put((run_id, event))

    def call(self, command: Command, *, timeout_s: float = 15.0) -> Any:
        """Run `command` in the deciding thread, and return or raise what it does.

        Raises TimeoutError if the thread is busy; then the command is never run.
        """
        future: Future[Any] = Future()
        self._inbox.put(_Asked(command, future))
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.cancel():
                raise
            return future.result()  # it had just begun

    def stop(self) -> None:
        """End the loop after all events that were posted earlier."""
        self.ending = True
        self.news.wake()
        self._inbox.put(None)

    # -- the deciding thread -------------------------------------------------------------------------------

    def take_up(self, kept: Sequence[Kept], epoch: int, owner: Owner | None = None) -> None:
        """Continue the runs of the journal in a new epoch."""
        now = self._at = self._returned_at = self._now()
        # Of a run that waits nothing is written meanwhile. What a coordinator wrote last of any of its runs says until
        # when it lived, by the clock that it had.
        lived_until: dict[int, float] = {}
        for k in kept:
            lived_until[k.run.epoch] = max(k.written_at, lived_until.get(k.run.epoch, k.written_at))
        self.runs = {k.run.run_id: taken_up(k.run, k.written_at, lived_until[k.run.epoch], now) for k in kept}
        self._due.clear()
        for run in list(self.runs.values()):
            with self._together():
                self._decide(run, EpochBegan(at=now, epoch=epoch, owner=owner))
        self._waits = frozenset(run_id for run_id, run in self.runs.items() if run.phase is Phase.QUEUED)

    def submit(self, run: Run, against: tuple[tuple[str, str], ...] = ()) -> None:
        """Add a run and begin it. If that fails, nothing is added. Deciding thread only."""
        with self._together():
            self._decide(run, Submitted(at=self._at, against=against))

    def forget(self, run_ids: Collection[str]) -> None:
        """Drop runs that were removed from the journal. Deciding thread only."""
        if run_ids:
            self.runs = {run_id: run for run_id, run in self.runs.items() if run_id not in run_ids}
            self.halted = {run_id: halt for run_id, halt in self.halted.items() if run_id not in run_ids}
            for run_id in run_ids:
                self._due.pop(run_id, None)
            self._stories.forget(run_ids)
            self._unread.forget(run_ids)

    def abandon(self, run_id: str) -> None:
        """End a halted run: its hosts are swept. Deciding thread only."""
        before, event = self.runs[run_id], KillRequested(at=self._at, force=True)
        after, actions = abandoned(before, event.at)
        with self._journal.together():
            notes = [action for action in actions if isinstance(action, Note)]
            entry = self._journal.commit(after, event, notes)
        self.halted = {other: halt for other, halt in self.halted.items() if other != run_id}
        self._due.pop(run_id, None)
        self._carry_out(_Decided(before, event, Decision(after, actions, Weight.JOURNAL), entry))

    def run(self) -> None:
        """Decide events until `stop`."""
        while self.turn(self.sleep_s()):
            pass

    def turn(self, wait_s: float | None) -> bool:
        """Wait for `wait_s` at most, then decide posted events and deadlines that are due. Return False at the end."""
        posted: list[Waiting | tuple[str, Event]] = []
        asked: _Asked | None = None
        is_over = False
        try:
            item = self._inbox.get(wait_s)
            while not (is_over := item is None):
                if isinstance(item, _Asked):
                    asked = item
                    break
                posted.append(item)
                if len(posted) == EVENTS_OF_A_TURN_MAX:
                    break
                item = self._inbox.get_nowait()
        except queue.Empty:
            pass
        self._excuse_absence()
        self._decide_posted(posted)
        if asked is not None:
            asked.answer()
        if posted or not is_over:
            self._tick()
            self._lend()
            self._begin_waiting()
        return not is_over

    def _lend(self) -> None:
        """Let free hosts of the pool stand in for those that runs have lost."""
        if self._at - self._lent_at >= RECKON_S and self._backlog.retry_at is None:
            self._lent_at = self._at
            for run_id, event in pool_replacements(self.runs.values(), self._at, self.known):
                self._try([(run_id, event)])

    def _begin_waiting(self) -> None:
        """Begin the queued runs whose turn has come. In the deciding thread, nothing changes in between."""
        if not self._waits or self._backlog.retry_at is not None:
            return
        now = self._at
        stuck = self.halted.keys() & self._waits
        runs = [run for run in self.runs.values() if run.run_id not in stuck]
        states: list[object] = [self.known, *(part for run in runs for part in (run.phase_state, run.plan))]
        until, before = self._reckoned
        if now < until and len(states) == len(before) and all(map(is_, states, before)):
            return
        began = self._now()
        self.turns = places = turns(runs, now, self.known)
        # A long queue is not reckoned again at once where nothing has changed
        self._reckoned = now + max(RECKON_S, 10 * (self._now() - began)), states
        known = {run.run_id: run for run in runs}
        for turn in places:
            if turn.has_come:
                rank = queue_rank(known[turn.ask.run_id], now)
                self._try([(turn.ask.run_id, Admitted(at=now, rank=rank, place=turn.ask.place))])
            elif not _is_patient(known[turn.ask.run_id]):
                why = turn.ask.others or turn.sentence(now)
                self._try([(turn.ask.run_id, NoPlaceFound(at=now, why=why))])
        for run_id, by in ways(places, known, now).items():
            self._try([(run_id, PreemptionRequested(at=now, by=by))])

    def _excuse_absence(self) -> None:
        """Read the instant of this turn, and excuse the time in which this process did not run.

        It was stopped or swapped out, or a disk hung. Reports that arrived meanwhile are not read yet, so no host
        counts as silent for that time.
        """
        now = self._now()
        away_s, self._at = now - self._at - AWAKE_S, now
        going_on = self._going_on()
        if away_s <= ABSENT_S or not going_on:
            return
        log.warning("this coordinator did not run for %.0f s; no host is judged for that time", away_s)
        self._excuse(away_s, going_on)

    def _excuse(self, s: float, runs: Collection[Run]) -> None:
        """Let no time have passed for these runs in the seconds up to now, in which nothing could be decided."""
        self.runs = {**self.runs, **{run.run_id: stood_still(run, s, self._at) for run in runs}}
        self._returned_at = self._at
        self._due.clear()

    def _going_on(self) -> list[Run]:
        """Return the active runs that are not halted."""
        return [
            run for run in self.runs.values() if not run.phase.is_terminal and run.run_id not in self.halted
        ]

    def decide(self, run_id: str, event: Event) -> None:
        """Decide an event for a person: step, persist, execute.

        Raises JournalError if the journal cannot be written, and then nothing has changed; DecisionsStopped if the run
        is halted, or if this event halts it.
        """
        run = self.runs.get(run_id)
        if run is None:
            return
        if run_id not in self.halted:
            with self._together():
                self._decide(run, event)
        if run_id in self.halted:
            raise self.halted[run_id].refusal(run)

    def _decide(self, before: Run, event: Event) -> None:
        at = min(max(event.at, self._returned_at), self._at)
        event = event if event.at == at else replace(event, at=at)
        try:
            decision = decide.step(before, event)
            if decision.weight is Weight.NOTHING:
                return
            entry = self._keep(before, event, decision) if decision.weight is Weight.JOURNAL else None
            if decision.weight is not Weight.NUMBERS:
                self._due.pop(before.run_id, None)
        except JournalError:
            raise
        except Exception as e:
            if before.run_id not in self.runs:
                raise  # the run has not begun, and its submitter gets the error
            self._halt(before, event, e)
            return
        self._ahead[before.run_id] = decision.run
        self._decided.append(_Decided(before, event, decision, entry))

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Collect the decisions of the block. At its end all are journaled at once, and then actions are executed.

        Raises JournalError if the journal cannot be written; then nothing was decided.
        """
        self._ahead.clear()
        self._decided.clear()
        with self._journal.together():
            yield
        decided, self._decided = self._decided, []
        for turn in decided:
            self._carry_out(turn)

    def _keep(self, before: Run, event: Event, decision: Decision) -> int:
        """Journal a decision before its actions are executed. Return the number of the entry."""
        after, actions, _ = decision
        words = decided(before, after, actions)
        notes = [action for action in actions if isinstance(action, Note)]
        entry = self._journal.commit(after, event, notes, before=before, outcome=Outcome(words))
        self._stories.add(before.run_id, event, words)
        return entry

    def _carry_out(self, decided: _Decided) -> None:
        before, event, (after, actions, _), entry = decided
        self.runs = {**self.runs, after.run_id: after}
        if isinstance(event, HostRefused) and (not before.has_begun or is_lent(before, event.host)):
            # It is asked again after a while, and two that want the same not at the same time
            differs = crc32(f"{after.run_id}/{event.at}".encode()) / 2**32
            until = self._at + BELIEVED_S * (0.75 + 0.5 * differs)
            self.known = self.known.heard(before.submitted.host(event.host), event.problem, self._at, until)
        if after.phase is Phase.QUEUED:
            if isinstance(before.phase_state, Pending) and is_due(before.phase_state.deadline_at, self._at):
                self.known = self.known.unanswered(before, self._at)
            self._waits |= {after.run_id}
        elif after.run_id in self._waits:
            self._waits -= {after.run_id}
        if entry is not None:
            self.news.more()
            if self.complaint:
                log.info("the journal can be written again")
                self.complaint = None
            if isinstance(event, HostReported):
                self._unread.journaled(after.run_id, event, self._at)
        for note in actions:
            if isinstance(note, Note):
                task = f" {note.task}" if note.task else ""
                log.info("%s %s%s: %s [%s]", after.run_id, note.kind.value, task, note.message, entry)
        whose = f"{after.run_id}, decision {entry}"
        self._guarded(whose, "tell what has changed", lambda: self._changed(before, after))
        for action in actions:
            if not isinstance(action, Note):
                self._guarded(whose, "carry out an action", partial(self._execute, after, action))

    def _guarded(self, whose: str, what: str, call: Callable[[], None]) -> None:
        """Execute what follows a decision. An exception must not end the thread that decides about all runs.

        An order that was not sent stays outstanding, and is sent the next time that its host reports to be up.
        """
        try:
            call()
        except Exception:
            log.exception("%s: could not %s", whose, what)

    def _halt(self, run: Run, event: Event, error: Exception) -> None:
        """Halt a run, and log why, with the events that led to it."""
        halt = self._stories.halt(run.run_id, event, error)
        self._due.pop(run.run_id, None)
        self.halted = {**self.halted, run.run_id: halt}
        error.add_note("\n".join(("what led to it:", *halt.story)))
        log.critical("%s", halt.sentence(run), exc_info=error)
        note = Note(
            NoteKind.DECISIONS_STOPPED, halt.sentence(run), data={"error": halt.error, "story": halt.story}
        )
        try:
            self._journal.commit(run, event, [note], before=run, outcome=Outcome(raised=halt.error))
            self.news.more()
        except Exception:
            log.exception("%s: the journal does not have it", run.run_id)

    def _decide_posted(self, posted: Sequence[Waiting | tuple[str, Event]]) -> None:
        """Decide posted events in order. While the journal cannot be written, hold them (see `Backlog`)."""
        happened: list[tuple[str, Event]] = []
        for item in posted:
            if not isinstance(item, Waiting):
                happened.append(item)
            elif (report := self._unread.admit(item, self._at)) is not None:
                happened.append((item.key[0], report))
        if self._backlog.retry_at is not None:
            for run_id, event in happened:
                if not isinstance(event, HostReported) or not self._try([(run_id, event)]):
                    self._backlog.add(run_id, event)
        elif not self._try(happened):
            for run_id, event in happened:
                self._backlog.add(run_id, event)

    def _catch_up(self) -> None:
        """Decide the held events in order, and then the last reports, while the journal is writable."""
        while (oldest := self._backlog.oldest()) is not None:
            if not self._try([oldest]):
                return

    def _try(self, happened: Sequence[tuple[str, Event]]) -> bool:
        """Decide events together. Return False if the journal cannot be written; then none is decided."""
        try:
            with self._together():
                for run_id, event in happened:
                    run = self._ahead.get(run_id) or self.runs.get(run_id)
                    if run is not None and run_id not in self.halted:
                        self._decide(run, event)
        except JournalError as e:
            if not self.complaint:
                log.error("%s; what happens is held until it can be", e)
                self._complained_at = self._at
            self.complaint = e.message
            self._backlog.begin(self._at)
            return False
        self._backlog.decided(happened)
        return True

    def trouble(self) -> str | None:
        """Return why this process decides nothing now, since when, and what a person can do; None if all is well."""
        if self.complaint is None:
            return None
        since = duration(self._now() - self._complained_at)
        return (
            f"{self.complaint}: for {since} the coordinator (pid {os.getpid()}) has decided nothing; tasks keep "
            "training. It continues by itself once it can write; `orch coordinator restart` starts another one"
        )

    def sleep_s(self) -> float | None:
        """Return the time until the next deadline, or until an unwritable journal is tried again.

        While a run is active it is at most AWAKE_S, so that the loop notices when the process did not run.
        """
        now = self._now()
        if self._backlog.retry_at is not None:
            return max(0.0, self._backlog.retry_at - now)
        due: list[float] = [at for run in self.runs.values() if (at := self._due_at(run)) is not None]
        due += [at] if (at := self._unread.due_at()) is not None else []
        if self._going_on():
            due.append(now + AWAKE_S)
        return max(0.0, min(due) - now) if due else None

    def _due_at(self, run: Run) -> Deadline | None:
        """Return the next deadline, or an earlier instant; None if there is none, or if the run is halted."""
        if run.run_id not in self._due:
            self._due[run.run_id] = self._next_deadline(run)
        return self._due[run.run_id]

    def _next_deadline(self, run: Run) -> Deadline | None:
        if run.run_id in self.halted:
            return None
        try:
            return next_deadline(run)
        except Exception as e:
            self._halt(run, Ticked(at=self._at), e)
            return None

    def _tick(self) -> None:
        now = self._at
        if self._backlog.retry_at is not None:
            if now < self._backlog.retry_at:
                return
            # Hosts may have reported meanwhile without being heard, so none may be given up for silence.
            self._excuse(self._backlog.end(now), self.runs.values())
            self._catch_up()
        self._decide_posted(self._unread.due(now))
        for run_id, run in list(self.runs.items()):
            if self._is_due(run) and self._backlog.retry_at is None:
                self._try([(run_id, Ticked(at=now))])

    def _is_due(self, run: Run) -> bool:
        due = self._due_at(run)
        if due is None or due > self._at:
            return False
        self._due[run.run_id] = due = self._next_deadline(run)
        return due is not None and due <= self._at

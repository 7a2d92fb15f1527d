"""The coordinator: wires loop, journal, links and API together, and lives until it is told to stop.

It may be killed at any moment without an effect on tasks. The next coordinator reads the journal, takes the next epoch,
connects to the hosts, and adopts the running tasks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from orchestrator import __version__
from orchestrator.both import durable
from orchestrator.both.logind import kills_at_logout, user_name
from orchestrator.core import conflicts, faults, pool
from orchestrator.core.actions import Action
from orchestrator.core.errors import DecisionsStopped, JournalError, OrchestratorError, Refused, UsageError
from orchestrator.core.events import (
    ClockDiffers,
    DrainRequested,
    FaultInjected,
    KillRequested,
    LimitReached,
    NoticeFailed,
)
from orchestrator.core.hosts.pool_hosts import lacking
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.plan import LEASING, HostPlan, Plan, TaskId
from orchestrator.core.pool import Known, Placed
from orchestrator.core.queue import QueueTurn, pool_replacements, turn_of
from orchestrator.core.state.host import Host, HostState
from orchestrator.core.state.instants import rebased
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.words import listed
from orchestrator.head.code import bundle
from orchestrator.head.code.snapshots import Snapshots
from orchestrator.head.coordinator import checkpoint_requests, status
from orchestrator.head.coordinator.executor import Executor
from orchestrator.head.coordinator.loop import BELIEVED_S, Loop
from orchestrator.head.effects.historian import Historian
from orchestrator.head.effects.left_files import LeftFiles
from orchestrator.head.effects.subscribers import Effect, Effects
from orchestrator.head.hosts import host_requests
from orchestrator.head.hosts.examination import Examined, examine
from orchestrator.head.hosts.pool_look import LOOK_S, look
from orchestrator.head.journal import archive, happened, reading
from orchestrator.head.journal.changes import why_no_run
from orchestrator.head.journal.format import damaged
from orchestrator.head.journal.journal import Journal, now_utc
from orchestrator.head.journal.states import Unreadable
from orchestrator.head.links.conversation import Asks
from orchestrator.head.links.crew import Crew
from orchestrator.head.links.link import LinkDown, OrderRefused
from orchestrator.head.links.query import Asker
from orchestrator.head.node import disk
from orchestrator.head.node.paths import Paths
from orchestrator.head.node.secrets import Secrets
from orchestrator.head.reach.transport import Transport
from orchestrator.head.records import budget, log_pages, plan_copies, run_series
from orchestrator.head.records.accounts import Accounts
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.head.transfer import outputs, tensorboard
from orchestrator.head.transfer.logcopy import LogCopier
from orchestrator.head.transfer.outputs import FetchedPart, Output
from orchestrator.reporting import describe
from orchestrator.reporting.queue_document import add_turns, queue_document

log = logging.getLogger(__name__)

SERVICE_VARIABLE = "ORCH_SERVICE"
"""The systemd unit sets it to its own name, so that a restart goes through systemd."""

_LET_GO_S = 5.0
"""How long a host that may end is not reconnected. Its provider is polled more often, and it is released again."""

_LEFT_OUT_MAX = 50
"""How many entries that were not pushed a run knows, for what is said when its script misses one."""

_LETS_IN = " (`orch undrain {}` lets it in again)"
"""The end of the reason of a drain: it keeps the name that the person said. Later no run may know it."""

_COPY = "keep its copy of the plan up to date"
"""A single effect writes and removes the copy, so that a delayed write never follows the removal."""


class Coordinator:
    """Carries out API requests. Any thread may call its methods; changes of runs go through the loop."""

    def __init__(self, paths: Paths, transports: Mapping[str, Transport]) -> None:
        from orchestrator.head.effects.messenger import Messenger, Place

        self.paths = paths
        self._transports = transports
        self.started = now_utc()
        self._warning = kills_at_logout(user_name())
        if self._warning is not None:
            self._warning += ": the coordinator would end with its login; `orch service install` keeps it"
            log.warning("%s", self._warning)
        self.journal = Journal(paths.journal)
        self.epoch = self.journal.take_epoch()
        self.owner = Owner(self.journal.owner_id(), socket.gethostname(), user_name())
        self._set_aside: tuple[Unreadable, ...] = ()
        self._unreadable: frozenset[str] = frozenset()
        self._secrets = Secrets(paths.state_dir)
        self._snapshots = Snapshots(paths.state_dir)
        self._submitting = threading.Lock()
        self._logs = LogCopier(
            RunLogs(paths.state_dir), self._limit_reached, do=Crew().do, skewed=self._clock_differs
        )
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.loop = Loop(self.journal, self._execute, changed=self._changed)
        self._left_files = LeftFiles(paths)
        self._records_bytes = 0
        self._accounts = Accounts(paths.journal, paths.run_dir, watches=True)
        self._historian = Historian(lambda: self.loop.runs, paths.run_dir)
        self._messenger = Messenger(
            Place(paths.journal, paths.state_dir, paths.notices, paths.notify),
            self.owner.id,
            lambda: self.loop.runs,
            lambda: self.loop.complaint,
            self._notice_failed,
        )
        self._effects = Effects(self._subscribers())
        self._executor = Executor(
            transports,
            bundle.load,
            self._logs,
            self._secrets,
            self.loop.post,
            state_dir=paths.state_dir,
            leaving=self._left_files.end,
            is_known=self._is_known,
            measured=self._historian.heard,
        )

    def take_up(self) -> None:
        """Continue the runs in the journal. A run that cannot be read is set aside and reported."""
        contents = self.journal.contents()
        for entry in contents.unreadable:
            log.error("%s", entry.sentence)
        self._set_aside = contents.set_aside
        self._unreadable = frozenset(entry.run_id for entry in contents.unreadable)
        known = {entry.run.run_id for entry in self.journal.contents().kept} | self._unreadable
        lost = sorted(plan_copies.plans_of_runs(self.paths).keys() - known)
        if lost:
            raise damaged(
                self.paths.journal, f"it does not have {', '.join(lost)}, which was begun on this head node"
            )
        for entry in self._set_aside:
            self.journal.note_set_aside(entry)
        self.loop.known = Known(drained=self._drained())
        self.loop.take_up(self.journal.runs(), self.epoch, self.owner)
        self._put_away_old()
        active = [run.run_id for run in self.loop.runs.values() if not run.phase.is_terminal]
        going_on = [*active, *(entry.run_id for entry in self._set_aside)]
        # A coordinator may have died right after the end of a run. Its left files are listed now, and not when their
        # removal is retried, since other runs may have begun by then.
        for file in self._secrets.files_of_others(going_on):
            self._effects.post(f"remove {file}", "", partial(self._secrets.remove_file, file))
        ended = (
            plan_copies.plans_of_runs(self.paths).keys() | plan_copies.marked(self.paths)
        ) & self._known()
        for run_id in ended - set(going_on):
            self._effects.post(_COPY, run_id, partial(plan_copies.remove, self.paths, run_id))
        self._effects.post("remove code that no run needs", "", self._tidy_code)
        self._effects.post("measure the records", "", self._measure_records)
        fetching = Crew()
        for run in self.loop.runs.values():
            if run.phase.is_terminal:
                self._messenger.ended(run.run_id)
            if run.phase is not Phase.QUEUED:
                names = unproven(run) if run.phase.is_terminal else [host.name for host in run.hosts]
                self._executor.open(run, names)
            if not run.phase.is_terminal:
                self._left_files.await_end(run.run_id)
                self._look_after_gone(run)
            else:
                self._left_files.resume(run, self._executor.lease, fetching.do)
        self._effects.start()
        self._historian.start()
        self._messenger.start()

    def _is_known(self, run_id: str) -> bool:
        at_hand = run_id in self.loop.runs or run_id in self._unreadable
        return at_hand or archive.place_of(self.paths, run_id) != self.paths.journal

    def _known(self) -> set[str]:
        return self.loop.runs.keys() | self._unreadable

    def close(self) -> None:
        """Close the links and the journal; tasks continue."""
        self._effects.close(wait_s=2)
        self._historian.close()
        self._messenger.close()
        self._left_files.close()
        self._executor.close()
        self.journal.close()

    # -- API requests --------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return the document of `orch coordinator status`."""
        active = [run.run_id for run in self.loop.runs.values() if not run.phase.is_terminal]
        return {
            "pid": os.getpid(),
            "epoch": self.epoch,
            "version": __version__,
            "socket": self.paths.socket,
            "state_dir": self.paths.state_dir,
            "owner": {"id": self.owner.id, "head": self.owner.head, "user": self.owner.user},
            "started_at": self.started,
            "service": os.environ.get(SERVICE_VARIABLE),
            "ending": self.loop.ending,
            "warning": self._warnings(),
            "runs": active,
            "hosts": self._executor.hosts,
            "effects": self._effects.document(),
            "drained": dict(self.loop.known.drained),
        }

    def _warnings(self) -> str | None:
        """Return a text about what needs a person's attention; None if all is well."""
        runs = self.loop.runs
        stopped = [halt.sentence(runs[run_id]) for run_id, halt in self.loop.halted.items() if run_id in runs]
        own = [self._warning] if self._warning else []
        own += [str(entry["sentence"]) for entry in self._effects.document()]
        return "; ".join([*own, *stopped, *self._troubles()]) or None

    def _troubles(self) -> list[str]:
        """Return sentences about problems with the head node's own records."""
        full = disk.full_error(self.paths.journal).message if disk.is_full(self.paths.journal) else None
        return [
            *filter(None, [self.loop.trouble() or full, budget.warning(self._records_bytes)]),
            *plan_copies.missing(self.paths, self._known()),
            *(f"{entry.sentence}; {conflicts.WAY_BACK}" for entry in self._set_aside),
        ]

    def status(self, name: str | None, *, waiting: bool = True) -> dict[str, Any]:
        """Return the document of `orch status`, for all runs, for the newest run of a name, or for a run id.

        Thousands may wait in the queue: without `waiting` they are left out.
        """
        runs = [run for run in self.loop.runs.values() if waiting or run.phase is not Phase.QUEUED]
        if name is not None:
            runs = [self.look(name)]
        document = status.document(
            runs,
            now=time.monotonic(),
            halted=self.loop.halted,
            times=self._accounts.accounts_of([run.run_id for run in runs]),
        )
        if any(run.phase is Phase.QUEUED for run in runs):
            add_turns(document["runs"], self.queue())
        for run, shown in zip(runs, document["runs"], strict=True):
            shown["outputs"] = self._left_files.document(run)
            describe.add_outputs(shown, shown["outputs"])
        document["troubles"] = self._troubles()
        return {**document, "coordinator": {"pid": os.getpid(), "epoch": self.epoch, "version": __version__}}

    def history(self, name: str) -> dict[str, Any]:
        """Return the document of `/v1/runs/NAME/history`: what the run did, and when."""
        run_id = self.look(name).run_id
        directory = self.paths.run_dir(run_id)
        return run_series.history_document(self._accounts, directory, run_id)

    def series(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the document of `/v1/runs/NAME/series`: the run's measurements."""
        run_id = self.look(name).run_id
        try:
            return run_series.series_document(self.paths.run_dir(run_id), run_id, query)
        except ValueError as e:
            raise UsageError(f"the query is not understood: {e}") from e

    def log_lines(self, name: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the document of `/v1/runs/NAME/logs`: a page of the run's logs."""
        run_id = self.look(name).run_id
        try:
            return log_pages.document(RunLogs(self.paths.state_dir), run_id, query)
        except ValueError as e:
            raise UsageError(f"the query is not understood: {e}") from e

    def find(self, name: str) -> Run:
        """Return the run with this id, or the newest one of this name, to act on it. Raises UsageError for none."""
        run = self._in_memory(name)
        if run is not None:
            return run
        old = archive.find(self.paths, name)
        if old is not None:
            raise UsageError(
                f"{old} has ended, and only its records are kept",
                hint=f"`orch why {old}`, `orch logs {old}` and `orch report {old}` show them",
            )
        for entry in self._set_aside:
            if name in (entry.name, entry.run_id):
                raise Refused(entry.sentence, hint=conflicts.WAY_BACK)
        known = ", ".join(sorted({run.plan.name for run in self.loop.runs.values()}))
        raise UsageError(f"there is no run {name!r}", hint=f"known: {known}" if known else None)

    def look(self, name: str) -> Run:
        """Return the run with this id, or the newest one of this name, as old as it may be, to read of it."""
        run = self._in_memory(name)
        if run is None and (old := reading.archived(self.paths, name)) is not None:
            return rebased(old.run, time.monotonic() - old.instant(time.time()))
        return run or self.find(name)

    def _in_memory(self, name: str) -> Run | None:
        matches = [run for run in self.loop.runs.values() if name in (run.plan.name, run.run_id)]
        return matches[-1] if matches else None

    def submit(
        self,
        plan: Plan,
        secrets: Mapping[str, str],
        *,
        from_scratch: bool,
        recipients: Sequence[str] = (),
        code: str = "",
    ) -> tuple[Run, bool]:
        """Begin a run. Return it, and whether it is new: if an active run has the same plan, that run is returned.

        Refused if another active run has that name or holds a GPU that this one wants, or if an active run should
        start from scratch. `code` is the digest of its snapshot; empty: that is taken when a host is prepared.
        """
        known, now = self.loop.known, time.monotonic()
        asks_hosts = any(ask.asks_host for ask in plan.needs)
        if known.has_choice(plan) and (plan.queue is None or asks_hosts):
            asked = [host for host in plan.hosts if not known.is_fresh(host, now)]
            if not asked and not self.loop.call(lambda: self._turn(plan))[0].has_come:
                asked = list(plan.hosts)  # what was known of them may be over
            self.look_around(asked)
        with self._submitting:  # one at a time, so that no other run gets this id
            run_id = self.loop.call(lambda: self.journal.next_run_id(plan.name))
            try:
                # The deciding thread must not wait for the locks that a command or `tidy` may hold for long
                kept = self._snapshots.keep(run_id, code).left_out if code else ()
                left_out = tuple((entry.path, entry.reason) for entry in kept[:_LEFT_OUT_MAX])
                return self.loop.call(  # type: ignore[no-any-return]
                    lambda: self._submit(run_id, plan, secrets, from_scratch, recipients, left_out)
                )
            finally:
                if run_id not in self.loop.runs:
                    self._snapshots.forget(run_id)

    def _submit(
        self,
        run_id: str,
        plan: Plan,
        secrets: Mapping[str, str],
        from_scratch: bool,
        recipients: Sequence[str],
        left_out: tuple[tuple[str, str], ...],
    ) -> tuple[Run, bool]:
        runs = list(self.loop.runs.values())
        for run in runs:
            if not run.phase.is_terminal and run.is_of(plan):
                conflicts.refuse_scratch(run, from_scratch=from_scratch)
                with disk.explained(self.paths.state_dir):
                    self._messenger.save(run.run_id, recipients)  # their tokens may be new
                return run, False
        conflicts.refuse_start(plan, runs, {entry.name: entry.run_id for entry in self._set_aside})
        now = time.monotonic()
        chosen = plan.queue is None and self.loop.known.has_choice(plan)
        place = self._place(plan) if chosen else None
        directory = self.paths.run_dir(run_id)
        self._left_files.await_end(run_id)
        try:
            with disk.explained(directory):
                os.makedirs(directory, mode=0o700, exist_ok=True)
                self._secrets.save(run_id, secrets)
                self._messenger.save(run_id, recipients)
            run = new_run(
                run_id,
                pool.placed(plan, place) if place is not None else plan,
                epoch=self.epoch,
                at=now,
                from_scratch=from_scratch,
                owner=self.owner,
                left_out=left_out,
            )
            if run.plan != plan:
                run = replace(run, asked=plan)
            with disk.explained(directory):
                self.loop.submit(run, place.against if place is not None else ())
        finally:
            if run_id not in self.loop.runs:  # a run that was refused leaves nothing behind
                self._secrets.remove(run_id)
                self._messenger.ended(run_id)
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        # The journal has the run by now, so there are only copies of runs that have begun.
        self._effects.post(_COPY, run_id, partial(self._keep_plan, run_id))
        if run.phase is not Phase.QUEUED:
            self._open(run)
        return self.loop.runs[run_id], True

    def _open(self, begun: Run) -> None:
        self._executor.open(begun, [host.name for host in begun.hosts])
        self._look_after_gone(begun)

    def _turn(self, plan: Plan) -> tuple[QueueTurn, str]:
        """Return whether a run of this plan could begin now, and who has what it needs. Deciding thread only."""
        others = [
            run
            for run in self.loop.runs.values()
            if run.plan.name != plan.name or (run.phase.is_terminal and not unproven(run))
        ]
        return turn_of(plan, others, time.monotonic(), self.loop.known)

    def _place(self, plan: Plan) -> Placed | None:
        """Return where a run goes that is to begin now. Raises Refused where nothing fits. Deciding thread only."""
        turn, why = self._turn(plan)
        if turn.has_come:
            return turn.ask.place
        before = [f"{listed(needs)} is what {run_id} waits for" for run_id, needs in turn.waits_for if needs]
        raise Refused(
            why or turn.ask.others or "; ".join(before) or turn.sentence(time.monotonic()),
            hint="`orch up --queue` waits for it; `orch hosts` shows who has what; or choose other GPUs",
        )

    def place(self, plan: Plan, *, look: bool) -> dict[str, Any]:
        """Return the document of where a run would go now. With `look` its hosts are asked first, and it blocks."""
        if look and plan.has_choice:
            self.look_around(plan.hosts)
        turn, why = self.loop.call(lambda: self._turn(plan))
        place = turn.ask.place
        there = pool.placed(plan, place) if place is not None and turn.has_come else plan
        return {
            "schema": 1,
            "fits": turn.has_come,
            "why": "" if turn.has_come else why or turn.sentence(time.monotonic()),
            "against": dict(place.against) if place is not None else {},
            "spares": [host.name for host in there.hosts if host.spare],
            "tasks": [
                {
                    "task": str(task.id),
                    "host": task.host,
                    "gpus": list(task.gpus),
                    "slot": task.slot,
                    "host_slot": task.host_slot,
                }
                for task in there.tasks
            ],
        }

    def look_around(self, hosts: Sequence[HostPlan]) -> None:
        """Ask hosts what others hold there. It blocks."""
        asked = [host for host in hosts if host.transport in LEASING and host.transport in self._transports]
        if not asked:
            return
        until = time.monotonic() + LOOK_S + BELIEVED_S
        seen = look(Asker(self._transports, bundle.load), asked, self._is_known, until)

        def learn() -> None:
            self.loop.known = replace(self.loop.known, seen={**self.loop.known.seen, **seen})

        self.loop.call(learn)

    def queue(self) -> dict[str, Any]:
        """Return the document of `orch queue`: the waiting runs in order, what they wait for, and since when."""
        return queue_document(self.loop.runs, time.monotonic(), self.loop.known, self.loop.turns)

    def _look_after_gone(self, begun: Run) -> None:
        """Connect to this run's hosts that an ended run gave up, to end that run's processes there."""
        used = {host.connection for host in begun.plan.hosts}
        for run in self.loop.runs.values():
            back = [
                host.name for host in run.hosts if host.gone and run.plan.host(host.name).connection in used
            ]
            if back and run.phase.is_terminal:
                self._executor.open(run, back)

    def why_unfit(self, plan: Plan) -> str | None:
        """Return why no run can begin with a plan; None if it can."""
        strange = {host.transport for host in plan.hosts} - self._transports.keys()
        return f"there is no transport {min(strange)!r}" if strange else why_no_run(plan)

    def examine(self, plan: Plan) -> Examined:
        """Check whether the hosts of a plan reach each other, and all that a start does not check. It blocks."""
        return examine(plan, self._transports, bundle.load, whole=False)

    def kill(self, name: str, *, force: bool, at_checkpoint: bool = False) -> Run:
        """End a run at the user's request: now, or at its next checkpoint. A second request changes nothing.

        `force` also ends a run whose decisions were stopped by a bug.
        """

        def command() -> Run:
            run = self.find(name)
            try:
                self.loop.decide(run.run_id, KillRequested(time.monotonic(), force, at_checkpoint))
            except DecisionsStopped:
                if not force:
                    raise
                self.loop.abandon(run.run_id)
            return self.loop.runs[run.run_id]

        return self.loop.call(command)  # type: ignore[no-any-return]

    def drain(self, name: str, host: str, *, now: bool, why: str = "") -> Run:
        """Give a host no more tasks, and move its tasks to others. Refused if the run needs the host.

        `why`: the reason, if Slurm or Kubernetes drains the host and not the user.
        """

        def event(run: Run) -> DrainRequested:
            may_be_replaced = self._may_be_replaced(())
            return host_requests.drain(
                run, host, at=time.monotonic(), now=now, why=why, may_be_replaced=may_be_replaced
            )

        return self._decide_of_host(name, event)

    def drain_for_all(self, host: str, *, now: bool) -> list[tuple[Run, str]]:
        """Empty a host of all runs, and place none there until it is let in again. Return the runs that had it.

        `host` is a name or an address; each run may call the machine otherwise. Refused, and nothing is changed, if a
        run needs it.
        """

        def command() -> list[tuple[Run, str]]:
            words = self._machines(host)
            runs = self._on_machines(
                words, lambda run, _host: run.phase is not Phase.QUEUED and not run.phase.is_terminal
            )
            at, may_be_replaced = time.monotonic(), self._may_be_replaced(words)
            events = [
                host_requests.drain(run, name, at=at, now=now, why="", may_be_replaced=may_be_replaced)
                for run, name in runs
            ]
            since = f"{now_utc()[:16].replace('T', ' ')} UTC"
            why = f"is drained by the user, since {since}{_LETS_IN.format(host)}"
            self._keep_drained({**self.loop.known.drained, **dict.fromkeys(words, why)})
            for (run, _), event in zip(runs, events, strict=True):
                self.loop.decide(run.run_id, event)
            return [(self.loop.runs[run.run_id], name) for run, name in runs]

        return self.loop.call(command)  # type: ignore[no-any-return]

    def undrain_for_all(self, host: str) -> list[tuple[Run, str]]:
        """Let a host in again for all runs, and place runs there. Return those that have it."""

        def command() -> list[tuple[Run, str]]:
            words = {*self._machines(host), host}
            drained = self.loop.known.drained
            left = {word: why for word, why in drained.items() if word not in words}
            if left and len(left) == len(drained) and not self.loop.runs:
                raise UsageError(f"{host} is not drained", hint=_drained_in_words(left))
            self._keep_drained(left)
            return self._on_machines(words, _may_be_let_in)

        having: list[tuple[Run, str]] = self.loop.call(command)
        return [(self.undrain(run.run_id, name), name) for run, name in having]

    def _may_be_replaced(self, words: Collection[str]) -> Callable[[Run], bool]:
        """Return a question about runs that lack a host from now on: are others free for these, one after the other?"""
        known = self.loop.known
        known = replace(known, drained={**known.drained, **dict.fromkeys(words, "is drained")})
        changed: dict[str, Run] = {}

        def may_be_replaced(run: Run) -> bool:
            changed[run.run_id] = run
            now = time.monotonic()
            runs = [changed.get(run_id, other) for run_id, other in self.loop.runs.items()]
            found = Counter(run_id for run_id, _ in pool_replacements(runs, now, known))
            short = {run_id: len(lacking(other, now)) for run_id, other in changed.items()}
            return all(0 < count == found[run_id] for run_id, count in short.items())

        return may_be_replaced

    def _machines(self, host: str) -> list[str]:
        """Return the machine that people call so, as a word; the word itself where nobody has told of any machine.

        Raises UsageError for a host of no run that was not drained by that name, and where two machines have the name.
        """
        told = [each for run in self.loop.runs.values() for each in run.submitted.hosts]
        drained = self.loop.known.drained
        words = {pool.machine_in_words(each) for each in told if host in (each.name, each.address)}
        said = _LETS_IN.format(host)
        words |= {word for word, why in drained.items() if why.endswith(said) and word != host}
        if told and not words and host not in drained:
            known = ", ".join(sorted({each.name for each in told})[:8])
            hint = "; ".join(filter(None, [f"known: {known}", _drained_in_words(drained)]))
            raise UsageError(f"no run of this head node has a host {host!r}", hint=hint)
        if len(words) > 1:
            raise UsageError(
                f"{host} is the name of {len(words)} machines: {', '.join(sorted(words))}",
                hint="say its address, or name a run too: `orch drain RUN HOST`",
            )
        return sorted(words) or [host]

    def _on_machines(
        self, words: Collection[str], wanted: Callable[[Run, Host], bool]
    ) -> list[tuple[Run, str]]:
        """Return the wanted runs that have a host on a machine, each with its name for that."""
        return [
            (run, host.name)
            for run in self.loop.runs.values()
            for host in run.hosts
            if wanted(run, host)
            and (pool.machine_in_words(run.plan.host(host.name)) in words or host.name in words)
        ]

    def _drained(self) -> dict[str, str]:
        """Return which hosts are drained for all runs. Where the file is damaged, it is said, and none is."""
        kept = durable.read_object(self.paths.drained)
        if kept is None and os.path.exists(self.paths.drained):
            log.warning("%s is damaged: `orch drain HOST` again what is to be kept out", self.paths.drained)
        return {name: str(why) for name, why in (kept or {}).items()}

    def _keep_drained(self, drained: Mapping[str, str]) -> None:
        """Keep on disk which hosts are drained for all runs: it outlives this coordinator. Deciding thread only."""
        with disk.explained(self.paths.drained):
            durable.write_json(self.paths.drained, dict(drained))
        self.loop.known = replace(self.loop.known, drained=drained)

    def let_go(self, run: Run, host: str) -> None:
        """Disconnect from a host that its engine takes away. Its keeper ends once no agent runs there."""
        link = self._executor.link(run, host)
        if link is not None:
            link.hold_off(_LET_GO_S, "its engine takes it away, and the run has nothing there any more")

    def give_up(self, name: str, host: str) -> Run:
        """Give a host up for good because a person says that it is gone. Its tasks count as dead without a proof.

        This works for an ended run too. Refused if the host answers.
        """
        gone = f"{now_utc()[:19].replace('T', ' ')} UTC"
        return self._decide_of_host(
            name, lambda run: host_requests.give_up(run, host, at=time.monotonic(), gone=gone)
        )

    def undrain(self, name: str, host: str) -> Run:
        """Let a drained, quarantined, stuck or given-up host have tasks again."""

        def command() -> Run:
            run = self.find(name)
            self.loop.decide(run.run_id, host_requests.undrain(run, host, at=time.monotonic()))
            run = self.loop.runs[run.run_id]
            if host in unproven(run):
                self._executor.open(run, [host])
            return run

        return self.loop.call(command)  # type: ignore[no-any-return]

    def _decide_of_host(self, name: str, event: Callable[[Run], DrainRequested]) -> Run:
        def command() -> Run:
            run = self.find(name)
            self.loop.decide(run.run_id, event(run))
            return self.loop.runs[run.run_id]

        return self.loop.call(command)  # type: ignore[no-any-return]

    def owes(self, run: Run) -> bool:
        """Return whether files of an ended run must still be fetched from its hosts."""
        document = self._left_files.document(run)
        return document is not None and bool(document["pending"])

    def fetches(self, run: Run) -> bool:
        """Return whether files of an ended run are being fetched from its hosts."""
        return self._left_files.is_fetching(run.run_id)

    def events(self, name: str | None, after: int) -> list[dict[str, Any]]:
        """Return the events after a sequence number."""
        return self._recorded(name, lambda read: happened.events(read, name=name, after=after))

    def _recorded(
        self, name: str | None, ask: Callable[[happened.Read], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """Ask the journal, or the own file of a run that has left it."""
        old = None if name is None or self._in_memory(name) is not None else archive.find(self.paths, name)
        if old is None:
            return self.loop.call(lambda: ask(self.journal.read))  # type: ignore[no-any-return]
        with reading.opened(archive.place_of(self.paths, old)) as db:
            return ask(lambda query, values: db.execute(query, values).fetchall())

    def why(self, name: str) -> dict[str, Any]:
        """Return the document of `orch why --json`: the run, and the first cause of each end, oldest first."""
        run = self.look(name)
        causes: list[dict[str, Any]] = self._recorded(
            name, lambda read: happened.first_causes(read, run.run_id)
        )
        account = self._accounts.account(run.run_id)
        now = time.monotonic()
        shown = status.why_document(run, causes, now=now, halted=self.loop.halted, account=account)
        describe.add_outputs(shown, self._left_files.document(run))
        if run.phase is Phase.QUEUED:
            add_turns([shown], self.queue())
        return shown

    def stacks(self, name: str) -> dict[str, str]:
        """Return the stacks of the run's tasks, by task, or why there are none."""
        return self._executor.stacks(self.find(name))

    def summaries(self, name: str) -> dict[str, Any]:
        """Fetch new data of TensorBoard's files. Return their directory, and the hosts that were not reached."""
        run = self.look(name)
        directory = os.path.join(self.paths.run_dir(run.run_id), "summaries")
        with self._fetching[run.run_id]:  # two fetches at once would both append
            return tensorboard.fetch(run, directory, [host.name for host in run.hosts], self._executor.lease)

    def outputs(self, name: str, patterns: list[str], task: str | None) -> dict[str, Any]:
        """List the files in the tasks' working directories that match the patterns."""
        return outputs.listed(self.look(name), self._executor.lease, patterns, task)

    def saved(self, name: str, generation: int, path: str) -> dict[str, Any]:
        """List the files of a checkpoint of the run."""
        return outputs.saved(self.look(name), self._executor.lease, generation, path)

    def output(
        self, name: str, wanted: Output, directory: str, *, sha256: str | None, replace: bool
    ) -> FetchedPart:
        """Fetch a file that `outputs` listed, or a part of it, to its place below a directory."""
        run = self.look(name)
        if all(host.name != wanted.host for host in run.plan.hosts):
            raise UsageError(f"{run.run_id} has no host {wanted.host!r}")

        def bring(link: Asks) -> FetchedPart:
            return outputs.bring(link, run, wanted, directory, sha256=sha256, replace=replace)

        with self._fetching[run.run_id], outputs.explained(wanted, directory):
            return self._executor.lease(run, wanted.host, bring)

    def checkpoints(self, name: str, verb: str, what: str, *, restart: bool) -> dict[str, Any]:
        """List or read the checkpoints of a run; pin, unpin or remove one; or roll back to one. It blocks."""
        run = self.find(name) if verb == "rollback" else self.look(name)
        if verb == "rollback":
            conflicts.refuse_rollback(run, self.loop.runs.values(), restart=restart)
        answer = checkpoint_requests.ask(
            run, verb, what or None, self._executor.lease, lambda: self.look(run.run_id)
        )
        if run.plan.checkpoint is not None and not run.plan.checkpoint.shared:
            store = self._executor.transfers.checkpoints.store(run)
            checkpoint_requests.compare(answer, verb, run, store)
        if verb == "rollback":
            # The rollback is recorded in the directory, so the next generation follows it even without this event.
            event = checkpoint_requests.rolled_back(answer, at=time.monotonic())
            self.loop.call(lambda: self.loop.decide(run.run_id, event))
            answer["active"] = not self.loop.runs[run.run_id].phase.is_terminal
        return answer

    def forget(self, run_id: str) -> dict[str, Any]:
        """Remove an ended run from this head node: from the journal, and its code, logs, curves and records.

        Refused while it goes on, or while it is not proven that its processes have ended.
        """

        def command() -> None:
            run = self.loop.runs.get(run_id)
            if run is None:
                if run_id not in archive.run_ids(self.paths, run_id):
                    raise UsageError(f"there is no run {run_id!r}", hint="`orch runs` lists them")
                return
            if not run.phase.is_terminal:
                raise Refused(f"{run_id} goes on", hint=f"`orch kill {run_id}` ends it first")
            if owing := unproven(run):
                raise Refused(
                    f"it is not proven that the processes of {run_id} on {', '.join(owing)} have ended",
                    hint=f"`orch drain {owing[0]} --gone` says that a host will not come back",
                )
            self.journal.forget(run_id)
            self.loop.forget([run_id])
            self._effects.forget([run_id])

        self.loop.call(command)
        self._snapshots.forget(run_id)
        self._tidy_code()
        directory = self.paths.run_dir(run_id)
        with contextlib.suppress(FileNotFoundError):
            # First, so that what a crash leaves is no run any more, but an orphan, which `orch gc` finds.
            os.unlink(os.path.join(directory, archive.FILE))
        with contextlib.suppress(FileNotFoundError):
            os.rename(directory, f"{directory}.going")
            shutil.rmtree(f"{directory}.going")
        self._measure_records()
        return {"run_id": run_id}

    def chaos(self, name: str, kind: str, target: str, for_s: float) -> faults.Fault:
        """Inject a fault into a run whose spec allows it. It is journaled before it happens."""
        from orchestrator.head.coordinator import chaos

        def command() -> tuple[Run, faults.Fault]:
            run = self.find(name)
            fault = faults.fault(run, kind, target, for_s)
            link = self._executor.link(run, fault.host)
            chaos.check(link, run, fault, state_dir=self.paths.state_dir)
            self.loop.decide(run.run_id, FaultInjected(at=time.monotonic(), fault=fault))
            return run, fault

        run, fault = self.loop.call(command)
        try:
            chaos.inject(self._executor.link(run, fault.host), run, fault)
        except (LinkDown, OrderRefused) as e:
            raise OrchestratorError(f"{fault.kind} {fault.target}: not done: {e}") from e
        return fault  # type: ignore[no-any-return]

    # -- called by the loop --------------------------------------------------------------------------------

    def _execute(self, run: Run, action: Action) -> None:
        self._executor.execute(run, action)

    def _limit_reached(self, run_id: str, host: str, task: TaskId, message: str) -> None:
        self.loop.post(run_id, LimitReached(at=time.monotonic(), host=host, message=message, task=task))

    def _clock_differs(self, run_id: str, host: str, message: str) -> None:
        self.loop.post(run_id, ClockDiffers(at=time.monotonic(), host=host, message=message))

    def _notice_failed(self, run_id: str, recipient: str, problem: str) -> None:
        log.warning("%s: a message did not reach %s: %s", run_id or "the head node", recipient, problem)
        if run_id:
            self.loop.post(run_id, NoticeFailed(time.monotonic(), recipient, problem))

    def _changed(self, before: Run, after: Run) -> None:
        """Announce a change to its subscribers. A failure there affects no decision."""
        self._effects.changed(before, after)
        if before.phase is Phase.QUEUED and after.phase is Phase.PENDING:
            self._open(after)
        self._executor.reopen(before, after)
        if before.plan is not after.plan:
            self._effects.post(_COPY, after.run_id, partial(self._keep_plan, after.run_id))
        self._executor.changed(before, after)
        if after.phase.is_terminal and not before.phase.is_terminal:
            self._put_away_old()

    def _keep_plan(self, run_id: str) -> None:
        """Keep a copy of the plan, unless the run has ended: the copy means that the run may continue."""
        run = self.loop.runs.get(run_id)
        if run is not None and not run.phase.is_terminal:
            plan_copies.keep(self.paths, run_id, run.plan)

    def _measure_records(self) -> None:
        self._records_bytes = budget.taken(self.paths)

    def _tidy_code(self) -> None:
        """Remove the code that no run needs."""
        going_on = {run.run_id for run in list(self.loop.runs.values()) if not run.phase.is_terminal}
        self._snapshots.tidy(going_on | self._unreadable)

    def _subscribers(self) -> list[Effect]:
        """Return the subscribers to changes of runs: history and messages for people, and removals."""

        def at_the_end(remove: Callable[[str], None]) -> Callable[[Run, Run], None]:
            def changed(before: Run, after: Run) -> None:
                if after.phase.is_terminal and not before.phase.is_terminal:
                    remove(after.run_id)

            return changed

        def first_cause(before: Run, after: Run) -> None:
            planned = after.first_cause is not None and not after.first_cause.is_failure
            if after.first_cause != before.first_cause and not planned:
                self._logs.put_first_cause(after.run_id, status.first_cause(after))

        def last_figures(before: Run, after: Run) -> None:
            if before.phase is Phase.RUNNING and after.phase is not Phase.RUNNING:
                self._historian.ended(before)

        return [
            Effect("keep its last figures", last_figures),
            Effect("record its first cause", first_cause),
            Effect("remove its secrets", at_the_end(self._secrets.remove)),
            Effect("remove its recipients", at_the_end(self._messenger.ended)),
            Effect("forget its code", at_the_end(lambda _run_id: self._tidy_code())),
            Effect("measure the records", at_the_end(lambda _run_id: self._measure_records())),
            Effect(_COPY, at_the_end(partial(plan_copies.remove, self.paths))),
            Effect("forget it", forgotten=self._forget_run),
            Effect(
                "forget the files that it left", forgotten=lambda run_id: self._left_files.forget([run_id])
            ),
        ]

    def _forget_run(self, run_id: str) -> None:
        self._fetching.pop(run_id, None)
        self._accounts.forget(run_id)
        self._executor.transfers.checkpoints.forget(run_id)

    def _put_away_old(self) -> None:
        """Move old runs into files of their own, so that the journal and this process stay small."""
        try:
            moved = self.journal.put_away(self.paths.run_dir)
        except JournalError as e:
            log.warning("old runs stay in the journal for now: %s", e)
            return
        self.loop.forget(moved)
        self._effects.forget(moved)


def _may_be_let_in(run: Run, host: Host) -> bool:
    """Return whether an undrain is for this host of a run: where nothing of the run is, only if it is kept out."""
    if run.phase.is_terminal:
        return bool(host.gone)
    return run.phase is not Phase.QUEUED or host.state is not HostState.OPEN


def _drained_in_words(drained: Mapping[str, str]) -> str:
    """Return which machines are drained for all runs, for a hint; empty if none is."""
    return "; ".join(f"{word} {why}" for word, why in drained.items())

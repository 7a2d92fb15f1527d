"""Finds runs on their hosts, and puts them into a new journal after the old one was lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from orchestrator.core import rebuild
from orchestrator.core.actions import Note
from orchestrator.core.diagnosis.cause import how
from orchestrator.core.events import Submitted, TaskReport
from orchestrator.core.launching.environment import GENERATION_REPORTED_MAX
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import HostPlan, Plan, TaskId
from orchestrator.core.state.run import Run
from orchestrator.core.words import duration, listed
from orchestrator.head.hosts import host_records as records
from orchestrator.head.journal.journal import Journal
from orchestrator.head.links import wire
from orchestrator.head.links.query import Answer, Asker
from orchestrator.protocol.orders.driving import RUNS, KnownRun, KnownRuns

EPOCHS_UNHEARD = 1000
"""Added to the epoch if a host does not answer, or answers with an error. That host may have obeyed a higher epoch than
all others, and would refuse a lower one for ever. More coordinators than this cannot have followed one another while
only that host was connected."""

EPOCH_BELIEVED_MAX = 1_000_000
"""An epoch counts the starts of a coordinator: this many are two years of one a minute. A higher one counts only for
the host that reports it (`Host.fence`). Else a host that lies could raise the epoch of all to the highest number."""

_GENERATION_MAX = 2 * GENERATION_REPORTED_MAX
"""No coordinator has used a generation above this, even if a host lied to it once."""

_NAMED_MAX = 3
"""How many tasks of a dead run are described; the rest are only counted."""


@dataclass(frozen=True, slots=True)
class Trusted:
    """The plans that do not come from a host. They alone decide which hosts are contacted, and what starts there."""

    specs: tuple[Plan, ...] = ()
    """The plans of the cluster specs that a person named."""
    copies: Mapping[str, Plan] = field(default_factory=dict)
    """By run id, the head's own copies of the plans of runs that it began and that may go on."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All of them."""
        return (*self.specs, *self.copies.values())

    def plan_of(self, run_id: str) -> Plan | None:
        """Return the plan of a run: the head's own copy, else the spec of its name; None if there is neither."""
        name = run_id.rsplit("-", 2)[0]  # a run id is its name, the day and the time
        return self.copies.get(run_id) or next((plan for plan in self.specs if plan.name == name), None)

    def believes(self, host: HostPlan, run_id: str) -> bool:
        """Return whether a host's report about a run counts. It does not where the run's plan lacks that host."""
        plan = self.plan_of(run_id)
        return plan is None or host.connection in {other.connection for other in plan.hosts}


class Recorded(NamedTuple):
    """A host's record of a run."""

    host: str
    version: tuple[int, int]
    written_at: float
    run: Run


@dataclass(slots=True)
class Remembered:
    """A run that some hosts remember. Reports of hosts that its plan does not have are left out."""

    run_id: str
    epoch: int = 0
    """The highest epoch that any host has obeyed for this run, up to EPOCH_BELIEVED_MAX."""
    watched_on: set[str] = field(default_factory=set)
    """The hosts where the agent of a coordinator watches it now."""
    lives_on: set[str] = field(default_factory=set)
    fences: dict[HostPlan, int] = field(default_factory=dict)
    """The epochs above EPOCH_BELIEVED_MAX, by host connection."""
    reported: dict[HostPlan, tuple[TaskReport, ...]] = field(default_factory=dict)
    """What each host reported, by host connection, since the specs may name hosts otherwise than the run does."""
    records: list[Recorded] = field(default_factory=list)
    run: Run | None = None
    """The rebuilt run; None if it cannot be recovered."""
    why: str | None = None
    """Why it cannot be recovered, or is not adopted unless a person names it."""
    phase: str | None = None
    """The phase of the rebuilt run, or in which it has ended; None if unknown."""

    def newest(self, records: Iterable[Recorded]) -> Recorded | None:
        """Return the most recent of these records."""
        by_run = {id(record.run): record for record in records}
        run = rebuild.newest((record.version, record.run) for record in by_run.values())
        return by_run[id(run)] if run is not None else None

    @property
    def reports(self) -> list[tuple[str, TaskReport]]:
        """The newest report of each task, with the name of its host, in the order of the tasks."""
        newest: dict[TaskId, tuple[str, TaskReport]] = {}
        for host, reports in self.reported.items():
            for report in reports:
                if report.task not in newest or newest[report.task][1].generation < report.generation:
                    newest[report.task] = (host.name, report)
        return [newest[task] for task in sorted(newest)]


@dataclass(slots=True)
class Search:
    """The answers of all hosts, and the runs found in them."""

    answers: list[Answer[KnownRuns]]
    runs: dict[str, Remembered]
    epoch: int
    """An epoch that is at least as high as any that a host has obeyed, for any run."""
    at: float = 0.0
    """When the runs were rebuilt."""


def search(asker: Asker, trusted: Trusted, *, timeout_s: float, at: float) -> Search:
    """Ask the hosts of the trusted plans for their runs. Other hosts that a record names are not contacted."""
    wanted = {host.connection: host for plan in trusted.plans for host in plan.hosts}
    asked = asker.ask([(host, [RUNS({"records": True})]) for host in wanted.values()], timeout_s=timeout_s)
    answers = {answer.host.connection: answer for answer in asked}
    runs_by_id = _collect(answers.values(), trusted, at)
    for seen in runs_by_id.values():
        # Rebuild a run, or say why it is not recovered
        record = seen.newest(seen.records)
        if record is not None and record.run.phase.is_terminal:
            _judge_ended(seen, record, trusted, answers, at)
        elif not seen.lives_on:
            seen.why = f"nothing of it lives{_silent(answers)}: {_ends(seen, at)}"
        elif record is None:
            seen.why = "no host keeps a record of it that this orch understands"
        else:
            _rebuild(seen, record, trusted, answers, at)
    heard = [reply.ok["runs"] for answer in answers.values() for reply in answer.replies if reply.ok]
    epoch = max((_believed(run["epoch"]) for runs in heard for run in runs), default=0)
    if any(answer.unheard is not None for answer in answers.values()):
        epoch += EPOCHS_UNHEARD
    return Search(list(answers.values()), runs_by_id, epoch, at)


def _believed(epoch: int) -> int:
    return min(epoch, EPOCH_BELIEVED_MAX)


def _answered(run: Run, answers: Mapping[HostPlan, Answer[KnownRuns]]) -> list[HostPlan]:
    """Return the hosts of a run, spares included, that answered: a spare may have joined after the record.

    The run has a trusted plan, so each of its hosts was asked.
    """
    hosts = [run.plan.host(host.name) for host in run.hosts]
    return [host for host in hosts if answers[host.connection].unheard is None]


def _collect(answers: Iterable[Answer[KnownRuns]], trusted: Trusted, at: float) -> dict[str, Remembered]:
    runs: dict[str, Remembered] = {}
    for answer in answers:
        for reply in answer.replies:
            for known in reply.ok["runs"] if reply.ok else ():
                if known["directory"]:
                    seen = runs.setdefault(known["run"], Remembered(known["run"]))
                    _add(seen, answer.host, known, trusted, at)
    return runs


def _add(seen: Remembered, host: HostPlan, known: KnownRun, trusted: Trusted, at: float) -> None:
    if not trusted.believes(host, seen.run_id):
        return
    seen.epoch = max(seen.epoch, _believed(known["epoch"]))
    if known["epoch"] > EPOCH_BELIEVED_MAX:
        seen.fences[host.connection] = known["epoch"]
    if known["watched"]:
        seen.watched_on.add(host.name)
    if known["alive"]:
        seen.lives_on.add(host.name)
    seen.reported[host.connection] = tuple(
        wire.task_report(task, at=at, unix_time=time.time())
        for task in known["tasks"]
        if task["generation"] <= _GENERATION_MAX
    )
    record = records.read(known["record"])
    if (
        record is not None
        and record[-1].run_id == seen.run_id
        and record[-1].generation_last <= _GENERATION_MAX
    ):
        seen.records.append(Recorded(host.name, *record))


def _judge_ended(
    seen: Remembered,
    record: Recorded,
    trusted: Trusted,
    answers: Mapping[HostPlan, Answer[KnownRuns]],
    at: float,
) -> None:
    """Say how the run ended. If other hosts say that it goes on, a person may adopt it: one host cannot end it."""
    seen.phase = record.run.phase.value
    why = f"it has ended: {seen.phase}: {record.run.reason}"
    if seen.lives_on:
        why += f"; what is left of it lives on {listed(sorted(seen.lives_on))}, and `orch gc` removes it"
    going_on = seen.newest(
        other for other in seen.records if other.host in seen.lives_on and not other.run.phase.is_terminal
    )
    if going_on is not None:
        _rebuild(seen, going_on, trusted, answers, at)
    if seen.run is not None:
        why += (
            f"; {record.host} says that it has ended and {listed(sorted(seen.lives_on - {record.host}))} does not: "
            f"`--take-over {seen.run_id}` adopts it"
        )
        seen.phase = record.run.phase.value
    seen.why = why


def _rebuild(
    seen: Remembered,
    record: Recorded,
    trusted: Trusted,
    answers: Mapping[HostPlan, Answer[KnownRuns]],
    at: float,
) -> None:
    end_it = f"`orch gc --even-alive {seen.run_id}` ends its processes on {listed(sorted(seen.lives_on))}"
    plan = trusted.plan_of(seen.run_id)
    if plan is None:
        seen.why = (
            f"no spec of {record.run.plan.name} was named, and a host's record decides nothing here; "
            f"`--hosts FILE` with the spec that it was started from adopts it, {end_it}"
        )
        return
    try:
        run = rebuild.vouched_for(record.run, plan)
    except rebuild.NotVouched as e:
        seen.why = (
            f"the record on its host does not fit the spec of {plan.name}: {e}; nothing that only the record says is "
            f"started or contacted; the spec that it was started from adopts it, {end_it}"
        )
        return
    reported = rebuild.own_reports(
        run, {host.name: seen.reported.get(host.connection, ()) for host in _answered(run, answers)}
    )
    missing = rebuild.unaccounted(run, reported)
    if missing:
        seen.why = f"{', '.join(missing)} did not answer, and it is not known what runs there"
        return
    run = rebuild.rebuilt(run, reported, at=at, written_at=record.written_at)
    fenced = [replace(host, fence=seen.fences.get(plan.host(host.name).connection, 0)) for host in run.hosts]
    seen.run = replace(run, epoch=seen.epoch, hosts=tuple(fenced))
    seen.phase = seen.run.phase.value


def _silent(answers: Mapping[HostPlan, Answer[KnownRuns]]) -> str:
    silent = [answer.host.name for answer in answers.values() if answer.unheard is not None]
    return f" on the hosts that answered ({listed(sorted(silent))} did not)" if silent else ""


def _ends(seen: Remembered, at: float) -> str:
    """Describe how the last tasks of a run ended, and what a person can do."""
    lines = [_end(host, report, at) for host, report in seen.reports]
    more = [f"and {len(lines) - _NAMED_MAX} more"] if len(lines) > _NAMED_MAX else []
    ends = "; ".join([*lines[:_NAMED_MAX], *more]) or "it has no task there"
    return f"{ends}. `orch up` with its spec begins it again, from its last checkpoint where it has one"


def _end(host: str, report: TaskReport, at: float) -> str:
    if report.exit is None:
        return f"{report.task} on {host} left no record of its end"
    ago_s = at - report.exit.at  # 0 where its host was rebooted meanwhile
    when = f"{duration(ago_s)} ago " if ago_s > 0 else ""
    return f"{when}{report.task} on {host} {how(report.exit)}"


def write(journal: Journal, chosen: Sequence[Remembered], *, epoch: int, at: float) -> None:
    """Put the runs into the journal, and raise its epoch so that every host will obey the next coordinator.

    Args:
        journal: the new journal.
        chosen: the runs that a person wants to recover.
        epoch: at least as high as any that a host has obeyed.
        at: when the runs were rebuilt. The time until the coordinator starts counts as its absence, including the
            time in which a person decided.
    """
    journal.raise_epoch(epoch)
    for seen in chosen:
        if seen.run is None:
            continue
        run = seen.run
        living = sum(task.phase.may_live for task in run.tasks)
        message = (
            f"{run.run_id}: the journal was lost; rebuilt from its hosts in generation {run.generation}, "
            f"{living} of {len(run.tasks)} tasks"
        )
        journal.commit(run, Submitted(at=at), [Note(NoteKind.RECOVERED, message)])

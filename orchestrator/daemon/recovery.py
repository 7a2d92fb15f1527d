"""Finds runs on their hosts and puts them into a journal, when the one that knew them is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.adapters.journal import Journal
from orchestrator.core import recovery
from orchestrator.core.actions import Note
from orchestrator.core.events import Submitted, TaskReport
from orchestrator.core.model import Run, TaskPhase
from orchestrator.core.plan import HostPlan
from orchestrator.daemon import records, wire
from orchestrator.daemon.asking import Answer, Asker
from orchestrator.daemon.switchboard import connection_of

LOOK = {"order": "runs", "records": True}


@dataclass(slots=True)
class Found:
    """A run that lives on some hosts."""

    run_id: str
    epoch: int = 0
    """The highest that ordered anything of it, on any host."""
    watched_on: set[str] = field(default_factory=set)
    """Hosts where some coordinator's agent watches it now."""
    told: dict[str, tuple[TaskReport, ...]] = field(default_factory=dict)
    records: list[tuple[int, float, Run]] = field(default_factory=list)
    run: Run | None = None
    """As it is taken up; None where it cannot be, and `why` says what is missing."""
    why: str | None = None


@dataclass(slots=True)
class Search:
    """What all hosts said."""

    answers: list[Answer]
    found: dict[str, Found]
    epoch: int
    """The highest that any host has obeyed, of any run."""


def search(asker: Asker, hosts: Iterable[HostPlan], *, timeout_s: float, at: float) -> Search:
    """Ask these hosts, and all others that the runs found there have tasks on."""
    answers: dict[HostPlan, Answer] = {}
    wanted = {connection_of(host): host for host in hosts}
    found: dict[str, Found] = {}
    while wanted:
        for answer in asker.ask([(host, [LOOK]) for host in wanted.values()], timeout_s=timeout_s):
            answers[connection_of(answer.host)] = answer
        found = _found(answers.values(), at)
        wanted = {
            key: host
            for one in found.values()
            for _, _, run in one.records
            for host in _holding(run)
            if (key := connection_of(host)) not in answers
        }
    for one in found.values():
        _rebuild(one, answers, at)
    heard = [reply["ok"]["runs"] for answer in answers.values() for reply in answer.replies if "ok" in reply]
    epochs = [int(run.get("epoch") or 0) for runs in heard for run in runs]
    return Search(list(answers.values()), found, max(epochs, default=0))


def _holding(run: Run) -> list[HostPlan]:
    """The hosts with its tasks, which need not be those of the plan: a spare may hold some."""
    return [run.plan.host(name) for name in sorted({task.host for task in run.tasks})]


def _found(answers: Iterable[Answer], at: float) -> dict[str, Found]:
    found: dict[str, Found] = {}
    for answer in answers:
        for reply in answer.replies:
            for told in (reply.get("ok") or {}).get("runs", ()):
                if told.get("alive") and told.get("directory"):
                    one = found.setdefault(str(told["run"]), Found(str(told["run"])))
                    _add(one, answer.host.name, told, at)
    return found


def _add(one: Found, host: str, told: Mapping[str, Any], at: float) -> None:
    one.epoch = max(one.epoch, int(told["epoch"]))
    if told["watched"]:
        one.watched_on.add(host)
    one.told[host] = tuple(wire.task_report(task, at=at) for task in told["tasks"])
    record = records.read(told.get("record"))
    if record is not None:
        one.records.append(record)


def _rebuild(one: Found, answers: Mapping[HostPlan, Answer], at: float) -> None:
    record = recovery.newest((epoch, run) for epoch, _, run in one.records)
    if record is None:
        one.why = "no host keeps a record of it that this orch understands"
        return
    written_at = next(at for _, at, run in one.records if run is record)
    silent = {host.name for host in _holding(record) if answers[connection_of(host)].problem is not None}
    told = {task.host: one.told.get(task.host, ()) for task in record.tasks if task.host not in silent}
    missing = recovery.unaccounted(record, told)
    if missing:
        one.why = f"{', '.join(missing)} did not answer, and it is not known what runs there"
        return
    one.run = recovery.rebuilt(record, told, at=at, written_at=written_at)


def write(journal: Journal, chosen: Sequence[Found], *, epoch: int, now: Callable[[], float]) -> None:
    """Put the runs into the journal, below an epoch that every host obeys."""
    journal.raise_epoch(epoch)
    for one in chosen:
        if one.run is None:
            continue
        run = replace(one.run, epoch=max(one.run.epoch, one.epoch))
        living = sum(task.phase is not TaskPhase.WAITING for task in run.tasks)
        message = (
            f"{run.run_id}: the journal was lost; rebuilt from its hosts in generation {run.generation}, "
            f"{living} of {len(run.tasks)} tasks"
        )
        journal.commit(run, Submitted(at=now()), [Note("recovered", message)])

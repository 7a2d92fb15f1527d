"""`orch recover`: rebuild the journal from the records on the hosts, and adopt the runs that are alive."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.host_queries import TIMEOUT_S, asker, must_confirm, plans_of, say_problems
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, JournalError, Refused, SomeHostsOnly, UsageError
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.words import counted

if TYPE_CHECKING:
    from orchestrator.core.plan import Plan
    from orchestrator.head.hosts.recovery import Remembered, Search
    from orchestrator.head.journal.states import Unreadable

_AGENTS_END_S = 10.0
"""How long the agents of a killed coordinator may take to end. Until then its runs seem to be driven."""

_POLL_AGAIN_S = 1.0

ENDED = frozenset(phase.value for phase in Phase if phase.is_terminal)
"""Phases of runs that have ended. They are not adopted."""


def query_hosts(
    files: Sequence[str], session: Session
) -> tuple[Search, list[tuple[Plan, Mapping[str, str]]]]:
    """Query the hosts of these cluster specs. Repeat for a while if another coordinator seems to drive a run."""
    from orchestrator.head.hosts.recovery import Trusted, search
    from orchestrator.head.records import plan_copies

    plans = plans_of(files)
    trusted = Trusted(tuple(plan for plan, _ in plans), plan_copies.recoverable_plans(session.paths))
    if not trusted.plans:
        raise UsageError("no hosts to query", hint="name a cluster spec: `orch recover --hosts cluster.yaml`")
    ask = asker(session)
    give_up_at = session.now() + _AGENTS_END_S
    while True:
        result = search(ask, trusted, timeout_s=TIMEOUT_S, at=time.monotonic())
        if not any(entry.watched_on for entry in result.runs.values()) or session.now() >= give_up_at:
            return result, plans
        session.pause(_POLL_AGAIN_S)


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost of the journal, and what can be read."""

    trouble: str | None = None
    """What is wrong with the journal as a whole; None if it can be written."""
    known: Mapping[str, str] = field(default_factory=dict)
    """The phases of the readable runs, which are not rebuilt."""
    set_aside: tuple[Unreadable, ...] = ()
    """The runs that cannot be read."""


def check_lost(session: Session) -> Loss:
    """Return what is lost of the journal. Raises Refused if nothing is."""
    from orchestrator.head.journal.reading import read_runs

    try:
        client = session.client()
        pid = client.get("/v1/coordinator").get("pid")
    except CoordinatorUnreachable:
        pass
    else:
        raise Refused(
            f"a coordinator is running (pid {pid}) and has a journal",
            hint="`orch status` shows its runs; `orch coordinator stop` stops it (the tasks keep running)",
        )
    try:
        contents = read_runs(session.paths.journal)
    except JournalError as e:
        return Loss(trouble=e.message)
    known = {entry.run.run_id: entry.run.phase.value for entry in contents.kept}
    active = [run_id for run_id, phase in known.items() if phase not in ENDED]
    if active and not contents.set_aside:
        raise Refused(
            f"the journal {session.paths.journal} is intact and contains {', '.join(active)}",
            hint="nothing is lost: `orch coordinator start` adopts its runs",
        )
    return Loss(known=known, set_aside=contents.set_aside)


def check_give_up(give_up: Sequence[str], loss: Loss, search: Search) -> None:
    """Raise if a run cannot be given up, since it can be read or is alive."""
    unreadable = [entry.run_id for entry in loss.set_aside]
    for run_id in give_up:
        if run_id not in unreadable:
            names = ", ".join(unreadable)
            hint = f"these cannot be read: {names}" if names else "`orch kill` ends a run that can be read"
            raise UsageError(f"{run_id} is not among the runs that cannot be read", hint=hint)
        run = search.runs.get(run_id)
        if run is not None and run.lives_on:
            where = ", ".join(sorted(run.lives_on))
            raise Refused(
                f"{run_id} is alive on {where}",
                hint=f"`orch recover` without --give-up adopts it; `orch gc --even-alive {run_id}` ends it",
            )


def rebuild(
    session: Session, search: Search, chosen: Sequence[Remembered], loss: Loss, give_up: Sequence[str]
) -> str | None:
    """Write the journal. An old file that cannot be read is renamed first; return its new path."""
    from orchestrator.head.coordinator.succession import take_lock
    from orchestrator.head.hosts.recovery import write
    from orchestrator.head.journal.journal import Journal, put_aside
    from orchestrator.head.records import plan_copies

    session.paths.ensure()
    lock = take_lock(session.paths)
    try:
        aside = put_aside(session.paths.journal) if loss.trouble is not None else None
        journal = Journal(session.paths.journal)
        try:
            write(journal, chosen, epoch=search.epoch, at=search.at)
            for run_id in give_up:
                journal.write_off(run_id)
            known = {entry.run.run_id for entry in journal.contents().kept}
            known |= {entry.run_id for entry in journal.contents().unreadable}
            for run_id in (
                plan_copies.plans_of_runs(session.paths).keys() | plan_copies.marked(session.paths)
            ) - known:
                plan_copies.set_aside(session.paths, run_id)
        finally:
            journal.close()
    finally:
        lock.truncate(0)  # this process lives on, and is no coordinator
        lock.close()
    return aside


def keep_secrets(
    session: Session, chosen: Sequence[Remembered], plans: Sequence[tuple[Plan, Mapping[str, str]]]
) -> dict[str, list[str]]:
    """Save the values of secrets from the specs. Return the names of secrets without a value, by run."""
    from orchestrator.head.node.secrets import Secrets

    missing: dict[str, list[str]] = {}
    for entry in chosen:
        if entry.run is None or not entry.run.plan.secrets:
            continue
        values = next((values for plan, values in plans if plan.name == entry.run.plan.name), {})
        known = {name: values[name] for name in entry.run.plan.secrets if name in values}
        Secrets(session.paths.state_dir).save(entry.run_id, known)
        lacking = [name for name in entry.run.plan.secrets if name not in known]
        if lacking:
            missing[entry.run_id] = lacking
    return missing


def choose(
    search: Search, take_over: Sequence[str], known: Mapping[str, str]
) -> tuple[list[Remembered], list[Remembered]]:
    """Return the runs to adopt, and the others with the reason.

    Args:
        search: The answers of the hosts.
        take_over: Runs to adopt even where another coordinator drives them. Raises UsageError if one was not found.
        known: The phases of the runs that the journal holds. They are shown only where a task of them is alive.
    """
    unknown = [run_id for run_id in take_over if run_id not in search.runs]
    if unknown:
        raise UsageError(
            f"nothing found of {', '.join(unknown)}", hint="`orch recover` without --take-over lists the runs"
        )
    chosen: list[Remembered] = []
    others: list[Remembered] = []
    for entry in search.runs.values():
        if entry.run_id in known:
            if not entry.lives_on:
                continue
            entry.phase = known[entry.run_id]
            entry.why = f"it has ended: {entry.phase}; `orch coordinator start` stops what is left of it"
            if entry.phase not in ENDED:
                entry.why = f"the journal holds it: {entry.phase}; `orch coordinator start` adopts it"
        elif entry.phase in ENDED:
            if entry.run is not None and entry.run_id in take_over:
                entry.why, entry.phase = None, entry.run.phase.value
        elif entry.watched_on and entry.run_id not in take_over:
            entry.why = (
                f"another coordinator drives it (its agent is on {', '.join(sorted(entry.watched_on))})"
            )
            if entry.run is not None:
                entry.why += f"; `--take-over {entry.run_id}` adopts it anyway"
        (chosen if entry.run is not None and entry.why is None else others).append(entry)
    return chosen, others


def shown(chosen: Sequence[Remembered], others: Sequence[Remembered]) -> list[str]:
    """Return the runs with their tasks, for people."""
    rows = []
    for entry in chosen:
        run = entry.run
        assert run is not None
        rows.append(f"{entry.run_id}  generation {run.generation}, {counted(len(run.tasks), 'task')}")
        for task in run.tasks:
            more = "" if task.pid is None else f", pid {task.pid}"
            if task.phase.is_gone and task.exit is not None:
                more = f": {task.exit.error}; its group will be restarted"
            rows.append(f"  {task.id} on {task.host}: {task.phase.value}{more}")
    rows += [f"{entry.run_id}  not adopted: {entry.why}" for entry in others]
    return rows


def document(chosen: Sequence[Remembered], others: Sequence[Remembered]) -> list[dict[str, Any]]:
    """Return the document for `--json`."""
    return [
        {
            "run_id": entry.run_id,
            "recovered": entry in chosen,
            "why": entry.why,
            "phase": entry.phase,
            "lives_on": sorted(entry.lives_on),
            "epoch": entry.epoch,
            "generation": entry.run.generation if entry.run else None,
            "tasks": [
                {
                    "task": str(task.id),
                    "host": task.host,
                    "generation": task.generation,
                    "phase": task.phase.value,
                    "pid": task.pid,
                    "port": task.port,
                }
                for task in (entry.run.tasks if entry.run else ())
            ],
            "told": [
                {
                    "task": str(report.task),
                    "host": host,
                    "generation": report.generation,
                    "phase": report.phase,
                }
                for host, report in entry.reports
            ],
        }
        for entry in [*chosen, *others]
    ]


@orch_command(
    acts=True,
    examples=[
        ("orch recover --hosts cluster.yaml", "Rebuild the journal from the hosts of a spec"),
        ("orch recover --hosts a.yaml --hosts b.yaml --yes", "Query the hosts of two specs, and do not ask"),
        (
            "orch recover --hosts cluster.yaml --take-over mnist-20261120-093005",
            "Adopt a run that another head node drives",
        ),
    ],
)
@click.option("--hosts", "files", multiple=True, metavar="FILE", help="Query the hosts of this cluster spec.")
@click.option("--yes", is_flag=True, help="Write the journal without asking.")
@click.option(
    "--take-over", multiple=True, metavar="RUN", help="Adopt this run even if another coordinator drives it."
)
@click.option("--give-up", multiple=True, metavar="RUN", help="Count this unreadable run as ended.")
@click.option("--timeout", type=float, default=60.0, hidden=True)
@json_option()
def command(
    session: Session,
    files: tuple[str, ...],
    yes: bool,
    take_over: tuple[str, ...],
    give_up: tuple[str, ...],
    timeout: float,
) -> None:
    """Rebuild a lost or damaged journal from the records on the hosts, and adopt the runs that are alive.

    The specs that you name, and this machine's own copies of plans, decide which hosts are contacted, and what is
    pushed and started. The hosts' records only say what runs there. A run whose record does not fit its spec is shown,
    but not adopted.

    No task is restarted, unless a task of its group is missing; that is shown before you confirm. Runs without a live
    task are listed with their ends. An unreadable journal is renamed, not removed. The values of secrets come from the
    specs. If only some runs of the journal cannot be read, only those are rebuilt.
    """
    from orchestrator.cli.handover import wait_until_adopted
    from orchestrator.client.starting import ensure_coordinator

    loss = check_lost(session)
    for text in [*filter(None, [loss.trouble]), *(entry.sentence for entry in loss.set_aside)]:
        session.say(text)
    search, plans = query_hosts(files, session)
    failed = say_problems(session, search.answers)
    check_give_up(give_up, loss, search)
    chosen, others = choose(search, take_over, loss.known)
    if not session.wants_json:
        session.put("\n".join(shown(chosen, others)) or "No runs found")
    result: dict[str, Any] = {"schema": 1, "runs": document(chosen, others), "unasked": failed}
    if chosen or give_up or loss.trouble is not None:
        adopted = (
            f"Write the journal and adopt {counted(len(chosen), 'run')}" if chosen else "Write the journal"
        )
        given_up = f", and give up {', '.join(give_up)}" if give_up else ""
        if not yes:
            must_confirm(session, f"{adopted}{given_up}?", otherwise="nothing has changed")
        aside = rebuild(session, search, chosen, loss, give_up)
        if aside is not None:
            session.say(f"The old journal was renamed to {aside}")
        for run_id, names in keep_secrets(session, chosen, plans).items():
            session.warn(
                f"{run_id} cannot restart without the values of {', '.join(names)}; name its spec with --hosts, or "
                "`orch kill` and `orch up` it"
            )
        began = session.now()
        new, _ = ensure_coordinator(session)
        done = wait_until_adopted(session, None, new, {}, began=began, timeout_s=timeout)
        result["handover"] = done.to_json()
        if not session.wants_json:
            session.put(done.sentence)
    session.answer(result)
    if failed:
        raise SomeHostsOnly(
            f"could not query {', '.join(failed)}",
            hint="runs that are only there were not found; repeat `orch recover` once the hosts answer",
        )

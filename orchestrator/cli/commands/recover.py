"""`orch recover`: rebuilds the journal from what the hosts know, and takes up what runs there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import quantities
from orchestrator.cli.host_queries import (
    TIMEOUT_S,
    asker,
    confirm,
    is_somebody_there,
    plans_of,
    say_problems,
)
from orchestrator.cli.session import Session
from orchestrator.core.errors import CoordinatorUnreachable, JournalError, Refused, SomeHostsOnly, UsageError
from orchestrator.core.model import Phase

if TYPE_CHECKING:
    from orchestrator.adapters.head.journal import Kept
    from orchestrator.core.plan import Plan
    from orchestrator.daemon.coordinator.recovery import Found, Search

_FAREWELL_S = 10.0
"""The agents of a coordinator that was killed end within moments; until then they look like another's."""

_LOOK_AGAIN_S = 1.0

ENDED = frozenset(phase.value for phase in Phase if phase.is_terminal)
"""Phases of runs that nobody takes up, whoever watches what is left of them."""


@dataclass(frozen=True, slots=True)
class Request:
    """Which cluster specs name the hosts. `take_over`: runs that another coordinator seems to drive."""

    files: tuple[str, ...]
    yes: bool
    take_over: tuple[str, ...]


def look(request: Request, session: Session) -> tuple[Search, list[tuple[Plan, Mapping[str, str]]]]:
    """Ask the hosts. A run that is still watched is asked for again, for a while."""
    from orchestrator.daemon.coordinator.recovery import search

    plans = plans_of(request.files)
    hosts = [host for plan, _ in plans for host in plan.hosts]
    if not hosts:
        raise UsageError(
            "which hosts are to be asked?", hint="name a cluster spec: `orch recover --hosts cluster.yaml`"
        )
    ask = asker(session)
    give_up_at = session.now() + _FAREWELL_S
    while True:
        found = search(ask, hosts, timeout_s=TIMEOUT_S, at=time.monotonic())
        if not any(one.watched_on for one in found.found.values()) or session.now() >= give_up_at:
            return found, plans
        session.pause(_LOOK_AGAIN_S)


def check_lost(session: Session) -> tuple[str | None, dict[str, str]]:
    """(What is wrong with the journal, the phases of the runs that it knows to have ended).

    None where it is only empty or not there. Refused where nothing is lost.
    """
    from orchestrator.adapters.head.journal import peek

    try:
        client = session.client()
        pid = client.get("/v1/coordinator").get("pid")
    except CoordinatorUnreachable:
        pass
    else:
        raise Refused(
            f"a coordinator runs (pid {pid}) and has a journal of its own",
            hint="`orch status` shows what it knows; `orch coordinator stop` ends it (tasks go on)",
        )
    try:
        kept = peek(session.paths.journal)
    except JournalError as e:
        return e.message, {}
    active = _active(kept)
    if active:
        raise Refused(
            f"the journal {session.paths.journal} reads well and knows {', '.join(active)}",
            hint="nothing is lost: `orch coordinator start` takes them up",
        )
    return None, {one.run.run_id: one.run.phase.value for one in kept}


def _active(kept: Sequence[Kept]) -> list[str]:
    return [one.run.run_id for one in kept if not one.run.phase.is_terminal]


def rebuild(session: Session, search: Search, chosen: Sequence[Found], *, is_bad: bool) -> str | None:
    """Write the journal, whose old file is put aside where it cannot be read: then its new place is returned."""
    from orchestrator.adapters.head.journal import Journal, put_aside
    from orchestrator.daemon.coordinator.recovery import write
    from orchestrator.daemon.coordinator.succession import take_lock

    session.paths.ensure()
    lock = take_lock(session.paths)
    try:
        aside = put_aside(session.paths.journal) if is_bad else None
        journal = Journal(session.paths.journal)
        try:
            write(journal, chosen, epoch=search.epoch, at=search.at)
        finally:
            journal.close()
    finally:
        lock.close()
    return aside


def keep_secrets(
    session: Session, chosen: Sequence[Found], plans: Sequence[tuple[Plan, Mapping[str, str]]]
) -> dict[str, list[str]]:
    """The values come from the specs, where they are of these runs; by run, the names of those that do not."""
    from orchestrator.adapters.head.secrets import Secrets

    missing: dict[str, list[str]] = {}
    for one in chosen:
        if one.run is None or not one.run.plan.secrets:
            continue
        values = next((values for plan, values in plans if plan.name == one.run.plan.name), {})
        known = {name: values[name] for name in one.run.plan.secrets if name in values}
        Secrets(session.paths.state_dir).save(one.run_id, known)
        lacking = [name for name in one.run.plan.secrets if name not in known]
        if lacking:
            missing[one.run_id] = lacking
    return missing


def choose(
    search: Search, take_over: Sequence[str], ended: Mapping[str, str]
) -> tuple[list[Found], list[Found]]:
    """(What is taken up, what is not and why).

    Args:
        search: what the hosts said.
        take_over: runs that the user wants whoever drives them. UsageError where none of that id was found.
        ended: the phases of runs that the journal knows to be over: shown only where something of them lives.
    """
    unknown = [run_id for run_id in take_over if run_id not in search.found]
    if unknown:
        raise UsageError(
            f"nothing was found of {', '.join(unknown)}", hint="`orch recover` shows what there is"
        )
    chosen: list[Found] = []
    others: list[Found] = []
    for one in search.found.values():
        if one.run_id in ended:
            if not one.lives_on:
                continue
            one.phase = ended[one.run_id]
            one.why = f"it has ended: {one.phase}; `orch coordinator start` ends what is left of it"
        elif one.phase in ENDED:
            pass
        elif one.watched_on and one.run_id not in take_over:
            one.why = f"another coordinator drives it (its agent is on {', '.join(sorted(one.watched_on))})"
            if one.run is not None:
                one.why += f"; `--take-over {one.run_id}` takes it from there"
        (chosen if one.run is not None and one.why is None else others).append(one)
    return chosen, others


def shown(chosen: Sequence[Found], others: Sequence[Found]) -> list[str]:
    """For people: each run with its tasks."""
    rows = []
    for one in chosen:
        run = one.run
        assert run is not None
        rows.append(f"{one.run_id}  generation {run.generation}, {quantities.plural(len(run.tasks), 'task')}")
        for task in run.tasks:
            more = "" if task.pid is None else f", pid {task.pid}"
            if task.phase.is_gone and task.exit is not None:
                more = f": {task.exit.error}; the tasks that share its fate start again"
            rows.append(f"  {task.id} on {task.host}: {task.phase.value}{more}")
    rows += [f"{one.run_id}  not taken up: {one.why}" for one in others]
    return rows


def document(chosen: Sequence[Found], others: Sequence[Found]) -> list[dict[str, Any]]:
    """For `--json`."""
    return [
        {
            "run_id": one.run_id,
            "recovered": one in chosen,
            "why": one.why,
            "phase": one.phase,
            "lives_on": sorted(one.lives_on),
            "epoch": one.epoch,
            "generation": one.run.generation if one.run else None,
            "tasks": [
                {
                    "task": str(task.id),
                    "host": task.host,
                    "generation": task.generation,
                    "phase": task.phase.value,
                    "pid": task.pid,
                    "port": task.port,
                }
                for task in (one.run.tasks if one.run else ())
            ],
            "told": [
                {"task": str(told.task), "host": host, "generation": told.generation, "phase": told.phase}
                for host, told in one.reports
            ],
        }
        for one in [*chosen, *others]
    ]


@click.command()
@click.option("--hosts", "files", multiple=True, metavar="FILE", help="A cluster spec; its hosts are asked.")
@click.option("--yes", is_flag=True, help="Write the journal without asking.")
@click.option("--take-over", multiple=True, metavar="RUN", help="Even where another coordinator drives it.")
@click.option("--timeout", type=float, default=60.0, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def command(
    session: Session,
    files: tuple[str, ...],
    yes: bool,
    take_over: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Rebuild a lost or damaged journal from the hosts, and go on with what runs there.

    No task is touched, unless one is missing without which its peers cannot go on: that is shown before you agree.
    A run of which nothing lives is shown with how it ended, and not taken up. A journal that cannot be read is put
    aside, not removed. Values of secrets are taken from the specs.
    """
    from orchestrator.cli.handover import await_taken_up
    from orchestrator.cli.starting import ensure_coordinator

    trouble, ended = check_lost(session)
    if trouble:
        session.say(trouble)
    search, plans = look(Request(files, yes, take_over), session)
    failed = say_problems(session, search.answers)
    chosen, others = choose(search, take_over, ended)
    if not as_json:
        session.put("\n".join(shown(chosen, others)) or "no run was found")
    result: dict[str, Any] = {"schema": 1, "runs": document(chosen, others), "unasked": failed}
    if chosen or trouble:
        _ask(session, len(chosen), yes=yes)
        aside = rebuild(session, search, chosen, is_bad=trouble is not None)
        if aside is not None:
            session.say(f"the old journal is now {aside}")
        for run_id, names in keep_secrets(session, chosen, plans).items():
            session.say(
                f"{run_id}: the values of {', '.join(names)} are lost; a restart needs them: "
                "`--hosts` with the spec of that run, or `orch kill` and `orch up`"
            )
        began = session.now()
        new, _ = ensure_coordinator(session)
        done = await_taken_up(session, None, new, {}, began=began, timeout_s=timeout)
        result["handover"] = done.to_json()
        if not as_json:
            session.put(done.sentence)
    if as_json:
        session.put_json(result)
    if failed:
        raise SomeHostsOnly(
            f"not asked: {', '.join(failed)}", hint="what runs only there was not found; run this again then"
        )
    return 0


def _ask(session: Session, count: int, *, yes: bool) -> None:
    if yes:
        return
    if not is_somebody_there(session):
        raise Refused("nobody is there to ask; nothing was changed", hint="add --yes")
    what = (
        f"Take up {quantities.plural(count, 'run')} in a new journal?" if count else "Begin an empty journal?"
    )
    if not confirm(session, what):
        raise Refused("nothing was changed")

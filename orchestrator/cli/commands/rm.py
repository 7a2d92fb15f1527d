"""`orch rm`: remove ended runs with what they left on the hosts and here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from orchestrator.cli.commands.gc import on_hosts, remove, shown
from orchestrator.cli.help import orch_command
from orchestrator.cli.host_queries import asker, must_confirm, say_problems
from orchestrator.cli.orphans import here, known
from orchestrator.cli.run_choice import complete_run
from orchestrator.cli.session import Session
from orchestrator.client.choice import no_such_run
from orchestrator.core.errors import JournalError, Refused, SomeHostsOnly
from orchestrator.core.words import counted, listed, size

if TYPE_CHECKING:
    from orchestrator.core.state.run import Run


@orch_command(
    acts=True,
    about_runs=True,
    examples=[
        ("orch rm mnist-20261120-093005", "Remove one run, after a question"),
        ("orch rm typo --yes", "Remove all ended runs of a name, without a question"),
    ],
)
@click.argument("names", nargs=-1, required=True, metavar="NAME|RUN...", shell_complete=complete_run)
@click.option("--here", "only_here", is_flag=True, help="Remove them here alone; the hosts are not asked.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def command(session: Session, names: tuple[str, ...], only_here: bool, yes: bool) -> None:
    """Remove ended runs: their directories on the hosts, and their logs, curves, code and records here.

    A NAME means all ended runs of it. A run that goes on is refused. Checkpoints are never removed: `orch ckpt rm`
    removes those that it is told. A run stays while a host on which it was does not answer; exit code 4 then. With
    --here, what it left on hosts becomes an orphan, which `orch gc` finds.
    """
    runs, unread = _named(session, names)
    if unread and not only_here:
        run_id, error = next(iter(unread.items()))
        raise Refused(
            f"{run_id}: {error.message}", hint=f"`orch rm {run_id} --here` removes it without its hosts"
        )
    client = session.client()
    ask = asker(session)
    hosts = [host for run in runs.values() for host in run.plan.hosts]
    there, answers = on_hosts(ask, [] if only_here else hosts, runs.__contains__)
    failed = say_problems(session, answers)
    wanted = [*runs, *unread]
    places = {run_id: session.paths.run_dir(run_id) for run_id in wanted}
    what = "logs, curves and records"
    items = there + [
        here(session, run_id, what, "ended", path) for run_id, path in places.items() if os.path.isdir(path)
    ]
    if items:
        session.put(shown(items, session))
    pids = listed([f"{pid} on {item.host}" for item in there for pid in item.pids])
    end = f", and kill its processes (pid {pids})" if pids else ""
    if not yes:
        total = size(sum(item.bytes for item in items))
        question = f"Remove {counted(len(wanted), 'run')}, {total}{end}?"
        must_confirm(session, question, otherwise="nothing was removed")
    problems = remove(session, ask, there, (), known(session))
    stay = {item.run: f"{item.host}: {why}" for item, why in problems.items()}
    for run in runs.values():
        silent = [name for name in _places(run) if name in failed]
        stay |= {run.run_id: f"{listed(silent)} did not answer"} if silent else {}
    gone = []
    for run_id in (each for each in wanted if each not in stay):
        try:
            client.post(f"/v1/runs/{quote(run_id)}/forget", {})
            gone.append(run_id)
        except Refused as e:  # the others go
            stay[run_id] = f"{e.message}; {e.hint}"
    session.say(f"Removed {listed(gone)}" if gone else "Nothing removed")
    if stay:
        reasons = "; ".join(f"{run_id} is kept: {why}" for run_id, why in stay.items())
        raise SomeHostsOnly(reasons, hint="repeat it once they answer; for a host that never will: `--here`")


def _places(run: Run) -> list[str]:
    """Return the hosts on which the run was: those of its tasks, and spares that were reached, which have its code.

    A host that a person has said to be gone for good is none of them.
    """
    return [
        host.name for host in run.hosts if not host.gone and (not host.untouched or host.boot_id is not None)
    ]


def _named(session: Session, names: Sequence[str]) -> tuple[dict[str, Run], dict[str, JournalError]]:
    """Return the runs to remove, by id, and those whose records cannot be read, with why.

    Raises an error for a name without an ended run, and for a run that goes on.
    """
    from orchestrator.head.journal import reading

    found: dict[str, Run] = {}
    unread: dict[str, JournalError] = {}
    for name in names:
        before = len(unread)
        matching = [kept.run for kept in reading.everything(session.paths, name, unread.__setitem__)]
        ended = {run.run_id: run for run in matching if run.phase.is_terminal}
        if not matching and len(unread) == before and name not in unread:
            every = reading.everything(session.paths, None, lambda *_: None)
            raise no_such_run(name, [kept.run.plan.name for kept in every])
        if matching and not ended:
            run_id = matching[-1].run_id
            raise Refused(f"{run_id} goes on", hint=f"`orch kill {run_id}` ends it first")
        found |= ended
    return found, unread

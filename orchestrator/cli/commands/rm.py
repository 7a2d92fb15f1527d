"""`orch rm`: remove ended runs with what they left on the hosts and here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from orchestrator.cli.commands.gc import item_of, remove, shown
from orchestrator.cli.help import Command
from orchestrator.cli.host_queries import TIMEOUT_S, asker, must_confirm, say_problems
from orchestrator.cli.orphans import Item, here, known
from orchestrator.cli.run_choice import complete_run
from orchestrator.cli.session import Session
from orchestrator.client.choice import no_such_run
from orchestrator.core.errors import Refused, SomeHostsOnly
from orchestrator.core.words import counted, listed, size

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan
    from orchestrator.core.state.run import Run
    from orchestrator.head.links.query import Asker


@click.command(
    cls=Command,
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
@click.pass_obj
def command(session: Session, names: tuple[str, ...], only_here: bool, yes: bool) -> int:
    """Remove ended runs: their directories on the hosts, and their logs, curves, code and records here.

    A NAME means all ended runs of it. Runs that go on are refused. Checkpoints are never removed: `orch ckpt rm`
    removes those that it is told. A run stays while one of its hosts does not answer; exit code 4 then. With --here,
    what it left on hosts becomes an orphan, which `orch gc` finds.
    """
    runs = _named(session, names)
    client = session.client()
    ask = asker(session)
    there, unheard = ([], {}) if only_here else _on_hosts(session, ask, runs)
    places = {run_id: session.paths.run_dir(run_id) for run_id in runs}
    local = [
        here(session, run_id, "logs, curves and records", "ended", path)
        for run_id, path in places.items()
        if os.path.isdir(path)
    ]
    items = [*there, *local]
    alive = [item for item in there if item.pids]
    if alive:
        raise Refused(
            f"{alive[0].run} has processes on {alive[0].host}: pid {listed([str(pid) for pid in alive[0].pids])}",
            hint=f"`orch kill {alive[0].run}` ends them",
        )
    session.put(shown(items, session))
    total = size(sum(item.bytes for item in items))
    if not yes:
        must_confirm(
            session, f"Remove {counted(len(runs), 'run')}, {total}?", otherwise="nothing was removed"
        )
    problems = remove(session, ask, there, (), known(session))
    stay = {item.run: f"{item.host}: {why}" for item, why in problems.items()} | unheard
    gone = [run_id for run_id in runs if run_id not in stay]
    for run_id in gone:
        client.post(f"/v1/runs/{quote(run_id)}/forget", {})
    session.say(f"Removed {listed(gone)}" if gone else "Nothing removed")
    if stay:
        reasons = "; ".join(f"{run_id} is kept: {why}" for run_id, why in stay.items())
        raise SomeHostsOnly(reasons, hint="repeat it once they answer; for a host that never will: `--here`")
    return 0


def _named(session: Session, names: Sequence[str]) -> dict[str, Run]:
    """Return the runs to remove, by id. Raises an error if one is not there, or goes on."""
    from orchestrator.head.journal import archive, reading

    kept = [entry.run for entry in reading.peek(session.paths.journal).kept]
    ids = [run.run_id for run in kept]
    old = [run_id for run_id in archive.run_ids(session.paths) if run_id not in ids]
    kept += [entry.run for run_id in old if (entry := reading.archived(session.paths, run_id)) is not None]
    found: dict[str, Run] = {}
    for name in names:
        matching = [run for run in kept if name in (run.run_id, run.plan.name)]
        if not matching:
            raise no_such_run(name, [run.plan.name for run in kept])
        active = [run.run_id for run in matching if not run.phase.is_terminal]
        if active:
            raise Refused(f"{active[0]} goes on", hint=f"`orch kill {active[0]}` ends it first")
        found |= {run.run_id: run for run in matching}
    return found


def _on_hosts(session: Session, ask: Asker, runs: Mapping[str, Run]) -> tuple[list[Item], dict[str, str]]:
    """Return what the hosts have of the runs, and by run why a host of it could not be asked."""
    from orchestrator.protocol.orders.records import RUNS

    hosts: dict[tuple[object, ...], HostPlan] = {}
    for run in runs.values():
        hosts |= {(host.connection,): host for host in run.plan.hosts}
    answers = ask.ask([(host, [RUNS({"records": False})]) for host in hosts.values()], timeout_s=TIMEOUT_S)
    failed = say_problems(session, answers)
    items = {
        (answer.place, run["run"]): item_of(answer.host, run)
        for answer in answers
        for reply in answer.replies
        for run in (reply.ok["runs"] if reply.ok else ())
        if run["run"] in runs
    }
    unheard = {
        run_id: f"{host.name} did not answer"
        for run_id, run in runs.items()
        for host in run.plan.hosts
        if host.name in failed
    }
    return list(items.values()), unheard

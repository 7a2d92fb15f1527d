"""`orch gc`: find orphans, which are left by runs that the journal does not know, and remove them if confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.host_queries import TIMEOUT_S, asker, confirm, is_interactive, plans_of, say_problems
from orchestrator.cli.orphans import KEPT, Item, Known, code_line, find_here, known, look_in_jobs, remove_here
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.core.errors import Refused, SomeHostsOnly, UsageError
from orchestrator.core.plan import HostPlan
from orchestrator.core.words import counted, duration, size
from orchestrator.protocol.orders.driving import REMOVE, RUNS, KnownRun, KnownRuns

if TYPE_CHECKING:
    from orchestrator.head.links.query import Answer, Asker


def on_hosts(
    ask: Asker, hosts: Iterable[HostPlan], is_wanted: Callable[[str], bool]
) -> tuple[list[Item], list[Answer[KnownRuns]]]:
    """Return what these hosts have of the wanted runs. A machine with several names is asked once."""
    wanted = list({host.connection: host for host in hosts}.values())
    question = RUNS({"records": False})
    answers = ask.ask([(host, [question]) for host in wanted], timeout_s=TIMEOUT_S)
    items: dict[tuple[object, str], Item] = {}
    for answer in answers:
        for reply in answer.replies:
            for run in reply.ok["runs"] if reply.ok else ():
                if is_wanted(run["run"]):
                    items.setdefault((answer.place, run["run"]), item_of(answer.host, run))
    return list(items.values()), answers


def item_of(host: HostPlan, run: KnownRun) -> Item:
    """Return the orphan for what a run left on a host."""
    from orchestrator.head.links.ownership import owner_of

    pids, alive, claim = tuple(run["processes"]), run["alive"], run["claim"]
    what = "directory" if run["directory"] else "processes only"
    if run["directory"] and alive:
        what = f"directory, {len(pids)} process{'' if len(pids) == 1 else 'es'}"
    return Item(
        run=run["run"],
        host=host.name,
        what=what,
        state="driven" if run["driven"] else "alive" if alive else "dead",
        bytes=run["bytes"],
        age_s=run["age_s"],
        epoch=run["epoch"],
        pids=pids,
        owner=owner_of(claim) if claim is not None else None,
        plan=host,
    )


def may_go(
    items: Sequence[Item], even_alive: Sequence[str], even_checkpoints: Sequence[str], ours: Known
) -> list[Item]:
    """Return the items that a confirmation removes. Live items must be ours, or be named."""
    run_ids = {item.run for item in items}
    unknown = [run for run in (*even_alive, *even_checkpoints) if run not in run_ids]
    if unknown:
        raise UsageError(
            f"nothing found of {', '.join(unknown)}", hint="`orch gc --dry-run` lists the orphans"
        )
    named = {"driven": even_alive, "alive": even_alive, KEPT: even_checkpoints}
    return [
        item
        for item in items
        if item.run in named.get(item.state, ())
        or item.state not in named
        or (item.state == "alive" and ours.owns(item))
    ]


def remove(
    session: Session, ask: Asker, items: Sequence[Item], even_alive: Sequence[str], ours: Known
) -> dict[Item, str]:
    """Remove the items. Return why some could not be removed."""
    problems: dict[Item, str] = {}
    by_host: dict[HostPlan, list[Item]] = {}
    for item in items:
        if item.plan is not None:
            by_host.setdefault(item.plan, []).append(item)
            continue
        why = remove_here(session, item)
        if why is not None:
            problems[item] = why
    asked = [
        (
            host,
            [
                # If a coordinator adopts the run meanwhile, its epoch is higher than the one seen: this is refused.
                REMOVE(
                    {
                        "run": item.run,
                        "epoch": item.epoch,
                        "owner": ours.contents.owner_id,
                        "even_alive": item.run in even_alive,
                    }
                )
                for item in runs_there
            ],
        )
        for host, runs_there in by_host.items()
    ]
    for answer, runs_there in zip(ask.ask(asked, timeout_s=10 * TIMEOUT_S), by_host.values(), strict=True):
        if answer.problem is not None:
            problems.update(dict.fromkeys(runs_there, answer.problem.detail))
        for item, reply in zip(runs_there, answer.replies, strict=False):
            if reply.error is not None:
                problems[item] = reply.error["message"]
    return problems


def shown(items: Sequence[Item], session: Session) -> str:
    """Return the table for people."""
    if not items:
        return "No orphans found"
    rows = [("RUN", "HOST", "WHAT", "STATE", "OWNER", "SIZE", "LAST CHANGE")]
    for item in items:
        age = "-" if item.age_s is None else f"{duration(item.age_s)} ago"
        owner = str(item.owner) if item.owner is not None else "-"
        rows.append((item.run, item.host, item.what, item.state, owner, size(item.bytes), age))
    return "\n".join(table(rows, session.paint, right=frozenset({"SIZE"})))


@orch_command(
    acts=True,
    examples=[
        ("orch gc --dry-run", "List orphans on the hosts of all known runs"),
        ("orch gc --hosts cluster.yaml", "Look on the hosts of a spec, and ask before removing"),
        ("orch gc --even-alive mnist-20261120-093005 --yes", "End and remove a run that is still alive"),
    ],
)
@click.option(
    "--hosts",
    "files",
    multiple=True,
    metavar="FILE",
    help="Look on this spec's hosts. Default: hosts of known runs.",
)
@click.option(
    "--yes", is_flag=True, help="Remove without asking; runs that are alive only if --even-alive names them."
)
@click.option("--dry-run", is_flag=True, help="List the orphans only.")
@click.option(
    "--even-alive",
    multiple=True,
    metavar="RUN",
    help="Also end and remove this run, which is alive or driven. Without --yes its name must be typed again.",
)
@click.option(
    "--even-checkpoints",
    multiple=True,
    metavar="RUN",
    help="Also remove this ended run's checkpoints on the head node.",
)
@json_option()
def command(
    session: Session,
    files: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    even_alive: tuple[str, ...],
    even_checkpoints: tuple[str, ...],
) -> None:
    """Find orphans, which are left by runs that this head node does not know, and remove them after you confirm.

    Orphans are processes, directories, logs, code and checkpoints that were copied to this machine, and secrets of
    killed Slurm jobs. Runs that are alive, or were driven by a coordinator less than 15 minutes ago, are listed and
    left alone: only their owner removes them, unless --even-alive names them. The checkpoints of an ended run are left
    alone too, since the next `orch up` resumes from them. Processes are killed by orch's marker and their recorded
    identity only. Exit code 4 if a host did not answer, or answered with an error.
    """
    ours = known(session)
    plans = [plan for plan, _ in plans_of(files)]
    hosts = [host for plan in plans for host in plan.hosts] if files else ours.hosts
    left = look_in_jobs(session)
    if not hosts and not left:
        raise UsageError("no hosts to query", hint="name a cluster spec: `orch gc --hosts cluster.yaml`")
    if hosts and not ours.there:
        session.warn("no journal here, so every run is unknown; `orch recover` adopts those that are alive")
    ask = asker(session)
    items, answers = on_hosts(ask, hosts, lambda run: ours.is_orphan(run, even_alive))
    items += left + find_here(session, plans)
    failed = say_problems(session, answers)
    chosen = may_go(items, even_alive, even_checkpoints, ours)
    if not session.wants_json:
        session.put(shown(items, session))
    _say_spared(session, [item for item in items if item not in chosen])
    problems: dict[Item, str] = {}
    going = bool(chosen) and not dry_run and _agreed(session, chosen, even_alive, yes=yes)
    if going:
        problems = remove(session, ask, chosen, even_alive, ours)
    removed = [item for item in chosen if going and item not in problems]
    code = code_line(session, tidy=going)
    document = {
        "schema": 1,
        "found": [item.to_json() for item in items],
        "removed": [item.to_json() for item in removed],
        "problems": [{**item.to_json(), "why": why} for item, why in problems.items()],
        "unasked": failed,
    }
    session.answer(document)
    taken = size(sum(item.bytes for item in removed))
    done = [f"Removed {taken} in {counted(len(removed), 'place')}"] if removed else []
    for sentence in () if session.wants_json else filter(None, [*done, code]):
        session.say(sentence)
    if problems:
        reasons = "; ".join(f"{item.run} on {item.host}: {why}" for item, why in problems.items())
        raise Refused(f"could not remove {reasons}")
    if failed:
        raise SomeHostsOnly(f"could not query {', '.join(failed)}", hint="repeat `orch gc` once they answer")


def _say_spared(session: Session, spared: Sequence[Item]) -> None:
    for run in dict.fromkeys(item.run for item in spared if item.state == KEPT):
        session.say(
            f"{run}: checkpoints kept, the next `orch up` resumes from them; "
            f"`--even-checkpoints {run}` removes them"
        )
    for run in dict.fromkeys(item.run for item in spared if item.state != KEPT):
        states = {item.state for item in spared if item.run == run}
        owners = sorted({str(item.owner or "an unknown owner") for item in spared if item.run == run})
        why = "driven by" if "driven" in states else "alive, and of"
        session.say(
            f"{run}: left alone, it is {why} {', '.join(owners)}; `--even-alive {run}` ends and removes it"
        )


def _agreed(session: Session, chosen: Sequence[Item], even_alive: Sequence[str], *, yes: bool) -> bool:
    if yes:
        return True
    if not is_interactive(session):
        session.say("Nothing removed: no terminal to confirm on; add --yes")
        return False
    living = ", ".join(f"{pid} on {item.host}" for item in chosen for pid in item.pids)
    end = f", and kill its processes (pid {living})" if living else ""
    named = {item.run for item in chosen if item.state in ("driven", "alive") and item.run in even_alive}
    if all(
        confirm(session, f"{run} is alive. End and remove it?", word=run) for run in sorted(named)
    ) and confirm(session, f"Remove {size(sum(item.bytes for item in chosen))}{end}?"):
        return True
    session.say("Nothing removed")
    return False

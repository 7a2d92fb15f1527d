"""`orch gc`: finds what is left of runs that no coordinator of ours knows, and removes what the user confirms."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from orchestrator.adapters.runlogs import RunLogs
from orchestrator.cli import quantities, render
from orchestrator.cli.asking import TIMEOUT_S, asker, confirm, is_somebody_there, plans_of, say_problems
from orchestrator.cli.session import Session
from orchestrator.core.errors import JournalError, Refused, SomeHostsOnly, UsageError
from orchestrator.daemon.agent_runs import RECENT_S

if TYPE_CHECKING:
    from orchestrator.adapters.journal import Kept
    from orchestrator.core.plan import HostPlan
    from orchestrator.daemon.asking import Answer, Asker

HERE = "(this machine)"
"""The host of what lies in our own state directory."""

LOOK = {"order": "runs"}


@dataclass(frozen=True, slots=True)
class Item:
    """What is left of one run in one place."""

    run: str
    host: str
    what: str
    state: str
    """`dead`; `alive`: it has processes, and nobody watches them; `driven`: by a coordinator, now or until lately."""
    bytes: int = 0
    age_s: float | None = None
    epoch: int = 0
    pids: tuple[int, ...] = ()
    plan: HostPlan | None = None

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "run": self.run,
            "host": self.host,
            "what": self.what,
            "state": self.state,
            "bytes": self.bytes,
            "age_s": None if self.age_s is None else round(self.age_s, 1),
            "pids": list(self.pids),
        }


@dataclass(frozen=True, slots=True)
class Known:
    """What our journal knows. `there`: there is one."""

    kept: tuple[Kept, ...]
    there: bool

    @property
    def run_ids(self) -> frozenset[str]:
        """Every run, ended or not: of the ended ones the hosts keep the newest for their logs."""
        return frozenset(one.run.run_id for one in self.kept)

    @property
    def hosts(self) -> list[HostPlan]:
        """Of all its runs."""
        return [host for one in self.kept for host in one.run.plan.hosts]


def known(session: Session) -> Known:
    """Refused where the journal cannot be read: what it knows would be taken for nobody's."""
    from orchestrator.adapters.journal import peek

    path = session.paths.journal
    try:
        return Known(tuple(peek(path)), os.path.exists(path))
    except JournalError as e:
        raise Refused(f"which runs are ours cannot be told: {e.message}", hint=e.hint) from e


def look(ask: Asker, hosts: Iterable[HostPlan], ours: Known) -> tuple[list[Item], list[Answer]]:
    """What is on these hosts of runs that are not ours; each place once, whatever its names."""
    from orchestrator.daemon.switchboard import connection_of

    wanted = list({connection_of(host): host for host in hosts}.values())
    answers = ask.ask([(host, [LOOK]) for host in wanted], timeout_s=TIMEOUT_S)
    items: dict[tuple[object, str], Item] = {}
    for answer in answers:
        for reply in answer.replies:
            for told in (reply.get("ok") or {}).get("runs", ()):
                if told["run"] not in ours.run_ids:
                    items.setdefault((answer.place, told["run"]), _item(answer.host, told))
    return list(items.values()), answers


def _item(host: HostPlan, told: Mapping[str, Any]) -> Item:
    pids = tuple(told["processes"])
    alive = bool(told.get("alive", True))
    ago_s = told.get("watched_ago_s")
    driven = told.get("watched") or (alive and ago_s is not None and ago_s < RECENT_S)
    what = "directory" if told["directory"] else "processes only"
    if told["directory"] and alive:
        what = f"directory, {len(pids)} of its processes"
    return Item(
        run=str(told["run"]),
        host=host.name,
        what=what,
        state="driven" if driven else "alive" if alive else "dead",
        bytes=int(told["bytes"]),
        age_s=told.get("age_s"),
        epoch=int(told.get("epoch") or 0),
        pids=pids,
        plan=host,
    )


def look_here(session: Session) -> list[Item]:
    """Run directories (logs) in our state directory that the journal knows no more.

    The journal is asked last: a run that began while the hosts were asked is not taken for nobody's.
    """
    there = RunLogs(session.paths.state_dir).runs()
    ours = known(session)
    if not ours.there:
        return []
    found = []
    for run_id in there:
        if run_id not in ours.run_ids:
            directory = session.paths.run_dir(run_id)
            size, newest = _measure(directory)
            found.append(Item(run_id, HERE, "logs", "dead", size, max(0.0, session.time() - newest)))
    return found


def _measure(directory: str) -> tuple[int, float]:
    size, newest = 0, 0.0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                found = os.lstat(os.path.join(place, name))
            except FileNotFoundError:
                continue
            size, newest = size + found.st_blocks * 512, max(newest, found.st_mtime)
    return size, newest


def may_go(items: Sequence[Item], even_alive: Sequence[str], ours: Known) -> list[Item]:
    """Those that a yes removes. Without a journal of ours, nothing that lives: it may well be ours."""
    unknown = [run for run in even_alive if run not in {item.run for item in items}]
    if unknown:
        raise UsageError(f"nothing was found of {', '.join(unknown)}", hint="`orch gc` shows what there is")
    refused = ("driven",) if ours.there else ("driven", "alive")
    return [item for item in items if item.run in even_alive or item.state not in refused]


def remove(session: Session, ask: Asker, items: Sequence[Item], even_alive: Sequence[str]) -> dict[Item, str]:
    """Remove them; of those that could not be, why."""
    problems: dict[Item, str] = {}
    by_host: dict[HostPlan, list[Item]] = {}
    for item in items:
        if item.plan is not None:
            by_host.setdefault(item.plan, []).append(item)
            continue
        try:
            shutil.rmtree(session.paths.run_dir(item.run))
        except OSError as e:
            problems[item] = f"{e.filename}: {e.strerror}"
    asked = [(host, [_order(item, even_alive) for item in of]) for host, of in by_host.items()]
    for answer, of in zip(ask.ask(asked, timeout_s=10 * TIMEOUT_S), by_host.values(), strict=True):
        if answer.problem is not None:
            problems.update(dict.fromkeys(of, answer.problem.detail))
        for item, reply in zip(of, answer.replies, strict=False):
            if reply.get("error"):
                problems[item] = str(reply["error"]["message"])
    return problems


def _order(item: Item, even_alive: Sequence[str]) -> dict[str, Any]:
    # The epoch that was seen: a coordinator that takes the run meanwhile has a higher one, and this is refused.
    return {"order": "remove", "run": item.run, "epoch": item.epoch, "even_driven": item.run in even_alive}


def shown(items: Sequence[Item], session: Session) -> str:
    """For people."""
    if not items:
        return "nothing was found: every run that these hosts remember is known here"
    rows = [("RUN", "HOST", "WHAT", "STATE", "SIZE", "UNCHANGED FOR")]
    for item in items:
        age = "-" if item.age_s is None else quantities.duration(item.age_s)
        rows.append((item.run, item.host, item.what, item.state, quantities.size(item.bytes), age))
    return "\n".join(render.table(rows, session.paint, right=frozenset({"SIZE"})))


@click.command()
@click.option(
    "--hosts", "files", multiple=True, metavar="FILE", help="A cluster spec; else all hosts of known runs."
)
@click.option("--yes", is_flag=True, help="Remove what is shown without asking.")
@click.option("--dry-run", is_flag=True, help="Show it only.")
@click.option(
    "--even-alive", multiple=True, metavar="RUN", help="Even this run, which somebody drives, or may."
)
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def command(
    session: Session,
    files: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    even_alive: tuple[str, ...],
    as_json: bool,
) -> int:
    """Find what is left of runs that this head node does not know, and remove what you confirm.

    Processes, directories, logs. What another head node drives is shown and left alone. Processes are killed by
    marker and recorded identity only.
    """
    ours = known(session)
    hosts = [host for plan, _ in plans_of(files) for host in plan.hosts] if files else ours.hosts
    if not hosts:
        raise UsageError("which hosts are to be asked?", hint="name a cluster spec: --hosts cluster.yaml")
    if not ours.there:
        session.say(
            "there is no journal here, so every run is unknown; `orch recover` takes up those that live"
        )
    ask = asker(session)
    items, answers = look(ask, hosts, ours)
    items += look_here(session)
    failed = say_problems(session, answers)
    chosen = may_go(items, even_alive, ours)
    if not as_json:
        session.put(shown(items, session))
    _say_spared(session, [item for item in items if item not in chosen])
    problems: dict[Item, str] = {}
    going = bool(chosen) and not dry_run and _agreed(session, chosen, yes=yes)
    if going:
        problems = remove(session, ask, chosen, even_alive)
    removed = [item for item in chosen if going and item not in problems]
    if as_json:
        session.put_json(
            {
                "schema": 1,
                "found": [item.to_json() for item in items],
                "removed": [item.to_json() for item in removed],
                "problems": [{**item.to_json(), "why": why} for item, why in problems.items()],
                "unasked": failed,
            }
        )
    elif removed:
        session.say(
            f"removed: {quantities.size(sum(item.bytes for item in removed))} in {len(removed)} places"
        )
    return _end(problems, failed)


def _say_spared(session: Session, spared: Sequence[Item]) -> None:
    for run in dict.fromkeys(item.run for item in spared):
        states = {item.state for item in spared if item.run == run}
        why = "driven by another head node" if "driven" in states else "alive"
        session.say(f"{run} is {why} and is left alone; `--even-alive {run}` ends and removes it")


def _agreed(session: Session, chosen: Sequence[Item], *, yes: bool) -> bool:
    if yes:
        return True
    if not is_somebody_there(session):
        session.say("nothing was removed: nobody is there to ask; add --yes")
        return False
    living = ", ".join(f"{pid} on {item.host}" for item in chosen for pid in item.pids)
    end = f", and kill what lives of it (pids: {living})" if living else ""
    if confirm(session, f"Remove {quantities.size(sum(item.bytes for item in chosen))}{end}?"):
        return True
    session.say("nothing was removed")
    return False


def _end(problems: Mapping[Item, str], failed: Sequence[str]) -> int:
    if problems:
        told = "; ".join(f"{item.run} on {item.host}: {why}" for item, why in problems.items())
        raise Refused(f"not removed: {told}")
    if failed:
        raise SomeHostsOnly(f"not asked: {', '.join(failed)}")
    return 0

"""`orch ckpt`: what checkpoints a run has, which reads whole; to keep one, and to go back to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.quantities import duration, plural, size
from orchestrator.cli.render import is_active, table
from orchestrator.cli.run_choice import find, no_such_run, run_argument, runs_of
from orchestrator.cli.session import Session
from orchestrator.core.errors import OrchestratorError

_TIMEOUT_S = 660.0
_COLUMNS = ("GEN", "STEP", "SIZE", "WRITTEN", "BY", "READS WHOLE", "", "NAME")

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be done to which checkpoint of which run. `name` None: the active run, else the newest."""

    verb: str
    name: str | None
    checkpoint: str | None = None
    restart: bool = False


def run(request: Request, session: Session) -> dict[str, Any]:
    """The coordinator's answer."""
    client = session.client()
    runs = runs_of(client)
    if request.name is not None:
        chosen = find(runs, request.name)
    elif runs:
        chosen = ([found for found in runs if is_active(found)] or runs)[-1]
    else:
        raise no_such_run("", [])
    path = f"/v1/runs/{chosen['run_id']}/checkpoints"
    if request.verb == "list":
        return client.get(path, timeout_s=_TIMEOUT_S)
    body = {"checkpoint": request.checkpoint, "restart": request.restart}
    return client.post(f"{path}/{request.verb}", body, timeout_s=_TIMEOUT_S)


def listing(answer: Document, session: Session) -> str:
    """A line for each, newest generation first; what a new generation would start from is marked."""
    rows = [list(_COLUMNS)]
    styles: dict[tuple[int, int], tuple[str, ...]] = {(0, x): ("bold",) for x in range(len(_COLUMNS))}
    for y, found in enumerate(answer["checkpoints"], start=1):
        rows.append(_row(found, found["name"] == answer["newest"], session.time()))
        if found["whole"] is False:
            styles[y, 5] = ("red",)
        elif found["verified_at"] is not None:
            styles[y, 5] = ("green",)
    return "\n".join(table(rows, session.paint, right=frozenset({"GEN", "STEP", "SIZE"}), styles=styles))


def _row(found: Document, is_newest: bool, now: float) -> list[str]:
    notes = ["newest"] if is_newest else []
    notes += ["pinned"] if found["pinned"] else []
    notes += ["on the head"] if found.get("pulled") else []
    notes += ["set aside"] if found["set_aside"] else []
    by = found.get("by") or {}
    step, generation = found["global_step"], found["generation"]
    return [
        "-" if generation is None else str(generation),
        "-" if step is None else str(step),
        size(found["bytes"]),
        f"{duration(max(0.0, now - found['saved_at']))} ago",
        "given to it" if found["given"] else f"{by['task']} on {by['host']}" if by else "-",
        _wholeness(found, now),
        ", ".join(notes),
        str(found["name"]),
    ]


def _wholeness(found: Document, now: float) -> str:
    if found["whole"] is False:
        return f"no: {found['why']}"
    if found["verified_at"] is None:
        return "not read yet"
    return f"yes, read {duration(max(0.0, now - found['verified_at']))} ago"


def _newest(answer: Document) -> Document | None:
    return next((found for found in answer["checkpoints"] if found["name"] == answer["newest"]), None)


@click.group()
def command() -> None:
    """The checkpoints of a run: list and verify them, keep one for good, go back to one.

    A checkpoint is named by its global step (120), its generation (gen-5), or as `orch ckpt ls` shows it.
    """


@command.command(short_help="What there is, and what is known of it.")
@run_argument()
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def ls(session: Session, name: str | None, as_json: bool) -> int:
    """What there is, by whom and when written, and what is known of it."""
    _show(run(Request("list", name), session), session, as_json=as_json)
    return 0


@command.command()
@run_argument()
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def verify(session: Session, name: str | None, as_json: bool) -> int:
    """Read all of them now, every byte. Exit 1 where the newest does not read whole."""
    session.say("reading every checkpoint; the training goes on")
    answer = run(Request("read", name), session)
    _show(answer, session, as_json=as_json)
    newest = _newest(answer)
    if newest is None:
        raise OrchestratorError(f"{answer['run_id']} has no checkpoint that could be resumed from")
    if not newest["whole"]:
        raise OrchestratorError(
            f"the newest checkpoint does not read whole: {newest['name']}: {newest['why']}",
            hint="a restart takes the one before it, by itself",
        )
    return 0


@command.command(short_help="Go back to one; newer ones are set aside.")
@run_argument()
@click.option("--to", "checkpoint", required=True, help="A global step, gen-N, or a name of `orch ckpt ls`.")
@click.option("--restart", is_flag=True, help="Of an active run: stop its tasks, and go on from there.")
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def rollback(session: Session, name: str | None, checkpoint: str, restart: bool, as_json: bool) -> int:
    """Go back: the next generation starts from that checkpoint, and everything newer is set aside.

    Nothing is removed: going back to what was set aside brings it in again. Exit 6 where the run is active and
    --restart is not given.
    """
    answer = run(Request("rollback", name, checkpoint, restart), session)
    if as_json:
        session.put_json(answer)
        return 0
    found = answer["checkpoint"]
    aside = answer["set_aside"]
    what = f"; set aside: generation {', '.join(map(str, aside))}" if aside else ""
    then = "its tasks start again from it now" if answer["active"] else "the next `orch up` starts from it"
    session.put(f"{answer['run_id']}: back to step {found['global_step']} ({found['name']}){what}; {then}")
    session.say("it is pinned, so that it stays: `orch ckpt unpin` lets it go")
    return 0


@command.command(short_help="Keep one for good.")
@click.argument("name")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def pin(session: Session, name: str, checkpoint: str, as_json: bool) -> int:
    """Keep one for good: neither `keep` nor the script that saves its newest few removes it."""
    return _pinned("pin", session, name, checkpoint, as_json=as_json)


@command.command()
@click.argument("name")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def unpin(session: Session, name: str, checkpoint: str, as_json: bool) -> int:
    """Keep it no longer than the others."""
    return _pinned("unpin", session, name, checkpoint, as_json=as_json)


def _pinned(verb: str, session: Session, name: str, checkpoint: str, *, as_json: bool) -> int:
    answer = run(Request(verb, name, checkpoint), session)
    if as_json:
        session.put_json(answer)
        return 0
    found = answer["checkpoint"]
    done = (
        "was pinned already"
        if answer.get("already")
        else "is pinned"
        if verb == "pin"
        else "is pinned no more"
    )
    session.put(f"step {found['global_step']} of generation {found['generation']} ({found['name']}) {done}")
    return 0


def _show(answer: Document, session: Session, *, as_json: bool) -> None:
    if as_json:
        session.put_json({"schema": 1, **answer})
        return
    found = answer["checkpoints"]
    session.say(
        f"{answer['run_id']}: {plural(len(found), 'checkpoint')} in {answer['dir']} on {answer['host']}"
    )
    if found:
        session.put(listing(answer, session))

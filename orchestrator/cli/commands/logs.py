"""`orch logs`: what the tasks print. Read from the head's disk, so it works without a coordinator too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from orchestrator.adapters.head.runlogs import LogLine, RunLogs, run_name
from orchestrator.cli import render
from orchestrator.cli.log_lines import LogPainter, document
from orchestrator.cli.run_choice import no_such_run, run_argument, status_of
from orchestrator.cli.session import Session
from orchestrator.cli.watching import wait_for_the_last_lines
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, UsageError
from orchestrator.core.plan import TaskId
from orchestrator.spec.durations import parse_duration

_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """Which run (None: the newest), which task (None: all), and which part."""

    name: str | None
    task: str | None
    follow: bool = False
    since: float | None = None
    """Unix time."""
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Lines that may still be coming."""

    run_id: str
    tasks: tuple[str, ...]
    first_cause: dict[str, Any] | None
    lines: Iterator[LogLine]


def run(request: Request, session: Session) -> Result:
    """Choose the run, and begin to read."""
    logs = RunLogs(session.paths.state_dir)
    name, task = _name_and_task(request)
    run_id = logs.newest(name)
    if run_id is None:
        known = [run_name(found) for found in logs.runs()]
        if name is None:
            raise OrchestratorError("no run has left a log here", hint="`orch up FILE` starts one")
        raise no_such_run(name, known)
    present = logs.tasks(run_id)
    if task is not None and present and task not in present:
        raise UsageError(f"{run_id} has no log of {task}", hint=f"there are: {', '.join(present)}")
    tasks = None if task is None else [task]
    if request.follow:
        lines = logs.follow(
            run_id,
            tasks,
            since=request.since,
            tail=request.tail,
            pause=_pause_until_end(session, logs, run_id),
        )
    else:
        lines = logs.read(run_id, tasks, since=request.since, tail=request.tail)
    shown = tuple(present if task is None else [task])
    return Result(run_id, shown, logs.first_cause(run_id), lines)


def _name_and_task(request: Request) -> tuple[str | None, str | None]:
    """`orch logs worker:0` names a task of the newest run: no run's name has a colon."""
    name, task = request.name, request.task
    if name is not None and task is None and ":" in name:
        name, task = None, name
    if task is not None:
        try:
            TaskId.parse(task)
        except ValueError as e:
            raise UsageError(str(e)) from e
    return name, task


def _pause_until_end(session: Session, logs: RunLogs, run_id: str) -> Callable[[], bool]:
    """For `follow`: waits, and looks whether the run has ended. A coordinator that is away ends nothing."""
    client = session.client()
    said = False
    chosen = {"name": run_name(run_id), "run_id": run_id}

    def pause() -> bool:
        nonlocal said
        try:
            seen = status_of(client, chosen)
            going, said = render.is_active(seen), False
            if not going:
                wait_for_the_last_lines(session, logs, seen)
                return False
        except CoordinatorUnreachable as e:
            if not said:
                session.say(f"{e}: what the tasks print now comes when it is back")
                said = True
            going = True
        except UsageError:  # so old that the coordinator has forgotten it
            going = False
        session.pause(_LOOK_EVERY_S)
        return going

    return pause


def parse_since(text: str, now: float) -> float:
    """`5m` ago, or an ISO 8601 time (local where it names no zone), as Unix time."""
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"--since {text!r} is neither a duration nor a time",
            hint="5m means the last five minutes; a time reads like 2026-11-20T12:00:00",
        ) from None


@click.command()
@run_argument()
@click.argument("task", required=False)
@click.option("-f", "--follow", is_flag=True, help="Show what comes, until the run ends.")
@click.option("--since", metavar="DURATION|TIME", help="Only what is newer, such as 5m.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Endless lines in full, on a terminal too.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
@click.pass_obj
def command(
    session: Session,
    name: str | None,
    task: str | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    raw: bool,
    as_json: bool,
) -> int:
    """Show what the tasks of a run print, merged by time. Without a NAME: of the newest run.

    TASK reads like worker:0. When tasks have died, the first cause is said first.
    """
    since_time = None if since is None else parse_since(since, session.time())
    result = run(Request(name, task, follow, since_time, tail), session)
    if as_json:
        for line in result.lines:
            session.put_json(document(line, result.run_id), indent=None)
        return 0
    if result.first_cause:
        # Talk, not data: the lines themselves are below, in their place.
        session.say(render.first_cause(result.first_cause, session.paint_err) + "\n")
    painter = LogPainter(session.paint, result.tasks, columns=None if raw else session.width)
    for line in result.lines:
        session.put(painter.line(line))
    return 0

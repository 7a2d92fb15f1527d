"""`orch logs`: show the output of the tasks. It is read from the head node's disk, so no coordinator is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from orchestrator.adapters.head.runlogs import LogLine, RunLogs, run_name
from orchestrator.cli import render
from orchestrator.cli.help import Command
from orchestrator.cli.log_lines import LogPainter, document
from orchestrator.cli.run_choice import (
    START_ONE,
    complete_task,
    name_and_task,
    no_such_run,
    run_argument,
    status_of,
)
from orchestrator.cli.session import Session
from orchestrator.cli.watching import wait_for_the_last_lines
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, UsageError
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
    """The lines; with `follow` the iterator waits for more."""

    run_id: str
    tasks: tuple[str, ...]
    first_cause: dict[str, Any] | None
    lines: Iterator[LogLine]


def run(request: Request, session: Session) -> Result:
    """Choose the run, and start to read."""
    logs = RunLogs(session.paths.state_dir)
    name, task = name_and_task(request.name, request.task)
    run_id = logs.newest(name)
    if run_id is None:
        known = [run_name(found) for found in logs.runs()]
        if name is None:
            raise OrchestratorError("there are no runs yet", hint=START_ONE)
        raise no_such_run(name, known)
    present = logs.tasks(run_id)
    if task is not None and present and task not in present:
        raise UsageError(f"{run_id} has no log of {task}", hint=f"its tasks: {', '.join(present)}")
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


def _pause_until_end(session: Session, logs: RunLogs, run_id: str) -> Callable[[], bool]:
    """Return the pause of `follow`: it waits, and says whether the run continues. Without a coordinator it does."""
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
                session.say(f"{e}; new output arrives once a coordinator is running again")
                said = True
            going = True
        except UsageError:  # an old run that the coordinator no longer knows
            going = False
        session.pause(_LOOK_EVERY_S)
        return going

    return pause


def parse_since(text: str, now: float) -> float:
    """Parse `5m` (ago), or an ISO 8601 time (local where it has no zone), to Unix time."""
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(
            f"--since {text!r} is neither a duration nor a time",
            hint="examples: 5m (the last five minutes), 2026-11-20T12:00:00",
        ) from None


@click.command(
    cls=Command,
    examples=[
        ("orch logs --follow", "Follow the newest run until it ends"),
        ("orch logs mnist worker:1 --since 5m", "Show the last five minutes of one task"),
        ("orch logs worker:0 --tail 100", "Show the last 100 lines of a task of the newest run"),
    ],
)
@run_argument()
@click.argument("task", required=False, shell_complete=complete_task)
@click.option("-f", "--follow", is_flag=True, help="Show new lines too, until the run ends.")
@click.option("--since", metavar="DURATION|TIME", help="Only newer lines, for example of the last 5m.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="Do not cut very long lines on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
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
    """Show the output of a run's tasks, merged by time. Without NAME: the newest run.

    TASK reads like worker:0; without it, all tasks. If the run has failed or restarted, the first cause comes first.
    """
    since_time = None if since is None else parse_since(since, session.time())
    result = run(Request(name, task, follow, since_time, tail), session)
    if as_json:
        for line in result.lines:
            session.put_json(document(line, result.run_id), indent=None)
        return 0
    if result.first_cause:
        # On stderr: on stdout it is among the lines, at its time.
        session.say(render.first_cause(result.first_cause, session.paint_err) + "\n")
    painter = LogPainter(session.paint, result.tasks, columns=None if raw else session.width)
    for line in result.lines:
        session.put(painter.line(line))
    return 0

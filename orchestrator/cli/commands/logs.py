"""`orch logs`: show the output of the tasks, from the head node's disk, without a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import (
    complete_logged_host,
    complete_logged_task,
    name_and_task,
    run_argument,
)
from orchestrator.cli.session import Session
from orchestrator.cli.show import render
from orchestrator.cli.show.log_folding import WITHIN_S, Folder, GrpcFolder
from orchestrator.cli.show.log_lines import LogPainter, Stamps
from orchestrator.cli.show.times import parse_since, shown
from orchestrator.client.log_reading import LogRequest, document, read, why_none
from orchestrator.client.log_selection import select
from orchestrator.core.errors import UsageError
from orchestrator.head.records.log_file import LogLine
from orchestrator.reporting.log_level import LEVELS


def _several(option: str, name: str, help: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(option, name, multiple=True, help=f"{help} May be repeated.", **more)


@orch_command(
    about_runs=True,
    examples=[
        ("orch logs --follow", "Follow the newest run until it ends"),
        ("orch logs mnist worker:1 --since 5m", "Show the last five minutes of one task"),
        ("orch logs mnist --since 03:17 --timestamps", "Show what was printed from 03:17 on, with times"),
        ("orch logs mnist --generation 2 --level warning --fold", "Show warnings; those of all workers once"),
        ("orch logs mnist --host gpu-b --grep 'loss: [0-9.]+'", "Show some lines of the tasks of one host"),
    ],
)
@run_argument()
@click.argument("task", required=False, shell_complete=complete_logged_task)
@click.option("-f", "--follow", is_flag=True, help="Show new lines too, until the run ends.")
@click.option("--since", metavar="DURATION|TIME", help="Only newer lines: of the last 5m, or from 03:17 on.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("-t", "--timestamps", is_flag=True, help="Begin lines with their time: local, with the zone.")
@click.option("--utc", is_flag=True, help="Read and print times as UTC.")
@click.option("--grep", metavar="REGEX", help="Only lines in which this is found.")
@_several("--task", "tasks", "Only lines of this task.", metavar="TASK", shell_complete=complete_logged_task)
@_several(
    "--host",
    "hosts",
    "Only lines of tasks on this host.",
    metavar="HOST",
    shell_complete=complete_logged_host,
)
@_several(
    "--generation", "generations", "Only lines of this generation.", metavar="N", type=click.IntRange(min=1)
)
@click.option("--level", type=click.Choice(LEVELS), help="Only lines of this level, or more serious ones.")
@click.option("--fold", is_flag=True, help="Show equal lines of several tasks once, with their number: ×4.")
@click.option("--raw", is_flag=True, help="Show all lines whole, and all that gRPC repeats.")
@json_option("Print JSON lines. Their times are UTC.")
def command(
    session: Session,
    name: str | None,
    task: str | None,
    follow: bool,
    since: str | None,
    tail: int | None,
    timestamps: bool,
    utc: bool,
    grep: str | None,
    tasks: tuple[str, ...],
    hosts: tuple[str, ...],
    generations: tuple[int, ...],
    level: str | None,
    fold: bool,
    raw: bool,
) -> None:
    """Show the output of a run's tasks, merged by time. Without NAME: the newest run.

    TASK reads like worker:0; without it, all tasks. If the run has failed or restarted, the first cause comes first.
    Times are by the clock of the head node.
    """
    if session.wants_json and fold:
        raise UsageError("--json prints every line; leave out --fold")
    name, task = name_and_task(name, task)
    chosen = tuple(
        dict.fromkeys([*((task,) if task else ()), *(str(name_and_task(None, it)[1]) for it in tasks)])
    )
    request = LogRequest(
        name,
        chosen,
        follow,
        None if since is None else parse_since(since, session.time(), utc=utc),
        tail,
        select(grep, generations, hosts, level),
    )
    if session.wants_json:
        result = read(request, session)
        for line in result.lines:
            session.put_json(document(line, result.run_id), indent=None)
        return
    stamps = (lambda at: shown(at, utc=utc, milliseconds=True)) if timestamps else None
    columns = None if raw else session.width
    _put(request, session, stamps, columns=columns, fold=fold, whole=raw or grep is not None)


def _put(
    request: LogRequest,
    session: Session,
    stamps: Stamps | None,
    *,
    columns: int | None,
    fold: bool,
    whole: bool,
) -> None:
    """Print the lines, or why there are none. `whole`: also repeated lines of gRPC, as in a pipe."""
    count = 0

    def put(line: LogLine, tasks: int = 1) -> None:
        nonlocal count
        separator = painter.separator(line)
        if separator is not None:
            session.put(separator)
        session.put(painter.line(line, tasks))
        count += 1

    folder = Folder(put)

    whole = whole or not (session.out_is_terminal or request.follow)
    bursts = GrpcFolder(folder.add if fold else put)
    take = bursts.add if not whole else folder.add if fold else put

    def flush() -> None:
        bursts.flush(session.time())
        folder.flush(session.time() - WITHIN_S)

    result = read(replace(request, on_idle=flush), session)
    if result.first_cause:
        # On stderr: on stdout it is among the lines, at its time.
        session.say(render.first_cause(result.first_cause, session.paint_err) + "\n")
    painter = LogPainter(session.paint, result.tasks, columns=columns, stamps=stamps)
    if request.follow and not result.tasks:
        session.say(why_none(session, result.run_id))
    for line in result.lines:
        take(line)
    bursts.flush()
    folder.flush()
    if not count and request.tail != 0:
        session.say(why_none(session, result.run_id))

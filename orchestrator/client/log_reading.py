"""Reads the output of a run's tasks from the head node's disk, without a coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from orchestrator.client.choice import START_ONE, is_active, no_such_run, status_of, to_read
from orchestrator.client.environment import Environment
from orchestrator.client.log_selection import EVERYTHING, Selection
from orchestrator.client.waiting import wait_for_the_last_lines
from orchestrator.core.errors import CoordinatorUnreachable, JobNotRunning, OrchestratorError, UsageError
from orchestrator.head.records.log_file import OWN, LogLine
from orchestrator.head.records.runlogs import RunLogs, run_name

_POLL_EVERY_S = 0.25
_STREAMS = {"o": "stdout", "e": "stderr", "g": "gap", OWN: "orch"}


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The run (None: the newest), the tasks (empty: all), and the part of the output to read."""

    name: str | None
    tasks: Sequence[str] = ()
    follow: bool = False
    since: float | None = None
    """Unix time."""
    tail: int | None = None
    selection: Selection = EVERYTHING
    on_idle: Callable[[], None] = lambda: None
    """With `follow`: called when all present lines have been read."""


@dataclass(frozen=True, slots=True)
class Result:
    """The lines. With `follow` the iterator waits for more."""

    run_id: str
    tasks: tuple[str, ...]
    first_cause: dict[str, Any] | None
    lines: Iterator[LogLine]


def known_run(logs: RunLogs, name: str | None) -> str:
    """Return the id of the newest run with logs on the disk, or of the newest one with that name."""
    run_id = logs.newest(name)
    if run_id is None and name is None:
        raise OrchestratorError("there are no runs yet", hint=START_ONE)
    if run_id is None:
        raise no_such_run(str(name), [run_name(known_id) for known_id in logs.runs()])
    return run_id


def _chosen(logs: RunLogs, environment: Environment, name: str | None) -> str:
    """Return the id of the run, which may have no logs on the disk yet."""
    try:
        return known_run(logs, name)
    except OrchestratorError:
        try:
            return str(to_read(environment.client(), name)["run_id"])
        except OrchestratorError:
            pass
        raise


def read(request: LogRequest, environment: Environment) -> Result:
    """Choose the run, and begin to read."""
    logs = RunLogs(environment.paths.state_dir)
    run_id = _chosen(logs, environment, request.name)
    present = logs.tasks(run_id)
    for task in request.tasks:
        if present and task not in present:
            raise UsageError(f"{run_id} has no log of {task}", hint=f"its tasks: {', '.join(present)}")
    if not request.follow:
        known = logs.hosts(run_id) if request.selection.hosts else []
        for host in request.selection.hosts:
            if known and host not in known:
                raise UsageError(f"{run_id} has no log of {host}", hint=f"its hosts: {', '.join(known)}")
    lines = _lines(request, environment, logs, run_id)
    return Result(run_id, tuple(request.tasks or present), logs.first_cause(run_id), lines)


def _lines(request: LogRequest, environment: Environment, logs: RunLogs, run_id: str) -> Iterator[LogLine]:
    """Yield the lines of `request`. Its `tail` counts selected lines."""
    tasks, since = list(request.tasks) or None, request.since

    def choose(lines: Iterator[LogLine]) -> Iterator[LogLine]:
        chooser = request.selection.chooser(lambda *task: logs.host_of(run_id, *task))
        return lines if chooser is None else filter(chooser, lines)

    is_plain = request.selection == EVERYTHING
    tail = request.tail if is_plain else None
    skipped = 0
    if not is_plain and request.tail is not None:
        # The lines are read twice, since their number must be known before the first is shown.
        there = sum(1 for _ in choose(logs.read(run_id, tasks, since=since)))
        skipped = max(0, there - request.tail)
    if request.follow:
        pause = _pause_until_end(environment, logs, run_id, request.on_idle)
        return islice(choose(logs.follow(run_id, tasks, since=since, tail=tail, pause=pause)), skipped, None)
    return islice(choose(logs.read(run_id, tasks, since=since, tail=tail)), skipped, None)


def why_none(environment: Environment, run_id: str) -> str:
    """Return the sentence for a run without any output."""
    if RunLogs(environment.paths.state_dir).tasks(run_id):
        return f"{run_id}: no line is selected"
    try:
        seen = status_of(environment.client(), {"run_id": run_id})
    except (CoordinatorUnreachable, UsageError):
        return f"{run_id} has no output: no task of it has printed anything"
    if seen.get("generation"):
        return f"{run_id} has no output yet: {seen.get('phase')}: {seen.get('reason')}"
    end = " yet" if is_active(seen) else ""
    return f"{run_id} has started no task{end}: {seen.get('phase')}: {seen.get('reason')}"


def _pause_until_end(
    environment: Environment, logs: RunLogs, run_id: str, on_idle: Callable[[], None]
) -> Callable[[], bool]:
    """Return the pause function of `follow`: it waits, and returns whether the run may still be active."""
    client = environment.client()
    announced = False
    chosen = {"name": run_name(run_id), "run_id": run_id}

    def pause() -> bool:
        nonlocal announced
        on_idle()
        try:
            seen = status_of(client, chosen)
            going, announced = is_active(seen), False
            if not going:
                wait_for_the_last_lines(environment, logs, seen)
                return False
        except CoordinatorUnreachable as e:
            going = not (isinstance(e, JobNotRunning) and e.is_over)
            if not going:
                environment.say(str(e))
            elif not announced:
                environment.say(f"{e}; new output arrives once a coordinator is running again")
                announced = True
        except UsageError:  # an old run that the coordinator no longer knows
            going = False
        environment.pause(_POLL_EVERY_S)
        return going

    return pause


def document(line: LogLine, run_id: str) -> dict[str, Any]:
    """Return one JSON line of `orch logs --json`."""
    time = datetime.fromtimestamp(line.time, timezone.utc).isoformat(timespec="microseconds")
    return {
        "time": time.replace("+00:00", "Z"),
        "run": run_id,
        "task": None if line.stream == OWN else line.task,
        "generation": line.generation,
        "stream": _STREAMS[line.stream],
        "text": line.text,
    }

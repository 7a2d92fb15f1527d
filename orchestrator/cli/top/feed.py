"""The data of `orch top`, from the coordinator and from the disk. Every method may block."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.client.choice import find_or_newest, is_active, runs_in
from orchestrator.client.client import Client, Run
from orchestrator.client.environment import Environment
from orchestrator.client.killing import order
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError
from orchestrator.head.records import log_pages
from orchestrator.head.records.log_file import LogLine
from orchestrator.head.records.runlogs import RunLogs

EVENTS_MAX = 200
LOG_LINES = 200
POINTS_MAX = 600
"""How many points a sparkline has: ten minutes at one look a second, where the coordinator keeps no history."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read in one poll."""

    runs: Sequence[Document] = ()
    run: Document | None = None
    """The one that is shown; None if there is none."""
    events: Sequence[Document] = ()
    lines: Sequence[LogLine] = ()
    pace: Sequence[float] = ()
    loss: Sequence[float] = ()
    away: str | None = None
    """Why the coordinator does not answer; what is shown is then the last known state."""
    troubles: Sequence[str] = ()
    """What is wrong with the head node's records, such as a run that cannot be read."""
    has_asked: bool = True
    """False until the first answer, or the first sign that none comes."""


@dataclass(slots=True)
class _Kept:
    """What is collected of one run while it is shown."""

    after: int = 0
    events: deque[Document] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    pace: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    loss: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))
    has_history: bool = False
    step: int | None = None


class Feed:
    """Reads the status of the runs, one thread at a time."""

    def __init__(self, environment: Environment, name: str | None) -> None:
        """`name`: the run that is shown first; None for the newest active one."""
        self._environment = environment
        self._client = Client(environment=environment)
        self._logs = RunLogs(environment.paths.state_dir)
        self._kept: dict[str, _Kept] = {}
        self._seen = Seen()
        self._found: tuple[tuple[str, str | None, str], str, deque[LogLine]] = (("", None, ""), "", deque())
        """What was searched for, up to which place of the logs, and the lines with it."""
        self.name = name
        """The run that is shown."""

    def read(self, task: str | None, grep: str) -> Seen:
        """Return the present data. `task`: whose log is wanted; None for all. Raises UsageError for an unknown run."""
        api = self._environment.client()
        try:
            status = api.get("/v1/status")
            runs = runs_in(status)
            run = find_or_newest(runs, self.name) if runs or self.name else None
            kept = self._keep(run) if run is not None else _Kept()
        except CoordinatorUnreachable as e:
            # The last known documents, else the recorded ones, with the log as it is now
            why = str(e)
            seen = self._seen
            if seen.run is None:
                seen = self._recorded()
            lines = self._lines(seen.run, task, grep)
            return replace(seen, lines=lines, away=why)
        lines, troubles = self._lines(run, task, grep), tuple(status.get("troubles") or ())
        pace, loss = tuple(kept.pace), tuple(kept.loss)
        self._seen = Seen(runs, run, tuple(kept.events), lines, pace, loss, troubles=troubles)
        return self._seen

    def _recorded(self) -> Seen:
        """Return what the disk has: the last record of the runs, and of the chosen one its events and history."""
        from orchestrator.page.source import Source

        status = self._client.recorded() or {}
        recorded = status.get("runs") or []
        if not recorded:
            return Seen(troubles=tuple(status.get("troubles") or ()))
        run, source = find_or_newest(recorded, self.name), Source(self._environment.paths)
        kept, run_id = _Kept(), str(run["run_id"])
        kept.events.extend(source.events(run_id, 0)["events"])
        query = {"names": "steps_per_s,loss", "x": "time", "buckets": str(POINTS_MAX)}
        _append_series(kept, source.series(run_id, query))
        return Seen(recorded, run, tuple(kept.events), (), tuple(kept.pace), tuple(kept.loss))

    def _keep(self, run: Document) -> _Kept:
        kept = self._kept.setdefault(str(run["run_id"]), _Kept())
        answer = self._environment.client().get(
            "/v1/events", {"name": str(run["run_id"]), "after": kept.after}
        )
        for event in answer.get("events") or []:
            kept.after = event["seq"]
            if event.get("run") == run["run_id"]:
                kept.events.append(event)
        if not kept.has_history:
            kept.has_history = True
            self._read_history(run, kept)
        if is_active(run) and run.get("global_step") != kept.step:
            kept.step = run.get("global_step")
            _add(kept.pace, run.get("steps_per_s"))
            _add(kept.loss, (run.get("metrics") or {}).get("loss"))
        return kept

    def _read_history(self, run: Document, kept: _Kept) -> None:
        """Begin with what the coordinator has kept, if it does."""
        query: dict[str, str | int | float] = {
            "names": "steps_per_s,loss",
            "x": "time",
            "buckets": POINTS_MAX,
        }
        try:
            series = self._environment.client().get(f"/v1/runs/{run['run_id']}/series", query)
        except CoordinatorUnreachable:
            raise
        except OrchestratorError:
            return  # an older coordinator keeps none
        _append_series(kept, series)

    def _lines(self, run: Document | None, task: str | None, grep: str) -> list[LogLine]:
        if run is None:
            return []
        run_id = str(run["run_id"])
        if not grep:
            return list(self._logs.read(run_id, [task] if task else None, tail=LOG_LINES))
        # All of the log is searched, once: after that only what is new in it.
        query = {"q": grep, "limit": str(LOG_LINES), "task": task or ""}
        asked = run_id, task, grep
        known, after, lines = self._found
        if known != asked:
            after, lines = "", deque(maxlen=LOG_LINES)
        page = log_pages.document(self._logs, run_id, {**query, "after": after} if after else query)
        while not after and page["before"] and len(page["lines"]) < LOG_LINES:
            older = log_pages.document(self._logs, run_id, {**query, "before": page["before"]})
            page = {**older, "lines": older["lines"] + page["lines"], "after": page["after"]}
        keys = ("time", "task", "generation", "stream", "text")
        lines.extend(LogLine(*(line[key] for key in keys)) for line in page["lines"])
        self._found = asked, page["after"], lines
        return list(lines)

    # -- what a person asks for ----------------------------------------------------------------------------

    def run_of(self, document: Document) -> Run:
        """Return the run of a document, to ask about it."""
        return Run(self._environment, str(document["name"]), str(document["run_id"]))

    def kill(self, document: Document) -> None:
        """Order the kill, and do not wait for the end."""
        order(self._environment.client(), document, force=False)


def _append_series(kept: _Kept, document: Document) -> None:
    """Take in the pace and the loss of a document of series."""
    for series in document.get("series") or []:
        points = kept.loss if series.get("name") == "loss" else kept.pace
        for value in series.get("y") or []:
            _add(points, value)


def _add(points: deque[float], value: object) -> None:
    if isinstance(value, (int, float)) and value == value and abs(value) != float("inf"):
        points.append(float(value))

"""The stream of status to the browsers: of all runs, once a second, and only what has changed.

The coordinator is asked once for all viewers, and only while there are any. A viewer that reads slowly skips what was
in between: each is sent the difference to what it was sent last.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio.to_thread

from orchestrator.client.comparing import without_env
from orchestrator.core.errors import OrchestratorError
from orchestrator.page.source import Source
from orchestrator.protocol import measures

log = logging.getLogger(__name__)

POLL_S = 1.0
VIEWERS_MAX = 32

_EVENTS_MAX = 256
_JITTER_S = 2.0
"""An age is sent as an instant. It is sent again only after it has moved by this many seconds."""

_MOVING = ("elapsed_s",)
"""Keys that a browser counts on by itself."""

_PARTS = ("tasks", "hosts")
_NUMBERS = frozenset(
    {
        *("global_step", "heartbeat_time", "heard_time", "gpus"),
        *measures.TASK,
        *measures.HOST,
    }
)
"""Measurements of a task or host, which change with every heartbeat."""

_MEASURED_PER_S = 30
"""For how many tasks and hosts these are sent in a second. With more, each is sent more seldom."""

_DETAILS = ("tasks", "hosts", "proof", "warnings", "hints")
"""Keys that only the viewer of a run gets."""

_OVER = ("SUCCEEDED", "FAILED", "KILLED")

REMOVED = "-"

Document = dict[str, Any]


class Feed:
    """Polls the status while there are viewers."""

    def __init__(self, source: Source, *, poll_s: float = POLL_S) -> None:
        self._source, self._poll_s = source, poll_s
        self._calm = Calm()
        self._viewers = 0
        self._poll: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._known: Document | None = None
        self._version = 0
        self._seq = 0
        self._opened: Counter[str | None] = Counter()
        """The runs that somebody looks at."""

    @property
    def is_full(self) -> bool:
        """Whether there are as many viewers as are allowed."""
        return self._viewers >= VIEWERS_MAX

    async def view(
        self, run_id: str | None, after: int | None, *, shows_env: bool = True
    ) -> AsyncIterator[dict[str, str]]:
        """Yield the messages for one viewer: `snapshot`, then `delta` and `event`."""
        self._viewers += 1
        self._opened[run_id] += 1
        if self._poll is None:
            self._known = None
            self._poll = asyncio.create_task(self._go_on())
        try:
            async for message in self._messages(run_id, after, shows_env):
                yield message
        finally:
            self._viewers -= 1
            self._opened[run_id] -= 1
            if not self._viewers and self._poll is not None:
                self._poll.cancel()
                self._poll = None

    async def _messages(
        self, run_id: str | None, after: int | None, shows_env: bool
    ) -> AsyncIterator[dict[str, str]]:
        version, sent, seq = -1, None, after
        while True:
            async with self._changed:
                while self._known is None or self._version == version:
                    await self._changed.wait()
            version = self._version
            now = viewer_document(self._known, run_id)
            if not shows_env:
                now = without_env(now)
            if sent is None:
                yield {"event": "snapshot", "data": _dump(now)}
            elif changes := difference(sent, now):
                yield {"event": "delta", "data": _dump(changes)}
            sent = now
            if seq is None:
                seq = self._seq
            if self._seq > seq and run_id is not None:
                answer = await anyio.to_thread.run_sync(self._source.events, run_id, seq)
                seq = max(self._seq, *(row["seq"] for row in answer["events"]), seq)
                for event in answer["events"][-_EVENTS_MAX:]:
                    yield {"event": "event", "id": str(event["seq"]), "data": _dump(event)}

    async def _go_on(self) -> None:
        while True:
            try:
                status = await anyio.to_thread.run_sync(self._source.runs)
                old = await anyio.to_thread.run_sync(self._archived, status.get("now", 0.0))
                newest = await anyio.to_thread.run_sync(self._newest)
                async with self._changed:
                    known = self._calm(steady(status, self._known), self._known, status.get("now", 0.0))
                    self._known = {**known, "runs": {**old, **known["runs"]}}
                    self._seq = newest
                    self._version += 1
                    self._changed.notify_all()
            except Exception as e:  # the viewers keep what they have, and the next look may succeed
                log.warning("the state cannot be read: %s", e)
            await asyncio.sleep(self._poll_s)

    def _archived(self, now: float) -> Document:
        """Return the runs that have left the journal, whole those that somebody looks at. They change no more."""
        archived = self._source.archived()
        before = (self._known or {}).get("runs") or {}
        for run_id in archived.keys() & {run_id for run_id, viewers in self._opened.items() if viewers}:
            if "tasks" in before.get(run_id, ()):
                archived[run_id] = before[run_id]
                continue
            try:
                whole = self._source.archived_run(run_id)
            except OrchestratorError as e:  # the list says why, and the other runs go on
                log.warning("the record of %s cannot be read: %s", run_id, e)
                continue
            archived |= steady({"now": now, "runs": [whole]}, None)["runs"]
        return archived

    def _newest(self) -> int:
        events = self._source.events(None, self._seq)["events"]
        return int(events[-1]["seq"]) if events else self._seq


def steady(status: Document, before: Document | None) -> Document:
    """Return the status as it is sent: with lists as mappings by name, and with instants instead of ages.

    >>> steady({"now": 50.0, "runs": [{"run_id": "t", "phase_age_s": 8.0, "tasks": [{"task": "w"}]}]}, None)["runs"]
    {'t': {'run_id': 't', 'phase_time': 42.0, 'tasks': {'w': {'task': 'w'}}}}
    """
    now = status.get("now", 0.0)
    runs = {run["run_id"]: run for run in status.get("runs", ())}
    about = {"away_since": status.get("away_since"), "troubles": list(status.get("troubles") or ())}
    return {**about, "runs": _timed(runs, now, (before or {}).get("runs"))}


def _timed(value: Any, now: float, before: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        name = next((key for key in ("task", "host") if key in value[0]), None)
        if name is not None and len({item.get(name) for item in value}) == len(value):
            value = {item[name]: item for item in value}
    if not isinstance(value, dict):
        return value
    known = before if isinstance(before, dict) else {}
    made: Document = {}
    for name, each in value.items():
        if name in _MOVING:
            continue
        if not name.endswith("_age_s"):
            made[name] = _timed(each, now, known.get(name))
            continue
        name = name.removesuffix("_age_s") + "_time"
        at = round(now - each, 0) if each is not None else None
        earlier = known.get(name)
        made[name] = (
            earlier if at is not None and earlier is not None and abs(at - earlier) < _JITTER_S else at
        )
    return made


class Calm:
    """Sends the measurements of many tasks less often. Other changes, such as of a task's phase, are sent at once."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def __call__(self, now: Document, before: Document | None, at: float) -> Document:
        """Return the state as it is sent at that time."""
        runs: Document = {}
        for name, run in now["runs"].items():
            known = (before or {"runs": {}})["runs"].get(name)
            parts = sum(len(run.get(part) or ()) for part in _PARTS)
            is_due = at - self._told_at.get(name, 0.0) >= parts // _MEASURED_PER_S
            runs[name] = run if known is None or is_due else held(run, known)
            if runs[name] is run:
                self._told_at[name] = at
        return {**now, "runs": runs}


def held(run: Document, before: Document) -> Document:
    """Return a run with the measurements as they were sent before, where nothing else has changed."""
    kept: Document = {}
    for part in _PARTS:
        then, now = before.get(part), run.get(part)
        if isinstance(then, dict) and isinstance(now, dict):
            kept[part] = {
                name: then[name] if name in then and _is_like(document, then[name]) else document
                for name, document in now.items()
            }
    return {**run, **kept}


def _is_like(document: Document, before: Document) -> bool:
    return document.keys() == before.keys() and all(
        document[name] == before[name] for name in document if name not in _NUMBERS
    )


def viewer_document(known: Document, run_id: str | None) -> Document:
    """Return the document of a viewer: one run whole, and the others as the list of runs shows them."""
    runs = {name: run if name == run_id else _brief(run) for name, run in known["runs"].items()}
    return {**known, "runs": runs, "hosts": {} if run_id in runs else _hosts(known["runs"])}


def _brief(run: Document) -> Document:
    """Return a run as a list of runs shows it."""
    return run if "tasks" not in run else {key: each for key, each in run.items() if key not in _DETAILS}


def _hosts(runs: Document) -> Document:
    """Return the hosts of all runs that go on, by name, each GPU in four numbers: there may be hundreds."""
    by_name: Document = {}
    for name, run in runs.items():
        if run.get("phase") in _OVER:
            continue
        for host, reported in (run.get("hosts") or {}).items():
            entry = by_name.setdefault(host, {"runs": [], "gpus": []})
            entry["runs"].append(name)
            entry |= {key: reported.get(key) for key in ("state", "reason", "cpu_percent", "memory_percent")}
            entry["gpus"] = [_gauge(load) for load in reported.get("gpus") or ()] or entry["gpus"]
    return by_name


def _gauge(load: Document) -> list[float | None]:
    used, total = load.get("memory_used_bytes"), load.get("memory_total_bytes")
    memory = round(100 * used / total) if used is not None and total else None
    watts = load.get("power_w")
    return [load["index"], load.get("utilization_percent"), memory, None if watts is None else round(watts)]


def difference(before: Document, after: Document) -> Document:
    """Return what has changed, in the form that `applyChanges` of the page applies.

    >>> difference({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"c": 1, "d": 3}})
    {'b': {'d': 3}, '-': ['a']}
    """
    changes: Document = {}
    for name, value in after.items():
        if name not in before:
            changes[name] = value
        elif before[name] != value:
            both = isinstance(value, dict) and isinstance(before[name], dict)
            changes[name] = difference(before[name], value) if both else value
    gone = [name for name in before if name not in after]
    return {**changes, REMOVED: gone} if gone else changes


def _dump(document: Document) -> str:
    return json.dumps(document, separators=(",", ":"))

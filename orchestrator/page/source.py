"""Provides the page's documents: from the coordinator while it answers, and from the disk."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from orchestrator.client import comparing, hosts, recorded
from orchestrator.client.environment import Environment
from orchestrator.client.known_run import known_run
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, UsageError
from orchestrator.core.plan import Plan
from orchestrator.head.api.client import Client
from orchestrator.head.journal import archive, reading
from orchestrator.head.node.paths import Paths
from orchestrator.head.records import bands, listed, log_pages, marks, run_series
from orchestrator.head.records.accounts import Accounts
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.reporting import launch_document

log = logging.getLogger(__name__)

EVENTS_MAX = 1000

_LIST_EVERY_S = 5.0
_POOL_EVERY_S = 4.0
_IN_LIST = (
    *("run_id", "name", "phase", "reason", "reason_rest", "reason_begins_with", "restarts", "global_step"),
    *("steps_total", "started_at", "ended_at", "metrics", "nonfinite", "parameters"),
)
_PARTS_IN_LIST = {"time_use": ("value", "lost_gpu_hours"), "first_cause": ("sentence",)}

_CHECKPOINTS_S = 660.0
"""A host reads a checkpoint whole before it goes back to it. `orch ckpt` waits for as long."""

T = TypeVar("T")

_PLAN: TypeAdapter[Plan] = TypeAdapter(Plan)

_EVENTS = (
    "SELECT seq, time, run_id, kind, task, generation, message FROM events "
    "WHERE seq > ? AND (? IS NULL OR run_id = ?) ORDER BY seq DESC LIMIT ?"
)


class Source:
    """Reads the documents. Every method blocks, and any thread may call it."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.client = Client(paths.socket, state_dir=paths.state_dir, timeout_s=10.0)
        self._accounts = Accounts(paths.journal, paths.run_dir)
        self._logs = RunLogs(paths.state_dir)
        self._archived: dict[str, dict[str, Any]] = {}
        self._marked: dict[str, tuple[int, dict[str, Any]]] = {}
        """By run: when its marks were written, and what they are."""
        self._pool_lock = threading.Lock()
        self._pool: tuple[float, dict[str, Any]] = (-_POOL_EVERY_S, {})
        """When the hosts were asked last, and what they said."""
        self._parameters: dict[str, dict[str, str]] = {}
        """By run; they are those of its plan, which stays."""
        self._old_ids: list[str] = []
        self._listed_at = -_LIST_EVERY_S
        self._away_since: float | None = None
        self._last_answer: tuple[dict[str, Any], float] | None = None
        """The coordinator's last status, and when it came."""

    def runs(self) -> dict[str, Any]:
        """Return the status of all runs, `away_since` (Unix time; None while a coordinator answers), and `now`."""
        now = time.time()
        try:
            document = self.client.get("/v1/status")
            self._away_since, self._last_answer = None, (document, now)
        except CoordinatorUnreachable:
            record = recorded.status(
                self.paths, now=now, accounts=self._accounts, last_answer=self._last_answer
            )
            document = record or {"schema": 1, "runs": []}
            known_at = (
                self._last_answer[1] if self._last_answer else now - document.get("recorded_age_s", 0.0)
            )
            self._away_since = self._away_since or known_at
        runs = [
            {**run, **self.marks(run["run_id"]), "parameters": self.parameters(run["run_id"])}
            for run in document["runs"]
        ]
        return {**document, "runs": runs, "away_since": self._away_since, "now": now}

    def pool(self) -> dict[str, Any]:
        """Return the document of `orch hosts` for the hosts of the active runs, and all run ids. Hosts are asked.

        However many browsers look, the hosts are asked once in a few seconds.
        """
        with self._pool_lock:
            if time.monotonic() - self._pool[0] > _POOL_EVERY_S:
                environment = Environment()
                environment.paths = self.paths
                try:
                    asked = hosts.document(environment, None)
                except UsageError:  # no run is active
                    asked = {"schema": hosts.SCHEMA, "hosts": []}
                runs = [run["run_id"] for run in self.runs()["runs"]]
                self._pool = time.monotonic(), {**asked, "runs": runs}
            return self._pool[1]

    def archived(self, *, read_s: float = 0.3) -> dict[str, dict[str, Any]]:
        """Return the runs that have left the journal as a list shows them, by id.

        Reads records, the newest first, for at most so long; of the others only the id and the name are known. What a
        record says changes no more, so it is kept beside it, and is there at once the next time.
        """
        now = time.monotonic()
        if now - self._listed_at >= _LIST_EVERY_S:
            self._old_ids, self._listed_at = archive.run_ids(self.paths), now
            for run_id, shown in self._archived.items():
                self._archived[run_id] = {**shown, **self.marks(run_id)}
        for run_id in reversed(self._old_ids):
            if time.monotonic() - now > read_s:
                break
            if run_id not in self._archived:
                self._archived[run_id] = self._listed(run_id)
        return {
            run_id: self._archived.get(run_id)
            or {"run_id": run_id, "name": run_id.rsplit("-", 2)[0], "phase": None, **self.marks(run_id)}
            for run_id in self._old_ids
        }

    def archived_run(self, run_id: str) -> dict[str, Any]:
        """Return the document of a run that has left the journal. Raises UsageError if there is none."""
        whole = recorded.archived(self.paths, run_id, now=time.time(), accounts=self._accounts)
        return {**whole, **self.marks(run_id), "parameters": self.parameters(run_id)}

    def _listed(self, run_id: str) -> dict[str, Any]:
        directory = self.paths.run_dir(run_id)
        known = listed.read(directory)
        if known is None:
            try:
                whole = self.archived_run(run_id)
            except OrchestratorError as e:  # the others are shown
                log.warning("the record of %s cannot be read: %s", run_id, e)
                return {"run_id": run_id, "name": run_id.rsplit("-", 2)[0], "phase": None, "reason": str(e)}
            shown = {key: whole[key] for key in _IN_LIST}
            for key, parts in _PARTS_IN_LIST.items():
                shown[key] = {part: whole[key].get(part) for part in parts} if whole[key] else None
            known = listed.keep(directory, shown)
        return {**known, **self.marks(run_id)}

    def parameters(self, run_id: str) -> dict[str, str]:
        """Return what the spec gives the run's script, and with how many tasks; empty if that is not known."""
        if run_id not in self._parameters:
            try:  # all at once: each look reads all of the journal
                for kept in reading.read_runs(self.paths.journal).kept:
                    self._parameters[kept.run.run_id] = comparing.parameters(kept.run.plan)
                old = None if run_id in self._parameters else reading.archived(self.paths, run_id)
                self._parameters.setdefault(run_id, comparing.parameters(old.run.plan) if old else {})
            except OrchestratorError:
                return {}
        return self._parameters[run_id]

    def marks(self, run_id: str) -> dict[str, Any]:
        """Return the tags and the note that people have given a run."""
        directory = self.paths.run_dir(run_id)
        try:
            written = os.stat(os.path.join(directory, marks.FILE)).st_mtime_ns
        except OSError:
            return dict(marks.NONE)
        if self._marked.get(run_id, (0, {}))[0] != written:
            self._marked[run_id] = written, marks.read(directory)
        return self._marked[run_id][1]

    def status(self) -> dict[str, Any] | None:
        """Return the coordinator's status; None while it does not answer."""
        try:
            return self.client.get("/v1/status", timeout_s=5.0)
        except CoordinatorUnreachable:
            return None

    def run_id(self, name: str) -> str:
        """Return the id of a run by its id or its name: the newest. Raises UsageError if there is none."""
        matching = [run["run_id"] for run in self.runs()["runs"] if name in (run["run_id"], run["name"])]
        found = matching[-1] if matching else archive.find(self.paths, name)
        if found is None:
            raise UsageError(f"there is no run {name!r}")
        return str(found)

    def history(self, run_id: str) -> dict[str, Any]:
        """Return the document of `/v1/runs/RUN/history`."""
        return run_series.history_document(self._accounts, self.paths.run_dir(run_id), run_id)

    def series(self, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the document of `/v1/runs/RUN/series`."""
        return _asked(lambda: run_series.series_document(self.paths.run_dir(run_id), run_id, query))

    def band(self, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return what many tasks, hosts or GPUs measure of one kind."""
        return _asked(lambda: bands.document(self.paths.run_dir(run_id), run_id, query))

    def logs(self, run_id: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the document of `/v1/runs/RUN/logs`."""
        return _asked(lambda: log_pages.document(self._logs, run_id, query))

    def whole_log(self, run_id: str, query: Mapping[str, str]) -> Iterator[str]:
        """Return all lines of a task (of all: merged by time), each with its time, a part of the text at a time."""
        return _asked_for(lambda: log_pages.whole(self._logs, run_id, query))

    def why(self, run_id: str) -> dict[str, Any]:
        """Return what ended the run's generations, oldest first."""
        return {"schema": 1, "run_id": run_id, "first_causes": self._logs.first_causes(run_id)}

    def events(self, run_id: str | None, after: int) -> dict[str, Any]:
        """Return the newest events after a sequence number, oldest first."""
        path = archive.place_of(self.paths, run_id) if run_id else self.paths.journal
        if not os.path.exists(path):
            return {"schema": 1, "events": []}
        uri = f"file:{quote(path)}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as db:
                rows = db.execute(_EVENTS, (after, run_id, run_id, EVENTS_MAX)).fetchall()
        except sqlite3.Error as e:
            raise OrchestratorError(f"the journal cannot be read: {e}") from e
        keys = ("seq", "time", "run", "kind", "task", "generation", "message")
        return {"schema": 1, "events": [dict(zip(keys, row, strict=True)) for row in reversed(rows)]}

    def checkpoints(self, run_id: str, *, timeout_s: float = _CHECKPOINTS_S) -> dict[str, Any]:
        """Ask the coordinator for the run's checkpoints."""
        return self.client.get(f"/v1/runs/{quote(run_id)}/checkpoints", timeout_s=timeout_s)

    def plan(self, run_id: str) -> dict[str, Any]:
        """Return the run's plan, and what each task is started with. The plan holds no secret."""
        run = known_run(self.paths, run_id)
        return {
            **launch_document.launched_document(run),
            "resolved": _PLAN.dump_python(run.plan, mode="json"),
        }

    def compare(self, run_id: str, other: str) -> dict[str, Any]:
        """Return what differs between two runs: spec, code and packages."""
        comparison = comparing.with_run(
            self.paths, known_run(self.paths, run_id), known_run(self.paths, other)
        )
        return {"schema": 1, "run_id": run_id, "other": other, **comparing.document(comparison)}

    def act(self, run_id: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Carry out an action that a person has confirmed."""
        if verb == "mark":
            words = {key: [str(tag) for tag in body.get(key) or ()] for key in ("add", "remove")}
            note = str(body["note"]) if "note" in body else None
            return marks.change(
                self.paths.run_dir(run_id), add=words["add"], remove=words["remove"], note=note
            )
        path = {"rollback": "checkpoints/rollback"}.get(verb, verb)
        return self.client.post(f"/v1/runs/{quote(run_id)}/{path}", body, timeout_s=_CHECKPOINTS_S)


def _asked(read: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    return dict(_asked_for(read))


def _asked_for(read: Callable[[], T]) -> T:
    try:
        return read()
    except ValueError as e:
        raise UsageError(f"the query is not understood: {e}") from e


def dumped(document: Mapping[str, Any]) -> str:
    """Return JSON that may stand within a page's script element."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("&", "\\u0026")

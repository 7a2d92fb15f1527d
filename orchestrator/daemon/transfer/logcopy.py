"""Copies the tasks' logs to the head node, one chunk at a time, so that they survive the hosts.

The head pulls, and asks for one chunk per task at a time. So a task that prints much can neither flood the channel
nor delay a heartbeat. What the host rotated away before it was copied is marked as a gap.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from orchestrator.adapters.head.runlogs import RunLogs
from orchestrator.core.events import HostReported
from orchestrator.daemon.connection.conversation import Reply
from orchestrator.daemon.connection.link import HostLink
from orchestrator.protocol.orders import LogPart
from orchestrator.protocol.table import LOG

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10

ASK_AGAIN_S = 15.0
"""After this, a chunk that has not come counts as lost with its connection."""


class _Log(NamedTuple):
    run_id: str
    task: str
    generation: int


class LogCopier:
    """Copies the logs of all runs and hosts."""

    def __init__(self, logs: RunLogs, now: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._now = now
        self._lock = threading.Lock()
        self._asked: dict[_Log, float] = {}
        self._ends: dict[_Log, int] = {}
        """The end of each log on its host, as last reported."""

    def reported(self, link: HostLink, run_id: str, epoch: int, report: HostReported) -> None:
        """Ask for what a report shows to be new."""
        for task in report.tasks:
            name = _Log(run_id, str(task.task), task.generation)
            self._ends[name] = task.progress.log_bytes
            self._ask(link, name, epoch)

    def put_first_cause(self, run_id: str, found: Mapping[str, Any] | None) -> None:
        """Keep the first cause beside the logs, for readers without a coordinator. Errors are logged: it is a copy."""
        try:
            self._logs.put_first_cause(run_id, found, now=time.time())
        except OSError as e:
            log.warning("%s: the first cause cannot be put down: %s", run_id, e)

    def is_behind(self, run_id: str, tasks: Collection[str]) -> bool:
        """Return whether some of the reported logs of these tasks have not been copied yet."""
        return any(self._here(name) < self._ends.get(name, 0) for name in self._of(run_id, tasks))

    def forget(self, run_id: str, tasks: Collection[str]) -> None:
        """Stop copying the logs of these tasks."""
        for name in self._of(run_id, tasks):
            self._ends.pop(name, None)
            self._asked.pop(name, None)

    def _of(self, run_id: str, tasks: Collection[str]) -> list[_Log]:
        return [name for name in list(self._ends) if name.run_id == run_id and name.task in tasks]

    def _here(self, name: _Log) -> int:
        """Return the end of our copy. If that cannot be read, return the log's end, so that no more is asked for."""
        try:
            return self._logs.end(*name)
        except OSError as e:
            log.warning("%s %s: the log cannot be copied: %s", name.run_id, name.task, e)
            return self._ends.get(name, 0)

    def _ask(self, link: HostLink, name: _Log, epoch: int) -> None:
        here = self._here(name)
        with self._lock:
            if here >= self._ends.get(name, 0) or self._now() - self._asked.get(name, -1e9) < ASK_AGAIN_S:
                return
            self._asked[name] = self._now()
        order = LOG(
            {
                "run": name.run_id,
                "epoch": epoch,
                "generation": name.generation,
                "task": name.task,
                "offset": here,
                "bytes_max": CHUNK_BYTES,
            }
        )
        link.send(order, on_reply=lambda reply: self._take(link, name, epoch, reply))

    def _take(self, link: HostLink, name: _Log, epoch: int, reply: Reply[LogPart]) -> None:
        if reply.ok is None:
            log.warning("%s %s: the log cannot be read: %s", name.run_id, name.task, reply.error)
            return  # it is asked for again after ASK_AGAIN_S
        try:
            self._logs.append(*name, reply.ok["offset"], reply.blob)
        except OSError as e:
            log.warning("%s %s: the log cannot be copied: %s", name.run_id, name.task, e)
            return
        with self._lock:
            self._asked.pop(name, None)
        if reply.blob:
            self._ask(link, name, epoch)

"""Copies the tasks' logs to the head node, one chunk at a time, so that they survive the hosts.

The head pulls, and asks for one chunk per task at a time. So a task that prints much can neither flood the channel
nor delay a heartbeat. What the host rotated away before it was copied is marked as a gap.

Times of lines are changed to the head's clock when they arrive: each answer bounds how far the host's clock is ahead.

A host is asked only for logs of tasks that it was ordered to start, of their last generations. The size of a task's
copies is limited, and copying stops while only the journal's reserve is free on the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from orchestrator.core.events import HostReported
from orchestrator.core.plan import TaskId
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.words import size
from orchestrator.head.links.clock import HostClock
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.link import HostLink
from orchestrator.head.node import disk
from orchestrator.head.records.log_file import shifted
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.protocol.orders.tasks import LOG, LogPart

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10

ASK_AGAIN_S = 15.0
"""After this, a chunk that has not arrived counts as lost with its connection."""

GENERATIONS_MAX = 2
"""How many generations of a task are copied: the end of one log may arrive after the next generation has begun."""


class _Log(NamedTuple):
    run_id: str
    task: str
    generation: int


class _Copy:
    """What is known of the copy of one log."""

    def __init__(self) -> None:
        self.host = ""
        self.bytes_max = 0
        """The limit for all copies of its task."""
        self.asked_at = -1e9
        self.log_end = 0
        """The end of the log on its host, as last reported."""
        self.here = -1
        """The end of the copy: a cache, since most heartbeats report no new lines."""
        self.stopped: str | None = None
        """Why it is not copied any more, as it was reported."""


Notify = Callable[[str, str, TaskId, str], None]
"""Called with run, host, task and a sentence when a log is not copied any more."""


Do = Callable[[Callable[[], None]], None]
"""Does work, at once or in another thread."""


class LogCopier:
    """Copies the logs of all runs and hosts.

    Args:
        logs: The copies.
        notify: Called when a log is not copied any more.
        now: The clock, in seconds.
        unix_time: The wall clock, to which the times of lines are changed.
        skewed: Called once, with run, host and a sentence, when a host's clock differs.
        do: Does work that waits for the disk, since the thread that reads the hosts must not wait.
    """

    def __init__(
        self,
        logs: RunLogs,
        notify: Notify,
        now: Callable[[], float] = time.monotonic,
        do: Do = lambda work: work(),
        unix_time: Callable[[], float] = time.time,
        skewed: Callable[[str, str, str], None] = lambda _run, _host, _sentence: None,
    ) -> None:
        self._logs = logs
        self._notify = notify
        self._now = now
        self._do = do
        self._unix_time = unix_time
        self._skewed = skewed
        self._clocks: defaultdict[tuple[str, str], HostClock] = defaultdict(HostClock)
        """By run and host: two specs may give one name to two machines."""
        self._skew_reported: set[tuple[str, str]] = set()
        """The runs and hosts for which a differing clock was reported."""
        self._lock = threading.Lock()
        self._copies: dict[_Log, _Copy] = {}
        self._held: dict[tuple[str, str], int] = {}
        """The size of the copies of each task of a run."""
        self._moved: tuple[threading.Event, ...] = ()
        """Set when a copy grows. Replaced and never changed."""

    def expect(self, run: Run, task: TaskId, host: str, generation: int) -> None:
        """Ask this host, and no other, for the log of a generation that it was ordered to start."""
        if generation <= 0:
            return
        name = str(task)
        with self._lock:
            copy = self._copies.setdefault(_Log(run.run_id, name, generation), _Copy())
            copy.host, copy.bytes_max = host, run.plan.log_bytes_max
            known = sorted(log for log in self._copies if log[:2] == (run.run_id, name))
            for old in known[:-GENERATIONS_MAX]:
                del self._copies[old]

    def expect_all(self, run: Run) -> None:
        """Call `expect` for the tasks that a run has now."""
        tasks: tuple[Task, ...] = run.tasks
        for task in tasks:
            self.expect(run, task.id, task.host, task.generation)

    def reported(self, link: HostLink, run_id: str, epoch: int, report: HostReported) -> None:
        """Ask for the new parts of the logs in a report."""
        for task in report.tasks:
            name = _Log(run_id, str(task.task), task.generation)
            copy = self._copies.get(name)
            if copy is not None and copy.host == report.host:
                copy.log_end = int(task.progress.measured.get("log_bytes", 0))
                if copy.here < copy.log_end and not self._was_asked(copy):
                    self._do(partial(self._ask, link, name, epoch))

    def put_first_cause(self, run_id: str, cause: Mapping[str, Any] | None) -> None:
        """Keep the first cause beside the logs, for readers without a coordinator. Errors are logged: it is a copy."""
        try:
            self._logs.put_first_cause(run_id, cause, now=time.time())
        except OSError as e:
            log.warning("%s: the first cause cannot be recorded: %s", run_id, e)

    def wait_for_the_rest(self, run_id: str, tasks: Collection[str], until: float) -> None:
        """Wait until the reported parts of these logs are copied or given up; at most until then."""
        while True:
            moved = threading.Event()
            with self._lock:
                self._moved = (*self._moved, moved)
            try:
                left_s = until - self._now()
                if left_s <= 0 or not self.is_behind(run_id, tasks):
                    return
                moved.wait(left_s)
            finally:
                with self._lock:
                    self._moved = tuple(other for other in self._moved if other is not moved)

    def is_behind(self, run_id: str, tasks: Collection[str]) -> bool:
        """Return whether parts of the logs of these tasks are still to be copied."""
        copies = [(name, self._copies.get(name)) for name in self._of(run_id, tasks)]
        return any(
            copy is not None and copy.stopped is None and self._look(name, copy) < copy.log_end
            for name, copy in copies
        )

    def forget(self, run_id: str, tasks: Collection[str]) -> None:
        """Stop copying the logs of these tasks."""
        with self._lock:
            for name in self._of(run_id, tasks):
                self._copies.pop(name, None)
                self._held.pop(name[:2], None)
            if not any(name.run_id == run_id for name in self._copies):
                for known in [known for known in list(self._clocks) if known[0] == run_id]:
                    del self._clocks[known]
                    self._skew_reported.discard(known)

    def _of(self, run_id: str, tasks: Collection[str]) -> list[_Log]:
        return [name for name in list(self._copies) if name.run_id == run_id and name.task in tasks]

    def _look(self, name: _Log, copy: _Copy) -> int:
        """Return the end of our copy. If that cannot be read, return the log's end, so that no more is asked for."""
        try:
            copy.here = here = self._logs.end(*name)
        except OSError as e:
            log.warning("%s %s: the log cannot be copied: %s", name.run_id, name.task, e)
            return copy.log_end
        return here

    def _ask(self, link: HostLink, name: _Log, epoch: int) -> None:
        copy = self._copies.get(name)
        if copy is None:
            return  # the task is of a newer generation by now
        here = self._look(name, copy)
        with self._lock:
            if here >= copy.log_end or self._was_asked(copy) or not self._may_grow(name, copy):
                return
            copy.asked_at = self._now()
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
        asked = self._unix_time()

        def replied(reply: Reply[LogPart]) -> None:
            if reply.ok is not None:
                self._measure(name, reply.ok["time"], asked)
            self._do(partial(self._receive, link, name, epoch, reply))

        link.send(order, on_reply=replied)

    def clock(self, run_id: str, host: str) -> HostClock:
        """Return the clock of a run's host, as measured."""
        return self._clocks.get((run_id, host), HostClock())

    def _measure(self, name: _Log, host_time: float, asked: float) -> None:
        copy = self._copies.get(name)
        if copy is None:
            return
        clock = self._clocks[name.run_id, copy.host]
        clock.add_sample(host_time, asked, self._unix_time())
        if clock.is_off and (name.run_id, copy.host) not in self._skew_reported:
            self._skew_reported.add((name.run_id, copy.host))
            sentence = f"{copy.host}: {clock.sentence}; its times are shown by the head's"
            log.warning("%s: %s", name.run_id, sentence)
            self._skewed(name.run_id, copy.host, sentence)

    def _was_asked(self, copy: _Copy) -> bool:
        return self._now() - copy.asked_at < ASK_AGAIN_S

    def _receive(self, link: HostLink, name: _Log, epoch: int, reply: Reply[LogPart]) -> None:
        if reply.ok is None:
            log.warning("%s %s: the log cannot be read: %s", name.run_id, name.task, reply.error)
            return  # it is asked for again after ASK_AGAIN_S
        copy = self._copies.get(name)
        if copy is None:
            return  # the task is of a newer generation by now
        try:
            self._logs.put_host(*name, copy.host)
            data = shifted(reply.blob, -self._clocks[name.run_id, copy.host].ahead_s)
            self._logs.append(*name, reply.ok["offset"], data)
        except OSError as e:
            log.warning("%s %s: the log cannot be copied: %s", name.run_id, name.task, e)
            return
        with self._lock:
            copy.asked_at = -1e9
            if name[:2] in self._held:
                self._held[name[:2]] += len(reply.blob)
        if reply.blob:
            self._ask(link, name, epoch)
        for moved in self._moved:
            moved.set()

    def _may_grow(self, name: _Log, copy: _Copy) -> bool:
        """Return whether more of a log may be copied. If not, say why, once."""
        why = self._why_stopped(name, copy)
        if why is not None and copy.stopped is None:
            log.warning("%s: %s", name.run_id, why)
            self._notify(name.run_id, copy.host, TaskId.parse(name.task), why)
        copy.stopped = None if why is None else copy.stopped or why
        return why is None

    def _why_stopped(self, name: _Log, copy: _Copy) -> str | None:
        rest = f"what {name.task} prints from now on stays on {copy.host}"
        if name[:2] not in self._held:
            self._held[name[:2]] = self._logs.held_bytes(*name[:2])
        if self._held[name[:2]] >= copy.bytes_max:
            return f"the head node has {size(self._held[name[:2]])} of the logs of {name.task} (run.log_limit); {rest}"
        if self._logs.has_many_gaps(*name):
            return f"the log of {name.task} is rotated faster than it can be copied; {rest}"
        reserved = disk.why_reserved(self._logs.runs_dir)
        if reserved is not None:
            return f"the logs of {name.task} are not copied until there is more room: {reserved}"
        return None

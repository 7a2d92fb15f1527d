"""The head's copies of the tasks' logs, one file per task and generation. Reading them needs no coordinator.

`<state>/runs/<run_id>/logs/worker-0.gen-000002.log` equals the host's own log byte for byte, except for the times
where the host's clock differs from the head's. Its lines read `<unix time, 6 decimals> <o|e> <text>`. The host's
offsets count from the first byte ever written, so the size of the copy is the offset at which copying continues. Where
the host's rotation was faster than the copying, the copy has a line `<unix time> g <text>` in the place of the missing
part. A `.gaps` file beside the copy has the positions of these lines, so that sizes can still be converted to the
host's offsets. A `.host` file names the host on which the log was written.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from orchestrator.both import durable
from orchestrator.core.plan import TaskId
from orchestrator.head.records import first_causes
from orchestrator.head.records.log_file import (
    OWN,
    Follower,
    Gap,
    LogLine,
    drop_torn_gap,
    end_of_lines,
    gaps_path,
    lines_of,
    read_gaps,
    time_of,
    write_gap,
)

_GAPS_BYTES_MAX = 32 << 10
"""The size of a thousand gaps. Each gap is at least a whole log of 64 MiB that was rotated away."""

OWN_NAME = "orch"


class RunLogs:
    """Writes and reads the copies. There is one writer, the coordinator, and any number of readers."""

    def __init__(self, state_dir: str) -> None:
        self.runs_dir = os.path.join(state_dir, "runs")
        self._lock = Lock()

    # -- writing ---------------------------------------------------------------------------------------

    def end(self, run_id: str, task: str, generation: int) -> int:
        """Return the host's offset, in bytes, up to which the log was copied: the next one to ask for."""
        path = self._path(run_id, task, generation)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return 0
        gaps = [gap for gap in read_gaps(path) if gap.start <= size]
        if not gaps:
            return size
        last = gaps[-1]
        if size < last.after:  # the coordinator died while it wrote the gap's line, so the gap does not count
            before = gaps[-2] if len(gaps) > 1 else Gap(0, 0, 0)
            return before.offset + last.start - before.after
        return last.offset + size - last.after

    def append(self, run_id: str, task: str, generation: int, offset: int, data: bytes) -> int:
        """Write `data`, which is at `offset` in the host's log, and return the new `end`.

        Bytes that were copied before are skipped, so the same data may come twice. Raises OSError if the disk
        refuses.
        """
        path = self._path(run_id, task, generation)
        with self._lock:
            end = self.end(run_id, task, generation)
            if offset < end:
                data, offset = data[end - offset :], end
            if not data:
                return end
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                drop_torn_gap(file, path)
                if offset > end:
                    write_gap(file, path, offset, missing=offset - end, time=time_of(data))
                file.seek(0, os.SEEK_END)
                file.write(data)
            return offset + len(data)

    def put_host(self, run_id: str, task: str, generation: int, host: str) -> None:
        """Record on which host a log was written, so that the logs of a host can be found. Raises OSError."""
        path = _host_path(self._path(run_id, task, generation))
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            durable.write(path, host.encode(), durable=False)

    def held_bytes(self, run_id: str, task: str) -> int:
        """Return how much is held of a task's logs, in all generations."""
        return sum(os.stat(path).st_size for _, _, path in self.files(run_id, [task]))

    def has_many_gaps(self, run_id: str, task: str, generation: int) -> bool:
        """Return whether a log has so many gaps that reading them for each part would be slow."""
        try:
            return os.stat(gaps_path(self._path(run_id, task, generation))).st_size > _GAPS_BYTES_MAX
        except FileNotFoundError:
            return False

    def put_first_cause(self, run_id: str, cause: Mapping[str, Any] | None, *, now: float) -> None:
        """Record what ended the newest generation; see `first_causes.put`."""
        first_causes.put(self._run_dir(run_id), cause, now=now)

    # -- reading ---------------------------------------------------------------------------------------

    def runs(self) -> list[str]:
        """Return the ids of all runs that have a directory here, newest first."""
        try:
            found = [entry.name for entry in os.scandir(self.runs_dir) if entry.is_dir()]
        except FileNotFoundError:
            return []
        return sorted(found, key=_age_key, reverse=True)

    def newest(self, name: str | None = None) -> str | None:
        """Return the id of the newest run, or of the newest with that name or id; None if there is none."""
        runs = self.runs()
        if name is None or name in runs:
            return name or (runs[0] if runs else None)
        return next((run_id for run_id in runs if run_name(run_id) == name), None)

    def host_of(self, run_id: str, task: str, generation: int) -> str | None:
        """Return the host on which this log was written; None if unknown."""
        try:
            with open(_host_path(self._path(run_id, task, generation)), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def hosts(self, run_id: str) -> list[str]:
        """Return the hosts on which the run's logs were written, as far as known."""
        hosts = {self.host_of(run_id, task, generation) for task, generation, _ in self.files(run_id)}
        return sorted(host for host in hosts if host is not None)

    def tasks(self, run_id: str) -> list[str]:
        """Return the tasks that have a log, in TensorFlow's order."""
        return list(dict.fromkeys(task for task, _, _ in self.files(run_id)))

    def first_cause(self, run_id: str) -> dict[str, Any] | None:
        """Return what ended the run's last generation, as the coordinator recorded it; None if it did not fail."""
        return first_causes.newest(self._run_dir(run_id))

    def first_causes(self, run_id: str) -> list[dict[str, Any]]:
        """Return what ended each of the run's generations that failed, oldest first."""
        return first_causes.read(self._run_dir(run_id))

    def read(
        self,
        run_id: str,
        tasks: Iterable[str] | None = None,
        *,
        since: float | None = None,
        tail: int | None = None,
    ) -> Iterator[LogLine]:
        """Return all lines, merged by time. `since` is a Unix time; `tail` is the number of last lines to return."""
        files = self.files(run_id, tasks)
        if tail is not None and tail <= 0:
            return iter(())
        parts = [lines_of(path, task, generation, since, tail) for task, generation, path in files]
        own = self._own_lines(run_id, set(), since) if tasks is None else []
        merged = heapq.merge(*parts, own, key=_by_time)
        return merged if tail is None else iter(deque(merged, maxlen=tail))

    def follow(
        self,
        run_id: str,
        tasks: Iterable[str] | None = None,
        *,
        since: float | None = None,
        tail: int | None = None,
        pause: Callable[[], bool],
    ) -> Iterator[LogLine]:
        """Yield the lines of `read`, and then new lines as they arrive, also those of new generations.

        `pause` is called when everything has been read, and waits a moment. Once it returns False, the lines that
        have arrived meanwhile are yielded, and the iteration ends.
        """
        wanted = None if tasks is None else list(tasks)
        followers: dict[str, Follower] = {}
        # The positions are recorded before the reading, so that a line that arrives in between is shown once.
        for task, generation, path in self.files(run_id, wanted):
            followers[path] = Follower(path, task, generation, end_of_lines(path))
        seen: set[int] = set()
        own = self._own_lines(run_id, seen, since) if tasks is None else []
        first = heapq.merge(*(f.before(since, tail) for f in followers.values()), own, key=_by_time)
        yield from first if tail is None else deque(first, maxlen=max(0, tail))
        going = True
        while going:
            going = pause()
            for task, generation, path in self.files(run_id, wanted):
                followers.setdefault(path, Follower(path, task, generation, 0))
            new = [line for follower in followers.values() for line in follower.new(ended=not going)]
            if tasks is None:
                new += self._own_lines(run_id, seen, since)
            yield from sorted(new, key=_by_time)

    def _own_lines(self, run_id: str, seen: set[int], since: float | None) -> list[LogLine]:
        """Return a line for each failed generation that was acted on and is not in `seen`; add it to `seen`."""
        lines = []
        for cause in self.first_causes(run_id):
            generation, time = int(cause.get("generation") or 0), float(cause.get("time") or 0.0)
            if cause.get("done") and generation not in seen:
                seen.add(generation)
                text = f"first cause: {cause.get('sentence')}; {cause['done']}"
                lines.append(LogLine(time, OWN_NAME, generation, OWN, text))
        return [line for line in sorted(lines, key=_by_time) if since is None or line.time >= since]

    # -- places ----------------------------------------------------------------------------------------

    def _run_dir(self, run_id: str) -> str:
        if not run_id or "/" in run_id or run_id in (".", ".."):
            raise ValueError(f"not a run id: {run_id!r}")
        return os.path.join(self.runs_dir, run_id)

    def _path(self, run_id: str, task: str, generation: int) -> str:
        parsed = TaskId.parse(task)
        stem = f"{parsed.type}-{parsed.index}"
        return os.path.join(self._run_dir(run_id), "logs", f"{stem}.gen-{generation:06d}.log")

    def files(self, run_id: str, tasks: Iterable[str] | None = None) -> list[tuple[str, int, str]]:
        """Return (task, generation, path) of each log, sorted by task and generation."""
        logs_dir = os.path.join(self._run_dir(run_id), "logs")
        wanted = None if tasks is None else set(tasks)
        logs: list[tuple[TaskId, int, str]] = []
        try:
            names = os.listdir(logs_dir)
        except FileNotFoundError:
            return []
        for name in names:
            stem, dot, suffix = name.rpartition(".")
            task, _, generation = stem.partition(".gen-")
            if dot and suffix == "log" and generation.isdecimal():
                parsed = TaskId.parse(":".join(task.rsplit("-", 1)))
                if wanted is None or str(parsed) in wanted:
                    logs.append((parsed, int(generation), os.path.join(logs_dir, name)))
        return [(str(parsed), generation, path) for parsed, generation, path in sorted(logs)]


def run_name(run_id: str) -> str:
    """Return `mnist` for `mnist-20261120-1`."""
    return run_id.rsplit("-", 2)[0]


def _age_key(run_id: str) -> tuple[str, int, str]:
    """Return a key that is larger for newer ids, and smallest for names that are no id of a run.

    The times of a directory say nothing: those of an ended run change with a tag, or when its page is looked at.
    """
    _, date, number = ["", "", *run_id.rsplit("-", 2)][-3:]
    is_id = len(date) == 8 and date.isdecimal() and number.isdecimal()
    return (date, int(number), run_id) if is_id else ("", 0, run_id)


def _by_time(line: LogLine) -> float:
    return line.time


def _host_path(path: str) -> str:
    return path.removesuffix(".log") + ".host"

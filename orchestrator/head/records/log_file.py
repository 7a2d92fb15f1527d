"""The lines of one log file at the head: read forwards, from the end, and while the file grows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

from orchestrator.both import durable
from orchestrator.reporting.log_level import Level

_BLOCK_BYTES = 1 << 16

_STAMP = re.compile(rb"^\d+\.\d{6}(?= [oe] )", re.MULTILINE)
_TIME = re.compile(rb"\d{1,11}(\.\d{1,9})?")
"""A Unix time that JSON and Python can show."""

OWN = "w"

LEVEL_OF_STREAM: Mapping[str, Level] = {"g": "warning", OWN: "error"}
"""The level of lines that no task printed: a gap, and a first cause."""


class LogLine(NamedTuple):
    """A line of a task's log. `stream` is `o`, `e`, `g` for a gap, or OWN for a line of ours, whose task is `orch`."""

    time: float
    task: str
    generation: int
    stream: str
    text: str


class Follower:
    """Reads one growing file, only whole lines."""

    def __init__(self, path: str, task: str, generation: int, at: int) -> None:
        self._path, self._task, self._generation, self._at = path, task, generation, at
        self._time = 0.0

    def before(self, since: float | None, tail: int | None) -> Iterator[LogLine]:
        """Yield the lines up to the position where following begins."""
        for line in lines_of(self._path, self._task, self._generation, since, tail, end=self._at):
            self._time = line.time
            yield line

    def new(self, *, ended: bool) -> Iterator[LogLine]:
        """Yield the lines that have arrived. With `ended`, yield also a last line without its newline."""
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        if not ended:
            data = data[: data.rfind(b"\n") + 1]
        self._at += len(data)
        # Split at newlines only. bytes.splitlines would also split at the carriage returns of a progress bar.
        lines = data.split(b"\n")
        for raw in lines if lines[-1] else lines[:-1]:
            line = parse(raw, self._task, self._generation, self._time)
            self._time = line.time
            yield line


def lines_of(
    path: str, task: str, generation: int, since: float | None, tail: int | None, *, end: int | None = None
) -> Iterator[LogLine]:
    """Yield the lines of one file up to byte `end`, which is the end of a line."""
    time = 0.0
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size if end is None else end
        at = 0 if tail is None else _start_of_last(file, end, tail)
        file.seek(at)
        while at < end and (raw := file.readline()):
            at += len(raw)
            line = parse(raw.removesuffix(b"\n"), task, generation, time)
            time = line.time
            if since is None or time >= since:
                yield line


def end_of_lines(path: str) -> int:
    """Return the offset after the last newline. What follows is not a whole line yet."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size or byte_at(file, size - 1) == b"\n":
            return size
        return _start_of_last(file, size, 1)


def _start_of_last(file: BinaryIO, end: int, count: int) -> int:
    """Return where the last `count` lines before byte `end` begin. It reads backwards, since logs are long."""
    at = end
    # The newline at the end of the last line must not be counted as the start of a line.
    missing = count + 1 if end and byte_at(file, end - 1) == b"\n" else count
    while at > 0:
        start = max(0, at - _BLOCK_BYTES)
        file.seek(start)
        block = file.read(at - start)
        place = len(block)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if missing == 0:
                return start + place + 1
        at = start
    return 0


def byte_at(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(1)


def parse(raw: bytes, task: str, generation: int, time_before: float) -> LogLine:
    """Parse a line. A line that a rotation has cut keeps its text, and gets the time of the line before."""
    parts = raw.split(b" ", 2)
    if len(parts) >= 2 and parts[1] in (b"o", b"e", b"g") and _TIME.fullmatch(parts[0]):
        text = parts[2].decode("utf-8", "replace") if len(parts) == 3 else ""
        return LogLine(float(parts[0]), task, generation, parts[1].decode(), text)
    return LogLine(time_before, task, generation, "o", raw.decode("utf-8", "replace"))


def time_of(data: bytes) -> float:
    """Return the time of the first whole line in a piece of a log; 0 if it has none."""
    for raw in data.split(b"\n", 2)[:2]:
        time = parse(raw, "", 0, 0.0).time
        if time:
            return time
    return 0.0


def shifted(data: bytes, by_s: float) -> bytes:
    """Return lines of a host's log with their times moved. Their length stays: offsets are those of the host.

    >>> shifted(b"0000003600.250000 o 1.5 o\\n1760000000.000000 e x\\n", -3600.0)
    b'0000000000.250000 o 1.5 o\\n1759996400.000000 e x\\n'
    """

    def moved(stamp: re.Match[bytes]) -> bytes:
        text = b"%0*.6f" % (len(stamp[0]), max(0.0, float(stamp[0]) + by_s))
        return text if len(text) == len(stamp[0]) else stamp[0]

    return _STAMP.sub(moved, data) if by_s else data


class Gap(NamedTuple):
    """A gap's line, at bytes `start` to `after` of the copy. What follows it is at `offset` in the host's log."""

    start: int
    after: int
    offset: int


def gaps_path(path: str) -> str:
    """Return the path of the `.gaps` file beside a copy."""
    return path.removesuffix(".log") + ".gaps"


def read_gaps(path: str) -> list[Gap]:
    """Return the gaps of a copy, in order; also one whose line was not written yet."""
    try:
        with open(gaps_path(path), encoding="ascii") as file:
            lines = file.read().split("\n")
    except FileNotFoundError:
        return []
    # The last element is empty, or was being written when the coordinator died; then its gap does not count.
    return [Gap(*map(int, line.split())) for line in lines[:-1] if line]


def drop_torn_gap(file: BinaryIO, path: str) -> None:
    """Remove a gap whose line was only partly written, and forget gaps whose line was not written at all."""
    size = os.fstat(file.fileno()).st_size
    gaps = read_gaps(path)
    whole = [gap for gap in gaps if gap.after <= size]
    if len(whole) == len(gaps):
        return
    torn = gaps[len(whole)]
    if torn.start < size:
        file.truncate(torn.start)
    text = "".join(f"{gap.start} {gap.after} {gap.offset}\n" for gap in whole)
    # The copy is not synced either, since the host has the log
    durable.write(gaps_path(path), text.encode(), durable=False)


def write_gap(file: BinaryIO, path: str, offset: int, *, missing: int, time: float) -> None:
    """Write a line in the place of `missing` bytes. Its position is written first: `RunLogs.end` relies on that."""
    start = file.seek(0, os.SEEK_END)
    newline = b"" if start == 0 or byte_at(file, start - 1) == b"\n" else b"\n"
    text = (
        f"{time:.6f} g [{missing} bytes of this log were rotated away on the host before they were copied]\n"
    )
    line = newline + text.encode()
    with open(gaps_path(path), "a", encoding="ascii") as gaps:
        gaps.write(f"{start} {start + len(line)} {offset}\n")
    file.seek(0, os.SEEK_END)
    file.write(line)
    file.flush()

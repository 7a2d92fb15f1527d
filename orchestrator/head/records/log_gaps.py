"""Where a copy of a log has a line of ours in the place of what the host's rotation took away: its `.gaps` file."""

from __future__ import annotations

import os
from typing import BinaryIO, NamedTuple

from orchestrator.both import durable
from orchestrator.head.records.log_file import byte_at


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

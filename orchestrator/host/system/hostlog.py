"""The log of one task on its host: bounded, rotated, and read by other processes while it is written.

Each line is `<unix time, 6 decimals> <o|e> <text>\\n`, with the text as the task wrote it. Times have one length,
since the head changes them to its own clock where they are. The writer keeps a few
segments: `log`, and the older `log.1`, `log.2` …, whose total size is bounded. Offsets are logical: they count from
the task's first byte and continue across rotations. Where the disk is full, what does not fit is counted and dropped,
because a log must never stop a training.

A reader in another process must know where each segment begins. `log.head` tells it by inode, and is written before
a new segment is renamed into place. So a reader finds every segment that it holds open, whatever is renamed meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque

from orchestrator.both import durable, repetition

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "log"
SEGMENTS = 4
LINE_BYTES_MAX = 16 << 10
LAST_LINES = 20

_STAMP_BYTES = 24
_SHOWN_BYTES_MAX = 4096
"""The longest text of one of the last lines: a report must not carry the dump of a tensor."""


class LogWriter:
    """Writes a task's output. `feed` never raises, and waits for nothing but the local disk."""

    def __init__(
        self,
        directory: str,
        bytes_max: int,
        secrets: Sequence[str] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open the first segment. `secrets` are values that must never reach the disk; `now` gives Unix time."""
        self._directory = directory
        self._segment_bytes_max = max(bytes_max // SEGMENTS, LINE_BYTES_MAX + _STAMP_BYTES + 1)
        self._redact = Redactor(secrets)
        self._now = now
        self._partial = {"o": b"", "e": b""}
        self._last: deque[bytes] = deque(maxlen=LAST_LINES)
        self._bases: dict[str, int] = {}
        """The logical offset at which a segment begins, by the segment's inode."""
        self._file: int | None = None
        self._file_bytes = 0
        self._unreported_bytes = 0
        self.end = 0
        """The logical offset after the last byte on disk."""
        self.dropped_bytes = 0
        self._rotate()

    def feed(self, stream: str, data: bytes) -> None:
        """Log output from stdout (`o`) or stderr (`e`), which comes in pieces of any size."""
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        chunks = []
        for line in lines:
            line = self._redact(_last_state(line))
            chunks += [line[at : at + LINE_BYTES_MAX] for at in range(0, len(line) or 1, LINE_BYTES_MAX)]
        if b"\r" in rest:
            rest = _last_state(rest, ended=False)
        # The last bytes may hold the first half of a secret, so only what is before them may be cut off.
        if len(rest) > LINE_BYTES_MAX + self._redact.longest:
            rest = self._redact(rest)
            while len(rest) > LINE_BYTES_MAX + self._redact.longest:
                chunks.append(rest[:LINE_BYTES_MAX])
                rest = rest[LINE_BYTES_MAX:]
        self._partial[stream] = rest
        self._write(stream, chunks)

    def finish(self) -> None:
        """End the log. A last line without its newline is written too."""
        for stream, rest in self._partial.items():
            if rest:
                self._partial[stream] = b""
                self._write(stream, [self._redact(_last_state(rest))])
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def last_lines(self) -> list[str]:
        """Return the last lines of both streams, without their times and colours."""
        return [_shown(line) for line in self._last]

    def redact(self, text: str) -> str:
        """Return `text` with the secrets replaced."""
        return self._redact.text(text)

    def give_room(self) -> None:
        """Remove the older segments, to make room on a full disk for something more important."""
        for number in range(1, SEGMENTS):
            _remove(_segment(self._directory, number))

    def _write(self, stream: str, chunks: list[bytes]) -> None:
        if not chunks:
            return
        for chunk in chunks:
            self._remember(chunk[:_SHOWN_BYTES_MAX])
        head = b"%017.6f %s " % (self._now(), stream.encode())
        room = self._segment_bytes_max
        batch: list[bytes] = []
        batch_bytes = 0
        for chunk in chunks:
            line = head + chunk + b"\n"
            if batch and self._file_bytes + batch_bytes + len(line) > room:
                self._append(b"".join(batch))
                batch, batch_bytes = [], 0
            batch.append(line)
            batch_bytes += len(line)
        self._append(b"".join(batch))

    def _remember(self, line: bytes) -> None:
        """Keep a line as one of the last, in place of one that repeats the same error."""
        kind = repetition.repeated(line[: repetition.HEAD_CHARS].decode("utf-8", "replace"))
        if kind is not None:
            repeated = kind.encode()
            self._last = deque((old for old in self._last if repeated not in old), maxlen=LAST_LINES)
        self._last.append(line)

    def _append(self, data: bytes) -> None:
        """Append whole lines to the newest segment: all of them or none."""
        if self._unreported_bytes:
            dropped = self._unreported_bytes
            note = b"%017.6f e [orch: %d bytes were dropped here: the log's disk was full]\n" % (
                self._now(),
                dropped,
            )
            if self._append_raw(note):
                self._unreported_bytes = 0
        if self._unreported_bytes or not self._append_raw(data):
            self._unreported_bytes += len(data)
            self.dropped_bytes += len(data)

    def _append_raw(self, data: bytes) -> bool:
        full = self._file_bytes and self._file_bytes + len(data) > self._segment_bytes_max
        if (self._file is None or full) and not self._rotate():
            return False
        if self._file is None:
            return False
        try:
            written = os.write(self._file, data)
        except OSError:
            return False
        if written < len(data):
            # Half a line would shift every offset after it, so none of it may stay.
            os.ftruncate(self._file, self._file_bytes)
            return False
        self._file_bytes += written
        self.end += written
        return True

    def _rotate(self) -> bool:
        """Open the next segment. Return False if the disk refuses; the next write tries again."""
        path = os.path.join(self._directory, NAME)
        fresh = path + ".new"
        _remove(f"{path}.{SEGMENTS - 1}")  # first, because on a full disk this makes room for the new one
        try:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            self._write_head(str(os.fstat(file).st_ino))
            for number in range(SEGMENTS - 2, -1, -1):
                older = f"{path}.{number}" if number else path
                if os.path.exists(older):
                    os.rename(older, f"{path}.{number + 1}")
            os.rename(fresh, path)
        except OSError:
            os.close(file)
            return False
        if self._file is not None:
            os.close(self._file)
        self._file, self._file_bytes = file, 0
        return True

    def _write_head(self, newest: str) -> None:
        live = set()
        for number in range(SEGMENTS):
            try:
                live.add(str(os.stat(_segment(self._directory, number)).st_ino))
            except OSError:
                continue
        bases = {inode: base for inode, base in self._bases.items() if inode in live}
        bases[newest] = self.end
        path = os.path.join(self._directory, NAME + ".head")
        durable.write_json(path, bases, durable=False)  # the log is not synced either
        self._bases = bases


class Redactor:
    """Replaces secret values by ***."""

    def __init__(self, secrets: Sequence[str]) -> None:
        values: set[bytes] = set()
        for secret in secrets:
            value = secret.encode("utf-8", "surrogateescape")
            values.add(value)
            password = value.partition(b"://")[2].rpartition(b"@")[0].partition(b":")[2]
            if len(password) >= 6:  # of a URL: drivers print it alone, and decoded
                values.add(password)
                if b"%" in password:
                    from urllib.parse import unquote_to_bytes

                    values.add(unquote_to_bytes(password))
            if b"\n" in value:
                # A log is redacted line by line, so each line of a long key is a secret of its own.
                values.update(line.strip() for line in value.splitlines() if len(line.strip()) >= 8)
        self._values = sorted((value for value in values if value.strip(b"*")), key=len, reverse=True)
        self.longest = len(self._values[0]) if self._values else 0

    def __call__(self, data: bytes) -> bytes:
        for value in self._values:
            if value in data:
                data = data.replace(value, b"***")
        return data

    def text(self, text: str) -> str:
        """Replace the secrets in a text."""
        return self(text.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")


def read(directory: str, offset: int, bytes_max: int) -> tuple[int, bytes, int]:
    """Read whole lines from the logical `offset`, while the writer continues.

    Returns:
        (offset, data, end). The offset is later than requested where rotation has dropped the start. `end` is the
        logical end of what is on disk. A missing log reads as an empty one. A `bytes_max` below the length of the
        longest line may cut it.
    """
    for _ in range(3):
        segments = _open_segments(directory)
        try:
            if not segments:
                return offset, b"", offset
            first = segments[0][0]
            end = segments[-1][0] + os.fstat(segments[-1][1]).st_size
            start = min(max(offset, first), end)
            data = _read_range(segments, start, bytes_max)
        finally:
            for _, file in segments:
                os.close(file)
        if data is not None:
            whole = data[: data.rfind(b"\n") + 1]
            return start, whole or data if len(data) >= bytes_max else whole, end
    return offset, b"", offset  # the log rotates faster than it can be read; the caller asks again


def tail(directory: str, lines: int = LAST_LINES) -> list[str]:
    """Return the last lines of a log, without their times and colours."""
    _, _, end = read(directory, 0, 0)
    _, data, _ = read(directory, max(0, end - (256 << 10)), 256 << 10)
    shown = [line.split(b" ", 2)[2:] for line in data.splitlines()[-lines:]]
    return [_shown(rest[0][:_SHOWN_BYTES_MAX]) if rest else "" for rest in shown]


def _shown(line: bytes) -> str:
    """Return a line as text without colours: Keras prints them in every progress bar, and the head would show codes."""
    if b"\x1b[" in line:
        import re

        line = re.sub(rb"\x1b\[[0-9;:]*m", b"", line)
    return line.decode("utf-8", "replace")


def _open_segments(directory: str) -> list[tuple[int, int]]:
    """Open the segments. Return (logical offset, descriptor) of each, oldest first."""
    files = []
    # They are opened newest first: a rotation meanwhile then shows a segment twice, but never hides one.
    for number in range(SEGMENTS):
        try:
            files.append(os.open(_segment(directory, number), os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            continue
    try:
        with open(os.path.join(directory, NAME + ".head")) as head:
            bases = json.load(head)
    except (OSError, ValueError):
        bases = {}
    segments: dict[int, int] = {}
    for file in files:
        base = bases.get(str(os.fstat(file).st_ino))
        if base is None or base in segments:
            os.close(file)
        else:
            segments[base] = file
    return sorted(segments.items())


def _read_range(segments: list[tuple[int, int]], start: int, bytes_max: int) -> bytes | None:
    """Read from open segments. Return None if one is missing: they were rotated while they were opened."""
    data = b""
    for (base, file), after in zip(segments, [*segments[1:], None], strict=True):
        size = os.fstat(file).st_size
        if after is not None and base + size != after[0]:
            return None
        at = start + len(data)
        if base <= at < base + size and len(data) < bytes_max:
            data += os.pread(file, bytes_max - len(data), at - base)
    return data


def _segment(directory: str, number: int) -> str:
    path = os.path.join(directory, NAME)
    return f"{path}.{number}" if number else path


def _last_state(line: bytes, *, ended: bool = True) -> bytes:
    """Return the last version of a line that was redrawn with carriage returns.

    Where the line has not `ended`, a carriage return at its end is kept, since it may be half of a CRLF.
    """
    if b"\r" not in line:
        return line
    drawings = line.split(b"\r")
    for drawing in reversed(drawings):
        if drawing:
            return drawing if ended or drawings[-1] else drawing + b"\r"
    return b"" if ended else b"\r"


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return

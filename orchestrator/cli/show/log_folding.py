"""Fold lines that repeat: equal lines of several tasks, `worker:0 ×4 | epoch 3`, and messages that gRPC repeats."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.both.repetition import repeated
from orchestrator.head.records.log_file import OWN, LogLine

WITHIN_S = 2.0
"""Equal lines of tasks whose times differ by more than this are not one."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(slots=True, eq=False)
class _Group:
    line: LogLine
    tasks: set[str]


class Folder:
    """Holds lines while another task may still print the same, and passes them on in order.

    Lines are equal where they differ in numbers alone. A task that repeats itself is not folded.
    """

    def __init__(self, put: Callable[[LogLine, int], None]) -> None:
        """`put` is called with a line, and how many tasks have printed it."""
        self._put = put
        self._groups: list[_Group] = []
        self._open: dict[tuple[int, str], list[_Group]] = {}
        """The held groups of equal lines, oldest first."""

    def add(self, line: LogLine) -> None:
        """Add the next line, in the order of time."""
        self.flush(line.time - WITHIN_S)
        alike = self._open.setdefault(_likeness(line), [])
        # The oldest: the third `step` of one task is the third of the others.
        known = next((group for group in alike if line.task not in group.tasks), None)
        if known is not None and line.stream != OWN:
            known.tasks.add(line.task)
            return
        alike.append(_Group(line, {line.task}))
        self._groups.append(alike[-1])

    def flush(self, before: float = float("inf")) -> None:
        """Pass on the lines that are older than this time."""
        count = 0
        for group in self._groups:
            if group.line.time >= before:
                break
            self._put(group.line, len(group.tasks))
            count += 1
            alike = self._open[_likeness(group.line)]
            alike.remove(group)
            if not alike:
                del self._open[_likeness(group.line)]
        del self._groups[:count]


def _likeness(line: LogLine) -> tuple[int, str]:
    return line.generation, _NUMBER.sub("#", line.text)


QUIET_S = 10.0
"""A burst ends when its task has printed no such line for this long."""


@dataclass(slots=True)
class _Burst:
    began: LogLine
    last_at: float
    kinds: set[str] = field(default_factory=set)
    left_out: int = 0


class GrpcFolder:
    """Passes lines on in order. From a burst of repeated lines it passes the first of each kind, and the count."""

    def __init__(self, put: Callable[[LogLine], None]) -> None:
        self._put = put
        self._bursts: dict[tuple[str, int], _Burst] = {}

    def add(self, line: LogLine) -> None:
        """Add the next line, in the order of time."""
        self.flush(line.time)
        kind = repeated(line.text)
        if kind is None:
            self._put(line)
            return
        burst = self._bursts.setdefault((line.task, line.generation), _Burst(line, line.time))
        burst.last_at = line.time
        if kind in burst.kinds:
            burst.left_out += 1
            return
        burst.kinds.add(kind)
        self._put(line)

    def flush(self, now: float = float("inf")) -> None:
        """Report how many lines were left out of each burst that has ended."""
        for key, burst in list(self._bursts.items()):
            if now - burst.last_at <= QUIET_S:
                continue
            del self._bursts[key]
            if burst.left_out:
                more = "1 more line" if burst.left_out == 1 else f"{burst.left_out} more lines"
                text = f"[orch: {more} of gRPC like those above; `orch logs --raw` shows all]"
                self._put(burst.began._replace(time=burst.last_at, stream="g", text=text))

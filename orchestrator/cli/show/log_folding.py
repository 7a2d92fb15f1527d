"""Fold equal lines of several tasks into one: `worker:0 ×4 | epoch 3`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.head.records.log_file import OWN, LogLine

WITHIN_S = 2.0
"""Equal lines of tasks whose times differ by more than this are not one."""

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(slots=True, eq=False)
class _Group:
    line: LogLine
    tasks: set[str]


class Folder:
    """Holds lines for as long as another task may still print the same, and passes them on in their order.

    Lines are equal where they differ in numbers alone. A task that repeats itself is not folded.
    """

    def __init__(self, put: Callable[[LogLine, int], None]) -> None:
        """`put` is called with a line, and how many tasks have printed it."""
        self._put = put
        self._groups: list[_Group] = []
        self._open: dict[tuple[int, str], list[_Group]] = {}
        """The groups that are held, by what makes lines equal; oldest first."""

    def add(self, line: LogLine) -> None:
        """Take the next line, by time."""
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
        """Pass on what is older than that."""
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

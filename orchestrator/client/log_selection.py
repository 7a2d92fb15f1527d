"""Selects lines of a run's output by text, generation, host and level."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from orchestrator.core.errors import UsageError
from orchestrator.head.records.log_file import LEVEL_OF_STREAM, OWN, LogLine
from orchestrator.reporting.log_level import Level, Levels, is_serious, parse_level


@dataclass(frozen=True, slots=True)
class Selection:
    """The conditions that a line must meet. Each field that is set is a condition."""

    grep: str | None = None
    """A regular expression that matches a part of its text."""
    generations: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    level: Level | None = None
    """The lowest level."""

    def chooser(self, host_of: Callable[[str, int], str | None]) -> Callable[[LogLine], bool] | None:
        """Return a function that says whether a line is selected; None if all are.

        `host_of` returns the host on which a task ran in a generation. Raises UsageError for a bad expression.
        """
        if self == EVERYTHING:
            return None
        return _Chooser(self, host_of)


EVERYTHING = Selection()


def select(
    grep: str | None = None,
    generations: int | Iterable[int] = (),
    hosts: str | Iterable[str] = (),
    level: str | None = None,
) -> Selection:
    """Return the selection, from one or several generations or hosts. Raises UsageError for an unknown level."""
    try:
        least = None if level is None else parse_level(level)
    except ValueError as e:
        raise UsageError(str(e)) from None
    numbers = (generations,) if isinstance(generations, int) else tuple(generations)
    names = (hosts,) if isinstance(hosts, str) else tuple(hosts)
    return Selection(grep, numbers, names, least)


@dataclass(slots=True)
class _Chooser:
    selection: Selection
    host_of: Callable[[str, int], str | None]
    _levels: Levels = field(default_factory=Levels)
    _pattern: re.Pattern[str] | None = None
    _hosts: dict[tuple[str, int], str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.selection.grep is not None:
            try:
                self._pattern = re.compile(self.selection.grep)
            except re.error as e:
                raise UsageError(
                    f"{self.selection.grep!r} is no regular expression: {e}",
                    hint=f"for that very text: {shlex.quote(re.escape(self.selection.grep))}",
                ) from e

    def __call__(self, line: LogLine) -> bool:
        wanted = self.selection
        # First, since a traceback is recognized by the lines before it.
        if wanted.level is not None and not self._is_serious(line, wanted.level):
            return False
        if wanted.generations and line.generation not in wanted.generations:
            return False
        if wanted.hosts and self._host(line) not in wanted.hosts:
            return False
        return self._pattern is None or self._pattern.search(line.text) is not None

    def _is_serious(self, line: LogLine, least: Level) -> bool:
        level = self._levels.level((line.task, line.generation), line.text)
        return is_serious(LEVEL_OF_STREAM.get(line.stream, level), least)

    def _host(self, line: LogLine) -> str | None:
        key = (line.task, line.generation)
        if key not in self._hosts:
            self._hosts[key] = None if line.stream == OWN else self.host_of(*key)
        return self._hosts[key]

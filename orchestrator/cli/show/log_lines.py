"""Format log lines for people: each with its task, and on a terminal each task in its own colour."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.cli.session import Paint
from orchestrator.cli.show.terminal import cut, printable
from orchestrator.head.records.log_file import OWN, LogLine

Stamps = Callable[[float], str]

_TASK_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "bright_cyan", "bright_magenta", "bright_blue")

_STYLES: dict[str, tuple[str, ...]] = {"o": (), "e": (), "g": ("yellow",), OWN: ("red", "bold")}

_TEXT_MIN = 240
"""Characters of a line that are shown on any terminal, however narrow."""


class LogPainter:
    """Format log lines: each task in the next colour, its prefix as wide as the longest so far.

    `columns`: the terminal's width where very long lines are cut; None leaves all lines whole. `stamps`: formats the
    times with which lines begin.
    """

    def __init__(
        self,
        paint: Paint,
        tasks: tuple[str, ...] = (),
        *,
        columns: int | None = None,
        stamps: Stamps | None = None,
    ) -> None:
        self._paint = paint
        self._stamps = stamps
        self._generation = 0
        # gRPC's errors have thousands of characters; the first ones name the error.
        self._text_max = None if columns is None else max(_TEXT_MIN, 2 * columns)
        self._colours: dict[str, str] = {}
        self._width = 0
        for task in tasks:
            self._colour(task)

    def line(self, line: LogLine, tasks: int = 1) -> str:
        """Format one line: `worker:0 | text`; one that several tasks printed as `worker:0 ×4 | text`."""
        own = line.stream == OWN
        colour = "red" if own else self._colour(line.task)
        who = line.task if tasks == 1 else f"{line.task} ×{tasks}"
        self._width = max(self._width, len(who))
        prefix = self._paint(f"{who:<{self._width}} |", colour)
        if self._stamps is not None:
            prefix = f"{self._paint(self._stamps(line.time), 'dim')} {prefix}"
        text = cut(printable(line.text), self._text_max)
        return f"{prefix} {self._paint(text, *_STYLES[line.stream])}".rstrip()

    def separator(self, line: LogLine) -> str | None:
        """Return the line that separates this line's generation from the one before; None within a generation.

        A late line of an older generation does not separate.
        """
        before, self._generation = self._generation, max(self._generation, line.generation)
        if before in (0, self._generation):
            return None
        return self._paint(f"──── generation {self._generation} ────", "dim")

    def _colour(self, task: str) -> str:
        self._width = max(self._width, len(task))
        return self._colours.setdefault(task, _TASK_COLOURS[len(self._colours) % len(_TASK_COLOURS)])

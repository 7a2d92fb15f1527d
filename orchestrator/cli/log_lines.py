"""Format log lines for people: each with its task, and on a terminal each task in its own colour."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from orchestrator.adapters.head.runlogs import OWN, LogLine
from orchestrator.cli.session import Paint
from orchestrator.cli.terminal import cut, printable

_TASK_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "bright_cyan", "bright_magenta", "bright_blue")

_STYLES: dict[str, tuple[str, ...]] = {"o": (), "e": (), "g": ("yellow",), OWN: ("red", "bold")}

_TEXT_MIN = 240
"""Characters of a line that are shown on any terminal, however narrow."""


class LogPainter:
    """Format log lines: each task in the next colour, its prefix as wide as the longest so far.

    `columns`: the terminal's width where very long lines are cut; None leaves all lines whole.
    """

    def __init__(self, paint: Paint, tasks: tuple[str, ...] = (), *, columns: int | None = None) -> None:
        self._paint = paint
        # gRPC's errors have thousands of characters; the first ones name the error.
        self._text_max = None if columns is None else max(_TEXT_MIN, 2 * columns)
        self._colours: dict[str, str] = {}
        self._width = 0
        for task in tasks:
            self._colour(task)

    def line(self, line: LogLine) -> str:
        """Format one line: `worker:0 | text`."""
        own = line.stream == OWN
        colour = "red" if own else self._colour(line.task)
        prefix = self._paint(f"{line.task:<{self._width}} |", colour)
        text = cut(printable(line.text), self._text_max)
        return f"{prefix} {self._paint(text, *_STYLES[line.stream])}".rstrip()

    def _colour(self, task: str) -> str:
        self._width = max(self._width, len(task))
        return self._colours.setdefault(task, _TASK_COLOURS[len(self._colours) % len(_TASK_COLOURS)])


_STREAMS = {"o": "stdout", "e": "stderr", "g": "gap", OWN: "orch"}


def document(line: LogLine, run_id: str) -> dict[str, Any]:
    """Return one JSON line of `orch logs --json`."""
    time = datetime.fromtimestamp(line.time, timezone.utc).isoformat(timespec="microseconds")
    return {
        "time": time.replace("+00:00", "Z"),
        "run": run_id,
        "task": None if line.stream == OWN else line.task,
        "generation": line.generation,
        "stream": _STREAMS[line.stream],
        "text": line.text,
    }

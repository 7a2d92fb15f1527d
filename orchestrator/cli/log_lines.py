"""Log lines for people: each with its task, and on a terminal each task in its colour."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from orchestrator.adapters.runlogs import LogLine
from orchestrator.cli.render import printable
from orchestrator.cli.session import Paint

_TASK_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "bright_cyan", "bright_magenta", "bright_blue")


class LogPainter:
    """Gives each task the next colour, and its prefix the width of the longest so far."""

    def __init__(self, paint: Paint, tasks: tuple[str, ...] = ()) -> None:
        self._paint = paint
        self._colours: dict[str, str] = {}
        self._width = 0
        for task in tasks:
            self._colour(task)

    def line(self, line: LogLine) -> str:
        """`worker:0 | text`."""
        colour = self._colour(line.task)
        prefix = self._paint(f"{line.task:<{self._width}} |", colour)
        text = printable(line.text)
        return f"{prefix} {self._paint(text, 'yellow') if line.stream == 'g' else text}".rstrip()

    def _colour(self, task: str) -> str:
        self._width = max(self._width, len(task))
        return self._colours.setdefault(task, _TASK_COLOURS[len(self._colours) % len(_TASK_COLOURS)])


_STREAMS = {"o": "stdout", "e": "stderr", "g": "gap"}


def document(line: LogLine, run_id: str) -> dict[str, Any]:
    """One JSON line of `orch logs --json`."""
    time = datetime.fromtimestamp(line.time, timezone.utc).isoformat(timespec="microseconds")
    return {
        "time": time.replace("+00:00", "Z"),
        "run": run_id,
        "task": line.task,
        "generation": line.generation,
        "stream": _STREAMS[line.stream],
        "text": line.text,
    }

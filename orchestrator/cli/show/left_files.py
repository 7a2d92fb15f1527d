"""Say what the tasks of an ended run have left on their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.cli.show.paragraphs import folded, labelled
from orchestrator.cli.show.terminal import printable
from orchestrator.core.words import counted, size

if TYPE_CHECKING:
    from orchestrator.cli.session import Paint

TASKS_MAX = 8
"""How many tasks have a line."""


def left_lines(run: Mapping[str, Any], paint: Paint, width: int | None = None) -> list[str]:
    """Return what the tasks have left, how to fetch it, and what could not be: `width` less two columns of indent."""
    found = run.get("outputs") or {}
    tasks, lines = found.get("tasks") or [], []
    for left in tasks[:TASKS_MAX]:
        there = f"{left['task']} left {counted(left['files'], 'file')}, {size(left['bytes'])}"
        here = f"; {left['fetched']} of them in {found['directory']}" if left["fetched"] else ""
        lines.append(f"{there}{here}")
    if len(tasks) > TASKS_MAX:
        lines.append(f"and {counted(len(tasks) - TASKS_MAX, 'task')} more left files")
    if any(left["fetched"] < left["files"] for left in tasks):
        lines[-1] += f": `orch fetch {run.get('name')}`"
    if found.get("pending"):
        lines.append(
            "what the tasks left is being fetched" if found["directory"] else "looking for what they left"
        )
    shown = folded(lines, width)
    for why in found.get("problems") or []:
        shown += labelled("not fetched:", printable(str(why)), paint, "yellow", width)
    return shown

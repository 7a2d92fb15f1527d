"""The card of a run in a notebook: HTML without scripts, in which every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from orchestrator.client.run_facts import metrics, position
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.words import duration

_COLOURS = {"RUNNING": "#002c76", "SUCCEEDED": "#3d9578", "FAILED": "#98031f", "KILLED": "#98031f"}
_PASSING = "#9f9424"
_TASKS_MAX = 16
_WIDTH, _HEIGHT = 480, 80


def plot(name: str, x: Sequence[float], y: Sequence[float]) -> str:
    """Return a line as SVG, with its name, its first and last place, and its range."""
    points = [(at, value) for at, value in zip(x, y, strict=True) if math.isfinite(value)]
    if not points:
        return f"<div>{escape(name)}: nothing yet</div>"
    left, right = min(at for at, _ in points), max(at for at, _ in points)
    low, high = min(value for _, value in points), max(value for _, value in points)
    across, up = _WIDTH / ((right - left) or 1.0), _HEIGHT / ((high - low) or 1.0)
    line = " ".join(f"{(at - left) * across:.1f},{_HEIGHT - (value - low) * up:.1f}" for at, value in points)
    facts = f"{name}: {low:.4g} to {high:.4g}, now {points[-1][1]:.4g}; {left:.0f} to {right:.0f}"
    return (
        f'<div>{escape(facts)}</div><svg viewBox="0 -2 {_WIDTH} {_HEIGHT + 4}" width="{_WIDTH}" role="img">'
        f'<polyline points="{line}" fill="none" stroke="#002c76" stroke-width="1.5"/></svg>'
    )


def card(run_id: str, status: Mapping[str, Any] | OrchestratorError) -> str:
    """Return the card of a run, or of the error that came instead of its status."""
    if isinstance(status, OrchestratorError):
        hint = f"<div>{escape(status.hint)}</div>" if status.hint else ""
        return f"<div><b>{escape(run_id)}</b> <div>{escape(status.message)}</div>{hint}</div>"
    phase = str(status.get("phase"))
    colour = _COLOURS.get(phase, _PASSING)
    head = f'<b>{escape(run_id)}</b> <b style="color:{colour}">{escape(phase)}</b> {escape(_facts(status))}'
    reason = escape(str(status.get("reason") or ""))
    cause = (status.get("first_cause") or {}) if phase != "SUCCEEDED" else {}
    first = f'<div style="color:#98031f">✕ {escape(str(cause["sentence"]))}</div>' if cause else ""
    return f"<div><div>{head}</div><div>{reason}</div>{first}{_tasks(status.get('tasks') or [])}</div>"


def _facts(status: Mapping[str, Any]) -> str:
    facts = position(status)
    if status.get("eta_s") is not None:
        facts.append(f"{duration(status['eta_s'])} left")
    facts += metrics(status)
    return ", ".join(facts)


def _tasks(tasks: list[Mapping[str, Any]]) -> str:
    if not tasks:
        return ""
    keys = ("task", "host", "phase", "global_step")
    rows = ["<tr>" + "".join(f"<th>{escape(key)}</th>" for key in keys) + "</tr>"]
    for task in tasks[:_TASKS_MAX]:
        cells = ("" if task.get(key) is None else str(task[key]) for key in keys)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    more = len(tasks) - _TASKS_MAX
    rest = f"<div>and {more} more tasks</div>" if more > 0 else ""
    return f"<table>{''.join(rows)}</table>{rest}"

"""The colours of phases, of runs and of tasks."""

from __future__ import annotations

from orchestrator.cli.session import Paint

_PHASE_STYLE = {
    "RUNNING": ("green",),
    "SUCCEEDED": ("green", "bold"),
    "FAILED": ("red", "bold"),
    "KILLED": ("red",),
    "LOST": ("red",),
    "READY": ("cyan",),
    "EXITED": ("dim",),
}


def phase(name: object, paint: Paint) -> str:
    """Return the phase in its colour."""
    text = str(name or "?")
    return paint(text, *style_of(text))


def style_of(name: str) -> tuple[str, ...]:
    """Return the style of a phase; yellow for those that pass."""
    return _PHASE_STYLE.get(name, ("yellow",))

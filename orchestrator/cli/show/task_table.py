"""Format the tasks of a run: a table while it goes on, then how each of them ended. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from orchestrator.cli.session import Paint
from orchestrator.cli.show.phase_colours import style_of
from orchestrator.cli.show.tables import fitting
from orchestrator.core.words import duration, pace, size
from orchestrator.protocol import measures

Document = Mapping[str, Any]

MEASURED = {
    row.label.upper(): (name, row.unit) for name, row in measures.TASK.items() if row.label and row.in_tables
}
"""By column: the measure of a task that it shows, and its unit."""

_COLUMNS = ("TASK", "HOST", "PHASE", "PID", "STEP", *MEASURED, "GPU", "HEARTBEAT")
_RIGHT = frozenset(_COLUMNS[3:])
_ALWAYS = frozenset({"TASK", "HOST", "PHASE", "PID", "STEP"})
LEAST = tuple(reversed(MEASURED))
"""The measures, the least important first."""
_DROP = ("PID", *LEAST[:-1], "HEARTBEAT", LEAST[-1], "GPU", "HOST", "STEP")
"""The columns that a narrow terminal leaves out, in this order."""

_IN_UNIT: Mapping[str, Callable[[Any], str]] = {
    "percent": lambda value: f"{value:.0f}%",
    "bytes": size,
    "per_s": pace,
    "count": lambda value: f"{value:.0f}",
    "celsius": lambda value: f"{value:.0f} °C",
    "watts": lambda value: f"{value:.0f} W",
    "text": str,
    "flag": lambda value: "yes" if value else "no",
}


def task_table(run: Document, paint: Paint, width: int | None = None) -> list[str]:
    """Return the table of tasks, one line each, none wider than `width`. Empty columns are left out."""
    hosts = {host.get("host"): host for host in run.get("hosts") or []}
    tasks = run.get("tasks") or []
    rows = [task_row(task, hosts.get(task.get("host")) or {}) for task in tasks]
    styles = {(n, "PHASE"): style_of(row["PHASE"].partition(":")[0]) for n, row in enumerate(rows)}
    return fitting(
        _COLUMNS, rows, paint, width=width, right=_RIGHT, always=_ALWAYS, drop=_DROP, styles=styles
    )


def task_row(task: Document, host: Document) -> dict[str, str]:
    """Return the cells of a task by column; `-` for what is not known."""
    heard = task.get("heartbeat_age_s")
    return {
        "TASK": str(task.get("task")),
        "HOST": or_dash(task.get("host")),
        "PHASE": phase_text(task),
        "PID": or_dash(task.get("pid")),
        "STEP": or_dash(task.get("global_step")),
        **{
            column: "-" if task.get(name) is None else _IN_UNIT[unit](task[name])
            for column, (name, unit) in MEASURED.items()
        },
        "GPU": gpu_text(gpus_of(task, host)),
        "HEARTBEAT": "-" if heard is None else f"{duration(heard)} ago",
    }


def phase_text(task: Document) -> str:
    """Return the phase of a task, or what it does if it runs without training.

    >>> phase_text({"phase": "RUNNING", "stage": "connecting"}), phase_text({"phase": "RUNNING", "stage": "training"})
    ('RUNNING: connecting', 'RUNNING')
    """
    phase, stage = str(task.get("phase")), task.get("stage")
    return f"{phase}: {stage}" if phase == "RUNNING" and stage not in (None, "training") else phase


def or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def gpus_of(task: Document, host: Document) -> list[Document]:
    """Return the task's GPUs from those of the host."""
    own = task.get("gpus") or []
    return [gpu for gpu in host.get("gpus") or [] if gpu.get("index") in own or gpu.get("uuid") in own]


def gpu_text(gpus: Sequence[Document]) -> str:
    """Return the use of some GPUs: the mean of their utilization, and their memory together.

    >>> gpu_text([{"utilization_percent": 96, "memory_used_bytes": 8 << 30}, {"utilization_percent": 98}])
    '97% 8.0 GiB'
    """
    used = [gpu["utilization_percent"] for gpu in gpus if gpu.get("utilization_percent") is not None]
    memory = [gpu["memory_used_bytes"] for gpu in gpus if gpu.get("memory_used_bytes") is not None]
    parts = [f"{sum(used) / len(used):.0f}%"] if used else []
    return " ".join([*parts, *([size(sum(memory))] if memory else [])]) or "-"


def ended_tasks(tasks: Iterable[Document]) -> list[str]:
    """Return the tasks of an ended run, one line each: `worker:0 on gpu-a: exit code 0`."""
    return [f"{t.get('task')} on {t.get('host')}: {exit_text(t)}" for t in tasks]


_NO_EXIT = {"WAITING": "not started", "LOST": "lost"}
"""How a task without an exit record ended, by its phase."""


def exit_text(task: Document) -> str:
    """Return how a task of an ended run ended, as far as known."""
    cause = task.get("cause")
    if cause == "ordered":
        return "stopped by orch"
    why = f" ({cause})" if cause not in (None, "finished") else ""
    if task.get("exit_code") is not None:
        return f"exit code {task['exit_code']}{why}"
    if task.get("signal"):
        return f"killed by {_signal_name(task['signal'])}{why}"
    return _NO_EXIT.get(str(task.get("phase")), "not known to have ended") + why


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""The numbers that a host measures of a task, of itself, and of each GPU: one row for each.

A row is a field of a TypedDict: its name and type are those of the frame, and its `Measure` says how people see it.
All that handles these numbers goes over the rows: the check of a frame, the state, the status document, the tables
of `orch status`, `orch top` and the page, the history with its plots, and `orch metrics`. So a new number needs a row
here, and the line that measures it.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from orchestrator.protocol.bounds import Count, FreeBytes, Pace, Percent


class Measure(NamedTuple):
    """How people see a number."""

    label: str = ""
    """The heading of its column and of its plot; empty if it has neither."""
    unit: str = ""
    """`percent`, `bytes`, `per_s`, `count`, `celsius` or `watts`."""
    metric: str = ""
    """Its name in `orch metrics`, whose units are those of Prometheus; empty if it is left out there."""
    about: str = ""
    """The help of the metric."""
    kept: bool = True
    """Whether the history of a run has it."""


class TaskMeasures(TypedDict):
    """Numbers that a shim measures of its task. An unknown one is null or missing."""

    steps_per_s: NotRequired[
        Annotated[Pace, Measure("steps/s", "per_s", "orch_task_steps_per_second", "The task's pace.")] | None
    ]
    cpu_percent: NotRequired[
        Annotated[Percent, Measure("CPU", "percent", "orch_task_cpu_cores", "CPU cores that it uses.")] | None
    ]
    rss_bytes: NotRequired[
        Annotated[Count, Measure("memory", "bytes", "orch_task_memory_bytes", "Its resident memory.")] | None
    ]
    log_bytes: NotRequired[Annotated[Count, Measure(kept=False)]]
    """The length of its log, including what rotation removed."""
    log_dropped_bytes: NotRequired[Annotated[Count, Measure(kept=False)]]
    """What was not written to its log, since the disk was full or the task wrote too fast."""


class HostMeasures(TypedDict):
    """Numbers that an agent measures of its host. An unknown one is null or missing."""

    cpu_percent: (
        Annotated[Percent, Measure("CPU", "percent", "orch_host_cpu_ratio", "Share of its CPU that is used.")]
        | None
    )
    memory_percent: (
        Annotated[
            Percent,
            Measure("memory", "percent", "orch_host_memory_ratio", "Share of its memory that is used."),
        ]
        | None
    )
    memory_available_bytes: NotRequired[Annotated[FreeBytes, Measure(kept=False)] | None]
    disk_free_bytes: Annotated[FreeBytes, Measure(kept=False)] | None


class GpuMeasures(TypedDict):
    """Numbers that an agent measures of a GPU. An unknown one is null."""

    utilization_percent: (
        Annotated[
            Percent,
            Measure(
                *("utilisation", "percent", "orch_gpu_utilization_ratio"),
                "Share of the time in which it computed.",
            ),
        ]
        | None
    )
    memory_used_bytes: (
        Annotated[Count, Measure("memory", "bytes", "orch_gpu_memory_used_bytes", "Its memory that is used.")]
        | None
    )
    memory_total_bytes: (
        Annotated[Count, Measure("", "bytes", "orch_gpu_memory_size_bytes", "All of its memory.", kept=False)]
        | None
    )
    temperature_c: (
        Annotated[
            Percent, Measure("temperature", "celsius", "orch_gpu_temperature_celsius", "Its temperature.")
        ]
        | None
    )
    power_w: (
        Annotated[Percent, Measure("power", "watts", "orch_gpu_power_watts", "The power that it draws.")]
        | None
    )


def _rows(type_: Any) -> dict[str, Measure]:
    """Return the measure of each field of a TypedDict, by its name, in the order of the fields."""
    return {name: _measure(hint) for name, hint in get_type_hints(type_, include_extras=True).items()}


def _measure(hint: Any) -> Measure:
    while get_origin(hint) is not Annotated:  # the first part of `NotRequired[…]` and of `… | None`
        hint = get_args(hint)[0]
    (measure,) = [bound for bound in hint.__metadata__ if isinstance(bound, Measure)]
    return measure


TASK = _rows(TaskMeasures)
HOST = _rows(HostMeasures)
GPU = _rows(GpuMeasures)


def measured(rows: Iterable[str], frame: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that a frame has of some rows; those that are unknown are left out.

    >>> measured(HOST, {"cpu_percent": 12.5, "memory_percent": None, "psutil": "none"})
    {'cpu_percent': 12.5}
    """
    return {name: frame[name] for name in rows if frame.get(name) is not None}


def shown(rows: Iterable[str], measured: Mapping[str, float]) -> dict[str, float | None]:
    """Return the numbers of some rows as a document shows them: each row is there, null if it is unknown."""
    return {name: measured.get(name) for name in rows}

"""What a host tells of a task, of itself, and of each GPU for people to see: one row for each number, text or flag.

A row is a field of a TypedDict: its name and type are those of the frame, and its `Measure` says how people see it.
All that handles these facts goes over the rows: the check of a frame, the state, the status document, the tables
of `orch status`, `orch top` and the page, the history with its plots, and `orch metrics`. So a new one needs a row
here, and the line that measures it. A text or flag that changes is shown at once; a number with the next heartbeat.
The core decides by these facts too: it finds each by its name (`core/measured.py`).
"""

from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)

from orchestrator.protocol.bounds import Count, FreeBytes, Pace, Percent, Sentence

PsutilFrom = Literal["bundle", "host", "none"]


class Measure(NamedTuple):
    """How people see a number, a text or a flag."""

    label: str = ""
    """The heading of its column and of its plot; empty if it has neither."""
    unit: str = ""
    """`percent`, `bytes`, `bytes_per_s`, `per_s`, `count`, `celsius`, `watts`; `text` or `flag`: it is no number."""
    metric: str = ""
    """Its name in `orch metrics`, whose units are those of Prometheus; empty if it is left out there."""
    about: str = ""
    """The help of the metric."""
    kept: bool = True
    """Whether the history of a run has it; it has numbers only."""
    in_tables: bool = True
    """Whether tables have a column of it. A plot it has anyway."""
    wakes: bool = False
    """Whether a change of it is told and decided upon at once, as one of a text or flag is told. For facts that change
    with every heartbeat it is too dear: what is decided then can read them anyway."""

    @property
    def is_number(self) -> bool:
        """Return whether it is a number."""
        return self.unit not in ("text", "flag")


class TaskMeasures(TypedDict, total=False):
    """What a shim measures of its task. An unknown fact is null or missing."""

    steps_per_s: Annotated[
        Pace | None, Measure("steps/s", "per_s", "orch_task_steps_per_second", "The task's pace.")
    ]
    cpu_percent: Annotated[
        Percent | None, Measure("CPU", "percent", "orch_task_cpu_cores", "CPU cores that it uses.")
    ]
    rss_bytes: Annotated[
        Count | None, Measure("memory", "bytes", "orch_task_memory_bytes", "Its resident memory.")
    ]
    disk_read_per_s: Annotated[Pace | None, Measure("disk read", "bytes_per_s", in_tables=False)]
    """What it and its children read from disks, not from the cache of the system."""
    disk_write_per_s: Annotated[Pace | None, Measure("disk write", "bytes_per_s", in_tables=False)]
    rescue: Annotated[Sentence | None, Measure("rescue", "text")]
    """What it would hand over if a peer died now, and in what time, as was tried; or `no`, and why."""
    log_bytes: Annotated[Count, Measure(kept=False)]
    """The length of its log, including what rotation removed."""
    log_dropped_bytes: Annotated[Count, Measure(kept=False)]
    """What was not written to its log, since the disk was full or the task wrote too fast."""


class HostMeasures(TypedDict, total=False):
    """What an agent measures of its host. An unknown fact is null or missing."""

    cpu_percent: Annotated[
        Percent | None, Measure("CPU", "percent", "orch_host_cpu_ratio", "Share of its CPU that is used.")
    ]
    memory_percent: Annotated[
        Percent | None,
        Measure("memory", "percent", "orch_host_memory_ratio", "Share of its memory that is used."),
    ]
    memory_available_bytes: Annotated[FreeBytes | None, Measure(kept=False)]
    disk_free_bytes: Annotated[FreeBytes | None, Measure(kept=False)]
    disk_read_per_s: Annotated[Pace | None, Measure("disk read", "bytes_per_s", in_tables=False)]
    disk_write_per_s: Annotated[Pace | None, Measure("disk write", "bytes_per_s", in_tables=False)]
    network_in_per_s: Annotated[Pace | None, Measure("network in", "bytes_per_s", in_tables=False)]
    """Of all its interfaces but loopback; the kernel does not count by process."""
    network_out_per_s: Annotated[Pace | None, Measure("network out", "bytes_per_s", in_tables=False)]
    psutil: Annotated[PsutilFrom, Measure(unit="text")]
    """Where psutil came from; `none`: the numbers come from /proc."""


class GpuMeasures(TypedDict, total=False):
    """Numbers that an agent measures of a GPU. An unknown one is null."""

    utilization_percent: Annotated[
        Percent | None,
        Measure(
            "utilisation", "percent", "orch_gpu_utilization_ratio", "Share of the time in which it computed."
        ),
    ]
    memory_used_bytes: Annotated[
        Count | None, Measure("memory", "bytes", "orch_gpu_memory_used_bytes", "Its memory that is used.")
    ]
    memory_total_bytes: Annotated[
        Count | None, Measure("", "bytes", "orch_gpu_memory_size_bytes", "All of its memory.", kept=False)
    ]
    temperature_c: Annotated[
        Percent | None, Measure("temperature", "celsius", "orch_gpu_temperature_celsius", "Its temperature.")
    ]
    power_w: Annotated[
        Percent | None, Measure("power", "watts", "orch_gpu_power_watts", "The power that it draws.")
    ]


def _rows(type_: Any) -> dict[str, Measure]:
    """Return the measure of each field of a TypedDict, by its name, in the order of the fields."""
    return {name: _measure(hint) for name, hint in get_type_hints(type_, include_extras=True).items()}


def _measure(hint: Any) -> Measure:
    if get_origin(hint) is NotRequired:
        (hint,) = get_args(hint)
    (measure,) = [bound for bound in hint.__metadata__ if isinstance(bound, Measure)]
    return measure


TASK = _rows(TaskMeasures)
HOST = _rows(HostMeasures)
GPU = _rows(GpuMeasures)


Rows = Mapping[str, Measure]


def measured(rows: Rows, frame: Mapping[str, Any]) -> Any:
    """Return the facts that a frame has of some rows: a TypedDict with these. Those that are unknown are left out.

    >>> measured(HOST, {"cpu_percent": 12.5, "memory_percent": None, "psutil": "none"})
    {'cpu_percent': 12.5, 'psutil': 'none'}
    """
    return {name: value for name in rows if (value := frame.get(name)) is not None}


def shown(rows: Rows, known: Mapping[str, object]) -> dict[str, Any]:
    """Return the facts of some rows as a document shows them: each row is there, null if it is unknown."""
    return {name: known.get(name) for name in rows}

"""The fields of a host's report: one row for each says what the field is used for.

Nearly every report only changes numbers. Such a report is shown, and nothing is decided, checked or kept for it. These
rows alone determine which reports are more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from orchestrator.core.events import TaskReport
from orchestrator.core.hosts import checkpoint_dir
from orchestrator.core.state.host import Host
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Progress, Task
from orchestrator.protocol import measures

_Getter = Callable[[Any], tuple[object, ...]]


class Field(NamedTuple):
    """A field of HostReported or TaskReport. All are shown; a row with nothing else set is only a number."""

    name: str
    news: Callable[[Any], object] | None = None
    """Of the report: what people wait for when it changes, so that the report is decided at once."""
    belief: Callable[[Any], object] | None = None
    """Of the host or task in the state: what the field changes there."""
    wakes: bool | Callable[[Any], object] = False
    """A decision may follow from a change of the belief, or, if set, only from a change of this function's result."""
    kept: bool = False
    """The next coordinator must find the belief in the journal."""
    standby: bool = False
    """Whether this holds for a standby's tasks too."""


def _facts(rows: measures.Rows, *, woken: bool) -> Callable[[Mapping[str, object]], object]:
    """Return what returns, of all that is measured, what the core is woken by, or else what is told at once."""
    names = [name for name, row in rows.items() if row.wakes or not (woken or row.is_number)]
    return lambda measured: [measured.get(name) for name in names]


_task_news, _task_facts = (_facts(measures.TASK, woken=woken) for woken in (False, True))
_host_news, _host_facts = (_facts(measures.HOST, woken=woken) for woken in (False, True))


def _news_of_progress(report: TaskReport) -> object:
    progress = report.progress
    is_first = progress.global_step is None or progress.global_step == progress.began_step
    told = _task_news(progress.measured)
    return is_first, tuple(progress.nonfinite), progress.holds, progress.loaded, told


def _wakes(progress: Progress) -> object:
    return bool(progress.nonfinite), progress.loaded, _task_facts(progress.measured)


def _phase(subject: TaskReport | Task) -> object:
    """Return the phase, and before the first step which peers are waited for, and in vain."""
    return subject.phase, subject.progress.stage == "connecting", subject.progress.unreached


OF_TASK = (
    Field("task", news=attrgetter("task"), belief=lambda task: task.heard_at is None, wakes=True),
    Field("generation", news=attrgetter("generation")),
    Field("phase", _phase, _phase, wakes=True, kept=True, standby=True),
    Field("pid", attrgetter("pid"), attrgetter("pid"), wakes=True, kept=True, standby=True),
    Field("port", attrgetter("port"), attrgetter("port"), wakes=True, kept=True, standby=True),
    # Whether there was a first step is asked when a task ends; a metric that is no number is said at once.
    Field(
        "progress",
        _news_of_progress,
        belief=lambda task: task.first_step is None,
        wakes=lambda task: _wakes(task.progress),
        kept=True,
    ),
    Field(
        "exit",
        lambda report: report.exit and (report.exit.cause, report.exit.code),
        attrgetter("exit"),
        wakes=True,
    ),
    Field("said", attrgetter("said"), attrgetter("said"), wakes=True),
)
"""The fields of TaskReport."""


def _all(getters: Sequence[Callable[[Any], object] | None]) -> _Getter:
    known = [getter for getter in getters if getter is not None]
    return lambda subject: tuple([getter(subject) for getter in known])


_news_of_task = _all([row.news for row in OF_TASK])

OF_HOST = (
    Field("at", belief=attrgetter("problem", "back_at", "state"), wakes=True),
    Field("host", belief=attrgetter("link"), wakes=True, kept=True),
    Field("tasks", news=lambda event: tuple(_news_of_task(task) for task in event.tasks)),
    Field(
        "measured",
        lambda told: _host_news(told.measured),
        lambda host: _host_facts(host.measured),
        wakes=True,
    ),
    Field(
        "dir_silent_s",
        news=lambda event: event.dir_silent_s > 0,
        belief=lambda host: host.dir_silent_s >= checkpoint_dir.SILENT_S,
        wakes=True,
    ),
    Field("dir_missing", lambda event: bool(event.dir_missing), attrgetter("dir_missing"), wakes=True),
    Field("dir_free_bytes", belief=attrgetter("dir_low_at"), wakes=True),
    Field("unkillable", attrgetter("unkillable"), attrgetter("unkillable"), wakes=True),
    Field("gpu_loads"),
    Field("gpu_faults", attrgetter("gpu_faults"), attrgetter("gpu_faults"), wakes=True),
    Field("leaving", attrgetter("leaving"), attrgetter("leave_at", "leave_why"), wakes=True),
)
"""The fields of HostReported."""


news = _all([row.news for row in OF_HOST])
"""Of a report: what differs in it from the host's last one is news."""


def _waking(row: Field) -> Callable[[Any], object] | None:
    return row.wakes if callable(row.wakes) else row.belief


_host_wakes = _all([_waking(row) for row in OF_HOST if row.wakes])
_task_wakes = _all([_waking(row) for row in OF_TASK if row.wakes])
_standby_wakes = _all([_waking(row) for row in OF_TASK if row.wakes and row.standby])
_host_kept = _all([row.belief for row in OF_HOST if row.kept])
_task_kept = _all([row.belief for row in OF_TASK if row.kept])
_standby_kept = _all([row.belief for row in OF_TASK if row.kept and row.standby])


def _beliefs(
    run: Run, host: str, of_host: _Getter, of_task: _Getter, of_standby: _Getter
) -> tuple[object, ...]:
    here: Host = run.host(host)
    tasks: list[Task] = run.tasks_on(host)
    return of_host(here), list(map(of_task, tasks)), list(map(of_standby, run.standby.tasks_on(host)))


def waking(run: Run, host: str) -> tuple[object, ...]:
    """Return the beliefs about a host and its tasks whose change may lead to a decision."""
    return run.standby.ended, *_beliefs(run, host, _host_wakes, _task_wakes, _standby_wakes)


def kept(run: Run, host: str) -> tuple[object, ...]:
    """Return the beliefs about a host and its tasks that the next coordinator must find in the journal."""
    beliefs = _beliefs(run, host, _host_kept, _task_kept, _standby_kept)
    return run.phase, run.generation, run.reason, *beliefs

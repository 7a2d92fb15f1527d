"""What an agent decides. How it is done is elsewhere: there is no clock, process, disk or socket here.

Who is obeyed, what is started, what a report shows, what became of a shim that is silent. The agent executes it, and
so may a simulator; the fencing of coordinators is `hostdir.refuse_superseded`, that of a task's orders `shim_state`.
"""

from __future__ import annotations

from orchestrator.both.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from orchestrator.protocol.reports import Report, Task


def refuse_older(task: str, generation: int, newest: int) -> None:
    """Raise HostFault `superseded` where a newer generation of the task was started on this host already."""
    if newest > generation:
        raise HostFault(
            "superseded", f"generation {newest} of {task} was started here already; this is {generation}"
        )


AT_THE_GATE = ("starting", "ready", "unknown")
"""Phases of a task that was not released yet."""


class Known:
    """What decides whether a report names a generation of a task."""

    __slots__ = ("ended", "released")

    def __init__(self, *, ended: bool, released: bool) -> None:
        self.ended = ended
        """Whether its end is known, so that nothing will change any more."""
        self.released = released
        """Whether it has passed its gate. If not, it was a standby, or is still starting."""


def known(report: Task | None, *, ended: bool) -> Known:
    """Return what is known of a generation by the report of its shim, or by its exit record."""
    end = report.get("exit") if report is not None else None
    if report is None or end is None:
        return Known(ended=ended, released=report is not None and report["phase"] not in AT_THE_GATE)
    return Known(ended=ended, released=bool(end.get("released", True)))


def shown(known: Mapping[tuple[str, int], Known]) -> list[tuple[str, int]]:
    """Return which generations a report names: the newest of each task, the newest released one, and all that live.

    The newest may be a standby, while the coordinator waits for the end of the one that trained.
    """
    newest = dict(sorted(known))
    trained = {task: generation for task, generation in sorted(known) if known[task, generation].released}
    return [
        (task, generation)
        for task, generation in sorted(known)
        if generation in (newest[task], trained.get(task)) or not known[task, generation].ended
    ]


def unknown(task: str, generation: int) -> Task:
    """Return a task that was started here and has not reported yet. If it were left out, it would count as gone."""
    return {"task": task, "generation": generation, "phase": "unknown"}


def own_report(report: Task | None, task: str, generation: int) -> Task | None:
    """Return the TASK that a shim sent, or that its exit record holds; None if it is damaged.

    It gets the names of its directory, and is cut to the limits of the protocol: an older shim may exceed them.
    """
    from orchestrator.host.shim.report import cut

    if report is None:
        return None
    try:
        known = cut(report, 1).copy()
        if known["phase"] == "unknown" or (known["phase"] == "exited") != (known.get("exit") is not None):
            return None
    except (AttributeError, KeyError, TypeError):
        return None
    known["task"], known["generation"] = task, generation
    return known


def as_of(task: Task, age_s: float) -> Task:
    """Return the TASK with its ages counted up to now: a frozen shim says nothing, and grows old all the same."""
    shown = task.copy()
    ended = shown.get("exit")
    if shown["phase"] == "unknown":
        return shown
    if ended is None:
        shown["heartbeat_age_s"] = round((shown.get("heartbeat_age_s") or 0.0) + age_s, 3)
    elif ended.get("ago_s") is not None:
        shown["exit"] = ended = ended.copy()
        ended["ago_s"] = round((ended.get("ago_s") or 0.0) + age_s, 3)
    return shown


def shorter(report: Report) -> Iterator[Report]:
    """Yield shorter and shorter versions of a report that is too long for a frame. All keep every task."""
    from orchestrator.host.shim.report import CUTS, cut

    for cuts in range(2, CUTS + 1):
        runs = {run: [cut(task, cuts) for task in tasks] for run, tasks in report["runs"].items()}
        yield {"host": report["host"], "runs": runs}

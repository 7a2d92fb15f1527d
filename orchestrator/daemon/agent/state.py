"""What an agent decides, and nothing of how it is done: no clock, no process, no disk, no socket.

Who is obeyed, what is started, what a report shows, what became of a shim that is silent. The agent executes it, and
so may a simulator; the fencing of coordinators is `hostdir.refuse_superseded`, that of a task's orders `shim_state`.
"""

from __future__ import annotations

from orchestrator.adapters.host.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from orchestrator.protocol.frames import Report, Task


def refuse_older(task: str, generation: int, newest: int) -> None:
    """Raise HostFault `superseded` where a newer generation of the task was started on this host already."""
    if newest > generation:
        raise HostFault(
            "superseded", f"generation {newest} of {task} was started here already; this is {generation}"
        )


def shown(known: Iterable[tuple[str, int, bool]]) -> list[tuple[str, int]]:
    """Return which generations a report names: the newest of each task, and every older one that has not ended.

    Args:
        known: task, generation, and whether its end is known.
    """
    known = sorted(known)
    newest = {task: generation for task, generation, _ in known}
    return [
        (task, generation) for task, generation, ended in known if generation == newest[task] or not ended
    ]


def unknown(task: str, generation: int) -> Task:
    """Return what was started here and has not spoken yet: to leave it out would say that it is gone."""
    return {"task": task, "generation": generation, "phase": "unknown"}


def of(told: Task | None, task: str, generation: int) -> Task | None:
    """Return what a shim has said, or left on the disk, of that task; None where nothing can be read in it.

    A disk that lost its power may hold half of it, and one of an older version more than a report may hold.
    """
    from orchestrator.daemon.shim.report import cut

    if told is None:
        return None
    try:
        known = cut(told, 1).copy()
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
    elif ended["ago_s"] is not None:
        shown["exit"] = ended = ended.copy()
        ended["ago_s"] = round((ended["ago_s"] or 0.0) + age_s, 3)
    return shown


def shorter(report: Report) -> Iterator[Report]:
    """Yield a report whose frame is too long with less and less in it: but with each task, or it would seem lost."""
    from orchestrator.daemon.shim.report import CUTS, cut

    for cuts in range(2, CUTS + 1):
        runs = {run: [cut(task, cuts) for task in tasks] for run, tasks in report["runs"].items()}
        yield {"host": report["host"], "runs": runs}

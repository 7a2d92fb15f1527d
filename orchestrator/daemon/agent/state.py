"""What an agent decides, and nothing of how it is done: no clock, no process, no disk, no socket.

Who is obeyed, what is started, what a report shows, what became of a shim that is silent. The agent executes it, and
so may a simulator; the fencing of coordinators is `hostdir.refuse_superseded`, that of a task's orders `shim_state`.
"""

from __future__ import annotations

from orchestrator.adapters.host.hostdir import HostFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def refuse_older(task: str, generation: int, newest: int) -> None:
    """HostFault `superseded` where a newer generation of the task was started on this host already."""
    if newest > generation:
        raise HostFault(
            "superseded", f"generation {newest} of {task} was started here already; this is {generation}"
        )


def shown(known: Iterable[tuple[str, int, bool]]) -> list[tuple[str, int]]:
    """Which generations a report names: the newest of each task, and every older one that has not ended.

    Args:
        known: task, generation, and whether its end is known.
    """
    known = sorted(known)
    newest = {task: generation for task, generation, _ in known}
    return [
        (task, generation) for task, generation, ended in known if generation == newest[task] or not ended
    ]


def unknown(task: str, generation: int) -> dict[str, Any]:
    """It was started here, and its shim has not spoken yet: to leave it out would say that it is gone."""
    return {"task": task, "generation": generation, "phase": "unknown"}


def as_of(task: dict[str, Any], age_s: float) -> dict[str, Any]:
    """The TASK with its ages counted up to now: a frozen shim says nothing, and grows old all the same."""
    shown = dict(task)
    ended = shown.get("exit")
    if shown["phase"] == "unknown":
        return shown
    if ended is None:
        shown["heartbeat_age_s"] = round((shown.get("heartbeat_age_s") or 0.0) + age_s, 3)
    elif ended.get("ago_s") is not None:
        shown["exit"] = {**ended, "ago_s": round(ended["ago_s"] + age_s, 3)}
    return shown

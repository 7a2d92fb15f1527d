"""Which step a training can have reached: a checkpoint of ours that claims more is not believed."""

from __future__ import annotations

from orchestrator.core.causes import Blame
from orchestrator.core.restart_scope import gang
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.strategy import STRATEGIES

UNHEARD_S = 600.0
"""For how long it may have trained on since it was heard, at its pace: reports and disks may be slow."""

UNHEARD_STEPS = 1000


def step_max(run: Run) -> int | None:
    """Return the highest step that can have been reached by now; None where nobody has told how far it came."""
    told = [
        task
        for task in gang(run)
        if task.phase in (TaskPhase.RUNNING, TaskPhase.EXITED)
        # With its host, or without its shim, it may have trained for hours since it was heard
        and not (task.exit is not None and task.exit.cause.row.blame is Blame.HOST)
    ]
    saves = [task.progress.saving for task in told if task.progress.saving is not None]
    saved = [(each.saved_step or 0) + 2 * each.every_steps for each in saves]
    if not told or run.best_step is None:
        return None
    pace = max((task.progress.steps_per_s or 0.0 for task in told), default=0.0)
    known = max(run.best_step, run.verified_step or 0, *saved)
    return known + max(UNHEARD_STEPS, round(UNHEARD_S * pace))


def measured(run: Run, claimed: int | None) -> int | None:
    """Return which step counts as progress: no more of what a host claims to have saved than tasks told to have made.

    Where all make the same steps, no host alone tells how far that is. Where nobody tells steps, the claim counts.
    """
    told = run.best_step
    by_host: dict[str, int] = {}
    for task in gang(run):
        if task.progress.has_stepped and task.progress.global_step is not None:
            by_host[task.host] = max(task.progress.global_step, by_host.get(task.host, 0))
    if STRATEGIES[run.plan.strategy].rescues and len(by_host) > 1:
        told = sorted(by_host.values())[-2]
    return claimed if claimed is None or told is None else min(claimed, told)

"""Whether a survivor hands over its state before it is stopped: which one, and how long that may take.

Of a mirrored gang each task holds the whole state. One writes it, so no two write one file: the
chief, where it lives; else, where the checkpoint directory is shared, the first of those that train. The others are
stopped at once, as without a rescue. Whatever goes wrong, the bound ends it, and the last checkpoint is there.
"""

from __future__ import annotations

from orchestrator.core.restart_scope import gang
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Intent, Phase, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES

BOUND_MIN_S = 5.0
"""It may take as long as what would be lost took, but for that it would hardly be asked; and so much at least."""


def wanted(run: Run, intent: Intent, at: Instant) -> tuple[Task, Deadline] | None:
    """Return the task that is to hand over its state, and by when; None where none is asked."""
    policy, plan = run.plan.restart, run.plan
    if (
        not policy.rescue_s
        or plan.checkpoint is None
        or not (STRATEGIES[plan.strategy].rescues and plan.runtime)
    ):
        return None
    if run.phase is not Phase.RUNNING or intent is not Intent.RESTART:
        return None
    if not any(task.phase.is_gone for task in gang(run)):
        return None  # all live: it is not known which of them stands still
    writer = _writer(run)
    if writer is None:
        return None
    lost = (run.reached_step or 0) - (run.verified_step or 0)  # and what was not reported yet
    pace = run.task(run.chief).progress.steps_per_s
    worth_s = lost / pace if pace else 0.0
    return writer, at + min(policy.rescue_s, max(BOUND_MIN_S, worth_s))


def _writer(run: Run) -> Task | None:
    living = [task for task in gang(run) if _can(run, task)]
    chief = [task for task in living if task.id == run.chief]
    shared = run.plan.checkpoint is not None and run.plan.checkpoint.shared
    return next(iter(chief or (sorted(living, key=lambda task: task.id) if shared else [])), None)


def _can(run: Run, task: Task) -> bool:
    return (
        task.phase is TaskPhase.RUNNING
        and task.first_step is not None
        and run.host(task.host).link is Link.CONNECTED
    )


def grace_s(run: Run, task: Task, at: Instant) -> float | None:
    """Return how long a task has to hand over its state; None for a task that is not asked."""
    stopping = run.phase_state
    if not isinstance(stopping, Stopping) or stopping.rescue_ends_at is None or task.id != stopping.rescuer:
        return None
    return min(max(0.0, stopping.rescue_ends_at - at), run.plan.restart.rescue_s)


def kept_step(run: Run) -> int | None:
    """Return the step that the next generation has: of the last verified checkpoint, or that was handed over since."""
    state, saved = run.phase_state, run.verified_step
    if not isinstance(state, Stopping) or state.rescuer is None:
        return saved
    rescued = run.task(state.rescuer).progress.rescued
    return saved if rescued is None or rescued.step is None else max(saved or 0, rescued.step)


def outcome(run: Run) -> str:
    """Return the sentence of what was handed over, or why nothing was; empty where nobody was asked."""
    state = run.phase_state
    if not isinstance(state, Stopping) or state.rescuer is None:
        return ""
    rescued = run.task(state.rescuer).progress.rescued
    return (
        rescued.sentence(str(state.rescuer))
        if rescued
        else f"nothing was rescued: {state.rescuer} gave no answer"
    )

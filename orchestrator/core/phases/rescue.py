"""Whether a survivor hands over its state before it is stopped: which one, and how long that may take.

Of a mirrored gang each task holds the whole state, and one writes it, so no two write one file. Where several live,
each first says at which step it is, and the checksum of its weights: they may be a step apart. The furthest is chosen,
and of those the chief; where replicas differ at one step, none is. Without a shared checkpoint directory only the chief
can write. The others are stopped at once. Whatever goes wrong, the bound ends it, and the last checkpoint is there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from orchestrator.core.gang import gang
from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Holds
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant, is_due
from orchestrator.core.state.phase_states import Intent, Phase, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Turn
from orchestrator.core.words import listed

BOUND_MIN_S = 5.0
"""It may take as long as what would be lost took, but for that it would hardly be asked; and so much at least."""

COMPARE_SHARE = 0.5
"""The share of the bound in which the survivors are to say what they hold."""


def is_ready(run: Run) -> bool:
    """Return whether a run can be stopped at its next step and hand over its state, as all its tasks say."""
    may = run.phase is Phase.RUNNING and run.plan.restart.rescue_s > 0 and run.plan.checkpoint is not None
    return may and all(_can(run, task) and task.progress.rescues for task in gang(run))


def next_save(run: Run) -> str:
    """Return at what a run that is to lose nothing can stop next."""
    return "step" if is_ready(run) else "verified checkpoint"


def wanted(run: Run, stopping: Stopping, at: Instant, patience_s: float, *, is_saved: bool) -> Stopping:
    """Return a phase in which survivors are asked to hand over their state; the same phase if nobody is.

    Args:
        is_saved: whether the run is to end saved. If nothing has failed, all tasks are asked, where all said they can.
    """
    policy, plan = run.plan.restart, run.plan
    if (
        not policy.rescue_s
        or plan.checkpoint is None
        or not (STRATEGIES[plan.strategy].rescues and plan.runtime)
    ):
        return stopping
    if run.phase is not Phase.RUNNING:
        return stopping
    if stopping.intent is Intent.RESTART:
        if run.no_rescue:
            return stopping  # an ordinary script: nobody is waited for
        if not any(task.phase.is_gone for task in gang(run)):
            return stopping  # all live: it is not known which of them stands still
    elif not is_ready(run) or not (is_saved or stopping.intent is Intent.RESCHEDULE):
        return stopping
    survivors = tuple(sorted(task.id for task in gang(run) if _can(run, task)))
    if not any(_can_write(run, task) for task in survivors):
        return stopping
    lost = (run.reached_step or 0) - (run.verified_step or 0)  # and what was not reported yet
    pace = run.task(run.chief).progress.steps_per_s
    bound_s = min(policy.rescue_s, max(BOUND_MIN_S, lost / pace if pace else 0.0))
    if stopping.intent is not Intent.RESTART:
        bound_s = policy.rescue_s  # it was trusted to lose nothing
    stopping = replace(stopping, rescue_ends_at=at + bound_s, deadline_at=at + bound_s + patience_s)
    if len(survivors) == 1:
        return replace(stopping, rescuer=survivors[0])
    return replace(stopping, survivors=survivors, compare_ends_at=at + COMPARE_SHARE * bound_s)


def _can(run: Run, task: Task) -> bool:
    return (
        task.phase is TaskPhase.RUNNING
        and task.first_step is not None
        and run.host(task.host).link is Link.CONNECTED
    )


def _can_write(run: Run, task: TaskId) -> bool:
    return task == run.chief or (run.plan.checkpoint is not None and run.plan.checkpoint.shared)


def is_compared(run: Run, at: Instant) -> bool:
    """Return whether all survivors have said what they hold, or can no more; or there was time enough."""
    asked = [run.task(each) for each in run.within(Stopping).survivors]
    return is_due(run.within(Stopping).compare_ends_at, at) or not any(
        task.phase.may_live and task.progress.holds is None and task.progress.rescued is None
        for task in asked
    )


def choose(turn: Turn) -> None:
    """Choose who hands over its state: the furthest; the chief where none has said; nobody where replicas differ."""
    run = turn.run
    survivors = run.within(Stopping).survivors
    able = [task for task in survivors if _can(run, run.task(task)) and _can_write(run, task)]
    steps = {task: held.step for task, held in _holds(run).items() if _can(run, run.task(task))}
    if steps or any(run.task(each).progress.rescued for each in survivors):
        able = [task for task in able if task in steps]
    # Else large weights take their time, or tasks of an older version say nothing: one has the rest of the bound.
    best = max(able, key=lambda task: (steps.get(task, 0), task == run.chief), default=None)
    if differ := _diverged(run):
        best = None
        turn.set(warnings=(*run.warnings, f"generation {run.generation}: {differ}"))
        turn.note(NoteKind.REPLICAS_DIVERGED, differ)
    turn.set_phase(compare_ends_at=None, rescuer=best)
    if best is None:
        turn.set_phase(rescue_ends_at=None)


def _holds(run: Run) -> dict[TaskId, Holds]:
    held_by = {task: run.task(task).progress.holds for task in run.within(Stopping).survivors}
    return {task: held for task, held in held_by.items() if held is not None}


def _diverged(run: Run) -> str:
    """Return which replicas differ from the others at the same step, as a sentence; empty if none is known to."""
    holds = _holds(run)
    for step in {held.step for held in holds.values()}:
        here = {str(task): held.checksum for task, held in holds.items() if held.step == step}
        ((most, count), *others) = Counter(here.values()).most_common()
        odd = [task for task, checksum in here.items() if checksum != most or 2 * count <= len(here)]
        if others:
            of_rest = "of the other workers" if len(odd) < len(here) else "of each other"
            return (
                f"replicas have diverged: at step {step} the weights of {listed(odd)} are not those {of_rest}"
            )
    return ""


def grace_s(run: Run, task: Task, at: Instant) -> float | None:
    """Return how long a task has to hand over its state; None for a task that is not asked."""
    stopping = run.phase_state
    if not isinstance(stopping, Stopping) or stopping.rescue_ends_at is None:
        return None
    if task.id != stopping.rescuer and (stopping.rescuer is not None or task.id not in stopping.survivors):
        return None
    return min(max(0.0, stopping.rescue_ends_at - at), run.plan.restart.rescue_s)


def handed_over(run: Run) -> int | None:
    """Return the step that was handed over in this stop; None if none was."""
    state = run.phase_state
    if not isinstance(state, Stopping) or state.rescuer is None:
        return None
    rescued = run.task(state.rescuer).progress.rescued
    return rescued.step if rescued is not None else None


def kept_step(run: Run) -> int | None:
    """Return the step that the next generation has: of the last verified checkpoint, or that was handed over since."""
    step = handed_over(run)
    return run.verified_step if step is None else max(run.verified_step or 0, step)


def outcome(run: Run) -> str:
    """Return a sentence about the state that was handed over, or why none was; empty if nobody was asked."""
    state = run.phase_state
    if not isinstance(state, Stopping):
        return ""
    asked = [state.rescuer] if state.rescuer is not None else list(state.survivors)
    if not asked:
        return ""
    if state.rescuer is None and (differ := _diverged(run)):
        return f"nothing was rescued: {differ}"
    rescued = [(task, run.task(task).progress.rescued) for task in asked]
    sentence = next((saved.sentence(str(task)) for task, saved in rescued if saved), "")
    return sentence or f"nothing was rescued: {listed([str(task) for task in asked])} gave no answer"

"""Whether a survivor hands over its state before it is stopped: which one, and how long that may take.

Of a mirrored gang each task holds the whole state, and one writes it, so no two write one file. Where several live,
each first says at which step it is, and the checksum of its weights: they may be a step apart. The furthest is chosen,
and of those the chief; where replicas differ at one step, none is. Without a shared checkpoint directory only the chief
can write. The others are stopped at once. Whatever goes wrong, the bound ends it, and the last checkpoint is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from orchestrator.core.gang import can_hand_over, gang, may_stop_at_next_step
from orchestrator.core.moments import HandedOver, Stops
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import order_stop, stop_of
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Holds
from orchestrator.core.state.instants import Instant, is_due
from orchestrator.core.state.phase_states import Intent, Phase, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import listed

BOUND_MIN_S = 5.0
"""It may take as long as what would be lost took, but for that it would hardly be asked; and so much at least."""

UNTRIED_S = 30.0
"""So much at least before a task has tried it: the first time takes longer, as on a busy host that has just begun."""

SILENT_S = 30.0
"""Who gives no sign of life for so long is not waited for, however much would be lost: it is frozen."""

COMPARE_SHARE = 0.5
"""The share of the bound in which the survivors are to say what they hold."""


def wanted(run: Run, intent: Intent, at: Instant, patience_s: float, *, is_saved: bool) -> dict[str, Any]:
    """Return what changes in STOPPING, where survivors are asked to hand over their state; empty if nobody is.

    Args:
        is_saved: whether the run is to end saved. If nothing has failed, all tasks are asked, where all said they can.
    """
    policy, plan = run.plan.restart, run.plan
    if (
        not policy.rescue_s
        or plan.checkpoint is None
        or not (STRATEGIES[plan.strategy].rescues and plan.runtime)
    ):
        return {}
    if run.phase is not Phase.RUNNING:
        return {}
    if intent is Intent.RESTART:
        if run.no_rescue:
            return {}  # an ordinary script: nobody is waited for
        if not any(task.phase.is_gone for task in gang(run)):
            return {}  # all live: it is not known which of them stands still
    elif not may_stop_at_next_step(run) or not (is_saved or intent is Intent.RESCHEDULE):
        return {}
    survivors = tuple(sorted(task.id for task in gang(run) if can_hand_over(run, task)))
    if not any(_can_write(run, task) for task in survivors):
        return {}
    lost = (run.reached_step or 0) - (run.verified_step or 0)  # and what was not reported yet
    pace = run.task(run.chief).progress.measured.get("steps_per_s")
    is_tried = all(run.task(each).progress.rehearsed for each in survivors)
    least_s = BOUND_MIN_S if is_tried else UNTRIED_S
    bound_s = min(policy.rescue_s, max(least_s, lost / pace if pace else 0.0))
    if intent is not Intent.RESTART:
        bound_s = policy.rescue_s  # it was trusted to lose nothing
    bounds = {"rescue_ends_at": at + bound_s, "deadline_at": at + bound_s + patience_s}
    if len(survivors) == 1:
        return {**bounds, "rescuer": survivors[0]}
    return {**bounds, "survivors": survivors, "compare_ends_at": at + COMPARE_SHARE * bound_s}


def _can_write(run: Run, task: TaskId) -> bool:
    return task == run.chief or (run.plan.checkpoint is not None and run.plan.checkpoint.shared)


def is_compared(run: Run, at: Instant) -> bool:
    """Return whether all survivors have said what they hold, or can no more; or there was time enough."""
    asked = [run.task(each) for each in run.within(Stopping).survivors]
    return is_due(run.within(Stopping).compare_ends_at, at) or not any(
        task.phase.may_live
        and task.progress.holds is None
        and task.progress.rescued is None
        and not _is_silent(task)
        for task in asked
    )


def _is_silent(task: Task) -> bool:
    return (task.progress.runtime_age_s or 0.0) >= SILENT_S


def choose(turn: Turn) -> None:
    """Choose who hands over its state: the furthest; the chief where none has said; nobody where replicas differ."""
    run = turn.run
    survivors = run.within(Stopping).survivors
    able = [task for task in survivors if can_hand_over(run, run.task(task)) and _can_write(run, task)]
    steps = {task: held.step for task, held in _holds(run).items() if can_hand_over(run, run.task(task))}
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


def _advance(turn: Turn) -> None:
    """Choose one of those that have answered; end the wait for a state that is not handed over."""
    stopping = turn.run.within(Stopping)
    if stopping.compare_ends_at is not None and is_compared(turn.run, turn.at):
        choose(turn)
        asked = [turn.run.task(each) for each in stopping.survivors]
        turn.do(*(stop_of(turn.run, task, 0.0, turn.at) for task in asked if task.phase.may_live))
    elif is_due(stopping.rescue_ends_at, turn.at) or (
        stopping.rescue_ends_at is not None
        and stopping.rescuer is not None
        and _is_silent(turn.run.task(stopping.rescuer))
    ):
        turn.set_phase(rescue_ends_at=None)
        order_stop(turn, 0.0)


def _stops(turn: Turn, moment: Stops) -> None:
    intent = turn.run.within(Stopping).intent
    turn.set_phase(**wanted(moment.before, intent, turn.at, moment.patience_s, is_saved=moment.is_saved))


def _demands(run: Run) -> Iterable[tuple[bool, str]]:
    state = run.phase_state
    if not isinstance(state, Stopping):
        return
    if (asked := state.survivors or (state.rescuer,)) == (None,):
        yield state.rescue_ends_at is None, "somebody is waited for to hand over its state"
        return
    yield run.plan.restart.rescue_s > 0, "a state is handed over where the spec wants it"
    trained = [run.task(each).first_step is not None for each in asked if each is not None]
    yield all(trained), "who hands over its state has trained"
    yield state.rescuer in (None, *asked), "who hands over its state was asked"
    is_saved = run.first_cause is not None and run.first_cause.cause.row.ends_saved
    yield state.intent is not Intent.KILL or is_saved, "a run that its user kills hands nothing over"


CONCERN = Concern(
    "rescue",
    on={Stops: _stops, HandedOver: lambda turn, _: outcome(turn.run)},
    advance={Phase.STOPPING: _advance},
    demands=_demands,
)

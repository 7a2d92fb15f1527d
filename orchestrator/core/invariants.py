"""What is true in every state.

It is checked at the end of every step, in production too. Of the tasks, only those that the step changed are checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.concerns import CONCERNS
from orchestrator.core.deadlines import ends_by_itself, next_deadline
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.gang import is_individual
from orchestrator.core.hosts import slots
from orchestrator.core.phases.restart import IN_A_ROW_FACTOR
from orchestrator.core.state.phase_states import Intent, Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase


def check(run: Run, before: Run | None = None) -> None:
    """Raise InvariantViolated with the sentence that does not hold.

    Args:
        run: the state.
        before: a state in which all held, if one is known: what both states share is not checked again.
    """
    if run.phase.is_terminal:
        # Of an ended run only its end is checked: a run can be ended whatever else was wrong with it
        _demand(next_deadline(run) is None, "a terminal phase is for ever")
        _demand(not any(task.phase.may_live for task in run.tasks), "a run ends after its tasks")
        _demand(not run.standby.is_living, "a run ends after its standby")
        _demand(run.phase is not Phase.FAILED or run.problem is not None, "a failed run says why")
        _demand(run.phase is not Phase.SUCCEEDED or _has_succeeded(run), "only the chief's exit 0 is success")
        return
    for concern in CONCERNS:
        for holds, sentence in concern.demands(run):
            _demand(holds, sentence)
    if run.phase in (Phase.PENDING, Phase.RENDEZVOUS, Phase.STOPPING):
        _demand(ends_by_itself(run), f"{run.phase.value} ends within a bound")
    _demand(run.intent is not Intent.SUCCEED or _has_succeeded(run), "only the chief's exit 0 is success")
    for task in _changed(run, before):
        _check_task(run, task)
    if before is None or run.replacements is not before.replacements or not run.is_placed_as(before):
        # Only where a generation begins may tasks change places; TensorFlow knows no gaps in their numbers
        placed = {task.id: task.host for task in run.placed.tasks}
        _demand(placed == {task.id: task.host for task in run.tasks}, "the tasks are where their slots are")
        for type_ in {task.type for task in placed}:
            numbers = sorted(task.index for task in placed if task.type == type_)
            _demand(
                numbers == list(range(len(numbers))), f"the {type_} tasks are numbered from 0 without gaps"
            )
        assignees = [slots.assignee(run, slot) for slot in run.plan.hosts_used]
        taken = [name for name in assignees if name is not None]
        _demand(len(taken) == len(set(taken)), "no host holds two slots")
    budget, policy = run.budget, run.plan.restart
    # With a budget of 0 restarts, the run still counts the one failure that ends it
    most = max(1, policy.without_progress_max)
    _demand(budget.without_progress < most, "restarts stay within the budget")
    _demand(budget.in_a_row < IN_A_ROW_FACTOR * most, "so do those without fault")


def _changed(run: Run, before: Run | None) -> Sequence[Task]:
    """Return the tasks to check: those that changed, or all where what they are compared with has changed."""
    if before is None or _compared(run) != _compared(before):
        return run.tasks
    return [task for old, task in zip(before.tasks, run.tasks, strict=True) if task is not old]


def _compared(run: Run) -> tuple[object, ...]:
    return run.phase, run.generation, run.generation_last, len(run.tasks)


def _has_succeeded(run: Run) -> bool:
    ended = run.task(run.chief).exit
    return ended is not None and ended.code == 0


_NOT_JOINED = (TaskPhase.WAITING, TaskPhase.STARTING)


def _check_task(run: Run, task: Task) -> None:
    is_alone = is_individual(run, task)
    if run.phase is Phase.RUNNING and task.phase in _NOT_JOINED and not is_alone:
        _demand(task.pid is not None, "none runs before all have joined")
    if task.phase is TaskPhase.WAITING:
        return
    newest = run.generation_last if is_alone else run.generation
    _demand(run.generation <= task.generation <= newest, "all tasks are of the run's generation")
    _demand(task.phase is not TaskPhase.EXITED or task.exit is not None, "an end has its record")


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantViolated(sentence)

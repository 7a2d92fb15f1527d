"""What is true in every state. Checked at the end of every step, in production too: it costs a fraction of the step."""

from __future__ import annotations

from orchestrator.core.deadlines import next_deadline
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.hosts import slots
from orchestrator.core.model import Intent, Phase, Run, TaskPhase
from orchestrator.core.phases import final_verification
from orchestrator.core.phases.restart import IN_A_ROW_FACTOR
from orchestrator.core.restart_scope import is_individual


def check(run: Run) -> None:
    """Raise InvariantViolated with the sentence that does not hold."""
    if run.phase.is_terminal:
        _check_end(run)
        return
    _check_phase(run)
    _check_tasks(run)
    _check_slots(run)
    budget, policy = run.budget, run.plan.restart
    _demand(budget.without_progress < policy.without_progress_max, "restarts stay within the budget")
    _demand(budget.in_a_row < IN_A_ROW_FACTOR * policy.without_progress_max, "so do those without fault")


def _check_end(run: Run) -> None:
    """Hold an ended run to its end alone: it can be ended whatever else was wrong with it."""
    _demand(next_deadline(run) is None, "a terminal phase is for ever")
    _demand(not any(task.phase.may_live for task in run.tasks), "a run ends after its tasks")
    _demand(run.phase is not Phase.FAILED or run.problem is not None, "a failed run says why")
    _demand(run.phase is not Phase.SUCCEEDED or _has_succeeded(run), "only the chief's exit 0 is success")


def _has_succeeded(run: Run) -> bool:
    ended = run.task(run.chief).exit
    return ended is not None and ended.code == 0


def _check_phase(run: Run) -> None:
    is_verifying = final_verification.asked_at(run) is not None
    _demand(not is_verifying or run.proof is not None, "the last look is beside the proof")
    if run.phase in (Phase.PENDING, Phase.RENDEZVOUS, Phase.STOPPING):
        _demand(next_deadline(run) is not None, f"{run.phase.value} ends within a bound")
    _demand(run.intent is not Intent.SUCCEED or _has_succeeded(run), "only the chief's exit 0 is success")


_NOT_JOINED = (TaskPhase.WAITING, TaskPhase.STARTING)


def _check_tasks(run: Run) -> None:
    for task in run.tasks:
        is_alone = is_individual(run, task)
        if run.phase is Phase.RUNNING and task.phase in _NOT_JOINED and not is_alone:
            _demand(task.pid is not None, "none runs before all have joined")
        if task.phase is TaskPhase.WAITING:
            continue
        newest = run.generation_last if is_alone else run.generation
        _demand(run.generation <= task.generation <= newest, "all tasks are of the run's generation")
        _demand(task.phase is not TaskPhase.EXITED or task.exit is not None, "an end has its record")


def _check_slots(run: Run) -> None:
    """Only where a generation begins may tasks change places; TensorFlow knows no gaps in their numbers."""
    placed = {task.id: task.host for task in run.placed.tasks}
    _demand(placed == {task.id: task.host for task in run.tasks}, "the tasks are where their slots are")
    for type_ in {task.type for task in placed}:
        numbers = sorted(task.index for task in placed if task.type == type_)
        _demand(numbers == list(range(len(numbers))), f"the {type_} tasks are numbered from 0 without gaps")
    assignees = [slots.assignee(run, slot) for slot in run.plan.hosts_used]
    taken = [name for name in assignees if name is not None]
    _demand(len(taken) == len(set(taken)), "no host holds two slots")


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantViolated(sentence)

"""What is true in every state. Checked after every step in the tests and the simulator, and cheap enough for more."""

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
    _check_phase(run)
    _check_tasks(run)
    _check_slots(run)
    budget, policy = run.budget, run.plan.restart
    _demand(budget.without_progress < policy.without_progress_max, "restarts stay within the budget")
    _demand(budget.in_a_row < IN_A_ROW_FACTOR * policy.without_progress_max, "so do those without fault")


def _check_phase(run: Run) -> None:
    is_verifying = final_verification.asked_at(run) is not None
    _demand(not is_verifying or run.proof is not None, "the last look is beside the proof")
    if run.phase in (Phase.PENDING, Phase.RENDEZVOUS, Phase.STOPPING):
        _demand(next_deadline(run) is not None, f"{run.phase.value} ends within a bound")
    if run.phase is Phase.FAILED:
        _demand(run.problem is not None, "a failed run says why")
    if run.phase.is_terminal:
        _demand(next_deadline(run) is None, "a terminal phase is for ever")


def _check_tasks(run: Run) -> None:
    for task in run.tasks:
        started = task.phase is not TaskPhase.WAITING
        is_current = task.generation == run.generation
        if is_individual(run, task):
            is_current = run.generation <= task.generation <= run.generation_last
        _demand(not started or is_current, "all tasks are of the run's generation")
        _demand(task.phase is not TaskPhase.EXITED or task.exit is not None, "an end has its record")
    alive = [task for task in run.tasks if task.phase.may_live]
    if run.phase.is_terminal:
        _demand(not alive, "a run ends after its tasks")
    if run.phase is Phase.RUNNING:
        gate = (TaskPhase.WAITING, TaskPhase.STARTING)
        _demand(
            all(t.phase not in gate or t.pid is not None or is_individual(run, t) for t in run.tasks),
            "none runs before all have joined",
        )
    if run.intent is Intent.SUCCEED:
        chief = run.task(run.chief)
        _demand(chief.exit is not None and chief.exit.code == 0, "only the chief's exit 0 is success")


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

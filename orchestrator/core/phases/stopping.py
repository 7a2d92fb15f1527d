"""How a generation is stopped, how a run ends for good, and how it returns to the queue: for all concerns.

What follows once all tasks have ended is in `settling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from orchestrator.core.actions import CloseHost, StopTask, SweepHost
from orchestrator.core.causes import Blame, Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.downtime import Downtime
from orchestrator.core.ends import FirstCause
from orchestrator.core.gang import gang, handover_s, is_served, measured
from orchestrator.core.moments import Stops
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import restart
from orchestrator.core.plan import PRIORITIES, TaskId
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.phase_states import Ended, Intent, Phase, Queued, Running, Stopping, Swept
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Turn

SWEEP_WAIT_S = 10.0
"""How long a host may take for the proof, on top of the tasks' own grace."""


def intent_after(blamed: Cause) -> Intent:
    """Return the intent of the STOPPING that follows an end by this cause."""
    return Intent.FAIL if blamed.row.ends_the_run else Intent.RESTART


def stop_for(turn: Turn, first_cause: FirstCause) -> None:
    """End the generation for a cause that was found while its tasks live."""
    turn.set(first_cause=first_cause)
    stop_all(turn, intent_after(first_cause.cause), first_cause.sentence, rest="")


def stop_all(
    turn: Turn,
    intent: Intent,
    reason: str,
    force_at: Deadline | None = None,
    *,
    rest: str | None = None,
    ended: TaskId | None = None,
) -> None:
    """End the generation. With `force_at`, the tasks may end by themselves until then; else all are killed now.

    Args:
        rest: the part of `reason` after the first cause's sentence, where `reason` begins with that sentence.
        ended: the task whose end is the only reason.
    """
    first_cause = turn.run.first_cause
    if intent is Intent.RESCHEDULE:
        first_cause = FirstCause(None, turn.run.generation, Cause.RESCHEDULED, reason)
    elif first_cause is None or first_cause.generation != turn.run.generation:
        first_cause = cause.first_cause(turn.run)
    grace = _grace_s(turn.run, intent)
    patience_s = SWEEP_WAIT_S if intent is Intent.KILL else end_patience_s(turn.run)
    begins_at = turn.at if force_at is None else max(turn.at, force_at)
    stopping = Stopping(
        intent=intent,
        force_at=force_at,
        deadline_at=begins_at + grace + patience_s,
        chief_is_done=intent is Intent.SUCCEED,
    )
    before, down = turn.run, turn.run.downtime or _downtime(turn)
    seen = _seen(turn, first_cause)
    turn.enter(stopping, reason, rest=rest, first_cause=first_cause, downtime=down, **seen)
    if force_at is None:
        is_saved = first_cause is not None and first_cause.cause.row.ends_saved
        turn.tell(Stops(before, patience_s, is_saved))
    turn.note(NoteKind.STOPPING, reason, ended, **(why(turn.run) if intent is Intent.RESCHEDULE else {}))
    if force_at is None:
        order_stop(turn, grace)


def _seen(turn: Turn, first_cause: FirstCause | None) -> dict[str, Any]:
    """Return the run's failures and training time including this end: how often to save follows from them."""
    run = turn.run
    if run.phase is not Phase.RUNNING:
        return {}
    is_failure = first_cause is not None and first_cause.cause.row.blame is not Blame.NOBODY
    return {"trained_s": run.trained_s + turn.at - run.since_at, "failures": run.failures + is_failure}


def _downtime(turn: Turn) -> Downtime | None:
    """Return the downtime that begins now; None if no step was made yet."""
    run = turn.run
    if run.best_step is None:
        return None
    first = cause.first_of(run.tasks)
    ends = [first.exit.at] if first is not None and first.exit is not None else []
    ends += [
        task.heard_at for task in run.tasks if task.phase is TaskPhase.LOST and task.heard_at is not None
    ]
    return Downtime(
        failed_at=min(turn.at, *ends) if ends else turn.at,
        noticed_at=turn.at,
        step=run.reached_step,
        steps_per_s=run.task(run.chief).progress.measured.get("steps_per_s"),
    )


EARLY_FAILURE_WAIT_S = 2.0
"""Before the first step no training is lost by waiting: the others may show that they fail alike."""


def react_to_end(turn: Turn, sharing: Sequence[Task]) -> None:
    """Decide what follows from the end of a task for all tasks that are restarted with it."""
    run = turn.run
    chief = run.task(run.chief)
    first = cause.first_of(sharing)
    is_done = chief.exit is not None and chief.exit.cause is Cause.FINISHED
    if is_done and cause.failed_before_its_chief(run, gang(run)) is None:
        if not (isinstance(run.phase_state, Running) and run.phase_state.going_back):
            _reap(turn, chief)
        return
    if first is None or first.exit is None:
        return  # a worker ended well before the chief: nothing to do
    why = cause.end_of(run, first, first.exit)
    found = cause.behind(run, first, why)
    row, intent = first.exit.cause.row, intent_after(first.exit.cause)
    may_be_alike = row.repeats and row.blame is Blame.TASK
    early = may_be_alike and all(t.first_step is None for t in run.tasks)
    force_at = None
    if first.exit.cause is Cause.PREEMPTED:
        force_at = turn.at + run.plan.timing.kill_grace_s
    elif early:
        force_at = turn.at + EARLY_FAILURE_WAIT_S
    stop_all(turn, intent, found.sentence if found else why, force_at, ended=None if found else first.id)


def _reap(turn: Turn, chief: Task) -> None:
    """End the run, since its chief has ended: training tasks may end by themselves, serving tasks are stopped."""
    run = turn.run
    wait_until = turn.at + run.plan.timing.kill_grace_s
    stop_all(turn, Intent.SUCCEED, f"{chief.id} has finished; the others may end by themselves", wait_until)
    for task in run.tasks:
        if is_served(run, task) and task.phase.may_live:
            turn.do(StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0))


def end_patience_s(run: Run) -> float:
    """Return how long after its kill a task may take to be gone, before it is given up without a report.

    A task on a silent host is given up together with its host, so not before the host itself would count as lost. A
    kill of the whole run does not wait for that.
    """
    return max(run.plan.timing.lost_after_s, SWEEP_WAIT_S)


GENTLE = (Intent.KILL, Intent.RESCHEDULE, Intent.REQUEUE)
"""Nothing is broken yet: the tasks may save before they end."""


def grace_s(run: Run) -> float:
    """Return how long the tasks of a run that stops have between the request to end and the kill."""
    return _grace_s(run, run.intent)


def _grace_s(run: Run, intent: Intent | None) -> float:
    return run.plan.timing.kill_grace_s if intent in GENTLE else 0.0


END_S = 10.0
"""What the end of the tasks takes beside their own grace: orders, reports, and the proof."""


def end_individually(turn: Turn, task: Task, blamed: Cause, sentence: str) -> None:
    """Kill this task alone. It is restarted once it is gone."""
    ending = FirstCause(task.id, task.generation, blamed, sentence)
    turn.set_task(task, ending=ending, deadline_at=turn.at + end_patience_s(turn.run))
    turn.note(NoteKind.STOPPING_INDIVIDUALLY, f"{sentence}; it is stopped, the other tasks continue", task.id)
    turn.do(StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0))


def hurry(turn: Turn) -> None:
    """Stop waiting for the tasks of a run that stops and whose outcome is decided already."""
    if turn.run.within(Stopping).force_at is not None:
        turn.set_phase(force_at=turn.at)


def order_stop(turn: Turn, grace_s: float) -> None:
    """Order the end of every task that may live. Where they may save first, servers wait: they hold the variables."""
    living = [task for task in turn.run.tasks if task.phase.may_live]
    saving = [task for task in living if not is_served(turn.run, task)]
    if grace_s and 0 < len(saving) < len(living):
        turn.set_phase(force_at=turn.at + grace_s)
        living = saving
    turn.do(*(stop_of(turn.run, task, grace_s, turn.at) for task in living))


def stop_of(run: Run, task: Task, grace_s: float, at: Instant) -> StopTask:
    """Return the order to end a task of a run that stops; one of them may hand over its state first."""
    rescue_s = handover_s(run, task, at)
    return StopTask(
        host=task.host,
        task=task.id,
        generation=task.generation,
        grace_s=grace_s if rescue_s is None else rescue_s,
        rescue=rescue_s is not None,
        compare=rescue_s is not None and run.within(Stopping).rescuer is None,
    )


def count_free(turn: Turn) -> None:
    """Count a restart that is not counted as a failure."""
    run = turn.run
    budget = restart.cleared(run.budget, measured(run, run.verified_step))
    turn.set(budget=replace(budget, restarts=budget.restarts + 1))


def say_resumed(turn: Turn, sentence: str) -> dict[str, object]:
    """Record where a generation went on after the first cause of the one before; return that as an event's data."""
    first_cause = turn.run.first_cause
    if first_cause is None or first_cause.generation >= turn.run.generation:
        return {}
    say_done(turn, "; ".join(filter(None, (first_cause.rescued, sentence))))
    return why(turn.run)


def say_done(turn: Turn, what: str) -> None:
    """Record what was done about the first cause."""
    if turn.run.first_cause is not None:
        turn.set(first_cause=replace(turn.run.first_cause, done=what))


def why(run: Run) -> dict[str, object]:
    """Return the first cause as data for an event, which outlives the state."""
    return {"first_cause": cause.as_data(run.first_cause)} if run.first_cause else {}


def prove_again(turn: Turn) -> None:
    """Order the proof from every host again: another coordinator has started tasks that it did not cover."""
    if turn.run.phase is Phase.STOPPING and turn.run.proof:
        # The deadline is not moved, or a host that keeps reporting would keep the run from ending.
        turn.set_phase(proof={})
        turn.do(*(SweepHost(host=name, generation=turn.run.generation_last) for name in to_prove(turn.run)))


def to_prove(run: Run) -> list[str]:
    """Return the hosts that owe the proof: not unused spares, nor those that the user has declared gone for good."""
    proof = run.proof or {}
    return [
        host.name for host in run.hosts if not host.untouched and not host.gone and host.name not in proof
    ]


NOTHING_SEEN = ", but no step or checkpoint was seen"
"""What is said of a success that nothing but the exit code shows. What it left on its hosts is not known here."""


def saved(run: Run) -> str:
    """Return a sentence that says from where a run can go on."""
    known = run.checkpoint
    if known is None or known.removed:
        return "nothing is saved"
    return "saved" if known.global_step is None else f"saved at step {known.global_step}"


def is_disowned(run: Run) -> bool:
    """Return whether this generation's checkpoints will not be used: the user went back, or it restored nothing."""
    cause = run.first_cause
    return cause is not None and cause.cause.row.disowns and cause.generation == run.generation


def ends_saved(run: Run) -> bool:
    """Return whether the run ends saved, to go on some day: its hosts are taken away, or its end was planned."""
    first_cause = run.first_cause
    may_go_on = run.intent in (Intent.KILL, Intent.REQUEUE)
    return may_go_on and first_cause is not None and first_cause.cause.row.ends_saved


def left_behind(proof: Mapping[str, Swept] | None) -> str:
    """Return what the proof has found on the hosts; empty if it has found nothing."""
    left = [f"{name}: {what}" for name, swept in (proof or {}).items() for what in swept.left]
    return f"left behind: {'; '.join(left)}" if left else ""


_END_NOTES = {
    Phase.SUCCEEDED: NoteKind.SUCCEEDED,
    Phase.FAILED: NoteKind.FAILED,
    Phase.KILLED: NoteKind.KILLED,
}


def finish(turn: Turn, ended: Ended, reason: str, *, rest: str | None = None) -> None:
    """Enter a terminal phase. A host that gave no proof is remembered, and swept when it is back."""
    if ended.proof is None:
        ended = replace(ended, proof=turn.run.proof)
    turn.enter(ended, reason, rest=rest)
    phase, proof = ended.phase, ended.proof or {}
    last = turn.run.first_cause
    if phase is Phase.KILLED and last is not None and last.done and last.generation == turn.run.generation:
        say_done(turn, "killed before it started again")
    if (left := left_behind(proof)) and turn.run.problem is None:
        turn.set(problem=Problem(code="left", message=left, exit_code=6))
    if phase is Phase.FAILED and turn.run.problem is None:
        turn.set(problem=Problem(code="failed", message=reason))
    turn.note(_END_NOTES[phase], reason, None, **(why(turn.run) if phase is Phase.FAILED else {}))
    for host in turn.run.hosts:
        if host.name in proof or turn.run.generation == 0 or host.untouched or host.gone:
            turn.do(CloseHost(host=host.name))


def unproven(run: Run) -> list[str]:
    """Return the hosts of an ended run that were not reached for the proof."""
    if not run.phase.is_terminal or run.generation == 0:
        return []
    return to_prove(run)


def owes_proof(run: Run, name: str) -> bool:
    """Return whether a host was asked for the proof, and has not given it: nothing else is asked of it then."""
    is_ending = run.phase is Phase.STOPPING and run.proof is not None
    return name in (to_prove(run) if is_ending else unproven(run))


QUEUE_RETRY_S = 30.0
"""About how long a run that has returned to the queue stays there, once it has waited for longer than that twice."""

_RETRY_MIN_S = 4.0


def wait_again(turn: Turn, waited: Queued, *, others: str = "", why: str = "") -> None:
    """Return a run to the queue whose turn came in vain: somebody else holds what it needs, or as `why` says.

    Two that want the same GPUs of several hosts, and hold some of them each, let go and come back at different times.
    """
    differs = crc32(f"{turn.run.run_id}/{turn.at}".encode()) / 2**32
    stays_s = min(QUEUE_RETRY_S, max(_RETRY_MIN_S, (turn.at - waited.since_at) / 2))
    retry_at = turn.at + stays_s * (0.75 + 0.5 * differs)
    is_known = (others, why) == (waited.others, waited.why)
    waits = replace(waited, others=others, why=why, in_vain_at=turn.at, retry_at=retry_at)
    _return(turn, waits, "" if is_known else others or why)


def place_again(turn: Turn, problem: Problem) -> None:
    """Let the hosts of a run go that a host has turned away before it began: another place is chosen, or it ends."""
    turn.set(problem=problem, refusals=turn.run.refusals + 1)
    _return(turn, Queued(priority=len(PRIORITIES), since_at=turn.at, is_patient=False), "")


def has_made_way(turn: Turn, waited: Queued, why: str) -> None:
    """Return a run to the queue that made way for one of a higher priority, which is before it there."""
    _return(turn, replace(waited, others="", why=why), why)


def _return(turn: Turn, waits: Queued, why: str) -> None:
    if why:
        turn.note(NoteKind.QUEUED, f"{turn.run.run_id} waits in the queue: {why}")
    turn.do(*(CloseHost(host=host.name) for host in turn.run.hosts))
    turn.enter(waits, "waits in the queue", planned_end=None, rank=None)
    for host in turn.run.hosts:
        turn.set_host(host, link=Link.CONNECTING, heard_at=None, facts=None, problem=None, retry_at=None)

"""STOPPING: how a generation ends, what follows, and how a run ends for good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core.actions import CloseHost, StopTask, SweepHost
from orchestrator.core.causes import Blame, Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.downtime import Downtime
from orchestrator.core.ends import Exit, FirstCause
from orchestrator.core.gang import gang
from orchestrator.core.hosts import host_state, silence, slots
from orchestrator.core.hosts.host_state import lose
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import final_verification, rescue, restart, room, standby
from orchestrator.core.phases.queueing import has_made_way
from orchestrator.core.plan import PRIORITIES, TaskId
from orchestrator.core.state.host import Host, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Backoff, Ended, Intent, Phase, Queued, Stopping
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.transitions import ENDS
from orchestrator.core.turn import Turn
from orchestrator.core.words import duration

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
    stopping = Stopping(intent=intent, force_at=force_at, deadline_at=begins_at + grace + patience_s)
    if force_at is None:
        is_saved = first_cause is not None and first_cause.cause.row.ends_saved
        stopping = rescue.wanted(turn.run, stopping, turn.at, patience_s, is_saved=is_saved)
    down = turn.run.downtime or _downtime(turn)
    seen = _seen(turn, first_cause)
    turn.enter(stopping, reason, rest=rest, first_cause=first_cause, downtime=down, **seen)
    turn.note(NoteKind.STOPPING, reason, ended, **(_why(turn.run) if intent is Intent.RESCHEDULE else {}))
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
        steps_per_s=run.task(run.chief).progress.steps_per_s,
    )


def end_patience_s(run: Run) -> float:
    """Return how long after its kill a task may take to be gone, before it is given up without a report.

    A task on a silent host is given up together with its host, so not before the host itself would count as lost. A
    kill of the whole run does not wait for that.
    """
    return max(run.plan.timing.lost_after_s, SWEEP_WAIT_S)


_GENTLE = (Intent.KILL, Intent.RESCHEDULE, Intent.REQUEUE)
"""Nothing is broken yet: the tasks may save before they end."""


def grace_s(run: Run) -> float:
    """Return how long the tasks of a run that stops have between the request to end and the kill."""
    return _grace_s(run, run.intent)


def _grace_s(run: Run, intent: Intent | None) -> float:
    return run.plan.timing.kill_grace_s if intent in _GENTLE else 0.0


def hurry(turn: Turn) -> None:
    """Stop waiting for the tasks of a run that stops and whose outcome is decided already."""
    if turn.run.within(Stopping).force_at is not None:
        turn.set_phase(force_at=turn.at)


def order_stop(turn: Turn, grace_s: float) -> None:
    """Order the end of every task that may live."""
    turn.do(*(stop_of(turn.run, task, grace_s, turn.at) for task in turn.run.tasks if task.phase.may_live))


def stop_of(run: Run, task: Task, grace_s: float, at: Instant) -> StopTask:
    """Return the order to end a task of a run that stops; one of them may hand over its state first."""
    rescue_s = rescue.grace_s(run, task, at)
    return StopTask(
        host=task.host,
        task=task.id,
        generation=task.generation,
        grace_s=grace_s if rescue_s is None else rescue_s,
        rescue=rescue_s is not None,
        compare=rescue_s is not None and run.within(Stopping).rescuer is None,
    )


def advance_stopping(turn: Turn) -> None:
    """Go on to what comes after once no task may live any more; bound the wait for that."""
    stopping = turn.run.within(Stopping)
    if is_due(stopping.force_at, turn.at):
        turn.set_phase(force_at=None)
        order_stop(turn, 0.0)
    if stopping.compare_ends_at is not None and rescue.is_compared(turn.run, turn.at):
        rescue.choose(turn)
        asked = [turn.run.task(each) for each in stopping.survivors]
        turn.do(*(stop_of(turn.run, task, 0.0, turn.at) for task in asked if task.phase.may_live))
    elif is_due(stopping.rescue_ends_at, turn.at):
        turn.set_phase(rescue_ends_at=None)
        order_stop(turn, 0.0)
    silence.judge(turn)
    if is_due(stopping.deadline_at, turn.at):
        # Give up tasks that have not ended in time: they were lost with their host, or cannot be killed
        run = turn.run
        for task in run.tasks:
            if task.phase.may_live and run.host(task.host).link is Link.CONNECTED:
                _give_up_on(turn, task)
            elif task.phase.may_live:
                lose(turn, task)
        standby.lose(turn)
        if run.proof is not None:
            _conclude(turn)
        else:
            turn.set_phase(deadline_at=turn.at + SWEEP_WAIT_S)
        return
    if any(task.phase.may_live for task in turn.run.tasks):
        return
    _settle_intent(turn)
    match turn.run.intent:
        case Intent.RESTART:
            if not is_due(room.known_at(turn.run) or turn.at, turn.at):
                return
            _restart_or_give_up(turn)
        case Intent.RESCHEDULE:
            # Begin again after all tasks have ended to be moved. The budget of failures is unchanged.
            _count_free(turn)
            turn.enter(Backoff(start_at=turn.at), turn.run.reason)
        case _:
            _prove(turn)


def _settle_intent(turn: Turn) -> None:
    """Let the chief's exit code 0 decide, unless a training task failed before it, in whichever order they report."""
    run = turn.run
    chief = run.task(run.chief)
    is_done = chief.exit is not None and chief.exit.cause is Cause.FINISHED
    is_gentle = run.intent is Intent.RESCHEDULE or ends_saved(run)
    if is_gentle and chief.exit is not None and chief.exit.ordered:
        is_done = False  # a script that saves and exits with 0 when it is asked to end has not finished
    known = run.first_cause
    if known is not None and known.generation == run.generation and known.cause is Cause.ROLLED_BACK:
        is_done = False  # it goes back, whatever its chief has finished with
    failed = cause.failed_before_its_chief(run, gang(run)) if is_done else None
    odd = cause.nonfinite(run) if run.plan.restart.on_nonfinite != "notify" else ""
    if is_done and odd and (run.intent in (Intent.RESTART, Intent.SUCCEED) or is_gentle):
        found = FirstCause(run.chief, run.generation, Cause.NONFINITE, odd)
        turn.set(first_cause=found, reason=odd, reason_rest="")
        turn.set_phase(intent=Intent.FAIL)
        return
    if failed is not None and failed.exit is not None and run.intent is Intent.SUCCEED:
        turn.set(reason=cause.end_of(run, failed, failed.exit), reason_rest=None)
        turn.set_phase(intent=intent_after(failed.exit.cause))
    if (run.intent is Intent.RESTART or is_gentle) and is_done and failed is None:
        turn.set_phase(intent=Intent.SUCCEED)
    if run.intent is Intent.RESCHEDULE:
        failed = cause.first_of(run.tasks)
        if failed is not None and failed.exit is not None and failed.exit.cause.row.blame is not Blame.PEER:
            turn.set(first_cause=cause.first_cause(run))  # before it was asked to end
        elif run.first_cause is not None:
            turn.set(first_cause=cause.completed(run, run.first_cause))
        return
    first_cause = cause.first_cause(turn.run)
    if known is not None and (first_cause is None or known.cause.row.is_found_first):
        turn.set(first_cause=cause.completed(turn.run, known))
    elif first_cause is not None:
        done = known.done if known and known.generation == first_cause.generation else ""
        turn.set(first_cause=replace(first_cause, done=done))


def _count_free(turn: Turn) -> None:
    """Count a restart that is not counted as a failure."""
    run = turn.run
    budget = restart.cleared(run.budget, run.verified_step)
    turn.set(budget=replace(budget, restarts=budget.restarts + 1))


def _wait_for_room(turn: Turn, full: Host) -> None:
    """Wait for room in the checkpoint directory. A full disk is not the script's fault: no failure is counted."""
    _count_free(turn)
    first_cause = turn.run.first_cause
    turn.enter(room.wait(turn.run, full, turn.at), first_cause.sentence if first_cause else turn.run.reason)
    what = f"waits for room in the checkpoint directory on {full.name}"
    _say_done(turn, f"{what}; the restart budget is untouched")
    turn.note(
        NoteKind.WAITING_FOR_ROOM,
        f"{turn.run.run_id} {what}: {turn.run.reason}",
        first_cause.task if first_cause else None,
        free_bytes=full.dir_free_bytes,
        **_why(turn.run),
    )


def _restart_or_give_up(turn: Turn) -> None:
    run = turn.run
    first_cause, blamed = run.first_cause, _blamed(run)
    step = rescue.kept_step(run)
    host_state.charge(turn, progressed=restart.is_progress(run.budget, step))
    if (full := room.lacking(run, blamed)) is not None:
        _wait_for_room(turn, full)
        return
    decided = restart.verdict(
        run.budget,
        run.plan.restart,
        blamed,
        verified_step=step,
        failure=cause.failure(run) if blamed.row.repeats else None,
        identity=f"{run.run_id}/{run.generation}",
    )
    turn.set(budget=decided.budget, rescued=run.rescued + (rescue.handed_over(run) is not None))
    handed_over = rescue.outcome(run)
    what = first_cause.sentence if first_cause else run.reason
    if isinstance(decided, restart.GiveUp):
        given_up = f"given up: {decided.reason}"
        turn.set(reason=f"{what}; {given_up}", reason_rest=given_up if first_cause else None)
        turn.set_phase(intent=Intent.FAIL)
        _say_done(turn, given_up)
        _prove(turn)
        return
    turn.enter(Backoff(start_at=turn.at + decided.delay_s), what, rest="" if first_cause else None)
    when = f"in {duration(decided.delay_s)} ({decided.reason})" if decided.delay_s else decided.reason
    _say_done(turn, "; ".join(filter(None, (handed_over, f"restart {when}"))))
    if handed_over and first_cause is not None:
        turn.set(first_cause=replace(turn.run.first_cause or first_cause, rescued=handed_over))
    turn.note(
        NoteKind.BACKOFF,
        f"restart {when}: {what}",
        first_cause.task if first_cause else None,
        **_why(turn.run),
    )


def _say_done(turn: Turn, what: str) -> None:
    if turn.run.first_cause is not None:
        turn.set(first_cause=replace(turn.run.first_cause, done=what))


def _why(run: Run) -> dict[str, object]:
    """Return the first cause as data for an event, which outlives the state."""
    return {"first_cause": cause.as_data(run.first_cause)} if run.first_cause else {}


def _blamed(run: Run) -> Cause:
    """Return the cause that is charged to the budget. A lost host explains the errors of its peers."""
    if any(task.phase is TaskPhase.LOST and not (task.exit and task.exit.left) for task in run.tasks):
        return Cause.HOST_LOST
    return run.first_cause.cause if run.first_cause else Cause.SCRIPT


def _prove(turn: Turn) -> None:
    """Order the proof from every host that nothing is left, and the final check of the newest checkpoint; then end."""
    run = turn.run
    stopping = run.within(Stopping)
    if standby.is_living(run):
        return
    if stopping.proof is None:
        turn.set_phase(proof={})
        turn.do(*(SweepHost(host=name, generation=run.generation_last) for name in to_prove(turn.run)))
        final_verification.ask(turn)
        turn.set_phase(deadline_at=turn.at + max(SWEEP_WAIT_S, final_verification.patience_s(turn.run)))
    elif stopping.final_verification_asked_at is None:
        if not to_prove(run):
            _conclude(turn)
        else:  # the verification alone deserved a longer wait
            turn.set_phase(deadline_at=min(stopping.deadline_at, turn.at + SWEEP_WAIT_S))


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


def _give_up_on(turn: Turn, task: Task) -> None:
    """Give up on a process that SIGKILL does not end (D state). No new task may start beside it."""
    left = f"pid {task.pid}: cannot be killed"
    turn.set_task(task, phase=TaskPhase.LOST, exit=Exit(cause=Cause.ORDERED, at=turn.at, left=(left,)))
    sentence = f"{task.id} on {task.host} cannot be killed (pid {task.pid})"
    host_state.set_stuck(turn, task.host, sentence)
    turn.note(NoteKind.UNKILLABLE, sentence, task.id)
    goes_on = turn.run.intent in (Intent.RESTART, Intent.RESCHEDULE)
    if goes_on and task.host not in slots.next_assignment(turn.run).waits_for:
        # Other hosts can take its tasks. Its shim may be what hangs, so a sweep is ordered, which reaches the host
        # without the shim.
        turn.do(SweepHost(host=task.host, generation=task.generation))
        return
    hint = "it waits in the kernel, for a disk, a network file system or a GPU; the host may need a reboot"
    turn.set(problem=Problem(code="unkillable", message=sentence, hint=hint, exit_code=6))
    if goes_on:
        turn.set(reason=sentence, reason_rest=None)
        turn.set_phase(intent=Intent.FAIL)
        _say_done(turn, f"given up: {sentence}")


NOTHING_SEEN = ", but no step or checkpoint was seen"
"""What is said of a success that nothing but the exit code shows. What it left on its hosts is not known here."""


def _when(ended: Exit, run: Run) -> str:
    chief = run.task(run.chief).exit
    is_after = chief is not None and ended.at >= chief.at
    return "after the chief's exit 0" if is_after else "as the run ended, after its last step"


def _conclude(turn: Turn) -> None:
    """End the run, and note its outcome."""
    final_verification.without_answer(turn)
    run = turn.run
    stopping = run.within(Stopping)
    reason = run.reason
    if stopping.intent is Intent.SUCCEED:
        late = [t for t in run.tasks if t.exit and t.exit.cause.row.blame is not Blame.NOBODY]
        warnings = tuple(f"{cause.end_of(run, t, t.exit)}, {_when(t.exit, run)}" for t in late if t.exit)
        turn.set(warnings=(*run.warnings, *warnings), first_cause=None)
        step = run.global_step
        reason = f"{run.chief} ended with exit code 0" + (f" at step {step}" if step is not None else "")
        if run.best_step is None and step is None and run.checkpoint is None:
            reason += NOTHING_SEEN
        for warning in warnings:
            turn.note(NoteKind.WARNING, warning)
    elif stopping.intent is Intent.REQUEUE and _requeued(turn):
        return
    elif ends_saved(run):
        saved = final_verification.saved(run)
        _say_done(turn, saved)
        turn.set(reason_rest=saved)
        reason = f"{reason}; {saved}"
    elif stopping.intent is Intent.FAIL and run.first_cause is not None and not run.first_cause.done:
        _say_done(turn, f"given up: {restart.SAME_END}")
    rest = turn.run.reason_rest if turn.run.first_cause is not None else None
    intent = turn.run.within(Stopping).intent
    finish(turn, Ended(phase=ENDS[intent], proof=stopping.proof), reason, rest=rest)


def _requeued(turn: Turn) -> bool:
    """Return the run to the queue if it is proven that nothing of it is left; otherwise end it."""
    run = turn.run
    stopping = run.within(Stopping)
    asked = run.plan.queue
    if asked is None or to_prove(run) or any(swept.left for swept in (stopping.proof or {}).values()):
        turn.set_phase(intent=Intent.KILL)
        return False
    _count_free(turn)
    priority = PRIORITIES.index(asked.priority)
    waits = Queued(priority=priority, since_at=turn.at, proof=stopping.proof)
    has_made_way(turn, waits, f"{run.reason}; {final_verification.saved(run)}")
    return True


def ends_saved(run: Run) -> bool:
    """Return whether the run ends saved, to go on some day: its hosts are taken away, or its end was planned."""
    first_cause = run.first_cause
    may_go_on = run.intent in (Intent.KILL, Intent.REQUEUE)
    return may_go_on and first_cause is not None and first_cause.cause.row.ends_saved


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
    left = [f"{name}: {what}" for name, swept in proof.items() for what in swept.left]
    if left and turn.run.problem is None:
        turn.set(problem=Problem(code="left", message=f"left behind: {'; '.join(left)}", exit_code=6))
    if phase is Phase.FAILED and turn.run.problem is None:
        turn.set(problem=Problem(code="failed", message=reason))
    turn.note(_END_NOTES[phase], reason, None, **(_why(turn.run) if phase is Phase.FAILED else {}))
    for host in turn.run.hosts:
        if host.name in proof or turn.run.generation == 0 or host.untouched or host.gone:
            turn.do(CloseHost(host=host.name))


def unproven(run: Run) -> list[str]:
    """Return the hosts of an ended run that were not reached for the proof."""
    if not run.phase.is_terminal or run.generation == 0:
        return []
    return to_prove(run)

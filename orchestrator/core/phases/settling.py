"""STOPPING: what follows once no task may live any more, and the proof with which a run ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.core.actions import CloseHost, StopTask, SweepHost
from orchestrator.core.causes import Blame, Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import Exit, FirstCause
from orchestrator.core.events import HostSwept
from orchestrator.core.gang import gang, handed_over, is_individual, is_served, kept_step, measured
from orchestrator.core.hosts import host_state, silence, slots
from orchestrator.core.hosts.host_state import lose
from orchestrator.core.moments import Ends, FailsAgain, HandedOver, Proves, Restarts
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import restart, stopping
from orchestrator.core.phases.stopping import GENTLE, SWEEP_WAIT_S, ends_saved, say_done, to_prove
from orchestrator.core.plan import PRIORITIES
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant, is_due
from orchestrator.core.state.phase_states import Backoff, Ended, Intent, Phase, Queued, Stopping
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.transitions import ENDS
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration


def advance_stopping(turn: Turn) -> None:
    """Go on to what comes after once no task may live any more; bound the wait for that."""
    state = turn.run.within(Stopping)
    if state.force_at is not None and (is_due(state.force_at, turn.at) or _only_servers_wait(turn.run)):
        turn.set_phase(force_at=None)
        stopping.order_stop(turn, max(0.0, state.force_at - turn.at))
    silence.judge(turn)
    if is_due(state.deadline_at, turn.at):
        # Give up tasks that have not ended in time: they were lost with their host, or cannot be killed
        run = turn.run
        for task in run.tasks:
            if task.phase.may_live and run.host(task.host).link is Link.CONNECTED:
                _give_up_on(turn, task)
            elif task.phase.may_live:
                lose(turn, task)
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
            _restart_or_give_up(turn)
        case Intent.RESCHEDULE:
            # Begin again after all tasks have ended to be moved. The budget of failures is unchanged.
            stopping.count_free(turn)
            turn.enter(Backoff(start_at=turn.at), turn.run.reason)
        case _:
            _prove(turn)


def _only_servers_wait(run: Run) -> bool:
    """Return whether those have ended that may save first: then it is the servers' turn."""
    return run.intent in GENTLE and all(is_served(run, task) for task in run.tasks if task.phase.may_live)


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
        turn.set_phase(intent=stopping.intent_after(failed.exit.cause))
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


def _restart_or_give_up(turn: Turn) -> None:
    run = turn.run
    first_cause, blamed = run.first_cause, _blamed(run)
    step = measured(run, kept_step(run))
    progressed = restart.is_progress(run.budget, step)
    if turn.tell(Restarts(blamed, progressed)):
        return
    host_state.charge(turn, progressed=progressed)
    failure = cause.failure(run) if blamed.row.repeats else None
    is_same = failure == (run.budget.failure, run.budget.failed_step)
    again = turn.tell(FailsAgain()) if failure and is_same and not progressed else None
    decided = restart.verdict(
        turn.run.budget,
        run.plan.restart,
        blamed,
        verified_step=step,
        failure=failure,
        identity=f"{run.run_id}/{run.generation}",
        gained=_gained(run),
        mistake=cause.is_mistake(run),
    )
    turn.set(budget=decided.budget, rescued=run.rescued + (handed_over(run) is not None))
    rescued = turn.tell(HandedOver()) or ""
    what = first_cause.sentence if first_cause else run.reason
    if isinstance(decided, restart.GiveUp):
        given_up = f"given up: {again or decided.reason}"
        turn.set(reason=f"{what}; {given_up}", reason_rest=given_up if first_cause else None)
        turn.set_phase(intent=Intent.FAIL)
        say_done(turn, given_up)
        _prove(turn)
        return
    turn.enter(Backoff(start_at=turn.at + decided.delay_s), what, rest="" if first_cause else None)
    when = f"in {duration(decided.delay_s)} ({decided.reason})" if decided.delay_s else decided.reason
    say_done(turn, "; ".join(filter(None, (rescued, f"restart {when}"))))
    if rescued and first_cause is not None:
        turn.set(first_cause=replace(turn.run.first_cause or first_cause, rescued=rescued))
    turn.note(
        NoteKind.BACKOFF,
        f"restart {when}: {what}",
        first_cause.task if first_cause else None,
        **stopping.why(turn.run),
    )


def _gained(run: Run) -> restart.Gained:
    """Return what this generation has left behind."""
    step, began = handed_over(run), (run.seed.global_step if run.seed is not None else None) or 0
    steps = step - began if step is not None else None
    return restart.Gained(step, steps, saved=(run.verified_step or 0) > began)


def _blamed(run: Run) -> Cause:
    """Return the cause that is charged to the budget. A lost host explains the errors of its peers."""
    if any(task.phase is TaskPhase.LOST and not (task.exit and task.exit.left) for task in run.tasks):
        return Cause.HOST_LOST
    return run.first_cause.cause if run.first_cause else Cause.SCRIPT


def _prove(turn: Turn) -> None:
    """Order the proof from every host that nothing is left, and the final check of the newest checkpoint; then end."""
    run = turn.run
    state = run.within(Stopping)
    if run.standby.is_living:
        return
    if state.proof is None:
        turn.set_phase(proof={})
        turn.do(*(SweepHost(host=name, generation=run.generation_last) for name in to_prove(turn.run)))
        patience_s = turn.tell(Proves()) or 0.0
        turn.set_phase(deadline_at=turn.at + max(SWEEP_WAIT_S, patience_s))
    elif state.final_verification_asked_at is None:
        if not to_prove(run):
            _conclude(turn)
        else:  # the verification alone deserved a longer wait
            turn.set_phase(deadline_at=min(state.deadline_at, turn.at + SWEEP_WAIT_S))


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
        say_done(turn, f"given up: {sentence}")


def _when(ended: Exit, run: Run) -> str:
    chief = run.task(run.chief).exit
    is_after = chief is not None and ended.at >= chief.at
    return "after the chief's exit 0" if is_after else "as the run ended, after its last step"


def _unfinished(run: Run) -> Iterator[str]:
    """Yield a sentence for each task that had work left when the chief was done. Servers have none of their own."""
    chief, grace_s = run.task(run.chief).exit, run.plan.timing.kill_grace_s
    for task in run.tasks:
        named, ended, alone = f"{task.id} on {task.host}", task.exit, is_individual(run, task)
        if chief is None or is_served(run, task):
            continue
        # Where a failure ended the gang as the chief was done, its tasks were in their last step
        is_cut_off = task.phase is TaskPhase.EXITED and (alone or run.within(Stopping).chief_is_done)
        if alone and task.phase is TaskPhase.WAITING:
            yield f"{named} had failed, and was not started again, since the chief had finished"
        elif is_cut_off and ended is not None and ended.cause is Cause.ORDERED:
            stopped = f"it was stopped {duration(ended.at - chief.at)} after the chief's exit 0"
            yield f"{named} had not finished: {stopped} (`timing: kill_grace` is {duration(grace_s)})"


def _conclude(turn: Turn) -> None:
    """End the run, and note its outcome."""
    turn.tell(Ends())
    run = turn.run
    state = run.within(Stopping)
    reason = run.reason
    if state.intent is Intent.SUCCEED:
        late = [t for t in run.tasks if t.exit and t.exit.cause.row.blame is not Blame.NOBODY]
        failed = [f"{cause.end_of(run, t, t.exit)}, {_when(t.exit, run)}" for t in late if t.exit]
        warnings = (*failed, *_unfinished(run))
        turn.set(warnings=(*run.warnings, *warnings), first_cause=None)
        step = run.global_step
        reason = f"{run.chief} ended with exit code 0" + (f" at step {step}" if step is not None else "")
        if run.best_step is None and step is None and run.checkpoint is None:
            reason += stopping.NOTHING_SEEN
        for warning in warnings:
            turn.note(NoteKind.WARNING, warning)
    elif state.intent is Intent.REQUEUE and _requeued(turn):
        return
    elif ends_saved(run):
        say_done(turn, stopping.saved(run))
        turn.set(reason_rest=stopping.saved(run))
        reason = f"{reason}; {stopping.saved(run)}"
    elif state.intent is Intent.FAIL and run.first_cause is not None and not run.first_cause.done:
        say_done(turn, f"given up: {restart.SAME_END}")
    rest = turn.run.reason_rest if turn.run.first_cause is not None else None
    intent = turn.run.within(Stopping).intent
    stopping.finish(turn, Ended(phase=ENDS[intent], proof=state.proof), reason, rest=rest)


def _requeued(turn: Turn) -> bool:
    """Return the run to the queue if it is proven that nothing of it is left; otherwise end it."""
    run = turn.run
    state = run.within(Stopping)
    asked = run.plan.queue
    if asked is None or to_prove(run) or any(swept.left for swept in (state.proof or {}).values()):
        turn.set_phase(intent=Intent.KILL)
        return False
    stopping.count_free(turn)
    priority = PRIORITIES.index(asked.priority)
    waits = Queued(priority=priority, since_at=turn.at, proof=state.proof)
    stopping.has_made_way(turn, waits, f"{run.reason}; {stopping.saved(run)}")
    return True


def _swept(turn: Turn, event: HostSwept) -> None:
    """Record the proof of a host."""
    run = turn.run
    if event.generation is not None and event.generation < run.generation_last:
        turn.do(SweepHost(host=event.host, generation=run.generation_last))
        return  # another coordinator has started a newer one since
    turn.set_phase(proof={**(run.proof or {}), event.host: event.swept})
    what = f"left: {'; '.join(event.swept.left)}" if event.swept.left else "no leftover processes"
    turn.note(NoteKind.SWEPT, f"{event.host}: {what} (checked by {event.swept.by})")
    if run.phase.is_terminal:
        turn.do(CloseHost(host=event.host))


def _repeats(run: Run, name: str, at: Instant) -> list[SweepHost] | list[StopTask]:
    if stopping.owes_proof(run, name):
        return [SweepHost(host=name, generation=run.generation_last)]
    # Every task was told to end; before `force_at` some may end by themselves, or are servers that wait
    state = run.phase_state
    ends_all = isinstance(state, Backoff) or (isinstance(state, Stopping) and state.force_at is None)
    told = [t for t in run.tasks_on(name) if ends_all or (run.intent in GENTLE and not is_served(run, t))]
    return [stopping.stop_of(run, t, stopping.grace_s(run), at) for t in told if t.phase.may_live]


CONCERN = Concern(
    "the end of a generation and of a run",
    on={HostSwept: _swept},
    advance={Phase.STOPPING: advance_stopping},
    repeats=_repeats,
)

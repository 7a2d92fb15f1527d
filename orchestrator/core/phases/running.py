"""RUNNING: what ends this phase, and what is watched meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core import bottleneck
from orchestrator.core.actions import StopTask, VerifyCheckpoint
from orchestrator.core.bottleneck import HostReading, Watched
from orchestrator.core.causes import Blame, Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.gang import gang, is_served
from orchestrator.core.hosts import checkpoint_dir, silence, slots
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import final_verification, nonfinite, own_place
from orchestrator.core.phases.stopping import intent_after, stop_all, stop_for
from orchestrator.core.state.host import Host, HostState, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Intent, Phase, Running
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task
from orchestrator.core.turn import Turn

EARLY_FAILURE_WAIT_S = 2.0
"""Before the first step no training is lost by waiting: the others may show that they fail alike."""

VERIFY_INTERVAL_MIN_S = 10.0
VERIFY_COST_FACTOR = 50.0
"""Reading a checkpoint costs CPU on the chief's host: it may take a fiftieth of the time, no more."""

VERIFY_SOON_S = 2.0
"""While tasks wait for a checkpoint, to move off a host or to end, verifying may take half of the time."""

VERIFY_FAILED_WAIT_S = 60.0
"""The pause after a failed verification. Its cause seldom goes away in seconds, and each failure is an event."""


def advance_running(turn: Turn) -> None:
    """End the generation where one of its tasks has ended or is lost; have checkpoints verified meanwhile."""
    run = turn.run
    if _resumed_wrongly(turn) or _went_on_elsewhere(turn):
        return
    if any(task.phase.is_gone for task in gang(run)):
        react_to_end(turn, gang(run))
        if turn.run.phase is not Phase.RUNNING:
            return
    lost = silence.judge(turn)
    chief = turn.run.task(run.chief)
    if chief.host in lost and chief.phase.is_gone and turn.run.within(Running).going_back is not None:
        nonfinite.not_gone_back(turn, f"{chief.host} is lost")
        return
    if lost:
        react_to_end(turn, gang(turn.run))
        return
    judge_pace(turn)
    run = turn.run
    if is_due(run.within(Running).verify_at, turn.at):
        turn.set_phase(verify_at=None)
        turn.do(VerifyCheckpoint(host=run.task(run.chief).host, generation=run.generation))


def next_verification(run: Run, at: Instant, took_s: float) -> Deadline | None:
    """Return when the newest checkpoint is next verified, after a verification that took so long."""
    if run.plan.checkpoint is None:
        return None
    if waits_for_checkpoint(run):
        return at + max(VERIFY_SOON_S, took_s)
    return at + max(VERIFY_INTERVAL_MIN_S, VERIFY_COST_FACTOR * took_s)


def verify_soon(turn: Turn) -> None:
    """Verify the newest checkpoint at once, where a move or an end waits for a verified checkpoint."""
    running = turn.run.phase_state
    if isinstance(running, Running) and running.verify_at is not None and waits_for_checkpoint(turn.run):
        turn.set_phase(verify_at=min(running.verify_at, turn.at))


def waits_for_checkpoint(run: Run) -> bool:
    """Return whether the gang moves or ends once a checkpoint is verified; not where no other host can take tasks."""
    planned = run.planned_end
    if planned is not None and planned.wanted_at is None:
        return True
    states = {host.state for host in run.assignees}
    if HostState.LEAVING in states:
        return True
    if HostState.DRAINED not in states:
        return False
    assignment = slots.next_assignment(run)
    return not assignment.waits_for and slots.is_better(run, assignment)


def verification_ended(turn: Turn, took_s: float) -> None:
    """Schedule the next verification. One during which the directory hung does not count as costly."""
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return
    answered_at = running.answered_at
    hung = checkpoint_dir.hangs(turn.run) or (answered_at is not None and answered_at >= turn.at - took_s)
    turn.set_phase(verify_at=next_verification(turn.run, turn.at, 0.0 if hung else took_s))


def verification_failed(turn: Turn) -> None:
    """Schedule another verification after one that failed, unless it was the final one."""
    if turn.run.phase is Phase.RUNNING:
        turn.set_phase(verify_at=turn.at + VERIFY_FAILED_WAIT_S)
    final_verification.without_answer(turn)


def react_to_end(turn: Turn, sharing: Sequence[Task]) -> None:
    """Decide what follows from the end of a task for all tasks that are restarted with it."""
    run = turn.run
    chief = run.task(run.chief)
    first = cause.first_of(sharing)
    is_done = chief.exit is not None and chief.exit.cause is Cause.FINISHED
    if is_done and cause.failed_before_its_chief(run, gang(run)) is None:
        if run.within(Running).going_back is None:
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


def _resumed_wrongly(turn: Turn) -> bool:
    """End a run whose script restored nothing although it was given a checkpoint: it would lose those steps."""
    run = turn.run
    chief = run.task(run.chief)
    given = run.seed.global_step if run.seed else None
    if given is None or chief.first_step is None or chief.first_step >= given:
        return False
    if run.seed is not None and not run.seed.verified:
        _warn_of_mismatch(turn, given, chief.first_step)
        return False
    sentence = (
        f"resume-mismatch: {chief.id} was given the checkpoint of step {given} and reports step "
        f"{chief.first_step}: it did not resume from it"
    )
    hint = Cause.RESUME_MISMATCH.row.advice
    turn.set(problem=Problem(code="resume-mismatch", message=sentence, hint=hint))
    stop_for(turn, FirstCause(chief.id, run.generation, Cause.RESUME_MISMATCH, sentence))
    return True


def _went_on_elsewhere(turn: Turn) -> bool:
    """End a run that was to start from scratch, but whose script resumed from a place of its own."""
    sentence = own_place.why_refused(turn.run)
    if sentence is None:
        return False
    turn.set(problem=Problem(code="own-place", message=sentence, hint=Cause.OWN_PLACE.row.advice))
    stop_for(turn, FirstCause(turn.run.chief, turn.run.generation, Cause.OWN_PLACE, sentence))
    return True


def _warn_of_mismatch(turn: Turn, given: int, first_step: int) -> None:
    """Warn once that the script took an older checkpoint than it was given, where orch cannot read the given one."""
    run = turn.run
    sentence = (
        f"generation {run.generation} was given the checkpoint of step {given}, whose format is not known, and "
        f"{run.chief} reports step {first_step}: does the script restore from ORCH_CHECKPOINT_DIR?"
    )
    if sentence not in run.warnings:
        turn.set(warnings=(*run.warnings, sentence))
        turn.note(NoteKind.WARNING, sentence)


JUDGE_EVERY_S = 5.0
"""Judging reads the measurements of all tasks."""


def judge_pace(turn: Turn) -> None:
    """Judge every few seconds what limits the run, and note it when it changes."""
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return
    before = running.watched
    if before.looked_at is not None and turn.at - before.looked_at < JUDGE_EVERY_S:
        return
    hosts = _hosts(turn.run)
    if before == Watched() and not hosts:
        return
    after = bottleneck.judge(before, hosts, turn.at)
    turn.set_phase(watched=after)
    was, is_now = before.told, after.told
    if (was and was.key) == (is_now and is_now.key):
        return
    if is_now is None:
        turn.note(NoteKind.BOTTLENECK, "no measured value limits the run any more")
        return
    turn.note(
        NoteKind.BOTTLENECK,
        f"limited by {bottleneck.sentence(is_now)}; {bottleneck.REMEDIES[is_now.kind]}",
        None,
        bottleneck=is_now.kind,
        share=round(is_now.share, 3),
    )


def _hosts(run: Run) -> list[HostReading]:
    """Return what the hosts with tasks measure. A host that is not heard has no values."""
    if run.phase is not Phase.RUNNING or run.global_step is None:
        return []
    return [
        HostReading(host.name, host.measured.get("cpu_percent"), _gpu_percent(run, host))
        for host in run.assignees
        if host.link is Link.CONNECTED
    ]


def _gpu_percent(run: Run, host: Host) -> float | None:
    own = {gpu for task in run.placed.tasks if task.host == host.name for gpu in task.gpus}
    known = [
        load.measured["utilization_percent"]
        for load in host.gpu_loads
        if load.index in own and "utilization_percent" in load.measured
    ]
    return sum(known) / len(known) if known else None

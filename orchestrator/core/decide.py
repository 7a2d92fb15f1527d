"""Decides: `step(run, event) -> (run, actions, weight)`.

Rules. Whatever changes a run is called from here. Nothing here knows a clock: every event says when it happened, and
every wait is a field of the state (`deadlines`).

Theory of operation. A generation is prepared, started, released, watched and ended as one: the tasks of a mirrored
strategy share one fate. PENDING prepares the hosts. RENDEZVOUS starts the tasks, each up to its own gate, while the
checkpoint is verified and copied beside them; when all are at the gate, all are released together (RUNNING). The
first task that ends badly sends all to STOPPING; when none is left, `restart` says whether BACKOFF or the end comes
next. Hosts report levels, so nothing here counts messages: a report that is lost or doubled changes nothing. When a
host is up again, `lifecycle.outstanding` repeats what it has been asked and not done.

Unreachable is not dead: a silent host is displayed, and its tasks count as lost only when nothing else can be known
(`silence.lost_at`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from orchestrator.core import conflicts, invariants
from orchestrator.core.actions import PrepareHost
from orchestrator.core.causes import Cause
from orchestrator.core.decision import Decision, Weight, is_quiet, weigh
from orchestrator.core.ends import Exit, FirstCause, Injected
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.events import (
    CheckpointSeeded,
    CheckpointVerified,
    ClockDiffers,
    DrainRequested,
    EpochBegan,
    Event,
    FaultInjected,
    HostDown,
    HostPrepared,
    HostRefused,
    HostReported,
    HostSwept,
    HostUp,
    KillRequested,
    LimitReached,
    NotGoneBack,
    NoticeFailed,
    OrderFailed,
    RolledBack,
    SeedProgressed,
    StacksCollected,
    Submitted,
    Ticked,
    TurnCame,
    UndrainRequested,
    WayAsked,
)
from orchestrator.core.faults import KINDS, Fault
from orchestrator.core.gang import is_individual
from orchestrator.core.hosts import moderation
from orchestrator.core.hosts.compatibility import GPU_LEASED, NO_CODE, SHARE_MISSING
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import (
    checkpoints,
    connecting,
    final_verification,
    leaving,
    lifecycle,
    planned_end,
    room,
    standby,
)
from orchestrator.core.phases.host_reports import absorb
from orchestrator.core.phases.individual import advance_individual, end_individually
from orchestrator.core.phases.nonfinite import advance_nonfinite
from orchestrator.core.phases.reschedule import at_step, handle
from orchestrator.core.phases.running import advance_running, verification_failed
from orchestrator.core.phases.stall import advance_stall, stacks_collected
from orchestrator.core.phases.starting import (
    advance_backoff,
    advance_pending,
    advance_queued,
    advance_rendezvous,
    begin,
    is_seeded,
)
from orchestrator.core.phases.stopping import (
    SWEEP_WAIT_S,
    advance_stopping,
    ends_saved,
    finish,
    hurry,
    stop_all,
    stop_for,
    unproven,
)
from orchestrator.core.plan import TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import (
    Backoff,
    Ended,
    Intent,
    Pending,
    Phase,
    Queued,
    Rendezvous,
    Running,
    Stopping,
)
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Turn

_TURNS_MAX = 20
"""If one step changes the state more often than this, our rules form a loop."""

SEED_REFUSALS = ("no-readable-checkpoint", "superseded", conflicts.DRIVEN)
"""Codes of problems of seeding for which trying again gives the same answer."""


def step(run: Run, event: Event) -> Decision:
    """Return the next state, the actions to carry out, in order, and what must be written before they are carried out.

    Raises InvariantViolated where that state would break an invariant. Any exception is a bug in orch, and changes
    nothing: the loop leaves the run as it was.
    """
    if _is_stale(run, event):
        return Decision(run, [], Weight.NOTHING)
    turn = Turn(run, event.at)
    _apply(turn, event)
    if not turn.actions and is_quiet(run, turn.run, event):
        return Decision(turn.run, [], Weight.NUMBERS)
    for _ in range(_TURNS_MAX):
        before = turn.run
        _advance(turn)
        if turn.run == before:
            if (host := getattr(event, "host", None)) is not None:
                moderation.moderate(turn, host)
            invariants.check(turn.run, run)
            return Decision(turn.run, turn.actions, weigh(run, turn.run, event, turn.actions))
    raise InvariantViolated(f"{run.run_id} does not settle after {event}")


def _is_stale(run: Run, event: Event) -> bool:
    """Return whether an event is of an older generation, and so changes nothing. This is the whole fencing rule."""
    match event:
        case Submitted():
            return run.phase is not Phase.QUEUED and (
                not isinstance(run.phase_state, Pending) or run.phase_state.deadline_at is not None
            )
        case TurnCame():
            return run.phase is not Phase.QUEUED
        case WayAsked():
            return run.phase is Phase.QUEUED or run.phase.is_terminal
        case HostUp() | HostDown() | HostRefused() | HostPrepared() | HostReported():
            return run.phase is Phase.QUEUED  # it was let go a moment ago
        case CheckpointSeeded(seed=Seed(generation=generation)) | SeedProgressed(generation=generation):
            return run.phase is not Phase.RENDEZVOUS or generation != run.generation or is_seeded(run)
        case StacksCollected(generation=generation):
            return generation != run.generation or run.phase is not Phase.RUNNING
        case CheckpointVerified(generation=generation):
            return (
                generation != run.generation or run.phase.is_terminal or final_verification.is_disowned(run)
            )
        case OrderFailed(generation=generation, task=None):
            return generation != run.generation or run.phase.is_terminal
        case OrderFailed(generation=generation, task=TaskId() as task, host=host):
            return run.phase.is_terminal or generation not in _generations(run, task, host)
        case RolledBack(why=why):
            # An order that was repeated is answered twice.
            running = run.phase_state
            return run.phase.is_terminal or (
                bool(why) and isinstance(running, Running) and not running.going_back
            )
        case NotGoneBack(generation=generation):
            return generation != run.generation or run.phase is not Phase.RUNNING
        case EpochBegan(epoch=epoch):
            return epoch <= run.epoch or (run.phase.is_terminal and not unproven(run))
        case DrainRequested(host=host, gone=gone):
            return run.phase.is_terminal and not (gone and host in unproven(run))
        case UndrainRequested(host=host):
            return run.phase.is_terminal and not run.host(host).gone
        case HostSwept(host=host):
            if run.phase.is_terminal:
                return host not in unproven(run)
            return run.phase is not Phase.STOPPING or run.proof is None
        case _:
            return False


def _generations(run: Run, task: TaskId, host: str) -> list[int]:
    """Return the generations that the task has now, its standby's too; none where the gang trains without the task."""
    known = (run.find_task(task), run.standby.find(task, host))
    return [event.generation for event in known if event is not None and event.host == host]


def _apply(turn: Turn, event: Event) -> None:
    """Apply the changes that the event itself makes. `_advance` decides what follows from them."""
    match event:
        case Submitted() | TurnCame():
            begin(turn, event)
        case EpochBegan():
            _begin_epoch(turn, event)
        case HostUp():
            lifecycle.host_up(turn, event)
        case HostDown():
            turn.set_host(turn.run.host(event.host), problem=event.problem)
        case HostRefused():
            lifecycle.host_refused(turn, event)
        case HostPrepared():
            lifecycle.host_prepared(turn, event)
        case HostReported():
            absorb(turn, event)
        case LimitReached() | ClockDiffers():
            kind = NoteKind.LIMIT_REACHED if isinstance(event, LimitReached) else NoteKind.HOST_CLOCK
            turn.note(kind, event.message, event.task)
        case NoticeFailed(recipient=recipient, problem=problem):
            turn.note(NoteKind.NOTICE_FAILED, f"{recipient}: {problem}", recipient=recipient)
        case CheckpointSeeded() | SeedProgressed() | CheckpointVerified() | RolledBack() | NotGoneBack():
            checkpoints.apply(turn, event)
        case OrderFailed():
            _order_failed(turn, event)
        case HostSwept():
            lifecycle.swept(turn, event)
        case StacksCollected():
            stacks_collected(turn, event)
        case KillRequested() | WayAsked():
            _asked_to_end(turn, event)
        case DrainRequested() | UndrainRequested():
            handle(turn, event)
        case FaultInjected(fault=fault):
            _injected(turn, fault)
        case Ticked():
            pass
        case _:
            assert_never(event)


def _injected(turn: Turn, fault: Fault) -> None:
    """Remember the fault that is injected into a task, so that its end is explained by that fault."""
    turn.note(NoteKind.CHAOS, fault.sentence, fault.task)
    if fault.task is not None and turn.run.task(fault.task).generation == fault.generation:
        lasts_s = fault.for_s if KINDS[fault.kind].lasts else 0.0
        injected = Injected(f"{fault.kind} {fault.target}", turn.at, lasts_s)
        turn.set_task(turn.run.task(fault.task), injected=injected)


def _advance(turn: Turn) -> None:
    """Move the run on as far as its state allows."""
    if turn.run.phase is Phase.QUEUED:
        advance_queued(turn)
        return
    if not turn.run.phase.is_terminal:
        lifecycle.note_silence(turn)
        lifecycle.prepare_again(turn)
        standby.advance(turn)
        planned_end.advance(turn)
    match turn.run.phase_state:
        case Pending():
            advance_pending(turn)
        case Rendezvous():
            advance_rendezvous(turn)
            if turn.run.phase is Phase.RENDEZVOUS:
                leaving.advance(turn)
        case Running():
            for advance in (
                advance_nonfinite,  # before an end: with such weights, an exit with 0 is no success
                advance_running,
                leaving.advance,
                at_step,
                connecting.advance,
                advance_individual,
                advance_stall,
            ):
                if turn.run.phase is Phase.RUNNING:
                    advance(turn)
        case Stopping():
            advance_stopping(turn)
        case Backoff():
            advance_backoff(turn)
        case Queued() | Ended():
            pass


def _begin_epoch(turn: Turn, event: EpochBegan) -> None:
    """Begin an epoch: another coordinator has taken the journal.

    The new coordinator knows what was decided, and nothing about the hosts.
    """
    forgotten = tuple(
        replace(host, link=Link.CONNECTING, since_at=turn.at, heard_at=None, retry_at=None)
        for host in turn.run.hosts
    )
    tasks = tuple(replace(task, heard_at=None) for task in turn.run.tasks)
    turn.set(epoch=event.epoch, hosts=forgotten, tasks=tasks, owner=event.owner or turn.run.owner)
    waiting = turn.run.phase_state
    if isinstance(waiting, Pending | Rendezvous | Stopping) and waiting.deadline_at is not None:
        # Only a moment of the wait may be left, and the hosts must be connected first: so the wait is made longer.
        patience_s = turn.run.plan.timing.unreachable_after_s + SWEEP_WAIT_S
        turn.set_phase(deadline_at=max(waiting.deadline_at, turn.at + patience_s))
    if not turn.run.phase.is_terminal:
        turn.note(
            NoteKind.EPOCH, f"coordinator {event.epoch} takes up {turn.run.run_id} in {turn.run.phase.value}"
        )


# --- orders ------------------------------------------------------------------------------------------------


def _order_failed(turn: Turn, event: OrderFailed) -> None:
    """Note that a host could not carry out an order. A failed start ends its task."""
    what = event.order if event.task is None else f"{event.order} of {event.task}"
    turn.note(NoteKind.ORDER_FAILED, f"{event.host}: {what}: {event.problem.message}", event.task)
    waiting = turn.run.standby.find(event.task, event.host) if event.task is not None else None
    if waiting is not None and waiting.generation == event.generation:
        standby.order_failed(turn, waiting, event)
    elif event.order == "start" and event.task is not None:
        task = turn.run.task(event.task)
        if event.problem.code == GPU_LEASED:
            # Somebody took it while nothing of the run was there.
            _ask_again(turn, event.host, event.problem)
        elif event.problem.code == NO_CODE:  # its disk was replaced, or emptied, while it did not reboot
            turn.set_host(turn.run.host(event.host), facts=None)
            turn.do(PrepareHost(host=event.host))
        if not task.phase.is_gone:
            ended = Exit(cause=Cause.START, at=turn.at, error=event.problem.message)
            turn.set_task(task, phase=TaskPhase.EXITED, exit=ended)
    elif event.order == "stop" and event.task is not None and event.problem.code == "no-task":
        task = turn.run.task(event.task)
        if task.phase.may_live:  # the order to start it never arrived
            turn.set_task(task, phase=TaskPhase.EXITED, exit=Exit(cause=Cause.ORDERED, at=turn.at))
    elif event.order == "seed" and turn.run.phase is Phase.RENDEZVOUS and not is_seeded(turn.run):
        _seed_failed(turn, event.host, event.problem)
    elif event.order == "release" and event.task is not None and turn.run.phase is Phase.RUNNING:
        if event.problem.code == SHARE_MISSING:
            _ask_again(turn, event.host, event.problem)
        _release_failed(turn, turn.run.task(event.task), event.problem)
    elif event.order == "verify":
        verification_failed(turn)


def _ask_again(turn: Turn, host: str, problem: Problem) -> None:
    """Ask a host again before it gets a task: what it lacks may come."""
    retry_at = turn.at + lifecycle.PREPARE_RETRY_S
    turn.set_host(turn.run.host(host), facts=None, problem=problem.message, retry_at=retry_at)


def _seed_failed(turn: Turn, host: str, problem: Problem) -> None:
    """Handle a failed seeding.

    Without a good checkpoint a person must act; a disk or a share that failed may work the next time.
    """
    if problem.code == conflicts.DRIVEN:
        problem = replace(problem, exit_code=conflicts.DRIVEN_EXIT_CODE)
    if problem.code in SEED_REFUSALS:
        turn.set(problem=problem)
        stop_all(turn, Intent.FAIL, problem.message)
        return
    what = f"the checkpoint could not be prepared: {problem.message}"
    if problem.code == SHARE_MISSING:
        _ask_again(turn, host, problem)
        what = f"{host}: {problem.message}"
    is_full = problem.code == room.NO_SPACE
    failed_by = Cause.DISK if is_full else Cause.START
    stop_for(turn, FirstCause(None, turn.run.generation, failed_by, what, host=host if is_full else None))


def _release_failed(turn: Turn, task: Task, problem: Problem) -> None:
    """Restart because a task would stay at its gate for ever. One that is gone is reported by its host instead."""
    if task.phase is not TaskPhase.RELEASED or problem.code == "gone":
        return
    what = f"{task.id} on {task.host} was not released: {problem.message}"
    if is_individual(turn.run, task):
        end_individually(turn, task, Cause.START, what)
        return
    stop_for(turn, FirstCause(task.id, task.generation, Cause.START, what))


def _asked_to_end(turn: Turn, event: KillRequested | WayAsked) -> None:
    """Kill the run for the user, or let it make way. A second request changes nothing, but `force` ends the grace.

    A run that has succeeded, or failed, and only waits for its last processes, keeps its outcome.
    """
    run = turn.run
    if isinstance(event, WayAsked):
        planned_end.make_way(turn, event.by)
        return
    if run.phase.is_terminal:
        return
    if event.at_checkpoint and run.phase is Phase.RUNNING and run.plan.checkpoint is not None:
        planned_end.ask(turn)
        return
    if run.has_no_process:
        ever = "before any task was started" if run.generation == 0 else "while no task of it was there"
        finish(turn, Ended(phase=Phase.KILLED), f"killed {ever}")
        return
    if event.force or run.intent in (Intent.SUCCEED, Intent.FAIL):
        final_verification.without_answer(turn)
    if run.phase is Phase.STOPPING and run.intent in (Intent.SUCCEED, Intent.FAIL):
        hurry(turn)
        return
    if run.intent is not Intent.KILL or ends_saved(run):
        turn.note(NoteKind.KILL, "kill requested by the user")
        turn.set(first_cause=None if ends_saved(run) else run.first_cause)
        stop_all(turn, Intent.KILL, "killed by the user")
    if event.force:
        turn.set_phase(force_at=turn.at)

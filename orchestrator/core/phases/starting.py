"""How a generation starts: from PENDING through RENDEZVOUS, and again from BACKOFF; and what a failed order means."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core import conflicts, pool
from orchestrator.core.actions import PrepareHost, ReleaseTask, SeedCheckpoint, StartTask
from orchestrator.core.causes import Cause
from orchestrator.core.ends import Exit, FirstCause
from orchestrator.core.events import Admitted, NoPlaceFound, OrderFailed, Submitted
from orchestrator.core.gang import addresses, is_individual, next_generation, release, step_max
from orchestrator.core.hosts import checkpoint_dir, compatibility, host_state, slots
from orchestrator.core.hosts.compatibility import GPU_LEASED, NO_CODE, SHARE_MISSING
from orchestrator.core.hosts.host_state import ask_again, say_unfit
from orchestrator.core.hosts.slots import Assignment
from orchestrator.core.moments import Begins, Waits
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import stopping
from orchestrator.core.phases.stopping import stop_all, stop_for
from orchestrator.core.pool import Placed
from orchestrator.core.state.host import HostState, Link
from orchestrator.core.state.instants import Instant, is_due
from orchestrator.core.state.phase_states import (
    Backoff,
    Ended,
    Intent,
    Pending,
    Phase,
    Queued,
    Rendezvous,
    Running,
)
from orchestrator.core.state.run import Problem, Run, new_run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import counted, duration

SEED_REFUSALS = ("no-readable-checkpoint", "superseded", conflicts.DRIVEN)
"""Codes of problems of seeding for which trying again gives the same answer."""

NO_SPACE = "no-space"
"""The code of an order that failed because a disk is full."""


def _begin(turn: Turn, event: Submitted | Admitted) -> None:
    """Begin a run, or let it wait for its turn."""
    if turn.run.phase is not Phase.QUEUED:
        assert isinstance(event, Submitted)
        turn.set(against=event.against)
        _say_place(turn)
        _prepare(turn)
    elif isinstance(event, Submitted):
        turn.note(NoteKind.QUEUED, f"{turn.run.run_id} waits in the queue: {_size(turn.run)}")
    else:
        waited = turn.run.within(Queued)
        if event.place is not None:
            _place(turn, event.place)
        turn.set(hosts=tuple(replace(host, since_at=turn.at) for host in turn.run.hosts))
        turn.enter(
            Pending(waited=waited if waited.is_patient else None), "connecting to the hosts", rank=event.rank
        )
        _prepare(turn)


def _place(turn: Turn, place: Placed) -> None:
    """Put a run of which nothing is anywhere where a place is free."""
    run, asked = turn.run, turn.run.submitted
    plan = pool.placed(asked, place)
    fresh = new_run(run.run_id, plan, epoch=run.epoch, at=turn.at)
    turn.set(
        plan=plan,
        asked=asked if plan != asked else None,
        against=place.against,
        tasks=fresh.tasks,
        hosts=fresh.hosts,
        problem=None,
    )
    _say_place(turn)


def _say_place(turn: Turn) -> None:
    run = turn.run
    if run.against:
        where, why = pool.where(run.plan.tasks), pool.sentence(run.against)
        turn.note(NoteKind.PLACED, f"{run.run_id} is placed on {where}: {why}", against=dict(run.against))


def _end_without_place(turn: Turn, event: NoPlaceFound) -> None:
    """End a run that is not to wait: what turned it away at its first place is the problem."""
    lost = turn.run.problem
    if lost is not None:
        more = (
            f"; there is no other place: {event.why}" if event.why and event.why not in lost.message else ""
        )
        fail_now(turn, replace(lost, message=lost.message + more))


def advance_queued(turn: Turn) -> None:
    """Give up a run that has waited for too long. `queue` decides whose turn it is."""
    waiting = turn.run.within(Queued)
    if is_due(waiting.retry_at, turn.at):
        turn.set_phase(retry_at=None)
    if is_due(waiting.give_up_at, turn.at):
        waited = duration(turn.at - waiting.since_at)
        message = f"what it needs was not free within {waited}, its `max_wait`"
        fail_now(
            turn, Problem("queue", message, "`orch queue` shows who holds what", exit_code=7, key="run.queue")
        )


def _prepare(turn: Turn) -> None:
    timing = turn.run.plan.timing
    turn.set_phase(deadline_at=turn.at + timing.start_after_s)
    spares = len(turn.run.hosts) - len(turn.run.assignees)
    beside = f", and {counted(spares, 'spare')}" if spares else ""
    waited = turn.run.within(Pending).waited
    if waited is None or not (waited.others or waited.why):
        turn.note(NoteKind.SUBMITTED, f"{turn.run.run_id}: {_size(turn.run)}{beside}")
    turn.do(*(PrepareHost(host=host.name) for host in turn.run.hosts))


def _size(run: Run) -> str:
    return f"{counted(len(run.tasks), 'task')} on {counted(len(run.assignees), 'host')}"


def advance_pending(turn: Turn) -> None:
    """Begin the first generation once every host that it needs is ready; give up at the deadline."""
    run = turn.run
    waited = run.within(Pending).waited
    is_over = is_due(run.within(Pending).deadline_at, turn.at)
    if not is_over and _is_waiting(run):
        return
    assignment = slots.next_assignment(run)
    if assignment.waits_for:
        missing = [run.host(name) for name in assignment.waits_for]
        # In the queue no host is looked at: what was stuck then is judged once it has answered again
        stuck = [h for h in missing if h.state is HostState.STUCK and (waited is None or h.facts is not None)]
        is_in_vain = bool(stuck) and not run.generation and (is_over or not _may_replace(run))
        if waited is not None and (is_over or is_in_vain):
            problems = "; ".join(
                f"{host.name}: {host.problem or host.state_why or 'no answer'}"
                for host in (missing if is_over else stuck)
            )
            stopping.wait_again(turn, waited, why=f"not all hosts are ready: {problems}")
        elif is_in_vain:
            fail_now(turn, host_state.stuck(stuck[0].name, stuck[0].state_why))
        elif (is_over or not _may_replace(run)) and turn.tell(Waits()):
            return
        elif is_over:
            problems = "; ".join(f"{host.name}: {host.problem or 'no answer'}" for host in missing)
            fail_now(
                turn,
                Problem(
                    code="host-missing",
                    message=f"not all hosts could be prepared within {duration(turn.at - run.since_at)}: {problems}",
                    hint="check with `ssh HOST true` from this machine, then `orch up` again",
                    exit_code=4,
                ),
            )
        return
    chosen = slots.chosen_hosts(run, assignment)
    problem = compatibility.differences(chosen) or compatibility.unshared(run.plan.checkpoint, chosen)
    if problem is not None:
        fail_now(turn, problem)
        return
    # Name the hosts that could not be asked who drives which run. The checkpoint directory says it for the others.
    unheard = [host.name for host in turn.run.hosts if host.boot_id is None and host.problem is not None]
    if unheard:
        named = ", ".join(unheard)
        turn.note(
            NoteKind.WARNING,
            f"{named} could not be asked whether another head node drives this run there"
            + ("; the checkpoint directory is nobody else's" if turn.run.plan.checkpoint is not None else ""),
        )
    turn.note(NoteKind.PREPARED, f"{counted(len(chosen), 'host')} checked, code in place")
    facts = [host.facts for host in chosen if host.facts]
    turn.set(
        code=facts[0].code, share=next((each.checkpoint_share for each in facts if each.checkpoint_share), "")
    )
    say_unfit(turn, list(turn.run.hosts))
    begin_generation(turn, assignment)


def _is_waiting(run: Run) -> bool:
    """Return whether a host that keeps its slot is not prepared yet, and none is stuck. Decides the usual case fast."""
    if any(host.state is not HostState.OPEN or slots.is_refused(run, host) for host in run.hosts):
        return False
    return any(host.facts is None and not host.untouched for host in run.hosts)


def _may_replace(run: Run) -> bool:
    """Return whether a spare that is not ready yet may still replace another host."""
    return any(host.facts is None for host in run.hosts if host not in run.assignees)


def fail_now(turn: Turn, problem: Problem) -> None:
    """End a run of which no process is anywhere."""
    turn.set(problem=problem)
    stopping.finish(turn, Ended(phase=Phase.FAILED), problem.message)


def _step_max(before: Run) -> int | None:
    """Return the highest step of ours that the seed may use; None if any may be used."""
    reached = step_max(before) if before.generation else None
    passed_over = before.budget.passed_over
    if passed_over is None:
        return reached
    return passed_over - 1 if reached is None else min(reached, passed_over - 1)


def begin_generation(turn: Turn, assignment: Assignment) -> None:
    """Start all tasks up to their gates, and meanwhile prepare the checkpoint that they start from.

    A task that waits as a standby is not started a second time: its order is the same, and repeating it does no harm.
    """
    before = turn.run
    waiting: tuple[Task, ...] = turn.tell(Begins(assignment)) or ()
    turn.set(replacements=assignment.replacements)
    generation = waiting[0].generation if waiting else next_generation(before)
    fresh = waiting or tuple(
        Task(id=t.id, host=t.host, generation=generation, phase=TaskPhase.WAITING)
        for t in sorted(turn.run.placed.tasks, key=lambda t: t.id)
    )
    turn.enter(
        Rendezvous(deadline_at=turn.at + before.plan.timing.start_after_s),
        f"starting {counted(len(fresh), 'task')}",
        generation=generation,
        generation_last=generation,
        tasks=fresh,
        seed=None,
        step_max=_step_max(before),
    )
    for host in turn.run.assignees:
        turn.set_host(host, untouched=False)
    run = turn.run
    size = f"{_size(run)}, which have waited as a standby" if waiting else _size(run)
    gpus = sum(len(task.gpus) for task in run.placed.tasks)
    turn.note(NoteKind.GENERATION, f"generation {generation} starts: {size}", gpus=gpus)
    _say_assignment(turn, before, assignment)
    if run.plan.checkpoint is not None:
        turn.do(SeedCheckpoint(host=run.task(run.chief).host, generation=generation))
    for task in fresh:
        start(turn, task)


def _say_assignment(turn: Turn, before: Run, assignment: Assignment) -> None:
    """Note which hosts hold other tasks than in the generation before, and why."""
    run, new = turn.run, f"generation {turn.run.generation}"
    for slot in run.plan.hosts_used:
        was, now = slots.assignee(before, slot), slots.assignee(run, slot)
        if was != now and now is not None:
            moved = f"the tasks of {slot} are on {now}" if now != slot else f"{slot} has its tasks again"
            turn.note(
                NoteKind.MOVED, f"{new}: {moved}" + (f", since {_state(run, was)}" if was is not None else "")
            )
    for name in assignment.against_advice:
        turn.note(
            NoteKind.NO_ALTERNATIVE,
            f"{new} uses {name} although it is quarantined: no other host can take its tasks",
        )
    if slots.fewer(run):
        gone = [slot for slot in run.plan.hosts_used if slots.assignee(run, slot) is None]
        why = "; ".join(_state(run, slots.assignee(before, slot) or slot) for slot in gone)
        turn.note(NoteKind.FEWER, f"{new} goes on with {slots.fewer(run)}; {why}")
    elif slots.fewer(before):
        turn.note(NoteKind.GROWN, f"{new} has all {counted(len(run.tasks), 'task')} again")


def _state(run: Run, name: str) -> str:
    host = run.host(name)
    why = host.state_why or host.problem
    state = host.state.value if host.state is not HostState.OPEN else "not ready"
    return f"{name} is {state}" + (f" ({why})" if why else "")


def start(turn: Turn, task: Task) -> None:
    """Order the start of one task."""
    if task.phase is TaskPhase.WAITING:
        turn.set_task(task, phase=TaskPhase.STARTING)
    turn.do(StartTask(host=task.host, task=task.id, generation=task.generation))


def advance_rendezvous(turn: Turn) -> None:
    """Release all tasks once all have joined; end the generation where one of them cannot."""
    run = turn.run
    gone = [task for task in run.tasks if task.phase.is_gone]
    if gone:
        stopping.react_to_end(turn, run.tasks)
        if turn.run.phase is Phase.RENDEZVOUS:
            _left_early(turn, gone[0])
    elif is_due(run.within(Rendezvous).deadline_at, turn.at):
        _start_deadline(turn)
    elif all(t.phase is TaskPhase.READY and t.port is not None for t in run.tasks):
        joined_at = run.within(Rendezvous).joined_at
        if not run.is_seeded:
            turn.set_phase(joined_at=turn.at if joined_at is None else joined_at)
            return
        for task in run.tasks:
            turn.set_task(task, phase=TaskPhase.RELEASED)
        all_addresses = addresses(turn.run)
        turn.do(*(release(turn.run, task, all_addresses) for task in turn.run.tasks))
        running = Running(progress_at=turn.at, verify_at=checkpoint_dir.next_verification(run, turn.at, 0.0))
        turn.enter(running, "all tasks have joined")
        sentence = f"{len(run.tasks)}/{len(run.tasks)} tasks joined and released; no step yet"
        turn.note(
            NoteKind.RUNNING,
            sentence,
            seeding_s=round(turn.at - joined_at, 3) if joined_at is not None else 0.0,
        )


def _left_early(turn: Turn, task: Task) -> None:
    """Restart, since a worker ended with 0 before all had joined: the gang can never be complete."""
    sentence = f"{task.id} on {task.host} ended with exit code 0 before all tasks had joined"
    stop_for(turn, FirstCause(task.id, task.generation, Cause.SCRIPT, sentence, exit_code=0))


def _start_deadline(turn: Turn) -> None:
    run = turn.run
    if host_state.is_cut_off(run):
        turn.set_phase(deadline_at=turn.at + run.plan.timing.unreachable_after_s)
        return
    missing = [t for t in run.tasks if t.phase in (TaskPhase.STARTING, TaskPhase.WAITING)]
    if not missing and (checkpoint_dir.hangs(run) or _is_seeding(run, turn.at)):
        # Another generation would wait for the same thing; the reason of the phase says what the run waits for.
        turn.set_phase(deadline_at=turn.at + run.plan.timing.start_after_s)
        return
    if not missing:
        what = "the checkpoint was not read within the start deadline"
    else:
        named = ", ".join(f"{t.id} on {t.host}{_silence(run, t)}" for t in missing)
        what = f"{named} did not join within {duration(run.plan.timing.start_after_s)}"
    for task in missing:
        turn.note(NoteKind.MISSING, f"{task.id} on {task.host} never joined{_silence(run, task)}", task.id)
    # If several hosts fail to join, none is known to be the first, and none is blamed.
    first = missing[0].id if len({task.host for task in missing}) == 1 else None
    stop_for(turn, FirstCause(first, run.generation, Cause.START, what))


def _is_seeding(run: Run, at: Instant) -> bool:
    """Return whether the checkpoint is being copied and progresses: a large one may take long."""
    seeding_at = run.within(Rendezvous).seeding_at
    return seeding_at is not None and at - seeding_at < run.plan.timing.start_after_s


def _silence(run: Run, task: Task) -> str:
    host = run.host(task.host)
    if host.link is not Link.CONNECTED:
        return f" (host unreachable: {host.problem or 'no answer'})"
    return f" (pid {task.pid} is alive and still importing)" if task.pid else " (no process yet)"


def advance_backoff(turn: Turn) -> None:
    """Start the next generation when the wait is over, every slot has a host, and no old task is left.

    A host that was rebooted meanwhile was prepared anew, and may have come back with other software.
    """
    run = turn.run
    start_at = run.within(Backoff).start_at
    if start_at is not None and not is_due(start_at, turn.at):
        return
    turn.set_phase(start_at=None)
    assignment = slots.next_assignment(run)
    if turn.tell(Waits()):
        return
    if start_at is not None and assignment.waits_for:
        names = ", ".join(assignment.waits_for)
        turn.note(
            NoteKind.WAITING_FOR_HOST,
            f"the next generation waits for {names}",
            hosts=list(assignment.waits_for),
        )
    if assignment.waits_for or any(task.phase.may_live for task in run.tasks):
        return
    chosen = slots.chosen_hosts(run, assignment)
    problem = compatibility.differences(chosen) or compatibility.unshared(run.plan.checkpoint, chosen)
    if problem is not None:
        turn.set(problem=problem)
        stop_all(turn, Intent.FAIL, problem.message)
        return
    begin_generation(turn, assignment)


def _order_failed(turn: Turn, event: OrderFailed) -> None:
    """Note that a host could not carry out an order. A failed start ends its task."""
    what = event.order if event.task is None else f"{event.order} of {event.task}"
    turn.note(NoteKind.ORDER_FAILED, f"{event.host}: {what}: {event.problem.message}", event.task)
    if _is_of_standby(turn.run, event):
        return
    if event.order == "start" and event.task is not None:
        task = turn.run.task(event.task)
        if event.problem.code == GPU_LEASED:
            # Somebody took it while nothing of the run was there.
            ask_again(turn, event.host, event.problem)
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
    elif event.order == "seed" and turn.run.phase is Phase.RENDEZVOUS and not turn.run.is_seeded:
        _seed_failed(turn, event.host, event.problem)
    elif event.order == "release" and event.task is not None and turn.run.phase is Phase.RUNNING:
        if event.problem.code == SHARE_MISSING:
            ask_again(turn, event.host, event.problem)
        _release_failed(turn, turn.run.task(event.task), event.problem)


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
        ask_again(turn, host, problem)
        what = f"{host}: {problem.message}"
    is_full = problem.code == NO_SPACE
    failed_by = Cause.DISK if is_full else Cause.START
    stop_for(turn, FirstCause(None, turn.run.generation, failed_by, what, host=host if is_full else None))


def _release_failed(turn: Turn, task: Task, problem: Problem) -> None:
    """Restart because a task would stay at its gate for ever. One that is gone is reported by its host instead."""
    if task.phase is not TaskPhase.RELEASED or problem.code == "gone":
        return
    what = f"{task.id} on {task.host} was not released: {problem.message}"
    if is_individual(turn.run, task):
        stopping.end_individually(turn, task, Cause.START, what)
        return
    stop_for(turn, FirstCause(task.id, task.generation, Cause.START, what))


def _is_of_standby(run: Run, event: OrderFailed) -> bool:
    waiting = run.standby.find(event.task, event.host) if event.task is not None else None
    return waiting is not None and waiting.generation == event.generation


def _repeats(run: Run, name: str, _at: Instant) -> list[SeedCheckpoint] | list[ReleaseTask]:
    if run.phase is Phase.RENDEZVOUS and not run.is_seeded and run.task(run.chief).host == name:
        return [SeedCheckpoint(host=name, generation=run.generation)]
    released = [
        task for task in run.tasks_on(name) if task.phase is TaskPhase.RELEASED and task.ending is None
    ]
    return [release(run, task, addresses(run)) for task in released if run.phase is Phase.RUNNING]


CONCERN = Concern(
    "the start of a generation",
    on={Submitted: _begin, Admitted: _begin, NoPlaceFound: _end_without_place, OrderFailed: _order_failed},
    advance={
        Phase.QUEUED: advance_queued,
        Phase.PENDING: advance_pending,
        Phase.RENDEZVOUS: advance_rendezvous,
        Phase.BACKOFF: advance_backoff,
    },
    repeats=_repeats,
)

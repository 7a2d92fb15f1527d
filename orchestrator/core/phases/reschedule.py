"""Moving a running gang: to grow back, to replace a task that trains no more by a spare, to empty a drained host.

It costs a restart, so it is done at a checkpoint that was just verified, when hardly a step is lost by it, and only
where it is worth it (`slots.is_better`). Nothing has failed: the tasks are asked to end, and no budget is charged.
"""

from __future__ import annotations

from orchestrator.core.actions import CloseHost
from orchestrator.core.events import DrainRequested, UndrainRequested
from orchestrator.core.gang import may_stop_at_next_step, next_save
from orchestrator.core.hosts import host_state, slots
from orchestrator.core.hosts.checkpoint_dir import verify_soon
from orchestrator.core.launching.placement import assigned
from orchestrator.core.moments import MayStop, NothingTrains
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import stop_all
from orchestrator.core.state.host import HostState
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Intent, Phase
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import counted

_HAS_TASKS = (Phase.RENDEZVOUS, Phase.RUNNING)


def _at_step(turn: Turn) -> None:
    """Let a run that waits for a checkpoint be stopped now, where its tasks can hand over their next step."""
    planned = turn.run.planned_end
    may_train_on = planned is not None and planned.wanted_at is None and not planned.is_asked
    if may_stop_at_next_step(turn.run) and slots.waits_for_checkpoint(turn.run) and not may_train_on:
        turn.tell(MayStop("its next step is handed over"))
    drained = [host for host in turn.run.hosts if host.state is HostState.DRAINED]
    if any(
        host.moves_now and turn.run.tasks_on(host.name) for host in drained
    ):  # a host that was lent for its tasks may be ready by now
        _move(turn, "the user wants it now")


def _may_stop(turn: Turn, moment: MayStop) -> None:
    if turn.run.phase is Phase.RUNNING and not host_state.leaving(turn.run):
        _move(turn, moment.occasion)


def _move(turn: Turn, occasion: str) -> None:
    """Let the gang change places now, where that is better and can be."""
    assignment = slots.next_assignment(turn.run)
    if not assignment.waits_for and slots.is_better(turn.run, assignment):
        stop_all(turn, Intent.RESCHEDULE, f"{occasion}: {_what_for(turn.run, assignment)}")


def _what_for(run: Run, assignment: slots.Assignment) -> str:
    drained = [host.name for host in run.assignees if host.state is HostState.DRAINED]
    if drained:
        return f"all tasks stop to move off {', '.join(drained)}, which is drained"
    back = [
        assignment.replacements.get(slot, slot) or slot
        for slot in run.plan.hosts_used
        if assignment.replacements.get(slot, slot) not in (None, slots.assignee(run, slot))
    ]
    now, wanted = len(assigned(run.plan, assignment.replacements)), len(run.plan.tasks)
    tasks = f"all {counted(now, 'task')}" if now == wanted else f"{now} of {counted(wanted, 'task')}"
    return f"all tasks stop; the next generation has {tasks}, with {', '.join(back)}" if back else ""


def _drain(turn: Turn, event: DrainRequested) -> None:
    """Let no later generation use the host. A second request changes nothing, except that `now` ends the wait."""
    if event.gone:
        _give_up(turn, event)
        return
    host = turn.run.host(event.host)
    why_not = slots.why_not_drained(turn.run, host.name) if event.why else None
    if why_not is not None:
        # Say of a host which its engine takes away that its tasks train there until it goes: no other has
        # room
        if host.state is HostState.OPEN and host.state_why != event.why:
            turn.set_host(host, state_why=event.why)
            turn.note(
                NoteKind.HOST_LEAVES,
                f"{host.name} leaves: {event.why}; {why_not}: its tasks train there until it goes",
            )
        return
    holds = host in turn.run.assignees
    if host.state is not HostState.DRAINED:
        turn.set_host(host, state=HostState.DRAINED, state_why=event.why or "by the user")
        when = ""
        if holds and turn.run.phase in _HAS_TASKS and not event.now:
            has_checkpoints = turn.run.plan.checkpoint is not None
            when = "; its tasks move " + (
                f"at the next {next_save(turn.run)}"
                if has_checkpoints
                else "at the next restart, or with --now"
            )
        turn.note(NoteKind.DRAINED, f"{host.name} is drained: it gets no new tasks{when}")
        verify_soon(turn)
    if event.now and holds and turn.run.phase in _HAS_TASKS:
        turn.set_host(turn.run.host(host.name), moves_now=True)
        _move(turn, "the user wants it now")


def _says(run: Run, _now: Instant) -> str:
    """Return the end of a sentence that says which hosts leave while no other has room for their tasks."""
    hosts = [host for host in run.assignees if host.state is HostState.OPEN and host.state_why]
    return "".join(
        f"; {host.name} leaves: {host.state_why}, and no other has room for its tasks" for host in hosts
    )


def _give_up(turn: Turn, event: DrainRequested) -> None:
    """Count the tasks of a host as dead and await no proof of it: the user says that it is gone for good."""
    host = turn.run.host(event.host)
    if host.gone:
        return
    why = f"gone for good, as the user said at {event.gone}"
    turn.set_host(host, state=HostState.DRAINED, state_why=why, gone=event.gone)
    turn.note(NoteKind.HOST_GONE, f"{host.name} is {why}: no proof is awaited from it")
    for task in host_state.living(turn.run, host):
        host_state.lose(turn, task, f"{host.name} is gone, as the user says")
    if turn.run.phase.is_terminal:
        turn.do(CloseHost(host=host.name))


def _undrain(turn: Turn, event: UndrainRequested) -> None:
    """Let it in again, whoever closed it, and forget its faults. What cannot be killed keeps it closed.

    What was called gone owes its proof again.
    """
    host = turn.set_host(turn.run.host(event.host), gone="")
    if host.unkillable:
        turn.set_host(host, state=HostState.STUCK, state_why="; ".join(u.sentence for u in host.unkillable))
    elif host.state not in (HostState.OPEN, HostState.LOST, HostState.LEAVING):
        was = host.state.value
        state = HostState.OPEN if host.leave_at is None else HostState.LEAVING
        turn.set_host(host, state=state, state_why=host.leave_why, faults=0, moves_now=False)
        turn.note(NoteKind.UNDRAINED, f"{host.name}, which was {was}, may get tasks again")


CONCERN = Concern(
    "reschedule",
    on={
        DrainRequested: _drain,
        UndrainRequested: _undrain,
        MayStop: _may_stop,
        NothingTrains: lambda turn, moment: _move(turn, moment.why),
    },
    advance={Phase.RUNNING: _at_step},
    says=_says,
)

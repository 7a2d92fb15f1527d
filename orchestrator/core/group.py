"""Decides: `step(run, event) -> (run, actions)`.

Rules. Whatever changes a run is called from here. Nothing here knows a clock: every event says when it happened, and
every wait is a field of the state (`next_deadline`).

Theory of operation. A generation is prepared, started, released, watched and ended as one: the tasks of a mirrored
strategy share one fate. PENDING prepares the hosts. RENDEZVOUS starts the tasks, each up to its own gate, while the
checkpoint is verified and copied beside them; when all are at the gate, all are released together (RUNNING). The
first task that ends badly sends all to STOPPING; when none is left, `restart` says whether BACKOFF or the end comes
next. Hosts report levels, so nothing here counts messages: a report that is lost or doubled changes nothing. When a
host is up again, `_outstanding` repeats what it has been asked and not done.

Unreachable is not dead: a silent host is displayed, and its tasks count as lost only when nothing else can be known
(`running.lost_at`).
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, assert_never

from orchestrator.core import restart
from orchestrator.core.actions import (
    Action,
    CloseHost,
    PrepareHost,
    SeedCheckpoint,
    StartTask,
    StopTask,
    SweepHost,
)
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.events import (
    CheckpointSeeded,
    CheckpointVerified,
    EpochBegan,
    Event,
    HostDown,
    HostPrepared,
    HostRefused,
    HostReported,
    HostSwept,
    HostUp,
    KillRequested,
    OrderFailed,
    Submitted,
    Ticked,
)
from orchestrator.core.model import Cause, Checkpoint, Exit, Intent, Link, Phase, Run, TaskPhase
from orchestrator.core.reports import absorb
from orchestrator.core.running import advance_running, lost_at, verification_ended
from orchestrator.core.starting import (
    advance_backoff,
    advance_pending,
    advance_rendezvous,
    is_seeded,
    prepare,
    release,
)
from orchestrator.core.stopping import advance_stopping, finish, stop_all, unproven
from orchestrator.core.turn import Turn, is_due

_TURNS_MAX = 20
"""More changes of state than this within one step are a loop of ours."""


def step(run: Run, event: Event) -> tuple[Run, list[Action]]:
    """Decide: the next state, and what the world must do, in order. Raises on what cannot be; nothing is changed."""
    if _is_stale(run, event):
        return run, []
    turn = Turn(run, event.at)
    _take(turn, event)
    for _ in range(_TURNS_MAX):
        before = turn.run
        _advance(turn)
        if turn.run == before:
            return turn.run, turn.actions
    raise InvariantViolated(f"{run.run_id} does not settle after {event}")


def _is_stale(run: Run, event: Event) -> bool:
    """The whole fencing rule: what belongs to an older generation changes nothing."""
    match event:
        case CheckpointSeeded(seed=seed):
            return seed.generation != run.generation or run.phase is not Phase.RENDEZVOUS
        case CheckpointVerified(generation=generation) | OrderFailed(generation=generation):
            return generation != run.generation or run.phase.is_terminal
        case EpochBegan(epoch=epoch):
            return epoch <= run.epoch
        case _:
            return False


def _take(turn: Turn, event: Event) -> None:
    """What the event itself changes; what follows from it is `_advance`'s."""
    match event:
        case Submitted():
            prepare(turn)
        case EpochBegan():
            _begin_epoch(turn, event)
        case HostUp():
            _host_up(turn, event)
        case HostDown():
            turn.set_host(turn.run.host(event.host), problem=event.problem)
        case HostRefused():
            _host_refused(turn, event)
        case HostPrepared():
            turn.set_host(turn.run.host(event.host), facts=event.facts, problem=None)
        case HostReported():
            absorb(turn, event)
        case CheckpointSeeded():
            _seeded(turn, event)
        case CheckpointVerified():
            _verified(turn, event)
        case OrderFailed():
            _order_failed(turn, event)
        case HostSwept():
            _swept(turn, event)
        case KillRequested():
            _kill(turn, event)
        case Ticked():
            pass
        case _:
            assert_never(event)


def _advance(turn: Turn) -> None:
    """Go on as far as the state allows."""
    _note_silence(turn)
    match turn.run.phase:
        case Phase.PENDING:
            advance_pending(turn)
        case Phase.RENDEZVOUS:
            advance_rendezvous(turn)
        case Phase.RUNNING:
            advance_running(turn)
        case Phase.STOPPING:
            advance_stopping(turn)
        case Phase.BACKOFF:
            advance_backoff(turn)
        case Phase.SUCCEEDED | Phase.FAILED | Phase.KILLED:
            pass


def next_deadline(run: Run) -> float | None:
    """When the state changes by itself: the loop sleeps until then. None: only an event can change it."""
    if run.phase.is_terminal:
        return None
    due = [run.deadline_at, run.force_at, run.verify_at, lost_at(run)]
    due += [_silent_at(run, host.name) for host in run.hosts]
    return min((at for at in due if at is not None), default=None)


# --- hosts -------------------------------------------------------------------------------------------------


def _silent_at(run: Run, name: str) -> float | None:
    host = run.host(name)
    if host.link is not Link.CONNECTED or host.heard_at is None:
        return None
    return host.heard_at + run.plan.timing.unreachable_after_s


def _note_silence(turn: Turn) -> None:
    """Display a host that is silent for too long. Nothing else follows from it here."""
    if turn.run.phase.is_terminal:
        return
    for host in turn.run.hosts:
        if is_due(_silent_at(turn.run, host.name), turn.at):
            turn.set_host(host, link=Link.UNREACHABLE, since_at=turn.at)
            why = f": {host.problem}" if host.problem else ""
            turn.note(
                "host-unreachable", f"{host.name} has been silent for {_age(turn, host.heard_at):.0f} s{why}"
            )


def _age(turn: Turn, at: float | None) -> float:
    return turn.at - at if at is not None else 0.0


def _begin_epoch(turn: Turn, event: EpochBegan) -> None:
    """Another coordinator has taken the journal: it knows what was decided, and of the hosts nothing."""
    hosts = tuple(
        replace(host, link=Link.CONNECTING, since_at=turn.at, heard_at=None) for host in turn.run.hosts
    )
    tasks = tuple(replace(task, heard_at=None) for task in turn.run.tasks)
    turn.set(epoch=event.epoch, hosts=hosts, tasks=tasks)
    if not turn.run.phase.is_terminal:
        turn.note("epoch", f"coordinator {event.epoch} takes up {turn.run.run_id} in {turn.run.phase.value}")


def _host_up(turn: Turn, event: HostUp) -> None:
    host = turn.run.host(event.host)
    if host.boot_id is not None and host.boot_id != event.boot_id:
        turn.note("host-rebooted", f"{host.name} was rebooted")
        host = turn.set_host(host, facts=None)
    turn.set_host(host, boot_id=event.boot_id, problem=None)
    turn.do(*_outstanding(turn.run, event.host))


def _outstanding(run: Run, name: str) -> list[Action]:
    """What the host has been asked, as far as it is not known to be done. All of it may be asked twice."""
    actions: list[Action] = []
    if name in unproven(run) or (run.phase is Phase.STOPPING and run.proof is not None):
        return [SweepHost(host=name, generation=run.generation)]
    if run.phase.is_terminal:
        return []
    if run.host(name).facts is None:
        actions.append(PrepareHost(host=name))
    if run.phase is Phase.RENDEZVOUS and not is_seeded(run) and run.task(run.chief).host == name:
        actions.append(SeedCheckpoint(host=name, generation=run.generation))
    for task in run.tasks:
        if task.host != name:
            continue
        if task.phase.may_live and run.phase is Phase.STOPPING and run.force_at is None:
            grace_s = run.plan.timing.kill_grace_s if run.intent is Intent.KILL else 0.0
            actions.append(StopTask(host=name, task=task.id, generation=task.generation, grace_s=grace_s))
        elif task.phase is TaskPhase.STARTING and task.pid is None:
            actions.append(StartTask(host=name, task=task.id, generation=task.generation))
        elif task.phase is TaskPhase.RELEASED:
            actions.append(release(run, task))
    return actions


def _host_refused(turn: Turn, event: HostRefused) -> None:
    """A person must act. A run that has not begun ends with that sentence; a later one waits and says it."""
    host = turn.run.host(event.host)
    turn.set_host(host, problem=event.problem.message)
    turn.note("host-refused", f"{host.name}: {event.problem.message}", code=event.problem.code)
    if turn.run.phase is Phase.PENDING:
        turn.set(problem=event.problem)
        finish(turn, Phase.FAILED, event.problem.message)


def _swept(turn: Turn, event: HostSwept) -> None:
    run = turn.run
    turn.set(proof={**(run.proof or {}), event.host: event.swept})
    what = f"left: {'; '.join(event.swept.left)}" if event.swept.left else "nothing is left"
    turn.note("swept", f"{event.host}: {what} (looked by {event.swept.by})")
    if run.phase.is_terminal:
        turn.do(CloseHost(host=event.host))


# --- checkpoints -------------------------------------------------------------------------------------------


def _seeded(turn: Turn, event: CheckpointSeeded) -> None:
    seed, run = event.seed, turn.run
    for path, why in seed.rejected:
        turn.note("checkpoint-rejected", f"{path} does not read whole: {why}", path=path)
    turn.set(seed=seed, budget=restart.cleared(run.budget, seed.global_step))
    if seed.source is None:
        reached = f"; {run.best_step} steps are lost" if run.best_step and run.generation > 1 else ""
        turn.note(
            "from-start",
            f"there is no checkpoint yet: generation {seed.generation} starts at step 0{reached}",
        )
        return
    known = Checkpoint(
        global_step=seed.global_step, path=seed.source, generation=seed.generation, verified_at=turn.at
    )
    turn.set(checkpoint=known)
    lost = (
        max(0, run.best_step - seed.global_step)
        if run.best_step is not None and seed.global_step is not None
        else None
    )
    step = seed.global_step if seed.global_step is not None else "unknown"
    counted = f"; {lost} steps are lost" if lost is not None else ""
    turn.note(
        "resumed",
        f"generation {seed.generation} resumes from step {step}{counted} ({seed.source})",
        global_step=seed.global_step,
        steps_lost=lost,
        path=seed.source,
    )


def _verified(turn: Turn, event: CheckpointVerified) -> None:
    verification_ended(turn, event.took_s)
    for path, why in event.rejected:
        turn.note("checkpoint-rejected", f"{path} does not read whole: {why}", path=path)
    known = turn.run.checkpoint
    if not event.path or (
        known is not None and known.global_step == event.global_step and known.path == event.path
    ):
        return
    newer = Checkpoint(
        global_step=event.global_step,
        path=event.path,
        generation=event.generation,
        verified_at=turn.at,
        saved_time=event.saved_time,
    )
    turn.set(checkpoint=newer)
    turn.note("checkpoint", f"the checkpoint of step {event.global_step} reads whole", path=event.path)


# --- orders ------------------------------------------------------------------------------------------------


def _order_failed(turn: Turn, event: OrderFailed) -> None:
    """A host could not do it: a start that fails is the task's end; of the rest the run says so."""
    turn.note("order-failed", f"{event.host}: {event.order}: {event.problem.message}", event.task)
    if event.order == "start" and event.task is not None:
        task = turn.run.task(event.task)
        if not task.phase.is_gone:
            ended = Exit(cause=Cause.START, at=turn.at, error=event.problem.message)
            turn.set_task(task, phase=TaskPhase.EXITED, exit=ended)
    elif event.order == "stop" and event.task is not None and event.problem.code == "no-task":
        task = turn.run.task(event.task)
        if task.phase.may_live:  # its start never arrived
            turn.set_task(task, phase=TaskPhase.EXITED, exit=Exit(cause=Cause.ORDERED, at=turn.at))
    elif event.order == "seed" and turn.run.phase is Phase.RENDEZVOUS:
        turn.set(problem=event.problem)
        stop_all(turn, Intent.FAIL, event.problem.message)
    elif event.order == "verify":
        verification_ended(turn, 0.0)


def _kill(turn: Turn, event: KillRequested) -> None:
    """The user's verb. Asked twice it changes nothing, but that `force` ends the patience."""
    run = turn.run
    if run.phase.is_terminal:
        return
    if run.generation == 0:
        finish(turn, Phase.KILLED, "killed before any task was started")
        return
    killing = run.phase is Phase.STOPPING and run.intent is Intent.KILL
    if not killing:
        turn.note("kill", "the user asked for the end")
        stop_all(turn, Intent.KILL, "killed by the user")
    if event.force:
        turn.set(force_at=turn.at)


# --- time --------------------------------------------------------------------------------------------------


def rebased(run: Run, delta_s: float) -> Run:
    """The run with all its instants moved: while no coordinator lived, time stood still for it.

    Nobody's deadline passes because nobody was there to hear them.
    """
    return _moved(run, delta_s)  # type: ignore[no-any-return]


def _moved(value: Any, delta_s: float) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in fields(value):
            old = getattr(value, field.name)
            if field.name.endswith("_at") or field.name == "at":
                changes[field.name] = None if old is None else old + delta_s
            elif is_dataclass(old) or isinstance(old, tuple):
                changes[field.name] = _moved(old, delta_s)
        return replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(_moved(item, delta_s) for item in value)
    return value

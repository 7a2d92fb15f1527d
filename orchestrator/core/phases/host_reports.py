"""What a host reports of tasks: those of other generations are ended, and the state of the others is updated.

The concerns of the phases decide what follows from it.
"""

from __future__ import annotations

from orchestrator.core.actions import PrepareHost, StopTask
from orchestrator.core.causes import Blame, Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import Exit
from orchestrator.core.events import HostReported, TaskReport
from orchestrator.core.gang import is_individual, measured
from orchestrator.core.hosts import host_state
from orchestrator.core.launching.environment import GENERATION_REPORTED_MAX
from orchestrator.core.moments import Resumed, Stepped
from orchestrator.core.notes import NoteKind, said_by_task
from orchestrator.core.phases import restart
from orchestrator.core.phases.stopping import prove_again
from orchestrator.core.plan import TaskId
from orchestrator.core.replacing import replace
from orchestrator.core.saving import Rescued
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Concern, Turn

_PHASES = {"starting": TaskPhase.STARTING, "ready": TaskPhase.READY, "running": TaskPhase.RUNNING}

_NOBODY_IS_ENDED = (Phase.RENDEZVOUS, Phase.RUNNING)
"""Phases in which no task is stopped by order, but one that is ended alone."""

NO_STEPS_AFTER_S = 300.0
NO_STEPS = (
    "the script has reported no step in 5 minutes: unless it is still loading, its loop is one of its own, and has to "
    "call `runtime.report(step)` (from orchestrator import runtime); without it neither progress nor a stall is seen"
)
"""Said of a script with neither `fit` nor a report."""

SAID_MAX = 100
"""How many sentences of a task's runtime are kept, in one generation."""

SAID_CHARS_MAX = 32 << 10
"""How many characters they may have together."""

RUN_CHARS_MAX = 16 << 20
"""The same of all tasks of a run, in all its generations."""

_ORDER = (TaskPhase.WAITING, TaskPhase.STARTING, TaskPhase.READY, TaskPhase.RELEASED, TaskPhase.RUNNING)
"""A task goes through these once in its generation."""


def _end_others(turn: Turn, event: HostReported) -> None:
    """End tasks of other generations; open a lost host again that holds no tasks of the run."""
    here = {task.id: task.generation for task in turn.run.tasks_on(event.host)}
    last = turn.run.generation_last
    _never_again(turn, event.host, [report for report in event.tasks if report.generation > last])
    # The report is of this host or, where tasks have moved since, of a host that holds no tasks now.
    others = [
        report
        for report in event.tasks
        if report.generation != here.get(report.task)
        and report.phase != "exited"
        and not turn.run.standby.holds(report.task, report.generation, event.host)
    ]
    for report in others:
        turn.do(StopTask(host=event.host, task=report.task, generation=report.generation, grace_s=0.0))
    living = [report.task for report in event.tasks if report.phase != "exited"]
    given_up = any(_is_given_up(turn.run, task) for task in living)
    host_state.heard(turn, event.host, holds_tasks=bool(others) or given_up)


def _absorb(turn: Turn, event: HostReported) -> None:
    """Update the tasks of the current generation from their host's report."""
    here = turn.run.tasks_on(event.host)
    generations = {task.id: task.generation for task in here}
    current = {r.task: r for r in event.tasks if r.generation == generations.get(r.task)}
    for task in here:
        if task.id in current and current[task.id].phase == "unknown":
            _is_there_after_all(turn, task)
            _say_silent(turn, task, turn.before.host(event.host).heard_at)
        elif task.id in current:
            _absorb_task(turn, task, current[task.id])
        elif task.pid is not None and task.phase.may_live:
            is_newer_there = any(report.task == task.id for report in event.tasks)
            if is_newer_there or not _may_live_elsewhere(turn.run, task, turn.at):
                _lose_unknown(turn, task)
            is_lost = turn.run.task(task.id).phase is TaskPhase.LOST
            if is_lost and not event.tasks and turn.run.phase in _NOBODY_IS_ENDED:
                # The run's directory is gone, and its code with it
                turn.set_host(turn.run.host(event.host), facts=None)
                turn.do(PrepareHost(host=event.host))


def _lose_unknown(turn: Turn, task: Task) -> None:
    """Lose a task of which its host knows neither a record nor a process, as of one in an older pod."""
    is_pod = turn.run.plan.host(task.host).is_pod
    ended = Exit(cause=Cause.REBOOTED if is_pod else Cause.HOST_LOST, at=turn.at)
    turn.set_task(task, phase=TaskPhase.LOST, exit=ended)
    turn.note(NoteKind.TASK_LOST, f"{task.host} has no record of {task.id} any more", task.id)


def _may_live_elsewhere(run: Run, task: Task, at: Instant) -> bool:
    """Return whether a task may live although its host does not know it.

    Another machine may have its address. The progress of tasks that cannot step without it is its sign of life.
    """
    if run.plan.host(task.host).is_pod or task.heard_at is None:
        return False
    words_at = [task.heard_at]
    if isinstance(run.phase_state, Running) and task.id.type in STRATEGIES[run.plan.strategy].needed:
        words_at.append(run.phase_state.progress_at)
    return at - max(words_at) < run.plan.timing.unreachable_after_s


def _say_silent(turn: Turn, task: Task, heard_before_at: Instant | None) -> None:
    """Note, once, that a task's host sees its processes, and has heard nothing of them for long."""
    if task.heard_at is None:
        return
    since_at = max(task.heard_at, turn.run.host(task.host).since_at)
    limit_s = turn.run.plan.timing.unreachable_after_s
    if (heard_before_at or since_at) - since_at <= limit_s < turn.at - since_at:
        sentence = (
            f"{task.id} on {task.host} lives and tells nothing: its shim does not answer, or its directory there was "
            "removed; it is not restarted for that"
        )
        turn.note(NoteKind.WARNING, sentence, task.id)


def _never_again(turn: Turn, host: str, newer: list[TaskReport]) -> None:
    """Skip generation numbers that an earlier coordinator gave out, and of which this one has no record."""
    believed = [report for report in newer if report.generation <= GENERATION_REPORTED_MAX]
    if not believed:
        return
    newest = max(believed, key=lambda report: report.generation)
    turn.set(generation_last=newest.generation)
    turn.note(
        NoteKind.OVERTAKEN,
        f"{host} has {newest.task} of generation {newest.generation}, which another coordinator has started; "
        "its living tasks are stopped, and the number is not used again",
        newest.task,
    )
    prove_again(turn)


def _is_given_up(run: Run, id: TaskId) -> bool:
    task = run.find_task(id)
    return task is not None and task.phase is TaskPhase.LOST


def _absorb_task(turn: Turn, task: Task, report: TaskReport) -> None:
    """Update one task from its host's report."""
    # The task is known from the journal and was not heard in this epoch.
    adopting = task.heard_at is None and task.pid is not None
    # Do not count the task's silence as a pause of the training: while it was not heard, its position is not
    # known
    run, heard_at = turn.run, task.heard_at
    silent = heard_at is None or turn.at - heard_at > run.plan.timing.unreachable_after_s
    if silent and task.id == run.chief:
        turn.forgive_standstill()
    before = task
    task = turn.set_task(
        task,
        pid=report.pid or task.pid,
        # The peers of a task that is restarted alone know its port, so the port stays.
        port=task.port or report.port,
        progress=report.progress,
        heard_at=turn.at,
    )
    _say(turn, task, report)
    _rescued(turn, before.progress.rescued, task)
    if task.progress.restored != before.progress.restored:
        turn.tell(Resumed(task))
    _follow_steps(turn, before, turn.run.task(task.id))
    task = turn.run.task(task.id)
    if report.phase == "exited":
        if task.phase is not TaskPhase.EXITED:
            _record_exit(turn, task, report.exit or Exit(cause=Cause.SHIM, at=turn.at))
        elif adopting and task.exit is not None and report.exit is not None:
            # The instant in the journal was moved by the time without a coordinator; the ends that other hosts report
            # were not.
            turn.set_task(task, exit=replace(task.exit, at=report.exit.at))
        return
    if task.phase is TaskPhase.EXITED:
        return
    if turn.run.phase.is_terminal:
        turn.do(StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0))
        return
    if task.phase is TaskPhase.LOST:
        task = _is_there_after_all(turn, task)
        if task.phase is TaskPhase.LOST:
            return
    if adopting and report.pid is not None:
        turn.note(
            NoteKind.ADOPTED,
            f"{task.id} on {task.host} keeps running; adopted by this coordinator (pid {report.pid})",
            task.id,
        )
    phase = _PHASES[report.phase]
    # A report that was sent before the release does not take the task back to its gate.
    if _ORDER.index(phase) > _ORDER.index(task.phase):
        turn.set_task(task, phase=phase)


def _rescued(turn: Turn, before: Rescued | None, task: Task) -> None:
    """Note, once, which state the task has handed over."""
    rescued = task.progress.rescued
    if rescued is None or before is not None:
        return
    data = (
        {"why": rescued.why}
        if rescued.step is None
        else {"global_step": rescued.step, "took_s": rescued.took_s}
    )
    turn.note(NoteKind.RESCUED, rescued.sentence(str(task.id)), task.id, **data)


def _is_there_after_all(turn: Turn, task: Task) -> Task:
    """Withdraw the loss of a task: it may have a process, so no new generation may start beside it."""
    unkillable = task.exit is not None and bool(task.exit.left)
    if task.phase is not TaskPhase.LOST or unkillable or turn.run.phase.is_terminal:
        return task
    turn.do(StopTask(host=task.host, task=task.id, generation=task.generation, grace_s=0.0))
    return turn.set_task(task, phase=TaskPhase.RUNNING)


def _follow_steps(turn: Turn, before: Task, task: Task) -> None:
    """Record the generation's first step, how far the run has come, and when a step was last made."""
    now = task.progress.global_step
    if task.progress.passing not in (None, before.progress.passing) and not is_individual(turn.run, task):
        turn.forgive_standstill()  # batches that are passed over are progress before the first step
    if now is None:
        # Warn once where the chief seems to have trained for long and has never reported its step
        run = turn.run
        is_untold = run.phase is Phase.RUNNING and task.progress.stage in (None, "building")
        is_long = is_untold and turn.at - run.since_at >= NO_STEPS_AFTER_S
        if is_long and task.id == run.chief and run.plan.runtime and NO_STEPS not in run.warnings:
            turn.set(warnings=(*run.warnings, NO_STEPS))
            turn.note(NoteKind.WARNING, NO_STEPS, task.id)
        return
    if task.id == turn.run.chief:
        if NO_STEPS in turn.run.warnings:
            turn.set(warnings=tuple(other for other in turn.run.warnings if other != NO_STEPS))
        _follow_pace(turn, now)
        is_first = task.progress.has_stepped and not before.progress.has_stepped
        turn.tell(Stepped(task, is_first))
    if task.first_step is None:
        turn.set_task(task, first_step=now)
        seed = turn.run.seed
        if task.id == turn.run.chief and seed and not seed.verified and (seed.global_step or now + 1) <= now:
            # Nothing here could verify its checkpoint, but the script goes on from it: that is progress too.
            turn.set(budget=restart.cleared(turn.run.budget, measured(turn.run, seed.global_step)))
    if turn.run.reached_step is None or now > turn.run.reached_step:
        turn.set(reached_step=now)
        down = turn.run.downtime
        if down is not None and down.step is not None and turn.run.phase is Phase.STOPPING:
            # The last steps before the failure are often reported after it: what it has cost counts them too.
            turn.set(downtime=replace(down, step=max(down.step, now)))
    if turn.run.best_step is None or now > turn.run.best_step:
        turn.set(best_step=now)
    running = turn.run.phase_state
    is_new = now != before.progress.global_step and not is_individual(turn.run, task)
    if is_new and isinstance(running, Running):
        # The instant at which the step was made counts, not the one of its report: a host that is silent now may have
        # taken part in it. So it may in a step that was made before, as after a restart, or with the next of folds.
        stepped_at = turn.at - task.progress.step_age_s - task.progress.heartbeat_age_s
        turn.set_phase(progress_at=max(running.progress_at, stepped_at))


def _follow_pace(turn: Turn, step: int) -> None:
    """Update the run's pace when the chief's position has moved, however far."""
    running = turn.run.phase_state
    if not isinstance(running, Running) or step == running.position:
        return
    if running.position_at is not None:
        turn.set(longest_pause_s=max(turn.run.longest_pause_s or 0.0, turn.at - running.position_at))
    turn.set_phase(position=step, position_at=turn.at)


def _say(turn: Turn, task: Task, report: TaskReport) -> None:
    """Note the messages of a task's runtime, each once."""
    kept, said_chars = task.said, turn.run.said_chars
    if task.id == turn.run.chief and report.progress.rescues and turn.run.no_rescue:
        turn.set(no_rescue="")
    for kind, message in report.said:
        if message in kept:
            continue
        # Whether another sentence may be kept, of its task and of the run
        of_task = sum(map(len, kept)) + len(message)
        if not (
            len(kept) < SAID_MAX and of_task <= SAID_CHARS_MAX and said_chars + len(message) <= RUN_CHARS_MAX
        ):
            if not task.is_muted:
                turn.set_task(task, is_muted=True)
                muted = f"{task.id} sends more messages than are kept of a task: further ones are left out"
                turn.note(NoteKind.LIMIT_REACHED, muted, task.id)
            break
        if said_by_task(kind) is not NoteKind.METRICS_DROPPED or task.id == turn.run.chief:
            # All tasks run the same script, and the metrics that are kept are those of the chief.
            turn.note(said_by_task(kind), f"{task.id}: {message}", task.id)
        if said_by_task(kind) is NoteKind.NO_RESCUE and task.id == turn.run.chief:
            turn.set(no_rescue=message)
        kept, said_chars = (*kept, message), said_chars + len(message)
    if kept != task.said:
        turn.set_task(turn.run.task(task.id), said=kept)
        turn.set(said_chars=said_chars)


def _record_exit(turn: Turn, task: Task, ended: Exit) -> None:
    if ended.cause is Cause.ORDERED and task.ending is None and turn.run.phase in _NOBODY_IS_ENDED:
        ended = replace(ended, cause=Cause.SWEPT)
    ended = cause.classify(ended)
    if ended.cause.row.blame is Blame.PEER and len(turn.run.tasks) == 1:
        ended = replace(ended, cause=Cause.SCRIPT)  # the words of TensorFlow's, and there is no peer
    restored = task.progress.restored
    failed = ended.cause.row.blame is Blame.TASK and not task.progress.has_stepped
    if failed and restored is not None and restored.why:
        ended = replace(ended, cause=Cause.UNRESTORABLE)
    turn.set_task(task, phase=TaskPhase.EXITED, exit=ended)
    turn.note(
        NoteKind.TASK_EXITED,
        cause.end_of(turn.run, task, ended),
        task.id,
        cause=ended.cause.value,
        exit_code=ended.code,
        signal=ended.signal,
        ended_time=ended.ended_time,
    )


OTHERS = Concern("tasks of other generations", on={HostReported: _end_others})

CONCERN = Concern("tasks", on={HostReported: _absorb})

"""Stalls: the position of a run stands still although its tasks live.

The stacks of all tasks are kept as evidence, and the task whose stack differs is named.

TensorFlow notices a dead peer within seconds, but never one that is stuck in its own Python: all others then wait in a
collective for ever. A standstill is judged by the pauses that this run has made before, such as for evaluation, saving
and the first trace.

A task that only serves (a parameter server's worker) has no position of its own, but its runtime beats. When the run
stands still and such a process gives no sign of life, it is the cause. It is killed, and restarted alone where its
strategy allows that. TensorFlow's chief, which would wait for it for ever, then goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from orchestrator.core.actions import CollectStacks
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.events import StacksCollected
from orchestrator.core.gang import gang, is_individual, is_recovering, is_served, missed
from orchestrator.core.hosts import checkpoint_dir
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import end_individually, stop_for
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import HostState, Link
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task, TaskPhase
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration

FLOOR_S = 60.0
"""Without a limit of the user's, no pause shorter than this is a stall."""

PAUSE_FACTOR = 10.0
"""How much longer than the longest pause so far a pause must be."""

_WAITS_IN_TENSORFLOW = ("in quick_execute", "in async_wait", "in sync_executors")
"""Where a healthy task is while it waits for the others."""

EVIDENCE_WAIT_S = 15.0
"""How long the tasks may take to say where they are."""

FROZEN_STANDSTILL_S = 20.0
"""How long the position must stand still before a serving task that is silent is taken for frozen. This is less than
FLOOR_S, because silence is evidence and a pause is none, and because a mistake costs only the restart of a process that
computed nothing."""

SILENT_SHARE = 0.5
"""The share of that time for which the process must have been silent. It sends a heartbeat each second."""


def limit_s(run: Run) -> float:
    """Return how long the position may stand still.

    Keras reports the step that it resumes from before it compiles the first step, which may take minutes.
    """
    timing = run.plan.timing
    if timing.stall_after_s is not None:
        return timing.stall_after_s
    floor_s = FLOOR_S if run.task(run.chief).progress.has_stepped else max(FLOOR_S, timing.start_after_s)
    return max(floor_s, PAUSE_FACTOR * (run.longest_pause_s or 0.0))


def stalled_at(run: Run) -> Deadline | None:
    """Return when the run counts as stalled; None if unknown.

    It cannot be judged before the first step, when no pace is known, nor while the chief is not heard, when its
    position is not known. Where the checkpoint directory hangs, a task that saves hangs too, and a restart would not
    help.
    """
    running = run.phase_state
    if not isinstance(running, Running) or running.position_at is None or running.evidence_at is not None:
        return None
    if checkpoint_dir.hangs(run) or not _is_heard(run) or is_recovering(run):
        return None
    due_at, heard_at = running.position_at + limit_s(run), run.task(run.chief).heard_at or 0.0
    return due_at if due_at <= heard_at + run.plan.timing.unreachable_after_s else None


def _is_heard(run: Run) -> bool:
    """Return whether the chief's position is known."""
    chief = run.task(run.chief)
    return run.host(chief.host).link is Link.CONNECTED and chief.heard_at is not None


def _advance(turn: Turn) -> None:
    """Collect the stacks of a stalled run; then restart it, or only report the stall, as the spec says."""
    for task in _frozen(turn.run, turn.at):
        _thaw(turn, task)
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return  # the task was ended together with a frozen one
    if running.evidence_at is not None and is_recovering(turn.run):
        turn.set_phase(evidence_at=None)  # the cause of the standstill is being repaired
    elif is_due(stalled_at(turn.run), turn.at):
        turn.set_phase(evidence_at=turn.at + EVIDENCE_WAIT_S)
        turn.note(NoteKind.STALLED, f"{_stands_still(turn)}; collecting the stacks of all tasks")
        turn.do(CollectStacks(generation=turn.run.generation))
    elif running.evidence_at is not None and _moves_again(turn.run, running, turn.at):
        turn.set_phase(evidence_at=None)
        turn.note(NoteKind.MOVES_AGAIN, f"progress again at step {running.position}; nothing is stopped")
    elif is_due(running.evidence_at, turn.at):
        _act(turn, {})


def _frozen(run: Run, at: Instant) -> list[Task]:
    """Return the serving tasks that are silent while the position stands still.

    Before the first step, the position has stood still since the release.
    """
    running = run.within(Running)
    since_at = running.position_at if running.position_at is not None else run.since_at
    if (
        not _is_heard(run)
        or at - since_at < _frozen_standstill_s(run)
        or run.plan.restart.on_stall == "notify"
    ):
        return []
    return _silent(run)


def _frozen_standstill_s(run: Run) -> float:
    return min(limit_s(run), FROZEN_STANDSTILL_S)


def _silent(run: Run) -> list[Task]:
    return [
        task
        for task in run.tasks
        if may_be_frozen(run, task)
        and task.phase is TaskPhase.RUNNING
        and task.ending is None
        and task.heard_at is not None  # an age that was read from the journal is out of date
        and run.host(task.host).link is Link.CONNECTED
    ]


def may_be_frozen(run: Run, task: Task) -> bool:
    """Return whether a serving process has given no sign of life for so long that it may cause the standstill."""
    silent_s = task.progress.runtime_age_s or 0.0
    return is_served(run, task) and silent_s >= SILENT_SHARE * _frozen_standstill_s(run)


def _thaw(turn: Turn, task: Task) -> None:
    """End the frozen task: alone, where the others can train on without it; otherwise all tasks."""
    if turn.run.phase is not Phase.RUNNING:
        return  # all tasks are being ended already, because of another frozen one
    sentence = f"{cause.frozen(task)}, and {_stands_still(turn)}"
    if is_individual(turn.run, task):
        end_individually(turn, task, Cause.STALLED, sentence)
    else:
        stop_for(turn, FirstCause(task.id, turn.run.generation, Cause.STALLED, sentence))


def _stacks_collected(turn: Turn, event: StacksCollected) -> None:
    """Judge the standstill by where the tasks are, unless it is over."""
    if turn.run.within(Running).evidence_at is not None:
        _act(turn, dict(event.stacks))


def _moves_again(run: Run, running: Running, at: Instant) -> bool:
    return running.position_at is not None and running.position_at + limit_s(run) > at


def _stands_still(turn: Turn) -> str:
    run, running = turn.run, turn.run.within(Running)
    if running.position_at is None:
        return f"there is no step {duration(turn.at - run.since_at)} after the release"
    waited = turn.at - running.position_at
    shown = f"longest pause so far: {duration(run.longest_pause_s or 0.0)}"
    return f"no progress past step {running.position} for {duration(waited)} ({shown})"


def _act(turn: Turn, stacks: Mapping[TaskId, str]) -> None:
    run = turn.run
    # A serving task waits for work, and an evaluator for checkpoints: neither is ever where the chief is in the code.
    peers = {task.id for task in gang(run) if not is_served(run, task)}
    odd = odd_one({task: text for task, text in stacks.items() if task in peers})
    named = f"; {odd} differs from the other tasks: {innermost(stacks[odd])}" if odd is not None else ""
    frozen = "".join(f"; {cause.frozen(task)}" for task in _silent(run))
    lost = next((task for task in missed(run) if run.host(task.host).state is HostState.LOST), None)
    away = f"; {lost.id} waits for {lost.host}, which is lost" if lost is not None else ""
    sentence = f"stalled: {_stands_still(turn)}{frozen}{named}{away}"
    turn.set_phase(evidence_at=None)
    turn.note(NoteKind.STACKS, sentence, odd, stacks={str(task): text for task, text in stacks.items()})
    if run.plan.restart.on_stall == "notify":
        turn.forgive_standstill()  # it is said again after the same time
        return
    if lost is not None:  # which is not the script's fault
        stop_for(turn, FirstCause(lost.id, run.generation, Cause.HOST_LOST, sentence))
        return
    lines = tuple(stacks[odd].splitlines()[-20:]) if odd is not None else ()
    stop_for(turn, FirstCause(odd, run.generation, Cause.STALLED, sentence, lines))


def odd_one(stacks: Mapping[TaskId, str]) -> TaskId | None:
    """Return the task that has no stack, or does not wait in TensorFlow, or differs from all others; None if none does.

    The order matters: of two tasks, each differs from the other, but only the frozen one cannot say where it is.
    """
    places = {task: innermost(text) for task, text in stacks.items()}
    counted = Counter(places.values())
    for peculiar in (
        [task for task, text in stacks.items() if not _frames(text)],
        [task for task, place in places.items() if not place.endswith(_WAITS_IN_TENSORFLOW)],
        [task for task, place in places.items() if counted[place] == 1],
    ):
        if len(peculiar) == 1 and len(places) > 1:
            return peculiar[0]
    return None


def innermost(text: str) -> str:
    """Return the innermost frame of the main thread, which faulthandler prints last; else the kernel's information."""
    frames = _frames(text)
    if frames:
        _, path, where = frames[0].split('"', 2)  # hosts may have their Python in different places
        return path.rpartition("/")[2] + where
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    state = next((line.partition(":")[2].strip() for line in lines if line.startswith("State:")), None)
    if state is not None:
        return f"its runtime does not answer, and the kernel says {state}"
    return lines[0] if lines else "no answer"


def _frames(text: str) -> list[str]:
    """Return the main thread's frames, innermost first; none where Python did not answer."""
    frames: list[str] = []
    for line in text.splitlines():
        if "most recent call first" in line:
            frames = []
        elif line.strip().startswith("File "):
            frames.append(line.strip())
    return frames


CONCERN = Concern(
    "stall",
    on={StacksCollected: _stacks_collected},
    advance={Phase.RUNNING: _advance},
    due=lambda run: [stalled_at(run)],
)

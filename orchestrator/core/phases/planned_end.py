"""The end that somebody wants: at a checkpoint, since the `time_limit` is nearly over; or at once, by the user's word.

Nothing has failed. From the moment at which the end is wanted, the run ends when the next checkpoint is verified, so
that hardly a step is lost, or at its next step where all tasks can hand over their state; at the latest when its tasks
need the rest of the time to end in order. No time counts in which no coordinator lived: that is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.events import Admitted, KillRequested, PreemptionRequested, Submitted
from orchestrator.core.gang import may_stop_at_next_step, next_save
from orchestrator.core.hosts import host_state
from orchestrator.core.hosts.checkpoint_dir import verify_soon
from orchestrator.core.moments import MayStop
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import END_S, ends_saved, finish, has_made_way, hurry, stop_all
from orchestrator.core.state.instants import Deadline, Instant, is_due
from orchestrator.core.state.phase_states import Ended, Intent, Pending, Phase
from orchestrator.core.state.run import PlannedEnd, Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import duration

WINDOW_S = 600.0
WINDOW_SHARE = 0.1
"""How long before its last moment a run with a limit looks for a checkpoint to end at; of the limit, at most."""

ASKED_S = 600.0
"""How long a run that is to end at a checkpoint waits for one."""

_ENDS = (Phase.PENDING, Phase.RENDEZVOUS, Phase.RUNNING, Phase.BACKOFF)


def _begin(turn: Turn, _event: Submitted | Admitted) -> None:
    """Set the limit of a run that begins."""
    limit_s = turn.run.plan.time_limit_s
    if limit_s is None or turn.run.phase is Phase.QUEUED:
        return
    at = turn.at + max(limit_s - turn.run.plan.timing.kill_grace_s - END_S, limit_s / 2)
    window_s = min(WINDOW_S, WINDOW_SHARE * limit_s) if turn.run.plan.checkpoint is not None else 0.0
    why = f"its time limit of {duration(limit_s)} is nearly over"
    turn.set(planned_end=PlannedEnd(why, at=at, wanted_at=at - window_s, is_asked=False))


def _ask(turn: Turn) -> None:
    """Let the run end at its next checkpoint, as its user wants."""
    at, planned = turn.at + ASKED_S, turn.run.planned_end
    if planned is not None and planned.wanted_at is None and not planned.goes_on:
        return
    at = min(at, planned.at) if planned is not None else at
    turn.set(planned_end=PlannedEnd("its user wants it to end at a checkpoint", at=at, wanted_at=None))
    where = next_save(turn.run)
    turn.note(NoteKind.ENDS_SOON, f"the run ends at its next {where}, or in {duration(at - turn.at)}")
    verify_soon(turn)


def _make_way(turn: Turn, event: PreemptionRequested) -> None:
    """Let the run end at its next checkpoint and return to the queue, unless it ends anyway."""
    by, run, planned = event.by, turn.run, turn.run.planned_end
    if planned is not None and planned.wanted_at is None:
        return
    is_to_save = run.phase is Phase.RUNNING and run.plan.checkpoint is not None
    at = turn.at + (ASKED_S if is_to_save else 0.0)
    at = min(at, planned.at) if planned is not None else at
    turn.set(planned_end=PlannedEnd(f"it makes way for {by}", at=at, wanted_at=None, goes_on=True))
    left = f" at its next {next_save(run)}, or in {duration(at - turn.at)}" if is_to_save else ""
    turn.note(NoteKind.ENDS_SOON, f"{run.run_id} makes way for {by}: it returns to the queue{left}")
    verify_soon(turn)


def _due(run: Run) -> Sequence[Deadline | None]:
    """Return when the run is to end, and when there is no more time. A coordinator that is cut off ends nothing."""
    planned = run.planned_end
    if planned is None or run.phase not in _ENDS or host_state.is_cut_off(run):
        return ()
    return planned.wanted_at, planned.at


def _watch(turn: Turn) -> None:
    """End the run where there is no more time; before that, say once that it will end."""
    planned = turn.run.planned_end
    if planned is None or not any(is_due(at, turn.at) for at in _due(turn.run)):
        return
    if is_due(planned.at, turn.at):
        waited = turn.run.plan.checkpoint is not None and (
            turn.run.phase is Phase.RUNNING or not planned.goes_on
        )
        waited = waited and not may_stop_at_next_step(turn.run)
        in_vain = ", and no checkpoint came in time" if waited else ""
        _end(turn, f"{planned.why}{in_vain}")
        return
    turn.set(planned_end=replace(planned, wanted_at=None))
    left = duration(planned.at - turn.at)
    turn.note(NoteKind.ENDS_SOON, f"{planned.why}: the run ends at its next checkpoint, or in {left}")
    verify_soon(turn)


def _may_stop(turn: Turn, moment: MayStop) -> None:
    """End the run now that hardly a step is lost, if that is wanted."""
    planned = turn.run.planned_end
    if planned is not None and planned.wanted_at is None and not host_state.is_cut_off(turn.run):
        _end(turn, f"{planned.why}; {moment.occasion}")


def _end(turn: Turn, sentence: str) -> None:
    run, goes_on = turn.run, turn.run.planned_end is not None and turn.run.planned_end.goes_on
    turn.set(first_cause=FirstCause(None, run.generation, Cause.PLANNED_END, sentence))
    if isinstance(run.phase_state, Pending) and run.phase_state.waited is not None and goes_on:
        has_made_way(turn, run.phase_state.waited, sentence)
    elif run.has_no_process:
        finish(turn, Ended(phase=Phase.KILLED), sentence)
    else:
        stop_all(turn, Intent.REQUEUE if goes_on else Intent.KILL, sentence, rest="")


def _says(run: Run, now: Instant) -> str:
    """Return the end of a sentence that says when a run that trains ends."""
    planned = run.planned_end
    if planned is None or planned.wanted_at is not None:
        return ""
    ends = "returns to the queue" if planned.goes_on else "ends"
    return f"; {planned.why}: it {ends} at the next checkpoint, or in {duration(max(0.0, planned.at - now))}"


def _kill(turn: Turn, event: KillRequested) -> None:
    """Kill the run for the user. A second request changes nothing, but `force` ends the grace.

    A run that has succeeded, or failed, and only waits for its last processes, keeps its outcome.
    """
    run = turn.run
    if run.phase.is_terminal:
        return
    if event.at_checkpoint and run.phase is Phase.RUNNING and run.plan.checkpoint is not None:
        _ask(turn)
        return
    if run.has_no_process:
        ever = "before any task was started" if run.generation == 0 else "while no task of it was there"
        finish(turn, Ended(phase=Phase.KILLED), f"killed {ever}")
        return
    if run.phase is Phase.STOPPING and run.intent in (Intent.SUCCEED, Intent.FAIL):
        hurry(turn)
        return
    if run.intent is not Intent.KILL or ends_saved(run):
        turn.note(NoteKind.KILL, "kill requested by the user")
        turn.set(first_cause=None if ends_saved(run) else run.first_cause)
        stop_all(turn, Intent.KILL, "killed by the user")
    if event.force:
        turn.set_phase(force_at=turn.at)


CONCERN = Concern(
    "planned end",
    on={
        Submitted: _begin,
        Admitted: _begin,
        KillRequested: _kill,
        PreemptionRequested: _make_way,
        MayStop: _may_stop,
    },
    watch=_watch,
    due=_due,
    says=_says,
)

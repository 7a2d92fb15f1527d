"""A script that resumes from a place of its own, though orch gave it an older checkpoint, or none.

That place is neither verified nor fenced: an old process may still write there, and nobody knows whether it can be read
as a whole. So this is noted once, the cost of the restart is counted from that step, and a start from scratch refuses
it.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.diagnosis import cause
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task
from orchestrator.core.turn import Turn
from orchestrator.core.words import counted

# The end of the generation before: what a phase of the next one has to say about it


def say_done(turn: Turn, sentence: str) -> dict[str, object]:
    """Record what was done about the first cause in the state; return it as data for an event."""
    first_cause = turn.run.first_cause
    if first_cause is None or first_cause.generation >= turn.run.generation:
        return {}
    first_cause = replace(first_cause, done="; ".join(filter(None, (first_cause.rescued, sentence))))
    turn.set(first_cause=first_cause)
    return {"first_cause": cause.as_data(first_cause)}


UNRESTORABLE_MAX = 16
"""How many files that could not be restored are remembered."""

_STRIDES = 5
"""Where the first step is told by the distance of two reports, so many of them are taken for an accident."""


def went_on_at(run: Run, chief: Task) -> int | None:
    """Return the step that this generation resumed from: its checkpoint's, or that of the script's own place."""
    step = _own_step(run, chief)
    return step if step is not None else _given(run)


def say(turn: Turn, chief: Task) -> None:
    """Note once in a generation that the script resumed from a place of its own."""
    run = turn.run
    step = _own_step(run, chief)
    if step is None or run.phase is not Phase.RUNNING or why_refused(run) is not None:
        return
    at = f"about step {step}" if chief.progress.began_stride else f"step {step}"
    sentence = f"the script went on at {at} from a place of its own, which can be neither verified nor fenced"
    warning = f"generation {run.generation}: {sentence}; have it save in $ORCH_CHECKPOINT_DIR"
    if warning in run.warnings:
        return
    others = [old for old in run.warnings if " from a place of its own" not in old]
    turn.set(warnings=(*others, warning))
    lost = max(0, run.downtime.step - step) if run.downtime and run.downtime.step is not None else None
    if lost is not None:
        sentence += f"; {counted(lost, 'step')} {'is' if lost == 1 else 'are'} lost"
    turn.note(
        NoteKind.OWN_PLACE,
        sentence,
        chief.id,
        global_step=step,
        steps_lost=lost,
        **say_done(turn, sentence),
    )


def restored(turn: Turn, task: Task) -> None:
    """Note which file a task could not restore, or that it chose another one than the seed did."""
    told, seed = task.progress.restored, turn.run.seed
    if told is None:
        return
    known = [(each.file, each.saved_time, each.bytes) for each in turn.run.unrestorable]
    if told.why and (told.file, told.saved_time, told.bytes) not in known:
        turn.set(unrestorable=(*turn.run.unrestorable[-UNRESTORABLE_MAX + 1 :], told))
        turn.note(
            NoteKind.NOT_RESTORED,
            f"{task.id} could not restore {told.file}: {told.why}; this run does not use it again",
            task.id,
            path=told.file,
        )
    # Each fit of a script has backups of its own
    fit = "/".join(told.file.split("/")[:2])
    is_of_seed = seed is not None and f"/{fit}/" in (seed.source or "")
    given = seed.global_step if seed is not None and is_of_seed else None
    if not told.why and None not in (given, told.step) and told.step != given:
        turn.note(
            NoteKind.RESTORED_OTHER,
            f"{task.id} went on from step {told.step}, of {told.file}, and was given step {given}",
            task.id,
            path=told.file,
            global_step=told.step,
        )


def why_refused(run: Run) -> str | None:
    """Return why a start from scratch that did not start from scratch is ended; None for other starts and guesses."""
    chief = run.task(run.chief)
    if not _is_from_scratch(run) or chief.progress.began_stride or _own_step(run, chief) is None:
        return None
    return (
        f"own-place: {chief.id} was to start from scratch and went on at step {chief.progress.began_step}, from a "
        "place of its own"
    )


def _own_step(run: Run, chief: Task) -> int | None:
    """Return the step from which the script resumed, if above its generation's checkpoint; None if unknown."""
    began, given = chief.progress.began_step, _given(run)
    if began is None or given is None or began <= given + max(1, _STRIDES * chief.progress.began_stride):
        return None
    return began


def _given(run: Run) -> int | None:
    """Return the step of the generation's checkpoint; 0 if it was given none, None if its step is not known."""
    if run.seed is None or run.seed.source is None:
        return 0
    return run.seed.global_step


def _is_from_scratch(run: Run) -> bool:
    if run.seed is not None:
        return run.seed.from_scratch
    return run.from_scratch and run.budget.restarts == 0

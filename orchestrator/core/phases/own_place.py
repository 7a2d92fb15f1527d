"""What the script resumed from: the checkpoint that it was given, an older one, or a place of its own.

A script that can restore and restores nothing ends a run that was just begun; after a restart that is a warning, since
by hand it would begin again, too. A place of its own is neither verified nor fenced: an old process may still write
there, and nobody knows whether it can be read as a whole. So this is noted once, the cost of the restart is counted
from that step, and a start from scratch refuses it.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.gang import gang
from orchestrator.core.moments import FailsAgain, Resumed, Stepped
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.stopping import say_resumed, stop_for
from orchestrator.core.saving import Restored
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.state.task import Task
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import counted

UNRESTORABLE_MAX = 16
"""How many files that could not be restored are remembered."""

FAILED_TWICE = "two generations ended as they restored it, before a step"

_STRIDES = 5
"""Where the first step is told by the distance of two reports, so many of them are taken for an accident."""


def went_on_at(run: Run, chief: Task) -> int | None:
    """Return the step that this generation resumed from: its checkpoint's, or that of the script's own place."""
    step = _own_step(run, chief)
    return step if step is not None else _given(run)


def _stepped(turn: Turn, moment: Stepped) -> None:
    _say(turn, moment.chief)
    _recovered(turn, moment.chief)


def _say(turn: Turn, chief: Task) -> None:
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
        **say_resumed(turn, sentence),
    )


def _resumed(turn: Turn, moment: Resumed) -> None:
    """Note which file a task could not restore, or that it chose another one than the seed did."""
    task, told, seed = moment.task, moment.task.progress.restored, turn.run.seed
    if told is None:
        return
    known = [(each.file, each.saved_time, each.bytes) for each in turn.run.unrestorable]
    if told.why and (told.file, told.saved_time, told.bytes) not in known:
        _pass_over(turn, told)
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


def _fails_again(turn: Turn, _moment: FailsAgain) -> str | None:
    """Set the file aside with which a script's own restore has failed twice, once: the script's model may have changed.

    Where the older one fails too, say that neither fits.
    """
    run, seed, found = turn.run, turn.run.seed, turn.run.first_cause
    has_stepped = any(task.progress.global_step is not None for task in gang(run))
    if seed is None or found is None or found.cause is not Cause.CHECKPOINT or has_stepped:
        return None
    given = seed.global_step or 0
    for each in run.unrestorable:
        if each.why == FAILED_TWICE and (each.step or 0) > given:
            return f"neither the checkpoint of step {each.step} nor that of step {given} fits: has the model changed?"
    if seed.replaceable is None:
        return None
    _pass_over(turn, replace(seed.replaceable, why=FAILED_TWICE))
    turn.set(budget=replace(run.budget, failure=None))
    turn.note(
        NoteKind.NOT_RESTORED,
        f"{FAILED_TWICE}: {seed.replaceable.file} (step {given}); the one before it is tried once",
        path=seed.replaceable.file,
    )
    return None


def _pass_over(turn: Turn, told: Restored) -> None:
    turn.set(unrestorable=(*turn.run.unrestorable[-UNRESTORABLE_MAX + 1 :], told))


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


def _recovered(turn: Turn, chief: Task) -> None:
    """Note what the failure has cost, once the run makes its first step beyond the checkpoint."""
    run, step = turn.run, chief.progress.global_step or 0
    resumed_from = went_on_at(run, chief)
    if run.downtime is None or run.phase is not Phase.RUNNING or step <= (resumed_from or 0):
        return
    stepped_at = turn.at - chief.progress.step_age_s - chief.progress.heartbeat_age_s
    began_age_s = chief.progress.began_age_s
    restored_at = None if began_age_s is None else turn.at - began_age_s - chief.progress.heartbeat_age_s
    cost = run.downtime.cost(stepped_at, resumed_from, restored_at)
    downtime, first_cause = cost.as_data(), run.first_cause
    if first_cause is not None:
        first_cause = replace(first_cause, cost=cost.sentence())
    turn.set(downtime=None, first_cause=first_cause, cost=cost)
    why = {"first_cause": cause.as_data(first_cause, downtime)} if first_cause else {}
    sentence = f"trains again after {cost.sentence()}"
    turn.note(NoteKind.TRAINS_AGAIN, sentence, None, downtime=downtime, **why)


def _advance(turn: Turn) -> None:
    if _resumed_wrongly(turn) or _went_on_elsewhere(turn):
        return
    _began_apart(turn)


def _resumed_wrongly(turn: Turn) -> bool:
    """End a run just begun whose script can restore and restored nothing of its checkpoint; later, warn of it."""
    run = turn.run
    chief = run.task(run.chief)
    given, began = run.seed.global_step if run.seed else None, chief.progress.began_step
    if given is None or chief.first_step is None or chief.first_step >= given:
        return False
    if began is None and chief.first_step > 1:
        return False  # the next report tells whether it has begun at 0
    # By hand it would start again too. Only who has just begun the run, with a script that can restore, is asked: not
    # where it has restored an older one, since what it does not pick up need not be lost by it.
    if (
        began
        or run.budget.restarts
        or run.plan.no_restore
        or (run.seed is not None and not run.seed.verified)
    ):
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
    sentence = why_refused(turn.run)
    if sentence is None:
        return False
    turn.set(problem=Problem(code="own-place", message=sentence, hint=Cause.OWN_PLACE.row.advice))
    stop_for(turn, FirstCause(turn.run.chief, turn.run.generation, Cause.OWN_PLACE, sentence))
    return True


def _began_apart(turn: Turn) -> None:
    """End a generation whose tasks hold one training each, and go on from different steps."""
    run = turn.run
    if not STRATEGIES[run.plan.strategy].rescues or _loaded_apart(turn):
        return
    known = [
        task for task in gang(run) if task.progress.began_step is not None and not task.progress.began_stride
    ]
    least, most = (
        choose(known, key=lambda task: task.progress.began_step or 0, default=None) for choose in (min, max)
    )
    if least is None or most is None or least.progress.began_step == most.progress.began_step:
        return
    sentence = (
        f"{most.id} on {most.host} begins at step {most.progress.began_step}, and {least.id} on {least.host} at step "
        f"{least.progress.began_step}: they do not train the same model"
    )
    stop_for(turn, FirstCause(least.id, run.generation, Cause.BEGAN_APART, sentence))


def _loaded_apart(turn: Turn) -> bool:
    """End a generation whose tasks hold one training each, and have loaded different weights into it."""
    run = turn.run
    chief = run.task(run.chief)
    first = chief.progress.loaded
    if first is None:
        return False
    for task in gang(run):
        other = task.progress.loaded
        if other is None or other.number != first.number or other.checksum == first.checksum:
            continue
        what = (
            f"{other.file}, and {chief.id} on {chief.host} {first.file}"
            if other.file != first.file
            else f"other weights of {other.file} than {chief.id} on {chief.host}"
        )
        sentence = f"{task.id} on {task.host} has loaded {what}: they do not train the same model"
        stop_for(turn, FirstCause(task.id, run.generation, Cause.BEGAN_APART, sentence))
        return True
    return False


def _warn_of_mismatch(turn: Turn, given: int, first_step: int) -> None:
    """Warn once that the script did not come back from the checkpoint that it was given, and goes on."""
    run = turn.run
    way = run.plan.no_restore or "does the script restore from ORCH_CHECKPOINT_DIR?"
    given_what = f"generation {run.generation} was given the checkpoint of step {given}"
    reports = f"and {run.chief} reports step {first_step}: "
    sentence = (
        f"{given_what} {reports}it trains again what was trained; {way}"
        if run.seed is not None and run.seed.verified
        else f"{given_what}, whose format is not known, {reports}{way}"
    )
    if sentence not in run.warnings:
        turn.set(warnings=(*run.warnings, sentence))
        turn.note(NoteKind.WARNING, sentence)


CONCERN = Concern(
    "what the script resumed from",
    on={Resumed: _resumed, Stepped: _stepped, FailsAgain: _fails_again},
    advance={Phase.RUNNING: _advance},
)

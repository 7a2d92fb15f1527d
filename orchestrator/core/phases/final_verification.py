"""The final check of the newest checkpoint: a run that ends says what it leaves behind.

While a run trains, its newest checkpoint is read now and then; the last one that it saved may not have been read. So it
is read once more, while the hosts prove that nothing is left. If the check takes too long, the run ends and says so.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.actions import VerifyCheckpoint
from orchestrator.core.events import CheckpointVerified
from orchestrator.core.hosts import checkpoint_dir
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Intent, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Turn

VERIFY_WAIT_S = 30.0
"""How long an end that nobody waits for impatiently is held up by it: a checkpoint of some GB is read in that time."""

_SAME_INSTANT_S = 0.001
"""Two instants that differ by less than this are equal, but for rounding."""


def is_disowned(run: Run) -> bool:
    """Return whether this generation's checkpoints will not be used: the user went back, or it restored nothing."""
    cause = run.first_cause
    return cause is not None and cause.cause.row.disowns and cause.generation == run.generation


def ask(turn: Turn) -> None:
    """Order the check, where the generation may have saved something."""
    run = turn.run
    was_released = run.seed is not None and run.seed.generation == run.generation
    if run.plan.checkpoint is None or not was_released or is_disowned(run):
        return
    turn.set_phase(final_verification_asked_at=turn.at)
    if checkpoint_dir.hangs(run):
        without_answer(turn)
        return
    turn.do(VerifyCheckpoint(host=run.task(run.chief).host, generation=run.generation))


def patience_s(run: Run) -> float:
    """Return how long to wait for the check. Whoever kills a run wants it to end soon."""
    is_away = run.host(run.task(run.chief).host).link is not Link.CONNECTED
    return 0.0 if asked_at(run) is None or is_away or run.intent is Intent.KILL else VERIFY_WAIT_S


def asked_at(run: Run) -> Instant | None:
    """Return when the unanswered final check was ordered; None if none was ordered, or it has been answered."""
    return run.phase_state.final_verification_asked_at if isinstance(run.phase_state, Stopping) else None


def answered(turn: Turn, event: CheckpointVerified) -> None:
    """Return whether an event answers the final check. An earlier check, of tasks that still trained, does not."""
    since_at = asked_at(turn.run)
    if since_at is not None and event.at - event.took_s >= since_at - _SAME_INSTANT_S:
        turn.set_phase(final_verification_asked_at=None)
        if not event.path and not event.rejected:
            _found_nothing(turn, event.generation)


def _found_nothing(turn: Turn, generation: int) -> None:
    """Note that the check has found no checkpoint.

    Keras's BackupAndRestore removes its backup at the end of `fit`, so a verified checkpoint may be gone.
    """
    known, seed = turn.run.checkpoint, turn.run.seed
    if known is None or known.generation != generation or known.removed:
        return
    if seed is not None and seed.source == known.path:
        return  # it is in an older generation's directory, where this check did not search
    turn.set(checkpoint=replace(known, removed=True))
    sentence = (
        f"the checkpoint of step {known.global_step} is not there any more: BackupAndRestore removes its own"
    )
    turn.note(NoteKind.CHECKPOINT_REMOVED, sentence, path=known.path)


def saved(run: Run) -> str:
    """Return a sentence that says from where a run can go on."""
    known = run.checkpoint
    if known is None or known.removed:
        return "nothing is saved"
    return "saved" if known.global_step is None else f"saved at step {known.global_step}"


def without_answer(turn: Turn) -> None:
    """End the final verification without an answer: it failed, or took too long."""
    if asked_at(turn.run) is None:
        return
    step = turn.run.verified_step
    older = f"step {step}" if step is not None else "none"
    warning = (
        f"the newest checkpoint was not verified at the end of the run (last verified: {older}); "
        f"`orch ckpt verify {turn.run.plan.name}` reads it"
    )
    turn.set_phase(final_verification_asked_at=None)
    turn.set(warnings=(*turn.run.warnings, warning))
    turn.note(NoteKind.WARNING, warning)

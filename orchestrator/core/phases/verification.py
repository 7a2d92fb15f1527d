"""The verification of the newest checkpoint: now and then while a run trains, and once more when it ends.

The last checkpoint that a run saved may not have been read, and a run that ends says what it leaves behind. So it is
read while the hosts prove that nothing is left. If that takes too long, the run ends and says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.core.actions import VerifyCheckpoint
from orchestrator.core.events import CheckpointVerified, KillRequested, OrderFailed
from orchestrator.core.hosts import checkpoint_dir
from orchestrator.core.moments import Ends, Proves
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant, is_due
from orchestrator.core.state.phase_states import Intent, Phase, Running, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn

VERIFY_FAILED_WAIT_S = 60.0
"""The pause after a failed verification. Its cause seldom goes away in seconds, and each failure is an event."""

VERIFY_WAIT_S = 30.0
"""How long an end that nobody waits for impatiently is held up by it: a checkpoint of some GB is read in that time."""

_SAME_INSTANT_S = 0.001
"""Two instants that differ by less than this are equal, but for rounding."""


def is_disowned(run: Run) -> bool:
    """Return whether this generation's checkpoints will not be used: the user went back, or it restored nothing."""
    cause = run.first_cause
    return cause is not None and cause.cause.row.disowns and cause.generation == run.generation


def _prove(turn: Turn, _moment: Proves) -> float:
    """Order the check, where the generation may have saved something; return how long to wait for it."""
    run = turn.run
    was_released = run.seed is not None and run.seed.generation == run.generation
    if run.plan.checkpoint is None or not was_released or is_disowned(run):
        return 0.0
    turn.set_phase(final_verification_asked_at=turn.at)
    if checkpoint_dir.hangs(run):
        without_answer(turn)
        return 0.0
    turn.do(_order(run))
    # Whoever kills a run wants it to end soon
    is_away = run.host(run.task(run.chief).host).link is not Link.CONNECTED
    return 0.0 if is_away or run.intent is Intent.KILL else VERIFY_WAIT_S


def _order(run: Run) -> VerifyCheckpoint:
    return VerifyCheckpoint(host=run.task(run.chief).host, generation=run.generation)


def asked_at(run: Run) -> Instant | None:
    """Return when the unanswered final check was ordered; None if none was ordered, or it has been answered."""
    return run.phase_state.final_verification_asked_at if isinstance(run.phase_state, Stopping) else None


def _answered(turn: Turn, event: CheckpointVerified) -> None:
    """Schedule the next verification, or end the final one. An earlier check, of tasks that still trained, does not."""
    _schedule_after(turn, event.took_s)
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
    sentence = f"the checkpoint of step {known.global_step} was removed at the end, as BackupAndRestore does"
    turn.note(NoteKind.CHECKPOINT_REMOVED, sentence, path=known.path)


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


def _schedule_after(turn: Turn, took_s: float) -> None:
    """Schedule the next verification. One during which the directory hung does not count as costly."""
    running = turn.run.phase_state
    if not isinstance(running, Running):
        return
    answered_at = running.answered_at
    hung = checkpoint_dir.hangs(turn.run) or (answered_at is not None and answered_at >= turn.at - took_s)
    turn.set_phase(verify_at=checkpoint_dir.next_verification(turn.run, turn.at, 0.0 if hung else took_s))


def _order_failed(turn: Turn, event: OrderFailed) -> None:
    """Schedule another verification after one that failed, unless it was the final one."""
    if event.order != "verify":
        return
    if turn.run.phase is Phase.RUNNING:
        turn.set_phase(verify_at=turn.at + VERIFY_FAILED_WAIT_S)
    without_answer(turn)


def _kill_requested(turn: Turn, event: KillRequested) -> None:
    if event.force or turn.run.intent in (Intent.SUCCEED, Intent.FAIL):
        without_answer(turn)


def _ends(turn: Turn, _moment: Ends) -> None:
    without_answer(turn)


def _advance(turn: Turn) -> None:
    """Order a verification that is due."""
    if is_due(turn.run.within(Running).verify_at, turn.at):
        turn.set_phase(verify_at=None)
        turn.do(_order(turn.run))


def _repeats(run: Run, name: str, _at: Instant) -> list[VerifyCheckpoint]:
    running = run.phase_state
    # A check was ordered, and its answer may have been lost with a connection
    is_asked = isinstance(running, Running) and running.verify_at is None and run.plan.checkpoint is not None
    is_here = run.task(run.chief).host == name
    return [_order(run)] if is_here and (is_asked or asked_at(run) is not None) else []


def _is_stale(run: Run, event: CheckpointVerified) -> bool:
    return event.generation != run.generation or run.phase.is_terminal or is_disowned(run)


def _demands(run: Run) -> Iterable[tuple[bool, str]]:
    yield asked_at(run) is None or run.proof is not None, "the last look is beside the proof"


CONCERN = Concern(
    "verification",
    on={
        CheckpointVerified: _answered,
        OrderFailed: _order_failed,
        KillRequested: _kill_requested,
        Proves: _prove,
        Ends: _ends,
    },
    is_stale={CheckpointVerified: _is_stale},
    advance={Phase.RUNNING: _advance},
    repeats=_repeats,
    demands=_demands,
)

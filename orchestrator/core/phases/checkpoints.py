"""Checkpoints: what a generation starts from, what it has saved since, and when the newest one is read.

It is read now and then while a run trains, and once more when it ends: the last one may not have been read, and a run
that ends says what it leaves behind. That is done while the hosts prove that nothing is left, within a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.core import events as ev
from orchestrator.core.actions import VerifyCheckpoint
from orchestrator.core.causes import Cause
from orchestrator.core.ends import FirstCause
from orchestrator.core.hosts import checkpoint_dir
from orchestrator.core.moments import Ends, MayStop, Proves
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases import restart
from orchestrator.core.phases.stopping import is_disowned, say_resumed, stop_for
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.checkpoint import Checkpoint, Seed
from orchestrator.core.state.host import Link
from orchestrator.core.state.instants import Instant, is_due
from orchestrator.core.state.phase_states import Intent, Phase, Running, Stopping
from orchestrator.core.state.run import Run
from orchestrator.core.turn import Concern, Turn
from orchestrator.core.words import counted, size

NOTHING_SAVED_AFTER_S = 600.0
"""How long a run trains until it is said that it has saved nothing."""

NOTHING_SAVED = (
    "nothing was saved in $ORCH_CHECKPOINT_DIR in the first 10 minutes: "
    "after a failure the run starts at step 0"
)

UNREAD = "it seems complete, and is not verified: its format cannot be"
"""What is said of a checkpoint that nothing can read."""

VERIFY_FAILED_WAIT_S = 60.0
"""The pause after a failed verification. Its cause seldom goes away in seconds, and each failure is an event."""

VERIFY_WAIT_S = 30.0
"""How long an end that nobody waits for impatiently is held up by it: a checkpoint of some GB is read in that time."""

_SAME_INSTANT_S = 0.001
"""Two instants that differ by less than this are equal, but for rounding."""


def _seeded(turn: Turn, event: ev.CheckpointSeeded) -> None:
    run = turn.run
    seed = replace(event.seed, from_scratch=run.from_scratch)
    _passed_over(turn, seed.rejected, seed.source, "is used instead")
    progress = seed.global_step if seed.verified else None
    # Where steps are told, the next end counts it, by those that this generation makes
    budget = restart.cleared(run.budget, progress) if run.best_step is None else run.budget
    if run.unrestorable and progress is not None and progress < (budget.step or 0):
        budget = replace(budget, step=progress)  # what could not be restored was no progress
    turn.set(seed=seed, budget=budget, from_scratch=False)
    if seed.removed:
        which = ", ".join(f"gen-{number}" for number in seed.removed)
        keep = run.plan.checkpoint.keep if run.plan.checkpoint is not None else 0
        turn.note(
            NoteKind.CHECKPOINTS_REMOVED,
            f"removed {which}: the newest {counted(keep, 'generation')} are kept (`checkpoint: {{keep: {keep}}}`)",
            generations=seed.removed,
        )
    if seed.dropped:
        sentence = (
            f"removed {', '.join(seed.dropped)}: there was no room for the next saves beside what was rescued"
        )
        turn.note(NoteKind.CHECKPOINTS_REMOVED, sentence, paths=list(seed.dropped))
    lost = _steps_lost(run, 0 if seed.source is None else seed.global_step)
    turn.set(reached_step=0 if seed.source is None else seed.global_step)
    if seed.source is None:
        reached = f"; {_lost(lost)}" if lost else ""
        sentence = f"{_why_step_0(seed)}: generation {seed.generation} starts at step 0{reached}"
        turn.note(NoteKind.FROM_START, sentence, None, steps_lost=lost, **say_resumed(turn, sentence))
        return
    known = Checkpoint(
        global_step=seed.global_step,
        path=seed.source,
        generation=seed.generation,
        verified_at=turn.at,
        bytes=_bytes(run),
        verified=seed.verified,
    )
    turn.set(checkpoint=known)
    step = seed.global_step if seed.global_step is not None else "unknown"
    sentence = f"generation {seed.generation} resumes from step {step}"
    sentence += f"; {_lost(lost)}" if lost is not None else ""
    sentence += "" if seed.verified else f"; {UNREAD}"
    facts: dict[str, object] = {"global_step": seed.global_step, "steps_lost": lost, "path": seed.source}
    facts["verified"] = seed.verified
    turn.note(NoteKind.RESUMED, f"{sentence} ({seed.source})", None, **facts, **say_resumed(turn, sentence))


def _why_step_0(seed: Seed) -> str:
    if not seed.from_scratch:
        return "no checkpoint yet"
    if seed.aside is None:
        return "from scratch"
    steps = (
        f"{counted(seed.aside.global_step, 'step')} of before"
        if seed.aside.global_step
        else "what was before"
    )
    where = ", ".join(f"gen-{number}" for number in seed.aside.generations[:3])
    where += " and older" if len(seed.aside.generations) > 3 else ""
    return (
        f"from scratch; {steps} {'is' if seed.aside.global_step in (None, 0, 1) else 'are'} kept in {where} "
        f"({size(seed.aside.bytes)}) until `orch ckpt rm` removes it"
    )


def _bytes(run: Run) -> int | None:
    """Return the size of the known checkpoint: the next one is about as large."""
    return run.checkpoint.bytes if run.checkpoint is not None else None


def _steps_lost(run: Run, step: int | None) -> int | None:
    """Return how many steps are trained again; None if unknown. What an earlier restart lost is not counted again."""
    if run.reached_step is None or step is None or (run.best_step is None and step > run.reached_step):
        return None  # the last: it reports no steps, but saves
    return max(0, run.reached_step - step)


def _lost(steps: int) -> str:
    return f"{counted(steps, 'step')} {'is' if steps == 1 else 'are'} lost"


def _passed_over(turn: Turn, rejected: tuple[tuple[str, str], ...], taken: str | None, does: str) -> None:
    """Note which checkpoints are not used and which one is instead, in one event: events are read one by one."""
    instead = f"; {taken} {does}" if taken else ""
    for path, why in rejected:
        turn.note(
            NoteKind.CHECKPOINT_REJECTED,
            f"{path} is not used: {why}{instead}",
            path=path,
            taken=taken or None,
        )


def _verified(turn: Turn, event: ev.CheckpointVerified) -> None:
    _answered(turn, event)
    newest = "is the newest verified" if event.verified else "is the newest that seems complete"
    _passed_over(turn, event.rejected, event.path, newest)
    known = turn.run.checkpoint
    if not event.path:
        # Warn once where a run has trained for long and has never saved in the checkpoint directory
        run = turn.run
        is_long = run.phase is Phase.RUNNING and turn.at - run.since_at >= NOTHING_SAVED_AFTER_S
        if is_long and run.checkpoint is None and run.best_step and NOTHING_SAVED not in run.warnings:
            turn.set(warnings=(*run.warnings, NOTHING_SAVED))
            turn.note(NoteKind.WARNING, NOTHING_SAVED)
    if not event.path or (known and known.is_same(event.path, event.global_step, event.saved_time)):
        return
    newer = Checkpoint(
        global_step=event.global_step,
        path=event.path,
        generation=event.generation,
        verified_at=turn.at,
        saved_time=event.saved_time,
        bytes=event.bytes,
        verified=event.verified,
    )
    without = tuple(warning for warning in turn.run.warnings if warning != NOTHING_SAVED)
    turn.set(checkpoint=newer, warnings=without)
    step = event.global_step if event.global_step is not None else "unknown"
    sentence = f"checkpoint of step {step} " + ("verified" if event.verified else f"saved; {UNREAD}")
    read: dict[str, object] = {"path": event.path, "verified": event.verified}
    turn.note(NoteKind.CHECKPOINT, sentence, None, **read, global_step=event.global_step)
    if turn.run.phase is Phase.RUNNING:
        turn.tell(MayStop(f"checkpoint of step {step} is {'verified' if event.verified else 'saved'}"))


def _rolled_back(turn: Turn, event: ev.RolledBack) -> None:
    """Go back to an older checkpoint: a person asked for it, or a metric is no number. There is no other reason to.

    The mark in the directory is written already, so every later generation honours it. Newer checkpoints no longer
    count as progress: otherwise failures would soon be counted against a run that only does as it was asked.
    """
    run = turn.run
    known = Checkpoint(
        global_step=event.global_step,
        path=event.path,
        generation=event.generation,
        verified_at=turn.at,
        bytes=_bytes(run),
        verified=event.verified,
    )
    turn.set(
        checkpoint=known,
        budget=Budget(restarts=run.budget.restarts, step=event.global_step),
        best_step=event.global_step,
        reached_step=event.global_step,
        from_scratch=False,
        unrestorable=(),
        step_max=None,
    )
    step = event.global_step if event.global_step is not None else "unknown"
    aside = ", ".join(str(number) for number in event.set_aside)
    who = "the run" if event.why else "the user"
    what = f"{who} went back to step {step}, generation {event.generation}"
    what += f": {event.why}" if event.why else ""
    turn.note(
        NoteKind.ROLLBACK,
        what + (f"; set aside: generation {aside}" if aside else ""),
        path=event.path,
        global_step=event.global_step,
        set_aside=list(event.set_aside),
    )
    if run.phase in (Phase.RENDEZVOUS, Phase.RUNNING):
        stop_for(turn, FirstCause(None, run.generation, Cause.ROLLED_BACK, what))


def _prove(turn: Turn, _moment: Proves) -> float:
    """Order the check, where the generation may have saved something; return how long to wait for it."""
    run = turn.run
    was_released = run.seed is not None and run.seed.generation == run.generation
    if run.plan.checkpoint is None or not was_released or is_disowned(run):
        return 0.0
    turn.set_phase(final_verification_asked_at=turn.at)
    if checkpoint_dir.hangs(run):
        end_unanswered(turn)
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


def _answered(turn: Turn, event: ev.CheckpointVerified) -> None:
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
    sentence = (
        f"the checkpoint of step {known.global_step} is not there any more: BackupAndRestore removes its own"
    )
    turn.note(NoteKind.CHECKPOINT_REMOVED, sentence, path=known.path)


def end_unanswered(turn: Turn) -> None:
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


def _order_failed(turn: Turn, event: ev.OrderFailed) -> None:
    """Schedule another verification after one that failed, unless it was the final one."""
    if event.order != "verify":
        return
    if turn.run.phase is Phase.RUNNING:
        turn.set_phase(verify_at=turn.at + VERIFY_FAILED_WAIT_S)
    end_unanswered(turn)


def _kill_requested(turn: Turn, event: ev.KillRequested) -> None:
    if event.force or turn.run.intent in (Intent.SUCCEED, Intent.FAIL):
        end_unanswered(turn)


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


def _demands(run: Run) -> Iterable[tuple[bool, str]]:
    yield asked_at(run) is None or run.proof is not None, "the last look is beside the proof"


def _seed_progressed(turn: Turn, event: ev.SeedProgressed) -> None:
    turn.set_phase(seeding=event.sentence, seeding_at=turn.at)


CONCERN = Concern(
    "checkpoints",
    on={
        ev.CheckpointSeeded: _seeded,
        ev.SeedProgressed: _seed_progressed,
        ev.CheckpointVerified: _verified,
        ev.RolledBack: _rolled_back,
        ev.OrderFailed: _order_failed,
        ev.KillRequested: _kill_requested,
        Proves: _prove,
        Ends: lambda turn, _: end_unanswered(turn),
    },
    advance={Phase.RUNNING: _advance},
    repeats=_repeats,
    demands=_demands,
)

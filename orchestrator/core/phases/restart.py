"""Decides whether to restart, and after how long. The whole policy is here; each verdict carries its reason.

Budgets count progress, not time: a newer verified checkpoint clears the counts. The wait doubles from
`backoff_s` to `backoff_max_s`, ± 20 %; the first restart after progress has none.

What a survivor has handed over is progress too, unless the generation fails in the way of the one before and has saved
nothing else: each might make one step behind a state that is of no use. Before such a run is given up, it goes on once
from the checkpoint before all that was handed over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from orchestrator.core.causes import Cause
from orchestrator.core.plan import RestartPolicy
from orchestrator.core.state.budget import Budget

SAME_END = "starting again would end in the same way"
SAME_FAILURE = "the same failure at the same step twice in a row, without a newer checkpoint"

NEAR_STEPS = 1
"""A failure so many steps later is at the same step, and so many steps are no progress behind what was handed over."""

MISTAKE = "it is a mistake in the script, met before it told a step: starting again would end in the same way"

IN_A_ROW_FACTOR = 4
"""A run that restarts this many times its budget without a new checkpoint is given up, even if no failure was its
fault."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the next generation after `delay_s`."""

    delay_s: float
    budget: Budget
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further generation."""

    budget: Budget
    reason: str


def is_progress(budget: Budget, verified_step: int | None) -> bool:
    """Return whether a checkpoint verified at that step is newer than the one at the last restart."""
    return verified_step is not None and (budget.step is None or verified_step > budget.step)


def cleared(budget: Budget, verified_step: int | None) -> Budget:
    """Return the budget with its counts cleared if the verified checkpoint is newer; else unchanged."""
    if not is_progress(budget, verified_step):
        return budget
    return replace(budget, without_progress=0, in_a_row=0, step=verified_step, passed_over=None)


@dataclass(frozen=True, slots=True)
class Gained:
    """What a generation has left behind."""

    handed_over: int | None = None
    """The step that a survivor has handed over at its end."""
    steps: int | None = None
    """How many steps that is beyond what the generation began with."""
    saved: bool = False
    """Whether a checkpoint of its own was verified."""


NOTHING = Gained()


def verdict(
    budget: Budget,
    policy: RestartPolicy,
    cause: Cause,
    *,
    verified_step: int | None,
    failure: tuple[str, int | None] | None,
    identity: str,
    gained: Gained = NOTHING,
    mistake: bool = False,
) -> Restart | GiveUp:
    """Decide whether another generation follows one that ended, and when.

    Args:
        budget: the counts so far.
        verified_step: of the newest checkpoint that read whole, or was handed over, if there is one.
        failure: how and at which step it failed (`cause.failure`); None if it need not happen again.
        identity: names this restart; the jitter follows from it.
        gained: what the generation that ended has left behind.
        mistake: it is an error in the script's lines, and no task has made a step (`cause.is_mistake`).
    """
    if cause.row.ends_the_run:
        return GiveUp(budget, SAME_END)
    # A run that has trained before is tried again: the line may fail by what another task left it
    if mistake and not budget.restarts and verified_step is None:
        return GiveUp(budget, MISTAKE)
    line, failed_step = failure or (None, None)
    first = budget.handed_over
    if gained.saved or first is None:
        first = gained.handed_over
    is_same = line is not None and line == budget.failure
    # What was saved after going back is newer than all that is passed over, whatever its step.
    passed_over = None if gained.saved and not is_same else budget.passed_over
    restarts = budget.restarts + 1
    after = replace(budget, restarts=restarts, failure=line, failed_step=failed_step, handed_over=first)
    after = replace(after, passed_over=passed_over)
    if is_progress(budget, verified_step) and (gained.saved or gained.handed_over is None or not is_same):
        fresh = replace(after, without_progress=0, in_a_row=0, step=verified_step, passed_over=None)
        return Restart(0.0, fresh, "at once: there is a newer checkpoint")
    if cause is Cause.BEGAN_APART and budget.handed_over is not None and budget.passed_over is None:
        return _go_before(budget, after, "not all tasks go on from it")
    at_once = failed_step == budget.failed_step
    if (first, budget.passed_over) != (None, None):
        at_once |= _is_near(budget.failed_step, failed_step) or _is_near(0, gained.steps)
    if is_same and at_once:
        return _go_before(budget, after, SAME_FAILURE)
    blamed = not cause.row.is_free
    used, nth = budget.without_progress + blamed, budget.in_a_row + 1
    if used >= policy.without_progress_max:
        return _go_before(budget, after, f"{used} failures in a row without a newer checkpoint")
    if nth >= IN_A_ROW_FACTOR * policy.without_progress_max:
        return GiveUp(budget, f"{nth} ends in a row without a newer checkpoint")
    if cause is Cause.PREEMPTED:
        again = replace(after, in_a_row=nth, failure=budget.failure, failed_step=budget.failed_step)
        return Restart(0.0, again, "at once: it saved and asked for it; the restart budget is untouched")
    counted = replace(after, without_progress=used, in_a_row=nth)
    why = (
        f"{used} of {policy.without_progress_max} failures without progress"
        if blamed
        else "not the script's fault"
    )
    if nth == 1:
        return Restart(0.0, counted, f"at once: {why}")
    # The wait before the nth restart in a row: none before the first, `backoff_s` before the second. From
    # there on it doubles, up to `backoff_max_s`, ± 20 % by identity.
    jitter = 0.8 + 0.4 * crc32(identity.encode()) / 2**32
    return Restart(
        float(min(policy.backoff_s * 2 ** min(nth - 2, 30), policy.backoff_max_s) * jitter), counted, why
    )


def _is_near(before: int | None, after: int | None) -> bool:
    """Return whether a step is the same as the one before, or hardly later."""
    return before is not None and after is not None and 0 <= after - before <= NEAR_STEPS


def _go_before(budget: Budget, after: Budget, reason: str) -> Restart | GiveUp:
    """Go on from the checkpoint before what was handed over; give up where nothing was, or that was tried already."""
    if budget.handed_over is None or budget.passed_over is not None:
        return GiveUp(budget, reason)
    before = replace(after, without_progress=0, in_a_row=0, handed_over=None, passed_over=budget.handed_over)
    why = f"at once, from the checkpoint before step {budget.handed_over}, which was handed over: {reason}"
    return Restart(0.0, before, why)

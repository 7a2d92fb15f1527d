"""Decides whether to restart, and after how long. The whole policy is here; each verdict carries its reason.

Budgets count progress, not time: a newer verified checkpoint clears the counts. The wait doubles from
`backoff_s` to `backoff_max_s`, ± 20 %; the first restart after progress has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from zlib import crc32

from orchestrator.core.causes import Cause
from orchestrator.core.plan import RestartPolicy
from orchestrator.core.state.budget import Budget

SAME_END = "starting again would end in the same way"
SAME_FAILURE = "the same failure at the same step twice in a row, without a newer checkpoint"

MISTAKE = (
    "it is a mistake of the script, made before its first step: starting again would end in the same way"
)

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
    return replace(budget, without_progress=0, in_a_row=0, step=verified_step)


def verdict(
    budget: Budget,
    policy: RestartPolicy,
    cause: Cause,
    *,
    verified_step: int | None,
    failure: str | None,
    identity: str,
    mistake: bool = False,
) -> Restart | GiveUp:
    """Decide whether another generation follows one that ended, and when.

    Args:
        budget: the counts so far.
        verified_step: of the newest checkpoint that read whole, if there is one.
        failure: how and at which step it failed (`cause.failure`); None if it need not happen again.
        identity: names this restart; the jitter follows from it.
        mistake: it is an error in the script's lines, and no task has made a step (`cause.is_mistake`).
    """
    if cause.row.ends_the_run:
        return GiveUp(budget, SAME_END)
    if mistake:
        return GiveUp(budget, MISTAKE)
    if is_progress(budget, verified_step):
        fresh = Budget(restarts=budget.restarts + 1, step=verified_step, failure=failure)
        return Restart(0.0, fresh, "at once: there is a newer checkpoint")
    if failure is not None and failure == budget.failure:
        return GiveUp(budget, SAME_FAILURE)
    blamed = not cause.row.is_free
    used, nth = budget.without_progress + blamed, budget.in_a_row + 1
    if used >= policy.without_progress_max:
        return GiveUp(budget, f"{used} failures in a row without a newer checkpoint")
    if nth >= IN_A_ROW_FACTOR * policy.without_progress_max:
        return GiveUp(budget, f"{nth} ends in a row without a newer checkpoint")
    if cause is Cause.PREEMPTED:
        again = replace(budget, restarts=budget.restarts + 1, in_a_row=nth)
        return Restart(0.0, again, "at once: it saved and asked for it; the restart budget is untouched")
    counted = replace(
        budget, restarts=budget.restarts + 1, without_progress=used, in_a_row=nth, failure=failure
    )
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

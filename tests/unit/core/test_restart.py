"""The restart policy, as a table: what the budget says, what ended, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.causes import Cause
from orchestrator.core.phases import restart
from orchestrator.core.plan import RestartPolicy
from orchestrator.core.state.budget import Budget

POLICY = RestartPolicy(without_progress_max=5, backoff_s=5.0, backoff_max_s=300.0)
NEITHER = (
    Cause.PREEMPTED,
    Cause.UNRESTORABLE,
    Cause.PORT,
    Cause.SHIM,
    Cause.REBOOTED,
    Cause.HOST_LOST,
    Cause.ROLLED_BACK,
    Cause.RESCHEDULED,
    Cause.HOST_LEAVES,
    Cause.PLANNED_END,
)


def verdict(
    budget: Budget,
    cause: Cause = Cause.SCRIPT,
    *,
    verified: int | None = None,
    failure: str | None = None,
    at: int | None = None,
    gained: restart.Gained = restart.NOTHING,
) -> restart.Restart | restart.GiveUp:
    failed = (failure, at) if failure is not None else None
    return restart.verdict(
        budget, POLICY, cause, verified_step=verified, failure=failed, identity="t/1", gained=gained
    )


@pytest.mark.parametrize(
    ("budget", "cause", "verified", "expected"),
    [
        # (restarts, without_progress, in_a_row, step) before; after, with the reason
        (Budget(), Cause.SCRIPT, None, (1, 1, 1, "at once: 1 of 5 failures without progress")),
        (Budget(3, 3, 3), Cause.SCRIPT, None, (4, 4, 4, "4 of 5 failures without progress")),
        (Budget(), Cause.OOM, None, (1, 1, 1, "at once: 1 of 5 failures without progress")),
        (Budget(), Cause.FOLLOWER, None, (1, 1, 1, "at once: 1 of 5 failures without progress")),
        (Budget(), Cause.START, None, (1, 1, 1, "at once: 1 of 5 failures without progress")),
        (Budget(), Cause.PORT, None, (1, 0, 1, "at once: not the script's fault")),
        (Budget(), Cause.SHIM, None, (1, 0, 1, "at once: not the script's fault")),
        (Budget(2, 0, 2), Cause.HOST_LOST, None, (3, 0, 3, "not the script's fault")),
        (Budget(2, 2, 2), Cause.REBOOTED, None, (3, 2, 3, "not the script's fault")),
        (Budget(9, 4, 4), Cause.SCRIPT, 100, (10, 0, 0, "at once: there is a newer checkpoint")),
        (Budget(9, 4, 4, 99), Cause.SCRIPT, 100, (10, 0, 0, "at once: there is a newer checkpoint")),
        (Budget(1, 1, 1, 100), Cause.SCRIPT, 100, (2, 2, 2, "2 of 5 failures without progress")),
        (
            Budget(1, 1, 1),
            Cause.PREEMPTED,
            None,
            (2, 1, 2, "at once: it saved and asked for it; the restart budget is untouched"),
        ),
    ],
)
def test_comes_back(
    budget: Budget, cause: Cause, verified: int | None, expected: tuple[int, int, int, str]
) -> None:
    decided = verdict(budget, cause, verified=verified)
    assert isinstance(decided, restart.Restart)
    after = decided.budget
    assert (after.restarts, after.without_progress, after.in_a_row, decided.reason) == expected
    assert (decided.delay_s == 0) == decided.reason.startswith("at once")


@pytest.mark.parametrize(
    ("budget", "cause", "failure", "reason"),
    [
        (Budget(4, 4, 4), Cause.SCRIPT, None, "5 failures in a row without a newer checkpoint"),
        (Budget(19, 0, 19), Cause.HOST_LOST, None, "20 ends in a row without a newer checkpoint"),
        (Budget(19, 0, 19), Cause.PREEMPTED, None, "20 ends in a row without a newer checkpoint"),
        (
            Budget(1, 1, 1, failure="ImportError: x"),
            Cause.SCRIPT,
            "ImportError: x",
            restart.SAME_FAILURE,
        ),
    ],
)
def test_gives_up(budget: Budget, cause: Cause, failure: str | None, reason: str) -> None:
    assert verdict(budget, cause, failure=failure) == restart.GiveUp(budget, reason)


def test_another_failure_is_not_the_same_twice() -> None:
    decided = verdict(Budget(1, 1, 1, failure="ImportError: x"), failure="ImportError: y")
    assert isinstance(decided, restart.Restart)
    assert decided.budget.failure == "ImportError: y"


HANDED = Budget(1, 0, 0, step=40, failure="E: x", failed_step=40, handed_over=40)
"""After a failure at step 40, whose state was handed over."""


@pytest.mark.parametrize(
    ("gained", "failure", "at", "expected"),
    [
        # (passed over, handed over, failures without progress) after it
        (restart.Gained(41, 1), "E: x", 41, (40, None, 0)),
        (restart.Gained(41, 1), "E: x", 44, (40, None, 0)),
        (restart.Gained(60, 20), "E: x", 41, (40, None, 0)),
        (restart.Gained(140, 100), "E: x", 140, (None, 40, 1)),
        (restart.Gained(41, 1), "E: y", 41, (None, 40, 0)),
        (restart.Gained(41, 1), None, None, (None, 40, 0)),
        (restart.Gained(60, 20, saved=True), "E: x", 60, (None, 60, 0)),
    ],
)
def test_a_step_behind_what_was_handed_over_is_no_progress_where_the_failure_is_the_same(
    gained: restart.Gained, failure: str | None, at: int | None, expected: tuple[int | None, int | None, int]
) -> None:
    decided = verdict(HANDED, verified=gained.handed_over, failure=failure, at=at, gained=gained)
    assert isinstance(decided, restart.Restart)
    after = decided.budget
    assert (after.passed_over, after.handed_over, after.without_progress) == expected


def test_what_only_some_tasks_pick_up_is_passed_over_at_once() -> None:
    decided = verdict(HANDED, Cause.BEGAN_APART, verified=40)
    assert isinstance(decided, restart.Restart)
    assert (decided.budget.passed_over, decided.delay_s) == (40, 0.0)
    assert decided.reason == (
        "at once, from the checkpoint before step 40, which was handed over: not all tasks go on from it"
    )
    again = verdict(decided.budget, Cause.BEGAN_APART, verified=40)
    assert isinstance(again, restart.Restart)
    assert again.budget.without_progress == 1, "then it is the script's"


def test_what_is_saved_beyond_it_ends_the_passing_over_also_where_no_failure_is_counted() -> None:
    tried = replace(HANDED, passed_over=40, handed_over=None)
    assert restart.cleared(tried, 50_000).passed_over is None, (
        "else the next start would go back before step 40"
    )
    assert restart.cleared(tried, 40).passed_over == 40


def test_what_was_handed_over_is_passed_over_once() -> None:
    tried = replace(HANDED, passed_over=40, handed_over=None)
    again = restart.Gained(41, 21)
    assert isinstance(verdict(tried, verified=41, failure="E: x", at=41, gained=again), restart.GiveUp)
    beyond = verdict(tried, verified=80, failure=None, gained=restart.Gained(80, 60))
    assert isinstance(beyond, restart.Restart)
    assert (beyond.budget.passed_over, beyond.budget.handed_over) == (None, 80)


@pytest.mark.parametrize("failure", ["E: y", None])
def test_what_was_saved_after_going_back_counts_below_the_step_that_was_handed_over(
    failure: str | None,
) -> None:
    """It is of a later generation. Else the next start would go back before step 40 once more."""
    tried = replace(HANDED, passed_over=40, handed_over=None)
    saved = restart.Gained(None, None, saved=True)
    decided = verdict(tried, verified=30, failure=failure, at=33, gained=saved)
    assert isinstance(decided, restart.Restart)
    assert decided.budget.passed_over is None
    unsaved = verdict(tried, verified=30, failure=failure, at=33)
    assert isinstance(unsaved, restart.Restart)
    assert unsaved.budget.passed_over == 40
    again = verdict(tried, verified=30, failure="E: x", at=40, gained=saved)
    assert isinstance(again, restart.GiveUp), "the same failure again: it went back once"


def test_the_same_failure_for_ever_ends_the_run_although_each_generation_hands_over_more() -> None:
    budget, step = HANDED, 40
    for _ in range(3 * POLICY.without_progress_max):
        step += 100
        decided = verdict(budget, verified=step, failure="E: x", at=step, gained=restart.Gained(step, 100))
        if isinstance(decided, restart.GiveUp):
            assert budget.passed_over == 40
            return
        budget = decided.budget
    pytest.fail("it never ended")


def test_the_wait_doubles_up_to_its_greatest_within_a_fifth() -> None:
    policy = replace(POLICY, without_progress_max=100)
    waits = []
    for nth in range(13):
        decided = restart.verdict(
            Budget(nth, nth, nth), policy, Cause.SCRIPT, verified_step=None, failure=None, identity=f"t/{nth}"
        )
        assert isinstance(decided, restart.Restart)
        waits.append(decided.delay_s)
    assert waits[0] == 0.0, "the first is at once"
    expected = [min(5.0 * 2**nth, 300.0) for nth in range(12)]
    assert all(0.8 * e <= wait <= 1.2 * e for wait, e in zip(waits[1:], expected, strict=True))
    assert len({wait / e for wait, e in zip(waits[1:], expected, strict=True)}) > 6, (
        "the jitter follows the identity"
    )


def test_a_newer_checkpoint_clears_the_counts_and_an_older_one_does_not() -> None:
    spent = Budget(7, 4, 9, step=100, failure="x")
    assert restart.cleared(spent, 101) == Budget(7, 0, 0, step=101, failure="x")
    assert restart.cleared(spent, 100) is spent
    assert restart.cleared(spent, None) is spent


@given(causes=st.lists(st.sampled_from(list(Cause)), min_size=1, max_size=60))
def test_without_a_checkpoint_every_run_ends(causes: list[Cause]) -> None:
    budget = Budget()
    for _ in range(10):
        for cause in causes:
            decided = verdict(budget, cause)
            if isinstance(decided, restart.GiveUp):
                return
            budget = decided.budget
            assert budget.without_progress < POLICY.without_progress_max
    assert budget.in_a_row < restart.IN_A_ROW_FACTOR * POLICY.without_progress_max


def test_only_what_the_script_did_counts_against_it() -> None:
    assert set(NEITHER) == {cause for cause in Cause if cause.row.is_free}
    for cause in NEITHER:
        decided = verdict(Budget(1, 1, 1), cause)
        assert isinstance(decided, restart.Restart)
        assert decided.budget.without_progress == 1


def test_what_would_end_in_the_same_way_is_given_up_at_once_even_after_progress() -> None:
    decided = verdict(Budget(), Cause.RESUME_MISMATCH, verified=100)
    assert decided == restart.GiveUp(Budget(), "starting again would end in the same way")

"""What `orch up` begins after an end: a changed run is a new training, and an unchanged one is not trained twice."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.client.comparing import Comparison, Package
from orchestrator.client.next_training import Next, _where, chosen, next_training, telling
from orchestrator.core.differences import Change
from orchestrator.core.errors import UsageError

SAME = Comparison((), (), None)
CHANGED = Comparison((Change("args --lr", "0.001", "0.03"),), (), None)
CODE_UNKNOWN = Comparison((), None, None)


def ended(phase: str, **more: Any) -> dict[str, Any]:
    run = {
        "run_id": "t-20261120-1",
        "phase": phase,
        "global_step": 3760,
        "checkpoint": {"global_step": 3700},
        "metrics": {"loss": 0.02, "val_loss": 0.03, "accuracy": 0.999, "val_accuracy": 0.995},
    }
    return {**run, **more}


def test_unchanged_after_success_nothing_is_begun_and_both_ways_are_named() -> None:
    begins = next_training(ended("SUCCEEDED"), SAME, "")
    assert begins.finished == (
        "t-20261120-1 finished at step 3760 with val_accuracy 0.995; `--again` trains it once more, `--continue` goes "
        "on from it"
    )
    assert not begins.from_scratch


@pytest.mark.fault(119)
def test_changed_after_success_a_new_training_begins_and_says_why() -> None:
    begins = next_training(ended("SUCCEEDED"), CHANGED, "")
    assert (begins.from_scratch, begins.finished) == (True, "")
    assert begins.said == (
        "a new training, from step 0: t-20261120-1 finished at step 3760 with val_accuracy 0.995, and since then this "
        "has changed: args --lr: 0.001 -> 0.03"
    )


@pytest.mark.parametrize("changed", [SAME, CHANGED, None])
def test_asked_for_it_is_done_whatever_has_changed(changed: Comparison | None) -> None:
    assert next_training(ended("SUCCEEDED"), changed, "again") == Next(from_scratch=True)
    on = next_training(ended("SUCCEEDED"), changed, "continue")
    assert (on.from_scratch, on.finished) == (False, "")
    assert on.said.startswith("goes on from step 3700: t-20261120-1 finished at step 3760")


@pytest.mark.parametrize("changed", [None, CODE_UNKNOWN])
@pytest.mark.fault(119)
def test_what_is_not_known_to_have_changed_begins_nothing_and_says_so(changed: Comparison | None) -> None:
    assert (
        "whether its code has changed since is not known"
        in next_training(ended("SUCCEEDED"), changed, "").finished
    )


@pytest.mark.parametrize(("phase", "said"), [("FAILED", "failed"), ("KILLED", "was killed")])
@pytest.mark.parametrize("changed", [SAME, CHANGED, None])
def test_what_did_not_finish_goes_on(phase: str, said: str, changed: Comparison | None) -> None:
    begins = next_training(ended(phase), changed, "")
    assert not begins.from_scratch
    assert not begins.finished
    assert begins.said.startswith(f"goes on from step 3700: t-20261120-1 {said} at step 3760")


def test_a_new_training_that_ended_before_it_could_begin_is_still_one() -> None:
    """Else it would go on from the checkpoint of the training before it."""
    assert next_training(
        ended("KILLED", checkpoint=None, global_step=None), SAME, "", undone=True
    ).from_scratch


def test_whoever_asks_for_the_checkpoint_takes_an_again_back_that_has_not_begun() -> None:
    last = ended("KILLED", checkpoint=None, global_step=None)
    assert not next_training(last, SAME, "continue", undone=True).from_scratch


@pytest.mark.parametrize("phase", [None, "RUNNING", "QUEUED"])
def test_without_an_end_nothing_is_decided_here(phase: str | None) -> None:
    assert next_training(None if phase is None else ended(phase), None, "") == Next()


def test_both_ways_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match="two things"):
        chosen(again=True, go_on=True)


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({"loss": 1, "val_loss": 2}, "val_loss"),
        ({"loss": 1, "mae": 2}, "mae"),
        ({"loss": 1}, "loss"),
        ({"lr": 1, "val_loss": 3, "accuracy": 2, "val_auc": 4}, "val_auc"),
    ],
)
def test_the_metric_that_says_most(metrics: dict[str, float], name: str) -> None:
    assert (telling(metrics) or ("", 0))[0] == name


def test_other_packages_alone_are_a_difference() -> None:
    package = Package("gpu-a", "keras", "3.9.0", "3.10.1")
    assert not Comparison((), (), (package,)).is_same
    assert Comparison((), (), ()).is_same


def test_a_run_that_told_no_step_finished_without_one() -> None:
    assert _where({"global_step": None, "metrics": {"val_accuracy": 0.9}}) == ""
    assert _where({"global_step": 7, "metrics": {}}) == "at step 7"

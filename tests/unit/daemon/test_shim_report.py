"""What a shim makes of its runtime's words."""

from __future__ import annotations

from orchestrator.daemon.shim.report import Progress


def test_a_step_grows_old_until_the_next_and_saying_it_again_makes_it_no_newer() -> None:
    progress = Progress()
    assert progress.to_task(9.0)["step_age_s"] is None
    progress.heard({"step": 1}, 10.0)
    progress.heard({"step": 1}, 11.0)
    assert progress.to_task(12.0)["step_age_s"] == 2.0
    progress.heard({"step": 2, "age_s": 0.25}, 12.5)
    assert progress.to_task(13.0)["step_age_s"] == 0.75
    progress.heard({"step": 3, "age_s": "long ago"}, 14.0)
    assert progress.to_task(14.0)["step_age_s"] == 0.0


def test_a_runtime_that_beats_grows_old_and_any_word_is_a_sign_of_life() -> None:
    progress = Progress()
    progress.heard({"step": 1}, 10.0)
    assert progress.to_task(12.0)["runtime_age_s"] is None, (
        "it has never beaten: nothing can be said of its silence"
    )
    assert progress.heard({"heartbeat": {}}, 13.0) == "", "no report of its own"
    assert progress.to_task(15.5)["runtime_age_s"] == 2.5
    progress.heard({"step": 2}, 16.0)
    assert progress.to_task(16.25)["runtime_age_s"] == 0.25
    assert progress.to_task(90.0, attached=False)["runtime_age_s"] is None, "it is not silent, it has left"

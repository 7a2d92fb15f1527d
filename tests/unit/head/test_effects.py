"""What follows a change may fail alone: it is shown, tried again, and touches nothing else."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.head.effects.subscribers import RETRY_S, Effect, Effects
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = new_run("t-1", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
RUNNING = in_phase(RUN, Phase.RUNNING)
ENDED = in_phase(RUN, Phase.SUCCEEDED)


def test_an_effect_that_fails_holds_up_no_other_and_is_tried_again_until_it_succeeds() -> None:
    done: list[str] = []
    broken = [True]
    clock = [100.0]

    def unlink(before: Run, after: Run) -> None:
        if broken:
            raise IsADirectoryError(21, "Is a directory", "secrets/t-1.json")
        done.append(f"removed the secrets of {after.run_id}")

    effects = Effects(
        [
            Effect("remove its secrets", unlink),
            Effect(
                "trace it", lambda before, after: done.append(f"{before.phase.value} to {after.phase.value}")
            ),
        ],
        now=lambda: clock[0],
    )
    effects.changed(RUNNING, ENDED)
    effects.start()
    effects.close(wait_s=10)
    assert done == ["RUNNING to SUCCEEDED"]
    (shown,) = effects.document()
    assert (shown["effect"], shown["run"], shown["tries"]) == ("remove its secrets", "t-1", 2)
    assert "Is a directory: 'secrets/t-1.json'" in shown["error"]
    clock[0] += RETRY_S
    assert "t-1: could not remove its secrets" in effects.document()[0]["sentence"]
    broken.clear()
    effects.try_again()
    assert (done[1:], effects.document()) == (["removed the secrets of t-1"], [])


def test_a_later_change_does_not_make_up_for_one_that_failed() -> None:
    """As of the last figures of a generation: the change from STOPPING on has nothing to keep."""
    kept: list[str] = []
    broken = [True]

    def keep(before: Run, after: Run) -> None:
        if before.phase is Phase.RUNNING:
            if broken:
                raise OSError(28, "No space left on device")
            kept.append(after.phase.value)
        else:
            kept.append(f"nothing of {before.phase.value}")

    effects = Effects([Effect("keep its last figures", keep)])
    stopping = in_phase(RUN, Phase.STOPPING)
    effects.changed(RUNNING, stopping)
    effects.changed(stopping, ENDED)
    effects.start()
    effects.close(wait_s=10)
    assert (kept, len(effects.document())) == ([], 1)
    broken.clear()
    effects.try_again()
    assert (kept, effects.document()) == (["STOPPING", "nothing of STOPPING"], [])


def test_a_change_that_only_moves_numbers_concerns_nobody() -> None:
    heard: list[str] = []

    def hear(_before: Run, after: Run) -> None:
        heard.append(after.run_id)

    effects = Effects([Effect("hear", hear, heard.append)])
    effects.changed(RUNNING, replace(RUNNING, trained_s=5.0))
    effects.forget(["t-0"])
    effects.start()
    effects.close(wait_s=10)
    assert heard == ["t-0"]

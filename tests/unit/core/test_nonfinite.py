"""A loss that is no number again, by the step at which it was none before."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.phases.nonfinite import _go_back
from orchestrator.core.state.checkpoint import GoneBack, Seed
from orchestrator.core.state.phase_states import Phase, Running
from orchestrator.core.state.run import new_run
from orchestrator.core.turn import Turn
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan


def test_where_the_step_of_the_checkpoint_is_not_known_it_goes_back_to_the_beginning() -> None:
    run = in_phase(new_run("t", make_plan(["a"], checkpoint=True), epoch=1, at=0.0), Phase.RUNNING)
    seed = Seed(1, source="/shared/t/gen-000001/ckpt", global_step=None)
    turn = Turn(replace(run, gone_back=GoneBack(40, 1), seed=seed), 9.0)
    _go_back(turn, 30, "loss is NaN")
    wanted = turn.run.within(Running).going_back
    assert wanted is not None
    assert wanted.before_step == 0
    assert turn.run.gone_back == GoneBack(40, 2)

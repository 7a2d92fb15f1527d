"""`on_shrink` with real TensorFlow: a gang that goes on with one worker fewer, against one that nothing happened to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import verify
from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded
from tests.contract.test_transparent import SCRIPTS, gang, last_line, said

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

__all__ = ["gang"]


MOMENTUM = {"hold_batch": "0.9", "scale_lr": "0", "ignore": "0"}
"""The linear rule is one of plain steps: a momentum lasts for as many steps, and so for fewer examples."""


def environment(replicas: int, planned: int = 2, **options: Any) -> dict[str, str]:
    told = {
        "strategy": "multi_worker_mirrored",
        "transparent": True,
        "replicas_on_cpu": 1,
        "save_every_steps": 3,
    }
    return {
        "ORCH_RUNTIME": json.dumps(with_row({**told, **options})),
        "ORCH_REPLICAS": str(replicas),
        "ORCH_REPLICAS_PLANNED": str(planned),
    }


def shrunk(
    gang: Callable[..., Gang], directory: Path, after: int, *, of: int = 2, **options: Any
) -> tuple[dict[str, Any], str]:
    """Return what a gang ends with that goes on with one worker fewer after so many steps, and what it says."""
    script, momentum = SCRIPTS / "shrinks.py", MOMENTUM[options["on_shrink"]]
    first = gang(
        script, momentum, directories=seeded(directory, 1, of)[1], env=environment(of, of, **options)
    )
    chief = str(directory / "shared" / "gen-000001")
    first.wait_for(lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= after, "a backup")
    first.close()
    fewer = seeded(directory, 2, of - 1)[1]
    second = gang(script, momentum, directories=fewer, env=environment(of - 1, of, **options))
    assert second.ended() == [0] * (of - 1), second.tasks[0].err
    return last_line(second.tasks[0].out), said(second)


def whole(gang: Callable[..., Gang], directory: Path, of: int = 2, **options: Any) -> dict[str, Any]:
    momentum, env = MOMENTUM[options["on_shrink"]], environment(of, of, **options)
    run = gang(SCRIPTS / "shrinks.py", momentum, directories=seeded(directory, 1, of)[1], env=env)
    assert run.ended() == [0] * of, run.tasks[0].err
    return last_line(run.tasks[0].out)


@pytest.mark.long
@pytest.mark.parametrize(("of", "batch", "after"), [(2, "per_replica", 40), (3, "global", 90)])
def test_with_hold_batch_one_fewer_trains_to_the_loss_of_all(
    gang: Callable[..., Gang], tmp_path: Path, of: int, batch: str, after: int
) -> None:
    options: dict[str, Any] = {"on_shrink": "hold_batch", "batch": batch, "of": of}
    expected = whole(gang, tmp_path / "whole", **options)
    found, told = shrunk(gang, tmp_path / "shrunk", after, **options)
    if batch == "per_replica":
        assert f"{of} times as large (of {of} replicas, of which {of - 1} train)" in told
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert found["epochs"] == pytest.approx(expected["epochs"], rel=1e-3)
    assert found["weights"] == pytest.approx(expected["weights"], rel=1e-3, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("batch", ["global", "per_replica"])
def test_with_scale_lr_the_rate_follows_the_batch_and_the_loss_stays_near(
    gang: Callable[..., Gang], tmp_path: Path, batch: str
) -> None:
    options: dict[str, Any] = {"on_shrink": "scale_lr", "batch": batch}
    expected = whole(gang, tmp_path / "whole", **options)
    found, told = shrunk(gang, tmp_path / "shrunk", 40, **options)
    assert "the learning rate goes from 1 to 0.5 times the script's" in told
    assert found["rate"] == pytest.approx(0.02), "what the script sees of it is its own"
    assert len(found["epochs"]) == 6
    assert found["loss"] == pytest.approx(expected["loss"], rel=0.1)
    if batch == "global":
        return  # there nothing is scaled, since the batch stays
    unscaled, _ = shrunk(gang, tmp_path / "ignored", 40, on_shrink="ignore", batch=batch)
    assert found["loss"] != pytest.approx(unscaled["loss"], rel=1e-3)

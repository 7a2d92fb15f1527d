"""Fits that are told from each other, and figures of the whole batch: two workers against one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.checkpoints import verify
from tests.contract.test_runtime_tensorflow import Gang, seeded
from tests.contract.test_transparent import SCRIPTS, alone, environment, gang, last_line, said

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]

__all__ = ["gang"]


def test_a_script_that_skips_the_folds_that_are_there_goes_on_with_the_right_ones(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    script, host = SCRIPTS / "folds.py", tmp_path / "host"
    (tmp_path / "alone").mkdir()
    single = alone(str(script), cwd=tmp_path / "alone")
    env = environment(save_every_steps=3, replicas_on_cpu=1)
    first = gang(script, directories=seeded(tmp_path, 1, 2)[1], env=env, host_dir=host)
    chief = str(tmp_path / "shared" / "gen-000001")
    first.wait_for(lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= 36, "a backup")
    first.close()
    answer, directories = seeded(tmp_path, 2, 2)
    second = gang(script, directories=directories, env=env, host_dir=host)
    assert second.ended() == [0, 0], second.tasks[0].err
    assert "there: 0" in second.tasks[0].out
    assert "fit 2 comes before fit 1, which differs in the data: skipped or reordered" in said(second)
    assert "fit 2 goes on from its backup, in epoch" in said(second)
    assert "fit 1 goes on" not in said(second)
    assert "fit 3 goes on" not in said(second)
    assert "the metric r2 is a function" in said(second)
    assert second.steps()[0] >= answer["global_step"]
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    expected, results = last_line(stdout), [last_line(task.out) for task in second.tasks]
    assert results[0] == results[1]
    assert results[0]["weights"] == pytest.approx(expected["weights"], rel=1e-4)
    assert list(results[0]["histories"]) == ["1", "2"]
    for fold, history in results[0]["histories"].items():
        for name, values in history.items():
            assert values == pytest.approx(expected["histories"][fold][name], rel=1e-3), (fold, name)


def test_workers_that_have_other_data_are_named(gang: Callable[..., Gang], tmp_path: Path) -> None:
    run = gang(
        SCRIPTS / "other_data.py",
        directories=[tmp_path / "0", tmp_path / "1"],
        env=environment(replicas_on_cpu=1),
    )
    assert run.ended() == [1, 1]
    for task, heard in zip(run.tasks, run.heard, strict=True):
        error = next(message["error"] for message in heard if "error" in message)
        assert error["kind"] == "unsupported"
        assert error["message"].startswith(
            "the workers do not train the same: worker:1 and worker:0 differ in the data of a fit"
        )
        assert "not reached" not in task.out

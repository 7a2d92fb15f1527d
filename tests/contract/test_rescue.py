"""A survivor of a killed peer hands over its state, with real TensorFlow: two workers, and no step is lost."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.checkpoints import copying, seed
from tests.contract.hanging_disk import hanging
from tests.contract.small_disk import mounted
from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, gang, seeded

__all__ = ["gang"]
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "scripts" / "transparent" / "rescued.py"
WITH_TF_KERAS = SCRIPT.with_name("with_tf_keras.py")
OPTIONS = {
    "strategy": "multi_worker_mirrored",
    "transparent": True,
    "rescue": True,
    "save_every_steps": 10**6,
}
CALLBACK = SCRIPT.parents[1] / "saving" / "rescued.py"
OWN = OPTIONS | {"transparent": False}
KILLED = [
    # The chief is also killed with the callback, and a transparent run is handed over in test_trajectory.py.
    pytest.param(SCRIPT, [], OPTIONS, 0, id="the chief", marks=pytest.mark.long),
    pytest.param(SCRIPT, [], OPTIONS, 1, id="a worker", marks=pytest.mark.long),
    pytest.param(WITH_TF_KERAS, [SCRIPT.name], OPTIONS, 0, id="the chief, tf_keras", marks=pytest.mark.long),
    *(
        pytest.param(
            WITH_TF_KERAS, [SCRIPT.name], OPTIONS, moment, id=f"at {moment}, tf_keras", marks=pytest.mark.long
        )
        for moment in ("step 20", "evaluation 2")
    ),
    pytest.param(CALLBACK, ["keras"], OWN, 0, id="with the callback"),
    pytest.param(CALLBACK.with_name("rescued_loop.py"), [], OWN, 0, id="a loop of its own"),
    pytest.param(CALLBACK, ["tf_keras"], OWN, 1, id="with the callback, tf_keras", marks=pytest.mark.long),
]


def _has_trained(run: Gang, index: int, steps: int) -> bool:
    is_told = any(line.get("rescues") is True for line in run.heard[index])
    return is_told and max(run.steps(index), default=0) >= steps


@pytest.mark.fault(97)
@pytest.mark.parametrize(("script", "arguments", "options", "victim"), KILLED)
def test_no_step_is_lost_and_the_weights_are_those_of_a_run_that_nothing_disturbed(
    gang: Callable[..., Gang],
    tmp_path: Path,
    script: Path,
    arguments: list[str],
    options: dict[str, Any],
    victim: int | str,
) -> None:
    """The script has dropout, moving averages and Adam: what is not of one whole step would show in the weights."""
    moment = victim if isinstance(victim, str) else None
    victim = 1 if isinstance(victim, str) else victim
    survivor, ends = 1 - victim, {}
    for name in ("whole", "killed"):
        root, out = tmp_path / name, tmp_path / f"{name}.npz"
        env = {"ORCH_RUNTIME": json.dumps(with_row(options)), "ORCH_TASK": f"worker:{survivor}"}
        env["ORCH_RESCUE_DIR"] = str(root / "shared" / "gen-000001")
        dies = {"DIES_AT": moment} if moment and name == "killed" else {}
        run = gang(script, str(out), *arguments, directories=seeded(root, 1, 2)[1], env=env | dies)
        if name == "killed":
            run.wait_for(
                partial(_has_trained, run, survivor, 12), "12 steps, and that it could hand them over"
            )
            if moment is None:
                run.tasks[victim].process.send_signal(signal.SIGKILL)
            run.tasks[victim].process.wait()
            run.tasks[survivor].order(stop={"grace_s": 60.0, "rescue": True})
            assert run.ended()[survivor] == 143, run.tasks[survivor].err
            [told] = [line["rescued"] for line in run.heard[survivor] if "rescued" in line]
            assert told.get("step", 0) >= run.steps(survivor)[-1], told
            answer, directories = seeded(root, 2, 2)
            assert answer["global_step"] == told["step"]
            env["ORCH_RESCUE_DIR"] = answer["path"]
            run = gang(script, str(out), *arguments, directories=directories, env=env)
        assert run.ended() == [0, 0], run.tasks[0].err
        assert "retracing" not in run.tasks[0].err, "a warning of TensorFlow about what is ours"
        ends[name] = np.load(out)
    if script == CALLBACK:
        # Where data of unknown length ends, TensorFlow without orch counts an update more than there are steps:
        # Keras 3 at each epoch's end, tf_keras at the first one's.
        assert ends["whole"]["updates"] == 60 + {"keras": 3, "tf_keras": 1}[arguments[0]]
        assert ends["whole"]["seen"] == 960
    for name in ends["whole"].files:
        np.testing.assert_allclose(ends["killed"][name], ends["whole"][name], rtol=1e-6, atol=1e-7)
    assert run.steps()[0] - told["step"] in (0, 1), "a loop tells its first step when it is done"


@pytest.mark.fault(98)
@pytest.mark.parametrize(
    "trouble",
    [
        "a full disk",
        pytest.param("a directory that hangs", marks=pytest.mark.long),
        pytest.param("a second kill", marks=pytest.mark.long),
    ],
)
def test_what_goes_wrong_during_a_rescue_leaves_the_last_backup_as_without_one(
    gang: Callable[..., Gang], tmp_path: Path, trouble: str
) -> None:
    with mounted(tmp_path / "disk", megabytes=10) as disk:
        root, options = disk.path / "root", OPTIONS | {"save_every_steps": 10}
        env = {"ORCH_RUNTIME": json.dumps(with_row(options)), "ORCH_TASK": "worker:1"}
        env["ORCH_RESCUE_DIR"] = str(root / "shared" / "gen-000001")
        run = gang(SCRIPT, str(tmp_path / "out.npz"), directories=seeded(root, 1, 2)[1], env=env)
        run.wait_for(partial(_has_trained, run, 1, 25), "25 steps, and that it could hand them over")
        survivor = run.tasks[1]
        with contextlib.ExitStack() as until_it_has_ended:
            if trouble == "a full disk":
                disk.fill()
                until_it_has_ended.callback(disk.empty)
            elif trouble == "a directory that hangs":
                until_it_has_ended.enter_context(hanging(root))
            run.tasks[0].process.send_signal(signal.SIGKILL)
            run.tasks[0].process.wait()
            survivor.order(stop={"grace_s": 5.0, "rescue": True})
            if trouble == "a second kill":
                survivor.process.send_signal(signal.SIGKILL)
            elif trouble == "a directory that hangs":
                with contextlib.suppress(subprocess.TimeoutExpired):
                    survivor.process.wait(6.0)  # the bound, after which its shim kills it
                survivor.process.send_signal(signal.SIGKILL)
            assert run.ended()[1] in (143, -signal.SIGKILL), survivor.err
        told = [line["rescued"] for line in run.heard[1] if "rescued" in line]
        if trouble == "a full disk":
            assert ["No space left" in each["why"] for each in told] == [True], told
        else:
            assert not told
        saved = max(step for step in run.steps(1) if step % 10 == 0)
        answer, _ = seeded(root, 2, 2)
        assert answer["global_step"] in (saved, saved - 10), (
            "the newest backup is whole, or was being written"
        )


@pytest.mark.long
def test_a_survivor_that_is_in_python_hands_over_at_once(gang: Callable[..., Gang], tmp_path: Path) -> None:
    """Its main thread would come out of there long after the bound."""
    root = tmp_path / "shared"
    env = {"ORCH_RUNTIME": json.dumps(with_row(OWN)), "ORCH_TASK": "worker:1", "STUCK_AT": "30"}
    env["ORCH_RESCUE_DIR"] = str(root / "shared" / "gen-000001")
    script = CALLBACK.with_name("rescued_loop.py")
    run = gang(script, str(tmp_path / "out.npz"), directories=seeded(root, 1, 2)[1], env=env)
    run.wait_for(partial(_has_trained, run, 1, 30), "30 steps")
    run.tasks[0].process.send_signal(signal.SIGKILL)
    run.tasks[0].process.wait()
    run.tasks[1].order(stop={"grace_s": 30.0, "rescue": True})
    assert run.ended()[1] == 143, run.tasks[1].err
    rehearsed = {line["rescue"] for line in run.heard[1] if "rescue" in line}
    assert len(rehearsed) == 1
    assert rehearsed.pop().startswith("0.0 MB in "), "three small variables"
    [told] = [line["rescued"] for line in run.heard[1] if "rescued" in line]
    answer, _ = seeded(root, 2, 2)
    assert (told.get("step"), answer["global_step"]) == (30, 30), told


@pytest.mark.long  # tests/unit/checkpoints/test_room_for_a_rescue.py has the same disk without TensorFlow
@pytest.mark.fault(107)
def test_on_a_disk_with_room_for_two_and_a_half_more_checkpoints_a_killed_worker_costs_no_step(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    """What is handed over, the older backup, and the next saves: without a rescue there is room for all of it."""
    with mounted(tmp_path / "disk", megabytes=74) as disk:
        root, options = disk.path, OPTIONS | {"save_every_steps": 10}
        env = {"ORCH_RUNTIME": json.dumps(with_row(options)), "ORCH_TASK": "worker:1"}
        env["ORCH_RESCUE_DIR"] = str(root / "shared" / "gen-000001")

        def directories(generation: int) -> tuple[dict[str, Any], list[Path]]:
            answer = seed.seed(str(root / "shared"), generation)
            scratch = tmp_path / f"scratch-{generation}"
            copying.copy(answer["path"], str(scratch))
            return answer, [Path(answer["path"]), scratch]

        large = SCRIPT.with_name("large.py")
        run = gang(large, directories=directories(1)[1], env=env)
        run.wait_for(partial(_has_trained, run, 1, 25), "25 steps, and that it could hand them over")
        [saved] = Path(env["ORCH_RESCUE_DIR"]).rglob("orch/fit-000/latest.weights.h5")
        assert 20e6 < saved.stat().st_size < 22e6
        run.tasks[0].process.send_signal(signal.SIGKILL)
        run.tasks[0].process.wait()
        run.tasks[1].order(stop={"grace_s": 60.0, "rescue": True})
        assert run.ended()[1] == 143, run.tasks[1].err
        [told] = [line["rescued"] for line in run.heard[1] if "rescued" in line]
        assert told.get("step", 0) >= run.steps(1)[-1], told
        answer, seeded_now = directories(2)
        assert answer["global_step"] == told["step"]
        assert answer["dropped"] == [str(saved)], "only where there is no room for two more saves"
        env["ORCH_RESCUE_DIR"] = answer["path"]
        run = gang(large, directories=seeded_now, env=env)
        assert run.ended() == [0, 0], run.tasks[0].err
        assert 80 in run.steps(), "it saved several times, beside what it was given"
        restored = [line["restored"] for line in run.heard[0] if "restored" in line]
        assert [(each["step"], each["why"]) for each in restored] == [(told["step"], "")]

"""`transparent: true` with real TensorFlow: unchanged scripts by two workers with two replicas each.

Each script is killed in the middle of an epoch and resumed; its final loss, and the loss of each epoch, must be those
of a plain `python script.py`, which trains alone with the same global batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both.hostdir import generation_dir, task_dir
from orchestrator.checkpoints import verify
from orchestrator.host.system import workdir
from tests.contract.strategy_harness import with_row
from tests.contract.test_runtime_tensorflow import Gang, seeded
from tests.lean import python_for
from tests.unit.task.runtime_task import Task
from tests.warm import ALONE, Forked, forked, suits

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]

SCRIPTS = Path(__file__).parent / "scripts" / "transparent"
OPTIONS: dict[str, Any] = {"strategy": "multi_worker_mirrored", "transparent": True, "replicas_on_cpu": 2}
OPTIONS["proves"] = (
    False  # `proofs.py` is about that, and each proof takes as long as two steps and their tracing
)

EXACT = 1e-4
"""Relative. Each global step takes the examples that a single process takes; sums differ in their order only."""

BY_FILE = 0.05
"""Each worker shuffles files of its own: the same examples in each epoch, but in other batches."""


SHARED = {
    ("files.py", "4"): "shared by FILE: 2 for each worker",
    ("files.py", "1"): "part of each batch: 1 file cannot be shared evenly by 2 workers",
    ("subclassed.py",): "shared by DATA, each worker takes its part of each batch: it is not of files",
}
"""What is said of how a `tf.data` of the script is shared; arrays Keras itself shares by DATA."""


def environment(**options: Any) -> dict[str, str]:
    return {"ORCH_RUNTIME": json.dumps(with_row({**OPTIONS, **options}))}


@pytest.fixture
def gang() -> Iterator[Callable[..., Gang]]:
    with contextlib.ExitStack() as stack:

        def start(*args: Any, **kwargs: Any) -> Gang:
            run = Gang(*args, **kwargs)
            stack.callback(run.close)
            return run

        yield start


def alone(script: str, *args: str, cwd: Path | None = None) -> subprocess.Popen[str] | Forked:
    """As its author runs it."""
    path, env = SCRIPTS / script, {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    if suits(path, env):
        return forked(ALONE, path, *args, env=env, cwd=cwd)
    return subprocess.Popen(
        [python_for(path), str(path), *args],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def said(run: Gang, index: int = 0) -> str:
    return "\n".join(message["say"]["message"] for message in run.heard[index] if "say" in message)


@pytest.mark.parametrize(
    ("script", "args", "kill_after", "tolerance"),
    [
        ("sequential.py", (), 18, EXACT),
        pytest.param("functional.py", (), 13, EXACT, marks=pytest.mark.long),
        pytest.param("subclassed.py", (), 16, EXACT, marks=pytest.mark.long),
        pytest.param("generator.py", (), 17, EXACT, marks=pytest.mark.long),
        pytest.param("files.py", ("4",), 15, BY_FILE, marks=pytest.mark.long),
        pytest.param("files.py", ("1",), 15, EXACT, marks=pytest.mark.long),
        # The numbers are also those of cases.py, and the resumption is also that of gan.py.
        pytest.param("train_step.py", (), 18, EXACT, marks=pytest.mark.long),
        pytest.param("legacy.py", (), 18, EXACT, marks=pytest.mark.long),
    ],
)
def test_a_script_that_is_killed_and_resumed_ends_with_the_loss_of_a_single_process(
    gang: Callable[..., Gang],
    tmp_path: Path,
    script: str,
    args: tuple[str, ...],
    kill_after: int,
    tolerance: float,
) -> None:
    single = alone(script, str(tmp_path / "alone"), *args)
    out, env = str(tmp_path / "out"), environment(save_every_steps=3)
    first = gang(SCRIPTS / script, out, *args, directories=seeded(tmp_path, 1, 2)[1], env=env)
    chief = str(tmp_path / "shared" / "gen-000001")
    first.wait_for(
        lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= kill_after, "a backup"
    )
    first.close()

    answer, directories = seeded(tmp_path, 2, 2)
    assert answer["global_step"] >= kill_after
    second = gang(SCRIPTS / script, out, *args, directories=directories, env=env)
    assert second.ended() == [0, 0], second.tasks[0].err
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    expected, results = last_line(stdout), [last_line(task.out) for task in second.tasks]
    assert results[0] == results[1]
    assert "goes on from its backup" in said(second)
    assert "a batch of the script is global" in said(second)
    assert SHARED.get((script, *args), "") in said(second, 1)
    assert answer["global_step"] in second.steps()[:2]
    assert results[0]["loss"] == pytest.approx(expected["loss"], rel=tolerance)
    assert results[0]["epochs"] == pytest.approx(expected["epochs"], rel=max(tolerance, 1e-3))
    if script == "sequential.py":
        only_the_chief_wrote(Path(out), directories[1], second)
    assert results[0].get("counted") == expected.get("counted")


@pytest.mark.long
def test_a_module_trains_as_its_package_would_alone(gang: Callable[..., Gang], tmp_path: Path) -> None:
    places = [Path(task_dir(str(tmp_path / "host"), "run-1", f"worker:{i}"), "work") for i in (0, 1)]
    for place in (tmp_path / "alone", *places):
        (place / "pkg").mkdir(parents=True)
        (place / "pkg/__init__.py").touch()
        shutil.copy(SCRIPTS / "sequential.py", place / "pkg/fitted.py")
        (place / "pkg/train.py").write_text("from .fitted import counted\n")
    command = [sys.executable, "-m", "pkg.train", "out"]
    single = subprocess.run(command, cwd=tmp_path / "alone", capture_output=True, text=True, check=True)
    directories = [tmp_path / "0", tmp_path / "1"]
    run = gang(
        Path("-m"), "pkg.train", "out", directories=directories, env=environment(), host_dir=tmp_path / "host"
    )
    assert run.ended() == [0, 0], run.tasks[0].err
    expected, results = last_line(single.stdout), [last_line(task.out) for task in run.tasks]
    assert results[0] == results[1]
    assert results[0]["loss"] == pytest.approx(expected["loss"], rel=EXACT)


def only_the_chief_wrote(out: Path, double: Path, run: Gang) -> None:
    written = {"best.keras", "log.csv", "model.keras"}
    assert {path.name for path in out.iterdir()} == written
    assert len((out / "log.csv").read_text().splitlines()) <= 4, "no epoch twice"
    assert written <= {path.name for path in double.rglob("*") if path.is_file()}
    assert "not the chief" in said(run, 1)
    assert "not the chief" not in said(run, 0)


def test_what_keras_saves_is_read_at_its_path_by_all_workers_and_after_a_restart(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    script, out, host = SCRIPTS / "shared_files.py", tmp_path / "out", tmp_path / "host"
    out.mkdir()
    (tmp_path / "alone").mkdir()
    single = alone(str(script), str(tmp_path / "alone"), cwd=tmp_path / "alone")
    env = environment(save_every_steps=3, replicas_on_cpu=1)
    first = gang(script, str(out), directories=seeded(tmp_path, 1, 2)[1], env=env, host_dir=host)
    chief = str(tmp_path / "shared" / "gen-000001")
    first.wait_for(lambda: (verify(chief)["checkpoint"] or {}).get("global_step", 0) >= 21, "a backup")
    first.close()
    directories = seeded(tmp_path, 2, 2)[1]
    second = gang(script, str(out), directories=directories, env=env, host_dir=host)
    assert second.ended() == [0, 0], second.tasks[0].err
    assert "fit 1 goes on from its backup, after its last epoch" in said(second)
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    expected, results = last_line(stdout), [last_line(task.out) for task in second.tasks]
    assert results[0] == results[1]
    assert results[0]["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    assert results[0]["served"] == pytest.approx(expected["served"], rel=1e-3)
    assert results[0]["opened"]
    assert [path.name for path in out.iterdir()] == ["model.keras"]
    left = [{path for path, _ in workdir.left(str(host), "run-1", f"worker:{index}")} for index in (0, 1)]
    assert {"models/last.keras", "exported/saved_model.pb"} < left[0]
    assert not left[1], "the chief's are the same"
    assert "not the chief" in said(second, 1)
    assert "not the chief" not in said(second, 0)


def test_a_run_that_saves_no_checkpoints_leaves_nothing_outside_of_its_directory(
    gang: Callable[..., Gang], tmp_path: Path
) -> None:
    script, out, host = SCRIPTS / "shared_files.py", tmp_path / "out", tmp_path / "host"
    out.mkdir()
    env = environment(replicas_on_cpu=1) | {"ORCH_CHECKPOINT_DIR": "", "ORCH_GENERATION": "2"}
    run = gang(script, str(out), directories=[tmp_path] * 2, env=env, host_dir=host)
    assert run.ended() == [0, 0], run.tasks[1].err
    generation = generation_dir(str(host), "run-1", "worker:1", 2)
    doubles = [path for path in Path(generation).rglob("*") if path.is_file()]
    assert [path.name for path in doubles] == ["model.keras"]
    assert str(doubles[0]).endswith(f"{out}/model.keras")


@pytest.mark.long  # tests/cluster/test_curves.py asks it of two workers too
def test_profiles_are_taken_by_the_chief_alone(gang: Callable[..., Gang], tmp_path: Path) -> None:
    """Without that, TensorFlow crashes the second worker after some twenty of these 150 profiles."""
    profiles, directories = tmp_path / "profiles", [tmp_path / "0", tmp_path / "1"]
    run = gang(SCRIPTS / "profiles.py", str(profiles), directories=directories, env=environment())
    assert run.ended() == [0, 0], run.tasks[1].err
    assert list(profiles.rglob("*.xplane.pb"))
    assert [task.out.strip() for task in run.tasks] == ["no profile was under way"] * 2
    assert "nothing is profiled here" in said(run, 1)
    assert "nothing is profiled here" not in said(run, 0)


class Alone:
    """One task on one machine with two logical CPUs, to its end."""

    def __init__(self, script: Path, *args: str, **options: Any) -> None:
        task = Task(
            script,
            *args,
            env={"CUDA_VISIBLE_DEVICES": "", "ORCH_RUNTIME": json.dumps(with_row(options))},
            warm=True,
        )
        try:
            task.release()
            self.code = task.ended()
            self.heard = task.said()
        finally:
            task.close()
        self.out, self.err = task.out, task.err

    @property
    def said(self) -> str:
        return "\n".join(message["say"]["message"] for message in self.heard if "say" in message)


@pytest.mark.parametrize(
    "strategy", ["multi_worker_mirrored", pytest.param("mirrored", marks=pytest.mark.long)]
)
def test_a_script_with_a_strategy_of_its_own_gets_that_of_the_spec(
    gang: Callable[..., Gang], tmp_path: Path, strategy: str
) -> None:
    single = alone("own_strategy.py")
    if strategy == "mirrored":
        run = Alone(SCRIPTS / "own_strategy.py", **{**OPTIONS, "strategy": strategy})
        assert run.code == 0, run.err
        outs, errs, told = [run.out], [run.err], run.said
    else:
        both = gang(
            SCRIPTS / "own_strategy.py", directories=[tmp_path / "0", tmp_path / "1"], env=environment()
        )
        assert both.ended() == [0, 0], both.tasks[0].err
        outs, errs, told = [t.out for t in both.tasks], [t.err for t in both.tasks], said(both)
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    expected = numbers(stdout)
    assert len(expected) == 7
    for out, err in zip(outs, errs, strict=True):
        assert numbers(out) == pytest.approx(expected, rel=1e-3), "fit, a loop of its own, and the weights"
        assert f"replicas {2 * len(outs)}" in err
    assert "own_strategy.py makes a MirroredStrategy: it gets the " in told


def test_models_after_a_cleared_session_train_under_the_strategy_too() -> None:
    single = alone("clears.py")
    run = Alone(SCRIPTS / "clears.py", **{**OPTIONS, "strategy": "mirrored"})
    assert run.code == 0, run.err
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    assert run.err.count("replicas 2") == 2, run.err
    assert len(numbers(stdout)) == 6
    assert numbers(run.out) == pytest.approx(numbers(stdout), rel=1e-3)


def numbers(out: str) -> list[float]:
    return [float(word) for word in out.split() if word not in ("losses", "weights")]


@pytest.mark.parametrize("strategy", [pytest.param("mirrored", marks=pytest.mark.long), "central_storage"])
def test_one_machine_ends_with_the_loss_of_a_single_process(tmp_path: Path, strategy: str) -> None:
    single = alone("functional.py")
    run = Alone(SCRIPTS / "functional.py", **{**OPTIONS, "strategy": strategy})
    assert run.code == 0, run.err
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    assert last_line(run.out)["loss"] == pytest.approx(last_line(stdout)["loss"], rel=EXACT)
    assert "1 worker(s), 2 replicas" in run.said
    assert "there is no ORCH_CHECKPOINT_DIR" in run.said


def test_what_tf_keras_does_by_code_of_its_own_is_that_of_one_process() -> None:
    single = alone("of_tf_keras.py")
    run = Alone(SCRIPTS / "of_tf_keras.py", **{**OPTIONS, "strategy": "mirrored"})
    assert run.code == 0, run.err
    stdout, stderr = single.communicate(timeout=100)
    assert single.returncode == 0, stderr
    pairs = list(zip(stdout.splitlines(), run.out.splitlines(), strict=True))
    assert len(pairs) == 3
    for expected, found in (map(json.loads, pair) for pair in pairs):
        assert found["loss"] == pytest.approx(expected["loss"], rel=EXACT)
        assert found["weights"] == pytest.approx(expected["weights"], rel=EXACT, abs=1e-6)


def test_a_batch_per_replica_makes_the_global_one_larger(tmp_path: Path) -> None:
    options = {**OPTIONS, "strategy": "mirrored", "batch": "per_replica"}
    run = Alone(SCRIPTS / "sequential.py", str(tmp_path), **options)
    assert run.code == 0, run.err
    steps = [message["step"] for message in run.heard if "step" in message]
    assert steps[-1] == 3 * 896 // 128
    assert "the global one is 2 times as large" in run.said


@pytest.mark.long  # tests/cluster/test_scale.py has them measured too
def test_steps_that_are_measured_end_the_script_and_their_figures_are_reported(tmp_path: Path) -> None:
    options = {**OPTIONS, "strategy": "mirrored", "measure": {"steps": 20, "warmup": 5}}
    run = Alone(SCRIPTS / "sequential.py", str(tmp_path), **options)
    assert run.code == 0, run.err
    assert "loss" not in run.out, "it has ended before the script says so"
    figures = next(m["metrics"] for m in reversed(run.heard) if "measured/step_s" in m.get("metrics", {}))
    assert figures["measured/steps"] == 25
    assert figures["measured/batch"] == 64
    assert figures["measured/steps_per_epoch"] == 14
    assert 0 < figures["measured/input_free_s"] < 60
    assert figures["measured/step_s_low"] <= figures["measured/step_s"] <= figures["measured/step_s_high"]
    assert figures["measured/loss@25"] > 0
    assert not list(tmp_path.iterdir()), "nothing is saved"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "own_parameter_server.py",
            "own_parameter_server.py makes a ParameterServerStrategyV2, which transparent",
        ),
        (
            "own_loop.py",
            "own_loop.py:13: optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), "
            "model.trainable_variables)): this script trains in a loop of its own without strategy.run",
        ),
        pytest.param(
            "legacy_in_python.py",
            "legacy_in_python.py:9: return tf.sqrt(tf.ensure_shape(tf.py_function(tf.reduce_max, [tf.square(y - p)], "
            "tf.float32), [])): this is neither a sum nor a mean over the examples of a batch, and cannot be computed",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_cannot_be_done_is_said(script: str, sentence: str) -> None:
    run = Alone(SCRIPTS / script, **{**OPTIONS, "strategy": "mirrored"})
    assert run.code == 1
    assert "not reached" not in run.out
    errors = [message["error"] for message in run.heard if "error" in message]
    assert {error["kind"] for error in errors} == {"unsupported"}
    assert errors[0]["message"].startswith(sentence)
    assert f"Unsupported: {sentence}" in run.err


@pytest.mark.parametrize(
    ("keras", "replicas"),
    [
        ("keras", 2),
        pytest.param("tf_keras", 2, marks=pytest.mark.long),
        pytest.param("keras", 1, marks=pytest.mark.long),
        pytest.param("keras", 3, marks=pytest.mark.long),
    ],
)
def test_make_parallel_has_the_weights_of_its_model(keras: str, replicas: int) -> None:
    """Whichever of the two is trained, evaluated, asked and saved: the numbers are those of a single device.

    Three replicas cannot share the last batch evenly, and Keras then counts their losses alike: the numbers are those
    of a model that was made under MirroredStrategy.
    """
    run = Alone(SCRIPTS / "parallel.py", keras, str(replicas), replicas_on_cpu=3)
    assert run.code == 0, run.err
    result = last_line(run.out)
    assert result["replicas"] == replicas
    for way, found in result["ways"].items():
        is_single_first = (
            way == "base first"
        )  # the strategy comes to a model that has been trained without it
        expected = result["expected" if replicas < 3 or is_single_first else "native"]
        for place in range(2 if replicas == 3 and is_single_first else 3):
            assert found[place] == pytest.approx(expected[place], rel=1e-3), (way, place)
    assert "4 replicas need as many devices" in result["refused"][0]
    for number, said in zip(("1.0", "1.5", "True"), result["refused"][1:], strict=True):
        assert said.startswith(f"{number} is no number of CPUs: give how many")
    assert all(loss > 0 for loss in result["other"]), "one of another size in the same script"

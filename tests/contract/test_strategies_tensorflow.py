"""Every strategy but MultiWorkerMirroredStrategy (test_runtime_tensorflow.py), with real TensorFlow."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.checkpoints import verify
from tests.contract.strategy_harness import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(150)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = Path(__file__).parent / "scripts" / "strategies"
Start = Callable[..., Cluster]

SERVED = {"strategy": "parameter_server", "serve": True}
OF_THEIR_OWN = {"strategy": "parameter_server", "serve": False}
TASKS = {"chief": 1, "worker": 2, "ps": 1}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Start]:
    started: list[Cluster] = []

    def start(script: Path, *args: str, **given: Any) -> Cluster:
        started.append(Cluster(script, *args, directory=tmp_path, **given))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_worker_killed_and_started_again_is_taken_back_and_a_lost_ps_ends_the_chief(cluster: Start) -> None:
    script, args = EXAMPLES / "parameter_server.py", ("--steps", "1000000", "--save-every", "20")
    run = cluster(script, *args, tasks=TASKS, options=SERVED)
    chief = run["chief:0"]
    run.wait_for(lambda: chief.step() >= 20, "first steps")
    for name in ("worker:0", "worker:1", "ps:0"):
        assert [each["kind"] for each in run[name].all_of("say")] == ["serving"]

    run["worker:1"].task.process.send_signal(signal.SIGKILL)
    run["worker:1"].task.process.wait()
    before = chief.step()
    run.wait_for(lambda: chief.step() > before, "steps with one worker")
    again = run.start("worker:1")
    run.wait_for(lambda: again.all_of("say"), "the worker serves again")
    # TensorFlow takes it back half a second later. Were the other one killed meanwhile, it would wait for both.
    before = chief.step()
    run.wait_for(lambda: chief.step() > before + 100, "steps while TensorFlow takes the worker back")
    run["worker:0"].task.process.send_signal(signal.SIGKILL)
    run["worker:0"].task.process.wait()
    before = chief.step()
    run.wait_for(lambda: chief.step() > before + 20, "steps on the worker that was taken back, alone")

    run["ps:0"].task.process.send_signal(signal.SIGKILL)
    assert chief.ended() == 1
    assert "UnavailableError" in chief.all_of("error")[0]["message"]
    assert again.task.process.poll() is None  # TensorFlow would leave it for ever; a stop ends it at once
    again.task.order(stop={"grace_s": 10})
    assert again.ended() == 143


@pytest.mark.parametrize("options", [SERVED, OF_THEIR_OWN], ids=["served", "of its own"])
def test_a_loop_with_its_servers_or_ours_ends_well_and_leaves_a_checkpoint(
    cluster: Start, tmp_path: Path, options: dict[str, Any]
) -> None:
    script, args = EXAMPLES / "parameter_server.py", ("--steps", "40", "--save-every", "20")
    run = cluster(script, *args, tasks=TASKS, options=options)
    assert run["chief:0"].ended() == 0, run["chief:0"].task.err
    assert run["chief:0"].step() == 40
    assert verify(str(tmp_path / "chief-0"))["checkpoint"]["global_step"] == 40
    for name in ("worker:0", "worker:1", "ps:0"):
        assert run[name].task.process.poll() is None
        run[name].task.order(stop={"grace_s": 10})
        assert run[name].ended() == 143


def test_tf_keras_fits_with_cut_variables_and_servers_of_its_own(cluster: Start, tmp_path: Path) -> None:
    run = cluster(
        SCRIPTS / "ps_fit.py", tasks={"chief": 1, "worker": 1, "ps": 2}, options={**OF_THEIR_OWN, "keras": 2}
    )
    chief = run["chief:0"]
    assert chief.ended() == 0, chief.task.err
    result = json.loads(chief.task.out.strip().splitlines()[-1])
    assert (result["pieces"], result["steps"], chief.step()) == (2, 60, 60)
    assert verify(str(tmp_path / "chief-0"))["checkpoint"]["global_step"] == 60


@pytest.mark.parametrize("keras", [3, 2])
@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_a_local_strategy_without_arguments_has_a_replica_on_each_cpu(
    cluster: Start, strategy: str, keras: int
) -> None:
    options = {"strategy": strategy, "replicas_on_cpu": 2, "keras": keras}
    task = cluster(SCRIPTS / "local_fit.py", strategy, str(keras), tasks={"worker": 1}, options=options)[
        "worker:0"
    ]
    assert task.ended() == 0, task.task.err
    result = json.loads(task.task.out.strip().splitlines()[-1])
    assert result["keras"] == {3: "keras", 2: "tf_keras"}[keras]
    assert (result["replicas"], result["steps"], task.step()) == (2, 24, 24)
    assert result["fell"]
    assert result["moved"]
    for told, computed in (result["loss"], result["accuracy"]):
        assert told == pytest.approx(computed, abs=1e-4)
    kinds = [each["kind"] for each in task.all_of("say")]
    mended = ["keras3-mended"] if (strategy, keras) == ("central_storage", 3) else []
    assert kinds == ["replicas-on-cpu", *mended]

"""Every strategy but MultiWorkerMirroredStrategy (test_runtime_tensorflow.py), with real TensorFlow."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoints import verify
from tests.contract.strategy_harness import Cluster, with_row
from tests.contract.test_runtime_tensorflow import Gang

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(150)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = Path(__file__).parent / "scripts" / "strategies"
Start = Callable[..., Cluster]

SERVED = {"strategy": "parameter_server", "serve": True}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Start]:
    started: list[Cluster] = []

    def start(script: Path, *args: str, **given: Any) -> Cluster:
        started.append(Cluster(script, *args, directory=tmp_path, **given))
        return started[-1]

    yield start
    for each in started:
        each.close()


VERBOSE = """\
import logging, runpy  # what it runs imports sklearn
logging.getLogger("tensorflow").setLevel(logging.INFO)
runpy.run_path("{script}", run_name="__main__")
"""
"""Only at this level does TensorFlow say that it has taken a worker back."""


@pytest.mark.long  # under a coordinator tests/cluster/test_tensorflow.py does the same
@pytest.mark.fault(16, 17)
def test_a_worker_killed_and_started_again_is_taken_back_and_a_lost_ps_ends_the_chief(
    cluster: Start, tmp_path: Path
) -> None:
    script, args = tmp_path / "verbose.py", ("--steps", "1000000", "--save-every", "20")
    script.write_text(VERBOSE.format(script=EXAMPLES / "parameter_server.py"))
    run = cluster(script, *args, tasks={"chief": 1, "worker": 2, "ps": 1}, options=SERVED)
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
    # Were the other one killed before TensorFlow has taken this one back, it would wait for both.
    run.wait_for(lambda: "has been recovered" in chief.task.err, "TensorFlow takes the worker back")
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


def test_a_loop_ends_well_and_a_second_server_on_its_port_says_so(cluster: Start, tmp_path: Path) -> None:
    script, args = EXAMPLES / "parameter_server.py", ("--steps", "40", "--save-every", "20")
    run = cluster(script, *args, tasks={"chief": 1, "worker": 1, "ps": 1}, options=SERVED)
    chief, ps, worker = run["chief:0"], run["ps:0"], run["worker:0"]
    assert chief.ended() == 0, chief.task.err
    assert chief.step() == 40
    assert verify(str(tmp_path / "chief-0"))["checkpoint"]["global_step"] == 40

    second = run.start("ps:0")
    assert second.ended() == 1
    assert "Could not start gRPC server" in second.all_of("error")[0]["message"]
    assert ps.task.process.poll() is None
    ps.task.socket.shutdown(socket.SHUT_RDWR)  # its shim is dead
    assert ps.ended() == 143
    worker.task.order(stop={"grace_s": 10})
    assert worker.ended() == 143


def test_tf_keras_fits_with_cut_variables_and_servers_of_its_own(cluster: Start, tmp_path: Path) -> None:
    options = {"strategy": "parameter_server", "serve": False, "keras": 2}
    run = cluster(SCRIPTS / "ps_fit.py", tasks={"chief": 1, "worker": 1, "ps": 2}, options=options)
    chief = run["chief:0"]
    assert chief.ended() == 0, chief.task.err
    result = json.loads(chief.task.out.strip().splitlines()[-1])
    assert result["chunks"] == ["/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"]
    assert (result["steps"], chief.step()) == (60, 60)
    assert verify(str(tmp_path / "chief-0"))["checkpoint"]["global_step"] == 60
    assert not run["worker:0"].all_of("say")
    assert len(run["worker:0"].all_of("heartbeat")) >= 2, (
        "a server in TensorFlow's own join() gives signatures of life"
    )


@pytest.mark.parametrize(
    ("strategy", "keras"),
    [
        ("mirrored", 3),
        pytest.param("mirrored", 2, marks=pytest.mark.long),
        pytest.param("central_storage", 3, marks=pytest.mark.long),
        pytest.param("central_storage", 2, marks=pytest.mark.long),
    ],
)
def test_a_local_strategy_without_arguments_has_a_replica_on_each_cpu(
    cluster: Start, strategy: str, keras: int
) -> None:
    options: dict[str, Any] = {"strategy": strategy, "replicas_on_cpu": 2, "keras": keras}
    packed = (strategy, keras) == ("mirrored", 3)
    if packed:
        options |= {"bytes_per_pack": 64, "communication_timeout_s": 60.0}
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
    assert (result["pack"], result["timeout_s"]) == ((64, 60.0) if packed else (0, None))
    patched = ["keras3-patched"] if (strategy, keras) == ("central_storage", 3) else []
    assert kinds == ["replicas-on-cpu", *(["communication"] if packed else []), *patched]


def test_chief_and_worker_have_two_cpus_each_and_the_plans_communication_and_an_evaluator_works_alone(
    cluster: Start,
) -> None:
    options = {
        "strategy": "multi_worker_mirrored",
        "replicas_on_cpu": 2,
        "communication": "ring",
        "communication_timeout_s": 60.0,
        "bytes_per_pack": 1024,
    }
    tasks = {"chief": 1, "worker": 1, "evaluator": 1}
    run = cluster(SCRIPTS / "mwms.py", tasks=tasks, options=options)
    results = {}
    for name, member in run.members.items():
        assert member.ended() == 0, member.task.err
        results[name] = json.loads(member.task.out.strip().splitlines()[-1])
        assert [each["kind"] for each in member.all_of("say")] == ["replicas-on-cpu", "communication"]
    gang = {"replicas": 4, "sum": 6.0, "communication": "RING", "timeout_s": 60.0, "pack": 1024}
    assert results == {"chief:0": gang, "worker:0": gang, "evaluator:0": {**gang, "replicas": 2, "sum": 1.0}}


@pytest.mark.parametrize(
    ("tpu", "reason"),
    [
        ("local", "NotFoundError: TPUs not found in the cluster."),
        ("grpc://127.0.0.1:9", "no answer within 2 s"),  # TensorFlow itself would wait on, and say nothing
    ],
)
def test_without_a_tpu_tensorflows_reason_or_our_deadline_says_what_to_check(
    cluster: Start, tpu: str, reason: str
) -> None:
    options = {"strategy": "tpu", "tpu": tpu, "tpu_wait_s": 2.0}
    task = cluster(EXAMPLES / "tpu.py", tasks={"worker": 1}, options=options)["worker:0"]
    assert task.ended() == 1
    (error,) = task.all_of("error")
    assert error["message"].startswith(f"no TPU {tpu}: ")
    assert error["kind"] == ("no-local-tpu" if tpu == "local" else "no-tpu")
    assert reason in error["message"]


@pytest.mark.long
def test_fault_tolerance_goes_on_where_it_was_killed_and_knows_its_best_model(
    cluster: Start, tmp_path: Path
) -> None:
    backup = tmp_path / "worker-0" / "backup" / "training_metadata.json"

    def start() -> Cluster:
        options = {"strategy": "mirrored"}
        return cluster(EXAMPLES / "fault_tolerance.py", "--epochs", "8", tasks={"worker": 1}, options=options)

    run = start()
    first = run["worker:0"]
    run.wait_for(lambda: backup.exists() and first.step() >= 46, "two epochs")
    first.task.process.send_signal(signal.SIGKILL)
    first.ended()
    second = start()["worker:0"]
    assert second.ended() == 0, second.task.err
    assert "the best model so far: 0." in second.task.out
    assert second.all_of("step")[0] >= 23
    assert second.step() == 8 * 23


@pytest.mark.fault(118)
def test_a_gang_of_which_none_made_a_strategy_ends_before_its_first_step(tmp_path: Path) -> None:
    """It would train twice the same, and end as if all were well."""
    told = json.dumps(with_row({"strategy": "multi_worker_mirrored"}))
    run = Gang(SCRIPTS / "hidden_copies.py", directories=[tmp_path, tmp_path], env={"ORCH_RUNTIME": told})
    try:
        assert run.ended() == [1, 1], run.tasks[0].err
    finally:
        run.close()
    for task, heard in zip(run.tasks, run.heard, strict=True):
        assert "trained" not in task.out
        (error,) = [message["error"] for message in heard if "error" in message]
        assert error["kind"] == "unsupported"
        assert error["message"].endswith(
            "hidden_copies.py made no strategy before its first step: two workers would train two copies; "
            "`transparent: true` makes one training of it"
        )

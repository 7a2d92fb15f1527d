"""A machine with GPUs: which a task gets, what is told of them, who else uses one, and what a full one looks like.

`make test-gpu`. It needs an NVIDIA GPU, its nvidia-smi, and a Python with torch (and Keras with JAX) that orch can run
in. Elsewhere every test is skipped, with the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, wait_until
from tests.rescue.__main__ import kills_of, options_of

WORKDIR = Path(__file__).parent / "workdir"
EXAMPLES = Path(__file__).parents[2] / "examples"


def why_not() -> str | None:
    """Return why the tests cannot be run here."""
    if shutil.which("nvidia-smi") is None:
        return "NO GPU HERE: there is no nvidia-smi"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    if listed.returncode != 0 or "GPU 0" not in listed.stdout:
        return f"NO GPU HERE: nvidia-smi lists none: {listed.stdout or listed.stderr}"
    return None if importlib.util.find_spec("torch") else "NO TORCH in this Python"


pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.timeout(300),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def spec(cluster: Cluster, script: str, *, gpus: Any = 1, **run: Any) -> str:
    host = {"name": "here", "transport": "local", "slots": 1, "gpus": gpus}
    asked = {"strategy": "processes", "script": script, "workdir": str(WORKDIR), **run}
    return cluster.spec(hosts=[host], types={"worker": 1}, **asked)


def smi(query: str) -> list[str]:
    """Return a line for each GPU, as nvidia-smi answers."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_task_sees_its_gpu_and_status_and_hosts_tell_of_it(cluster: Cluster) -> None:
    file = spec(cluster, "shows_gpus.py")
    cluster.ok("up", file, timeout=120)
    log = cluster.ok("logs", "t")
    assert "visible 0 PCI_BUS_ID" in log
    name = smi("name")[0].strip()
    assert f"device {name} 1 0" in log

    def gpu() -> dict[str, Any]:
        found = cluster.run()["hosts"][0]["gpus"]
        return found[0] if found else {}

    wait_until(lambda: gpu().get("memory_used_bytes", 0) > 256 << 20, "the GPU's memory is told", timeout=60)
    assert gpu()["name"] == name
    assert gpu()["memory_total_bytes"] == int(smi("memory.total")[0]) << 20
    assert gpu()["power_w"] is None or gpu()["power_w"] > 0
    (host,) = json.loads(cluster.ok("hosts", file, "--json"))["hosts"]
    assert [card["index"] for card in host["gpus"]] == list(range(len(smi("index"))))
    assert "GPU" in cluster.ok("status", "t")
    cluster.ok("kill", "t")
    assert cluster.marked() == []


def test_more_gpus_than_there_are_are_refused_before_the_start(cluster: Cluster) -> None:
    there = len(smi("index"))
    refused = cluster.orch("up", spec(cluster, "shows_gpus.py", gpus=there + 1), timeout=120)
    assert refused.returncode == 6
    assert (
        f"GPU {there}" in refused.stderr
        or f"GPUs {there}" in refused.stderr
        or "and it has" in refused.stderr
    )
    assert cluster.marked() == []


def test_a_gpu_that_another_process_uses_is_refused_with_its_pid(cluster: Cluster) -> None:
    held = "import torch, time; x = torch.zeros(1 << 28, device='cuda'); print('held', flush=True); time.sleep(300)"
    other = subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        refused = cluster.orch("up", spec(cluster, "shows_gpus.py"), timeout=120)
        assert refused.returncode == 6, refused.stderr
        assert "in use by somebody else" in refused.stderr
        assert str(other.pid) in refused.stderr
    finally:
        other.kill()
        other.wait()
        if other.stdout:
            other.stdout.close()


def test_a_full_gpu_is_named_as_the_cause(cluster: Cluster) -> None:
    file = spec(cluster, "out_of_memory.py", restart={"backoff": "0.2s", "without_progress_max": 2})
    assert cluster.orch("up", file, "--wait", timeout=200).returncode == 1
    told = cluster.ok("why", "t")
    assert "class GPU out of memory" in told
    assert "out of memory" in told


def test_torch_is_killed_and_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    cluster.ok("up", spec(cluster, "torch_loop.py", restart={"backoff": "0.2s"}), timeout=120)
    before = cluster.wait_step(100, timeout=120)
    os.kill(before["tasks"][0]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    assert (run["phase"], run["restarts"], run["global_step"]) == ("SUCCEEDED", 1, 600), cluster.ok(
        "logs", "t"
    )
    (resumed,) = cluster.events(kind="resumed")
    given = resumed["data"]["global_step"]
    assert given >= 90
    assert f"begins at step {given} on " in cluster.ok("logs", "t")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="NO JAX in this Python")
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="NO KERAS in this Python")
def test_keras_on_jax_is_killed_and_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    file = spec(
        cluster,
        "jax_processes.py",
        args=["--epochs", "40"],
        workdir=str(EXAMPLES),
        env={"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        restart={"backoff": "0.2s"},
    )
    cluster.ok("up", file, timeout=120)
    before = cluster.wait_step(56, timeout=120)
    os.kill(before["tasks"][0]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=200)
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 1), cluster.ok("logs", "t", "--tail", "60")


def test_a_standby_holds_no_memory_of_a_gpu(cluster: Cluster) -> None:
    """Only strategies of TensorFlow have one: a script that names it, on a machine that has it."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("NO TENSORFLOW in this Python")
    host = {"name": "here", "transport": "local", "slots": 2, "gpus": 1}
    file = cluster.spec(
        *("--epochs", "200"),
        hosts=[host],
        types={"worker": {"replicas": 1, "gpus": 1}},
        strategy="mirrored",
        script="mirrored.py",
        workdir=str(EXAMPLES),
        restart={"standby": "on"},
    )
    cluster.ok("up", file, timeout=200)
    run = cluster.wait(lambda seen: seen["standby"]["state"] == "ready", timeout=200)
    waiting = {str(task["pid"]) for task in run["standby"]["tasks"]}
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    using = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not waiting & set(using)


def test_a_survivor_hands_over_its_state_from_its_gpu() -> None:
    """Two workers with a GPU each, where NCCL reduces: whether it lets go of the survivor in time is not known."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("NO TENSORFLOW in this Python")
    if len(smi("index")) < 2:
        pytest.skip("ONE GPU HERE: NCCL wants one for each of two workers")
    kills, wrong = kills_of(options_of(["--kills", "2", "--gpus", "1", "--fault", "kill"]))
    assert [kill.lost for kill in kills] == [0, 0], [kill.said for kill in kills]
    assert wrong == 0
    assert all("rescued at step" in kill.said for kill in kills)

"""Processes that orch knows nothing of but their ranks: Keras 3 on JAX, killed and resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 28  # of an epoch
PART = {"data": "(64, 256)", "model": "(64, 128)", "both": "(64, 128)"}
"""What each device holds of the first kernel, which is (64, 256)."""
RANKS = {"data": 2, "model": 2, "both": 1}
QUICK = "--xla_backend_optimization_level=0"
"""To optimize what is compiled takes longer than all steps."""
FLAGS = {"both": f"{QUICK} --xla_force_host_platform_device_count=4"}
"""As in jax_mesh.yaml: one process with four devices. Several processes with several CPUs each may stop in gloo."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A second start finds what JAX compiled in the first: a third of its work."""
    folder = str(tmp_path_factory.mktemp("compiled"))
    return {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


@pytest.mark.parametrize(
    "layout",
    ["data", pytest.param("model", marks=pytest.mark.long), pytest.param("both", marks=pytest.mark.long)],
)
def test_ranks_of_jax_train_and_a_killed_one_takes_all_back_to_rank_0s_checkpoint(
    local_cluster: Cluster, compiled: dict[str, str], layout: str
) -> None:
    cluster, epochs = local_cluster, 20
    env = {"KERAS_BACKEND": "jax", "XLA_FLAGS": FLAGS.get(layout, QUICK), **compiled}
    ranks = RANKS[layout]
    spec = cluster.spec(
        *("--layout", layout, "--epochs", str(epochs)),
        tasks=ranks,
        strategy="processes",
        script="jax_processes.py",
        workdir=str(EXAMPLES),
        env=env,
        restart={"backoff": "0.5s"},
    )
    cluster.ok("up", spec, timeout=60)
    before = cluster.wait_step(2 * STEPS, timeout=90)
    os.kill(before["tasks"][-1]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED", timeout=120)
    ended = (run["phase"], run["restarts"], run["global_step"])
    assert ended == ("SUCCEEDED", 1, epochs * STEPS), cluster.ok("logs", "t", "--tail", "60")
    (resumed,) = cluster.events(kind="resumed")
    given = resumed["data"]["global_step"]
    assert given >= STEPS
    log = cluster.ok("logs", "t")
    for rank in range(ranks):
        for start in (0, given):
            began = f"rank {rank} of {ranks}: {max(2, 4 // ranks)} devices, {PART[layout]} of the kernel (64, 256)"
            assert f"{began} on each, starts at step {start}\n" in log
        assert f"rank {rank} is done at step {epochs * STEPS}\n" in log

"""Horovod's ranks through `orch up`, wired and met as the real ones would be (those are under `make test-horovod`)."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.host.agent.probe import own_name
from tests.cluster.cluster import Cluster

FAKE = Path(__file__).parents[1] / "contract/scripts/fake_horovod"
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_ranks_meet_at_our_rendezvous_and_a_killed_one_takes_all_back_to_rank_0s_checkpoint(
    local_cluster: Cluster,
) -> None:
    cluster = local_cluster
    cluster.ok("up", spec(cluster, tasks=3), timeout=60)
    before = cluster.wait_step(40)
    os.kill(before["tasks"][2]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED")
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 1), cluster.ok("logs", "t")
    (resumed,) = cluster.events(kind="resumed")
    given = resumed["data"]["global_step"]
    assert given >= 10
    log = cluster.ok("logs", "t")
    for rank in range(3):
        for start in (0, given):
            assert f"rank {rank} of 3 (local {rank}) starts at step {start}\n" in log
    # The others save nothing, and their copy of the checkpoint is thrown away.
    assert [("scratch" in line) for line in sorted(log.splitlines()) if "is done at step 300" in line] == [
        False,
        True,
        True,
    ]


def test_a_pytorch_script_is_told_its_rank_and_resumes_from_its_own_files(local_cluster: Cluster) -> None:
    """By its contract, the environment: neither PyTorch nor TensorFlow is imported by anybody."""
    cluster = local_cluster
    cluster.ok("up", spec(cluster, "--steps", "600", tasks=2, script="horovod_torch_trainer.py"), timeout=60)
    before = cluster.wait_step(60)
    os.kill(before["tasks"][1]["pid"], signal.SIGKILL)
    run = cluster.wait_phase("SUCCEEDED", "FAILED")
    log = cluster.ok("logs", "t")
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 1), log
    given = cluster.events(kind="resumed")[0]["data"]["global_step"]
    assert given >= 20
    for rank in (0, 1):
        for start in (0, given):
            assert f"rank {rank} of 2 uses cuda:{rank}, starts at step {start}\n" in log


@pytest.mark.tensorflow
@pytest.mark.timeout(180)
def test_the_tape_example_warms_up_and_ends_with_the_same_weights_on_all_ranks(
    local_cluster: Cluster,
) -> None:
    """Averaged gradients and broadcast beginnings, in real TensorFlow; the library is the fake."""
    cluster = local_cluster
    env = {"PYTHONPATH": str(FAKE), "TF_CPP_MIN_LOG_LEVEL": "2"}
    args = ("--steps", "80", "--warmup", "40", "--save-every", "20")
    run = {"script": "horovod_tape.py", "workdir": str(EXAMPLES)}
    up = cluster.orch("up", spec(cluster, *args, tasks=2, env=env, **run), "--wait", timeout=120)
    log = cluster.ok("logs", "t")
    assert up.returncode == 0, log
    assert cluster.run()["checkpoint"]["global_step"] == 80
    ended = re.findall(r"rank \d is done at step 80, loss .*(rate 0\.1, weights [\d.]+)", log)
    assert len(ended) == 2
    assert len(set(ended)) == 1, "averaged over the ranks"


def test_without_horovod_nothing_is_started(local_cluster: Cluster) -> None:
    done = local_cluster.orch("up", spec(local_cluster, tasks=2, env={}), timeout=60)
    assert done.returncode == 6, done.stderr
    assert "horovod" in done.stderr
    assert "horovod_trainer.py" in done.stderr, "the file that imports it"
    assert not local_cluster.events(kind="generation")


@pytest.mark.lab
def test_hosts_that_know_themselves_as_loopback_are_refused_before_the_start(cluster: Cluster) -> None:
    known_as = own_name(os.uname().nodename)
    if known_as["why"] is None and not (known_as["address"] or "").startswith(("127.", "::1")):
        pytest.skip("THIS MACHINE'S NAME RESOLVES TO AN ADDRESS OF ITS OWN: no trap to find")
    done = cluster.orch("up", spec(cluster, tasks=2), timeout=60)
    assert done.returncode == 1, done.stderr
    assert "gloo" in done.stderr
    assert "/etc/hosts" in done.stderr
    assert not cluster.events(kind="generation"), "nothing was started"


def spec(cluster: Cluster, *args: str, tasks: int, env: dict[str, str] | None = None, **run: Any) -> str:
    return cluster.spec(
        *(args or ("--steps", "300")),
        tasks=tasks,
        strategy="horovod",
        env={"PYTHONPATH": str(FAKE)} if env is None else env,
        **{"script": "horovod_trainer.py", **run},
    )

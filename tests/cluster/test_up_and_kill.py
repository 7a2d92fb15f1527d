"""A run from `orch up` to its end or to `orch kill`, once, twice, and at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cluster.cluster import Cluster, lab_of

pytestmark = pytest.mark.lab


def test_trains_over_ssh_to_the_end_and_leaves_nothing(cluster: Cluster) -> None:
    done = cluster.orch("up", cluster.spec("--steps", "60", "--lockstep", tasks=3), "--wait", timeout=60)
    assert done.returncode == 0, done.stderr
    run = cluster.run()
    assert run["phase"] == "SUCCEEDED"
    assert run["run_id"] == done.stdout.strip()
    assert run["restarts"] == 0
    assert [task["exit_code"] for task in run["tasks"]] == [0, 0, 0]
    assert set(run["proof"]["hosts"]) == {host.name for host in lab_of(cluster).hosts}
    assert cluster.marked() == []
    assert "worker:2 done at step 60" in cluster.ok("logs", "t", "worker:2")


@pytest.mark.fault(8, 54)
def test_row_08_and_54_kill_ends_what_ignores_sigterm_and_may_be_repeated(cluster: Cluster) -> None:
    spec = cluster.spec()
    first = cluster.ok("up", spec)
    cluster.wait_step(10)
    assert cluster.ok("up", spec) == first, "the same plan again is the run that is there"
    killed = cluster.orch("kill", "t")
    assert killed.returncode == 0, killed.stderr
    assert cluster.run()["phase"] == "KILLED"
    assert cluster.marked() == []
    assert cluster.orch("kill", "t").returncode == 0


@pytest.mark.fault(54)
def test_row_54_up_and_kill_together_end_in_one_state(cluster: Cluster) -> None:
    spec = cluster.spec()
    command = [sys.executable, "-m", "orchestrator.cli.main"]
    cluster.ok("coordinator", "start")
    for _ in range(3):
        ups = [
            subprocess.Popen(
                [*command, "up", spec, "--detach"],
                env=cluster.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        kill = subprocess.Popen(
            [*command, "kill", "--all"], env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for process in (*ups, kill):
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
    assert cluster.orch("kill", "--all").returncode == 0
    assert cluster.run()["phase"] == "KILLED"
    assert cluster.marked() == []

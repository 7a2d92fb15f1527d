"""The share is unmounted on one host: waited for and named, and no task starts from another step than its peers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, steps_logged
from tests.cluster.lab import LabHost

pytestmark = pytest.mark.lab

QUICK = {"heartbeat": "0.3s", "unreachable_after": "1.5s", "lost_after": "3s", "kill_grace": "3s"}


@pytest.fixture
def share(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Mount a directory where the run saves, as every host sees it."""
    (tmp_path / "server").mkdir()
    mounted = cluster.directory / "ckpt"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path / "server"), str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def pid_of(run: dict[str, Any], host: str) -> int:
    return next(int(task["pid"]) for task in run["tasks"] if task["host"] == host)


@pytest.mark.fault(111)
@pytest.mark.parametrize(
    "index",
    [
        pytest.param(
            1, id="of a worker", marks=pytest.mark.long
        ),  # the chief's, which saves, is the worse loss
        pytest.param(0, id="of the chief"),
    ],
)
def test_row_111_a_share_that_is_gone_on_one_host_is_named_and_waited_for(
    cluster: Cluster, victim: Callable[[int], LabHost], share: Path, tmp_path: Path, index: int
) -> None:
    host = victim(index)
    with host.own_mounts():
        cluster.ok("up", cluster.spec("--lockstep", "--talk", timing=QUICK, restart={"backoff": "0.1s"}))
        before = cluster.wait(lambda run: run["checkpoint"] is not None)
        host.unmount(share)
        os.kill(pid_of(before, host.name), signal.SIGKILL)
        sentence = f"{share} on {host.name} is not the directory in which the run saves"
        cluster.wait(
            lambda run: run["phase"] == "BACKOFF" and bool(named(cluster, host.name, share)), timeout=60
        )
        told = named(cluster, host.name, share)
        assert any(sentence in text or "its share is not mounted" in text for text in told), told
        assert "verified, then removed" not in cluster.ok("status")
        assert host.listed(share) == [], "nothing is saved where nobody would find it"
        waiting = cluster.run()
        assert host.name in cluster.ok("why", "t") + cluster.ok("status")

        host.mount(tmp_path / "server", share)
        after = cluster.wait(
            lambda run: run["phase"] == "RUNNING" and run["generation"] > before["generation"], timeout=90
        )
        step = after["checkpoint"]["global_step"]
        assert step >= before["checkpoint"]["global_step"]
        assert waiting["phase"] == "BACKOFF"
        cluster.wait_step(step + 20)
        for resumed in cluster.events(kind="resumed"):
            assert resumed["data"]["global_step"] >= before["checkpoint"]["global_step"]
        assert [event["message"] for event in cluster.events(kind="from-start")] == [
            "no checkpoint yet: generation 1 starts at step 0"
        ]
        for task in ("worker:0", "worker:1"):
            assert steps_logged(cluster, task).count(1) <= 1, "nobody began anew"


def test_doctor_names_the_host_that_does_not_see_the_share_of_an_active_run(
    cluster: Cluster, victim: Callable[[int], LabHost], share: Path
) -> None:
    host = victim(1)
    with host.own_mounts():
        spec = cluster.spec("--lockstep", "--talk", timing=QUICK, env=cluster.importing_quickly())
        cluster.ok("up", spec)
        cluster.wait(lambda run: run["checkpoint"] is not None)
        assert lacking(cluster, spec) == []
        host.unmount(share)
        ((which, message),) = lacking(cluster, spec)
        assert which == host.name
        assert (
            f"the checkpoint directory {share} on this host is not the one in which the run saves" in message
        )
        assert host.listed(share) == [], "nothing is made where the share is not"
        cluster.ok("kill", "t")
        assert lacking(cluster, spec) == [], "without a run nobody knows which directory is meant"


def lacking(cluster: Cluster, spec: str) -> list[tuple[str, str]]:
    """Return the hosts of which `orch doctor` says that they do not see the share, and what it says."""
    found = json.loads(cluster.orch("doctor", spec, "--json").stdout)["findings"]
    assert any(one["id"] == "ssh.round-trip" for one in found), found
    return [(one["host"], one["message"]) for one in found if one["id"] == "storage.share"]


def named(cluster: Cluster, host: str, share: Path) -> list[str]:
    """Return what the events say of the share on that host."""
    return [
        event["message"]
        for event in cluster.events()
        if host in event["message"] and str(share) in event["message"] and "not mounted" in event["message"]
    ]

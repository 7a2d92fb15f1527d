"""The queue end to end: who waits begins when what it needs is free, also over the end of a coordinator."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.cluster.cluster import Cluster, wait_until

pytestmark = pytest.mark.lab


@pytest.mark.fault(120)
def test_a_run_waits_for_what_another_holds_and_begins_when_that_ends(local_cluster: Cluster) -> None:
    """They want one checkpoint directory, which is as exclusive as a GPU, and needs none."""
    orch = local_cluster
    orch.ok("up", orch.spec(tasks=1, time_limit="1h"), "--detach")
    second = orch.spec(tasks=1, name="u")
    refused = orch.orch("up", second)
    assert refused.returncode == 6
    assert "or wait for it with `orch up --queue`" in refused.stderr
    waits = orch.ok("up", second, "--queue", "--detach").strip()
    third = orch.spec(tasks=1, name="v", queue={"priority": "high", "max_wait": "2h"})
    urgent = orch.ok("up", third, "--detach").strip()
    again = orch.orch("up", second, "--detach")
    assert again.stdout.strip() == waits
    assert f"{waits} waits in the queue with this plan; nothing has changed" in again.stderr

    os.kill(int(json.loads(orch.ok("coordinator", "status", "--json"))["pid"]), signal.SIGKILL)
    orch.ok("coordinator", "start")
    queue = json.loads(orch.ok("queue", "--json"))["queue"]
    assert [turn["run_id"] for turn in queue] == [urgent, waits], "the higher priority is first"
    assert queue[0]["waits_for"][0]["needs"] == [str(orch.directory / "ckpt")]
    assert (queue[0]["priority"], queue[1]["begins_in_s"]) == ("high", None), (
        "the first has no limit of its own"
    )
    assert 3000 < queue[0]["begins_in_s"] <= 3600
    shown = orch.shown("u")
    assert shown is not None
    assert (shown["phase"], shown["reason"].startswith("waits in the queue for")) == ("QUEUED", True)
    assert urgent in orch.ok("queue").splitlines()[1]

    orch.ok("kill", "v")
    orch.ok("kill", "t")
    wait_until(lambda: (orch.shown("u") or {}).get("phase") == "RUNNING", "its turn has come")
    assert json.loads(orch.ok("queue", "--json"))["queue"] == []
    kinds = [event["kind"] for event in orch.events("u")]
    assert kinds.index("queued") < kinds.index("submitted") < kinds.index("running")

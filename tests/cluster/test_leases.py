"""Several heads and users share the GPUs of hosts: each is leased to one run, and the others are told to whom."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, lab_of, wait_until

pytestmark = pytest.mark.lab


_NVIDIA_SMI = """#!/bin/sh
case "$1" in --query-gpu=*) printf 'GPU-1111\\nGPU-2222\\n';; esac
"""


@pytest.fixture
def second(cluster: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Another head node over the same hosts, which have two GPUs each."""
    tool = lab_of(cluster).dir / "bin" / "nvidia-smi"
    tool.write_text(_NVIDIA_SMI)
    tool.chmod(0o755)
    made = Cluster(tmp_path / "second", lab_of(cluster))
    made.directory.mkdir()
    yield made
    made.orch("kill", "--all", "--force")
    made.orch("coordinator", "stop")
    made._short.cleanup()
    tool.unlink()


def with_gpus(cluster: Cluster, gpus: list[int], hosts: int = 1) -> list[dict[str, Any]]:
    return [{**host, "gpus": gpus} for host in cluster.hosts(hosts)]


@pytest.mark.fault(99)
def test_row_99_two_heads_that_begin_at_the_same_moment_on_one_gpu(cluster: Cluster, second: Cluster) -> None:
    heads = (cluster, second)
    specs = [
        head.spec(
            tasks=1, name=name, hosts=with_gpus(head, [0]), checkpoint={"dir": str(head.directory / "c")}
        )
        for head, name in zip(heads, ("t", "u"), strict=True)
    ]
    with ThreadPoolExecutor(2) as at_once:
        ended = list(at_once.map(lambda one: one[0].orch("up", one[1]), zip(heads, specs, strict=True)))
    assert sorted(done.returncode for done in ended) == [0, 6], [done.stderr for done in ended]
    winner = 0 if ended[0].returncode == 0 else 1
    holder, other = heads[winner], heads[1 - winner]
    run_id = ended[winner].stdout.strip()
    said = ended[1 - winner].stderr
    assert f"GPU 0 is held by {run_id} of user root, begun on " in said
    assert ", since 20" in said
    assert "`orch up --queue` waits for it" in said

    waits = other.ok("up", specs[1 - winner], "--queue", "--detach").strip()
    name = waits.rsplit("-", 2)[0]

    def told() -> str:
        queue = json.loads(other.ok("queue", "--json"))["queue"]
        return str(queue[0]["others"]) if queue else ""

    wait_until(lambda: f"held by {run_id}" in told(), "the queue says what another head holds")
    assert run_id in other.ok("queue")
    holder.kill_coordinator()  # its agents end with it, and its task holds the GPU on
    beside = other.spec(tasks=1, name="v", hosts=with_gpus(other, [0]), checkpoint=False)
    other.ok("kill", name)
    refused = other.orch("up", beside)
    assert refused.returncode == 6
    assert f"GPU 0 is held by {run_id}" in refused.stderr

    holder.ok("coordinator", "start")
    holder.wait(lambda run: run["phase"] == "RUNNING" and run["restarts"] == 0) if winner == 0 else None
    free = other.spec("--steps", "5", tasks=1, name="w", hosts=with_gpus(other, [1]), checkpoint=False)
    assert other.orch("up", free, "--wait").returncode == 0, "the other GPU is free"
    holder.ok("kill", "--all")
    assert other.orch("up", beside, "--detach").returncode == 0
    wait_until(lambda: (other.shown("v") or {}).get("phase") == "RUNNING", "the GPU is free at once")


@pytest.mark.long
def test_a_run_makes_way_for_a_higher_priority_and_goes_on_later_from_its_checkpoint(
    cluster: Cluster, second: Cluster
) -> None:
    """The run of the higher priority gets the GPU from the other, which is of the same head."""
    del second  # its hosts have GPUs
    one = with_gpus(cluster, [0])
    low = cluster.spec("--steps", "1000000", tasks=1, hosts=one, queue={"priority": "low"})
    run_id = cluster.ok("up", low, "--detach").strip()
    cluster.wait(lambda run: (run["checkpoint"] or {}).get("global_step") is not None)
    other = {"dir": str(cluster.directory / "other")}
    high = cluster.spec(
        "--steps",
        "40",
        tasks=1,
        name="u",
        hosts=one,
        checkpoint=other,
        queue={"priority": "high", "preempt": True},
    )
    assert cluster.orch("up", high, "--wait", timeout=120).returncode == 0
    events = cluster.events()
    assert [event["kind"] for event in events].count("queued") == 2
    after = cluster.wait(lambda run: run["phase"] == "RUNNING" and (run["global_step"] or 0) > 0, timeout=90)
    assert (after["run_id"], after["generation"]) == (run_id, 2)
    (resumed,) = cluster.events(kind="resumed")
    saved = re.search(r"makes way for u-.*saved at step (\d+)", json.dumps(events))
    assert saved is not None
    assert f"generation 2 resumes from step {saved[1]};" in resumed["message"]

"""What the head node keeps: its disk is full, it is killed at each write, and somebody has a copy of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cluster import killed_at_a_write
from tests.cluster.cluster import Cluster, lab_of, steps_logged, wait_until
from tests.cluster.lab import LabHost
from tests.cluster.processes import freeze
from tests.contract.small_disk import mounted
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab


@pytest.mark.fault(34)
def test_row_34_the_disk_of_the_head_fills_up_while_tasks_train(
    cluster: Cluster, tmp_path: Path, fault_times: FaultTimes
) -> None:
    with mounted(tmp_path / "small", megabytes=4) as disk:
        cluster.env["ORCH_STATE_DIR"] = str(disk.path / "state")
        spec, another = cluster.spec("--talk"), cluster.spec(name="u", checkpoint=False)
        try:
            cluster.ok("up", spec)
            before = cluster.wait_step(20)
            fault_times.inject()
            disk.fill()
            for command in (("kill", "t"), ("up", another)):
                refused = cluster.orch(*command)
                assert refused.returncode == 1, refused.stderr
                assert "state disk full" in refused.stderr
            assert "state disk full" in cluster.orch("status").stderr
            fault_times.noticed()
            # Status may show an older step: a report with something to decide is held whole, with its numbers.
            wanted = before["global_step"] + 150
            wait_until(
                lambda: min(map(steps_on_host, lab_of(cluster).hosts[:2])) > wanted, "both tasks train on"
            )
            assert cluster.run()["phase"] == "RUNNING"
            assert "running" in {event["kind"] for event in cluster.events()}, "reads work"
            assert cluster.orch("up", spec).returncode == 0, "to be told that it is there is no change"
            disk.empty()
            cluster.kill_coordinator()
            cluster.ok("coordinator", "start")  # it takes no journal that is damaged
            after = cluster.wait_step(wanted + 50)
            assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
            assert (after["restarts"], after["generation"]) == (0, before["generation"])
            cluster.wait(lambda _: steps_logged(cluster, "worker:1")[-1] > wanted)
            for task in ("worker:0", "worker:1"):
                steps = steps_logged(cluster, task)
                assert steps == list(range(1, len(steps) + 1)), "no line is missing, and none is there twice"
            assert cluster.orch("kill", "t").returncode == 0
            assert cluster.run()["phase"] == "KILLED"
        finally:
            cluster.orch("kill", "--all", "--force")
            cluster.orch("coordinator", "stop")


def steps_on_host(host: LabHost) -> int:
    """Return the newest step that the fake trainer on a host with one task has named in its log there."""
    (log,) = host.host_dir.glob("runs/*/tasks/*/gen-000001/log")
    return int(re.findall(rb" at step (\d+)\n", log.read_bytes())[-1])


def copied(first: Cluster, directory: Path) -> Cluster:
    """Another head node with a copy of the first one's state, as from a backup; the first one goes on."""
    pid = first.coordinator_pid
    second = Cluster(directory, lab_of(first))
    freeze(pid)  # so that the copy is whole
    try:
        shutil.copytree(first.directory / "state", second.directory / "state")
    finally:
        os.kill(pid, signal.SIGCONT)
    return second


@pytest.mark.fault(40)
def test_row_40_of_two_heads_that_drive_one_run_the_shims_obey_the_newer(
    cluster: Cluster, tmp_path: Path, fault_times: FaultTimes
) -> None:
    older = cluster
    older.ok("up", older.spec("--talk", restart={"backoff": "0.2s"}))
    before = older.wait(lambda run: run["checkpoint"] is not None)
    newer = copied(older, tmp_path / "second")
    try:
        newer.ok("coordinator", "start")
        adopted = newer.wait_step(before["global_step"] + 20)
        assert [t["pid"] for t in adopted["tasks"]] == [t["pid"] for t in before["tasks"]]
        assert adopted["epoch"] == before["epoch"] + 1
        fault_times.inject(adopted["generation"])
        os.kill(before["tasks"][1]["pid"], signal.SIGKILL)  # both heads see it, and both decide what follows
        fault_times.wait_again(newer)
        told = [event["message"] for event in older.events(kind="order-failed")]
        assert any("a coordinator of epoch 2 has taken over" in message for message in told), told
        killed = older.orch("kill", "t", "--force")
        assert killed.returncode != 0, "it cannot prove that nothing is left"
        after = newer.run()
        assert sorted(newer.marked()) == sorted(task["pid"] for task in after["tasks"]), (
            "one gang, and no other"
        )
        later = newer.wait_step(after["global_step"] + 50)
        assert [t["pid"] for t in later["tasks"]] == [t["pid"] for t in after["tasks"]]
        assert (later["restarts"], later["generation"]) == (1, before["generation"] + 1)
        assert newer.orch("kill", "t").returncode == 0
        assert newer.marked() == []
    finally:
        newer.orch("kill", "--all", "--force")
        newer.orch("coordinator", "stop")


def write_by_write(long: bool) -> Iterator[tuple[int, str]]:
    """Yield the moments before and after each write; where there is little time, one at every fifth."""
    for number in count(1):
        if long:
            yield from ((number, "before"), (number, "after"))
        elif number % 5 == 1:
            yield number, "before" if number % 10 == 1 else "after"


@pytest.mark.timeout(1200)
@pytest.mark.fault(37)
def test_row_37_killed_at_each_write_of_a_whole_run_it_is_done_once(
    local_cluster: Cluster, long: bool
) -> None:
    cluster = local_cluster
    killed_at_a_write.prepare(cluster)
    for number, when in write_by_write(long):
        name, told = f"t{number}-{when}", f"killed {when} write {number}"
        if not survives(cluster, when, number, name):
            break
        run = cluster.run(name)
        assert (run["phase"], run["restarts"], run["generation"]) == ("SUCCEEDED", 0, 1), told
        said = cluster.ok("logs", name)
        assert [said.count(f"at step {step}\n") for step in range(1, STEPS)] == [1] * (STEPS - 1), told
        cluster.ok("coordinator", "stop")
    assert number > 10, "a whole run writes more often"


STEPS = 10


def survives(cluster: Cluster, when: str, number: int, name: str) -> bool:
    """Submit a run, and kill the coordinator at that write; see it to its end. False where it never came so far."""
    args = ("--steps", str(STEPS), "--save-every", "5", "--talk")
    spec = cluster.spec(
        *args, tasks=1, name=name, checkpoint={"dir": str(cluster.directory / f"ckpt-{name}")}
    )
    killed = killed_at_a_write.arm(cluster, when, number)
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli.main", "up", spec, "--wait"],
        env=cluster.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as up:
        wait_until(lambda: killed.exists() or up.poll() is not None, f"the end, or write {number}")
        killed_at_a_write.disarm(cluster)
        if killed.exists():
            cluster.ok("coordinator", "start")
        said, complained = up.communicate(timeout=60)
    assert up.returncode in ((0, 3) if killed.exists() else (0,)), complained
    runs = json.loads(cluster.ok("status", "--json"))["runs"]
    kept = [run["run_id"] for run in runs if run["name"] == name]
    assert kept == [said.strip()] if said else len(kept) <= 1, "what was acknowledged is there, once"
    if not kept:
        cluster.ok("up", spec, "--wait")
    wait_until(lambda: cluster.run(name)["phase"] == "SUCCEEDED", "it is done")
    return killed.exists()


@pytest.mark.timeout(600)
@pytest.mark.fault(37)
def test_row_37_a_kill_that_was_acknowledged_is_done_whatever_becomes_of_its_coordinator(
    local_cluster: Cluster, long: bool
) -> None:
    cluster, acknowledged = local_cluster, 0
    killed_at_a_write.prepare(cluster)
    spec = cluster.spec(tasks=1, checkpoint=False)
    for number in range(1, 9 if long else 4):
        cluster.ok("up", spec)
        cluster.wait_step(5)
        cluster.ok("coordinator", "stop")
        asked = cluster.directory / f"asked-{number}"
        killed = killed_at_a_write.arm(cluster, "after", number, since=asked)
        cluster.ok("coordinator", "start")
        killed_at_a_write.disarm(cluster)
        cluster.wait_step(cluster.run()["global_step"] + 1)
        asked.touch()
        answer = cluster.try_kill()
        wait_until(lambda: killed.exists() or (cluster.shown() or {}).get("phase") == "KILLED", "its write")  # noqa: B023
        cluster.orch("coordinator", "stop")  # where it was not killed
        cluster.ok("coordinator", "start")
        if answer:
            acknowledged += killed.exists()
            cluster.wait_phase("KILLED")
        assert cluster.orch("kill", "t").returncode == 0
        assert cluster.run()["phase"] == "KILLED"
        assert cluster.marked() == []
    assert acknowledged > 0, "none was killed between its word and the end: this shows nothing"

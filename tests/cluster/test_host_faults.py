"""Hosts that answer and misbehave: unkillable tasks, frozen agents, other software, busy GPUs, clocks that jump."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster import stand_in_python
from tests.cluster.cluster import Cluster, lab_of, wait_until
from tests.cluster.processes import agents
from tests.faults.times import FaultTimes

pytestmark = pytest.mark.lab

FREEZER = Path("/sys/fs/cgroup/freezer")
QUICK = {"heartbeat": "0.3s", "unreachable_after": "1.5s", "lost_after": "8s", "kill_grace": "1s"}


@contextlib.contextmanager
def unkillable(pid: int) -> Iterator[None]:
    """Put a process into an uninterruptible wait: the freezer of control groups v1 lets no signal through."""
    group = FREEZER / f"orch-test-{os.getpid()}"
    if os.geteuid() != 0 or not (FREEZER / "cgroup.procs").exists():
        pytest.skip("NO FREEZER OF CONTROL GROUPS v1 HERE: no process can be made unkillable")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        while (group / "freezer.state").read_text().strip() != "FROZEN":
            time.sleep(0.01)
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        deadline = time.monotonic() + 10
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        group.rmdir()


@pytest.mark.fault(9)
def test_row_09_what_cannot_be_killed_is_named_and_nothing_starts_beside_it(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec(timing=QUICK))
    task = cluster.wait_step(10)["tasks"][1]
    with unkillable(task["pid"]):
        fault_times.inject()
        killed = cluster.orch("kill", "t", timeout=60)
        fault_times.noticed()
        assert killed.returncode == 6, killed.stderr
        assert str(task["pid"]) in killed.stderr
        assert task["host"] in killed.stderr
        run = cluster.run()
        assert run["phase"] == "KILLED"
        assert cluster.marked() == [task["pid"]], "and nothing else is left"
    wait_until(lambda: not cluster.marked(), "its end")


@pytest.mark.fault(9)
def test_row_09_the_run_itself_goes_on_beside_it_only_on_another_host(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    hosts = [*cluster.hosts(2), {**cluster.hosts(3)[2], "spare": True}]
    cluster.ok("up", cluster.spec(hosts=hosts, timing=QUICK, restart={"backoff": "0.1s"}))
    before = cluster.wait_step(10)
    first, second = before["tasks"]
    with unkillable(second["pid"]):
        fault_times.inject(before["generation"])
        os.kill(first["pid"], signal.SIGKILL)
        after = fault_times.wait_again(cluster)
        assert [task["host"] for task in after["tasks"]] == [first["host"], hosts[2]["name"]]
        (host,) = [host for host in after["hosts"] if host["host"] == second["host"]]
        assert host["state"] == "stuck"
        assert f"pid {second['pid']} " in host["reason"]
        assert f"{second['host']} stuck: pid {second['pid']} " in cluster.ok("status", "t")
    cluster.wait(lambda run: all(host["state"] != "stuck" for host in run["hosts"]))
    assert "what could not be killed is gone" in cluster.events(kind="host-open")[-1]["message"]


@pytest.mark.fault(65)
def test_row_65_no_run_of_any_head_gets_tasks_beside_it(
    cluster: Cluster, tmp_path: Path, fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec(timing=QUICK))
    task = cluster.wait_step(10)["tasks"][1]
    (tmp_path / "other-head").mkdir()
    other_head = Cluster(tmp_path / "other-head", lab_of(cluster))
    try:
        with unkillable(task["pid"]):
            fault_times.inject()
            assert cluster.orch("kill", "t", timeout=60).returncode == 6
            for head in (cluster, other_head):
                spec = head.spec(timing=QUICK)
                checked = head.orch("validate", "--hosts", spec)
                started = head.orch("up", spec, "--wait", timeout=60)
                fault_times.noticed()
                for asked in (checked, started):
                    assert asked.returncode == 6, asked.stderr
                    assert f"{task['host']} gets no task" in asked.stderr
                    assert f"pid {task['pid']} (python" in asked.stderr
                    assert "reboot the host" in asked.stderr
                assert head.run()["phase"] == "FAILED"
        other_head.ok("up", other_head.spec(timing=QUICK))
        other_head.wait_step(10)
    finally:
        other_head.close()


@pytest.mark.fault(11)
def test_row_11_a_frozen_agent_obeys_nothing_of_an_older_generation_when_it_thaws(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec(timing=QUICK, restart={"backoff": "0.1s"}))
    before = cluster.wait_step(20)
    (agent,) = agents(lab_of(cluster).hosts[1].host_dir)
    fault_times.inject(before["generation"])
    os.kill(agent, signal.SIGSTOP)
    try:
        # Its end is ordered of the frozen agent too, which will read that when all of it is over.
        os.kill(before["tasks"][0]["pid"], signal.SIGKILL)
        after = fault_times.wait_again(cluster)
    finally:
        os.kill(agent, signal.SIGCONT)
    there = lab_of(cluster).hosts[1].host_dir
    wait_until(lambda: agent not in agents(there), "it has read all, and ended")
    later = cluster.wait_step(after["global_step"] + 50)
    assert [t["pid"] for t in later["tasks"]] == [t["pid"] for t in after["tasks"]]
    assert (later["generation"], later["restarts"]) == (after["generation"], 1)


@pytest.mark.fault(11)
def test_row_11_while_its_agent_is_frozen_a_host_is_unreachable_and_trains(
    cluster: Cluster, fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec(timing=QUICK))
    before = cluster.wait_step(20)
    (agent,) = agents(lab_of(cluster).hosts[1].host_dir)
    fault_times.inject()
    os.kill(agent, signal.SIGSTOP)
    try:
        cluster.wait(lambda _: bool(cluster.events(kind="host-unreachable")), timeout=20)
        fault_times.noticed_by(cluster.events(kind="host-unreachable"))
        after = cluster.wait(lambda run: run["tasks"][1]["phase"] == "RUNNING", timeout=30)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]


@pytest.mark.fault(22)
def test_row_22_hosts_that_differ_are_refused_with_the_table(cluster: Cluster, tmp_path: Path) -> None:
    hosts = cluster.hosts(2)
    hosts[1]["python"] = str(stand_in_python.make(tmp_path / "other", versions={"keras": "3.99.0"}))
    refused = cluster.orch("up", cluster.spec(hosts=hosts))
    assert refused.returncode == 6, refused.stderr
    assert "the hosts differ in keras" in refused.stderr
    assert "3.99.0" in refused.stderr
    assert cluster.events(kind="generation") == [], "nothing was started"


_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  -L) printf 'GPU %s\\n' '0: A100 (UUID: GPU-1111)' '1: A100 (UUID: GPU-2222)';;
  --query-compute-apps=*) printf '%s, GPU-2222, /usr/bin/python3\\n' {pid};;
esac
"""


@pytest.mark.fault(23)
def test_row_23_a_gpu_in_use_by_somebody_else_is_refused_and_he_lives(cluster: Cluster) -> None:
    lab = lab_of(cluster)
    somebody = subprocess.Popen(
        ["sleep", "100"], user="nobody" if os.geteuid() == 0 else None, start_new_session=True
    )
    tool = lab.dir / "bin" / "nvidia-smi"  # on the PATH of the lab's hosts alone
    tool.write_text(_NVIDIA_SMI.format(pid=somebody.pid))
    tool.chmod(0o755)
    try:
        hosts = cluster.hosts(1)
        hosts[0]["gpus"] = [0, 1]
        refused = cluster.orch("up", cluster.spec(tasks=1, hosts=hosts))
        assert refused.returncode == 6, refused.stderr
        assert f"GPU 1 by pid {somebody.pid}" in refused.stderr
        assert os.geteuid() != 0 or "of nobody" in refused.stderr
        assert somebody.poll() is None
        hosts[0]["gpus"] = [0]
        done = cluster.orch("up", cluster.spec("--steps", "5", tasks=1, hosts=hosts), "--wait")
        assert done.returncode == 0, done.stderr
    finally:
        tool.unlink()
        somebody.kill()
        somebody.wait()


_JUMPING_CLOCK = """
import time
_true = time.time
def _time():
    try:
        with open({offset!r}) as file:
            return _true() + float(file.read() or 0)
    except (OSError, ValueError):
        return _true()
time.time = _time
"""


@pytest.mark.fault(41)
@pytest.mark.long
def test_row_41_a_wall_clock_that_jumps_fires_nothing(cluster: Cluster, tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    clock = _JUMPING_CLOCK.format(offset=str(offset))
    hosts = cluster.hosts(2)
    hosts[1]["python"] = str(stand_in_python.make(tmp_path / "jumpy", sitecustomize=clock))
    head = tmp_path / "head"
    head.mkdir()
    (head / "sitecustomize.py").write_text(clock)
    cluster.env["PYTHONPATH"] = f"{head}{os.pathsep}{cluster.env.get('PYTHONPATH', '')}"
    cluster.ok("up", cluster.spec("--steps", "400", hosts=hosts, timing=QUICK))
    before = cluster.wait_step(20)
    for jump in ("3600", "-3600"):
        offset.write_text(jump)
        step = cluster.shown()["global_step"]  # type: ignore[index]
        after = cluster.wait_step(step + 100)
        assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
        assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    run = cluster.wait_phase("SUCCEEDED", timeout=60)
    assert run["restarts"] == 0
    kinds = [event["kind"] for event in cluster.events()]
    assert not {"host-unreachable", "host-back", "stalled", "backoff"} & set(kinds)
    said = [json.loads(line) for line in cluster.ok("logs", "t", "worker:1", "--json").splitlines()]
    assert "starts at step" in said[0]["text"]
    assert "done at step" in said[-1]["text"]
    assert said[-1]["time"] < said[0]["time"], "the clock has jumped, or this shows nothing"


@pytest.mark.fault(96)
def test_row_96_times_of_a_host_whose_clock_is_hours_off_are_the_heads(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Agent, shim and task of the second host have a clock that is three hours ahead."""
    offset = tmp_path / "offset"
    offset.write_text("10800")
    hosts = cluster.hosts(2)
    clock = _JUMPING_CLOCK.format(offset=str(offset))
    hosts[1]["python"] = str(stand_in_python.make(tmp_path / "ahead", sitecustomize=clock))
    began = time.time()
    spec = cluster.spec("--fail-at", "12", "--fail-task", "worker:1", hosts=hosts, timing=QUICK)
    assert cluster.orch("up", spec, "--wait").returncode == 1
    ended = time.time()
    said = [json.loads(line) for line in cluster.ok("logs", "t", "--json").splitlines()]
    assert {line["task"] for line in said} >= {"worker:0", "worker:1"}
    assert all(began < datetime.fromisoformat(line["time"]).timestamp() < ended for line in said)
    why = json.loads(cluster.ok("why", "t", "--json"))
    assert all(began < cause["ended_time"] < ended for cause in why["first_causes"]), why
    clocks = [event["message"] for event in cluster.events() if event["kind"] == "host-clock"]
    assert len(clocks) == 1
    assert "3 h ahead of that of the head node" in clocks[0]

"""Cuts, one-way cuts, bad wires and resets: SSH trouble is told from the end of a host, and neither from our own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, digests, lab_of, steps_logged, wait_until
from tests.cluster.conftest import MakeLab
from tests.cluster.lab import LabHost
from tests.cluster.processes import freeze
from tests.cluster.proxy import Proxy, Wire
from tests.faults.times import FaultTimes
from tests.patience import patient

pytestmark = pytest.mark.lab

QUICK = {"heartbeat": "0.3s", "unreachable_after": "1.5s", "lost_after": "3s", "kill_grace": "5s"}
PATIENT = {**QUICK, "stall_after": "10m"}
"""For tests that freeze a task for as long as something else takes."""


def placed_on(run: dict[str, Any], host: str) -> dict[str, Any]:
    return next(dict(task) for task in run["tasks"] if task["host"] == host)


@pytest.mark.fault(24)
def test_row_24_the_head_is_cut_off_from_a_host(cluster: Cluster, fault_times: FaultTimes) -> None:
    cluster.ok("up", cluster.spec("--talk", tasks=3))
    before = cluster.wait_step(20)
    victim = lab_of(cluster).hosts[1]
    fault_times.inject()
    victim.drop(source=lab_of(cluster).head_address, to=lab_of(cluster).head_address)
    try:
        cut = cluster.wait(lambda run: run["tasks"][1]["phase"] == "UNREACHABLE", timeout=20)
        fault_times.noticed_by(cluster.events(kind="host-unreachable"))
        during = cluster.wait_step(cut["global_step"] + 200)
        assert "the other tasks make progress" in during["reason"]
        behind = steps_logged(cluster, "worker:1")
        assert behind[-1] < during["global_step"] - 100, "its log cannot follow, or this shows nothing"
    finally:
        victim.heal()
    after = cluster.wait(lambda run: run["tasks"][1]["phase"] == "RUNNING", timeout=40)
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert cluster.events(kind="host-unreachable")
    assert cluster.events(kind="host-back")
    cluster.wait(lambda _: steps_logged(cluster, "worker:1")[-1] > during["global_step"])
    for task in ("worker:0", "worker:1"):
        steps = steps_logged(cluster, task)
        assert steps == list(range(1, len(steps) + 1)), (
            "filled in: no line is missing, and none is there twice"
        )


@pytest.mark.fault(25)
@pytest.mark.long
def test_row_25_a_host_that_is_cut_off_from_everyone_is_lost_and_waited_for(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec("--lockstep", timing=QUICK))
    before = cluster.wait_step(40)
    host = victim(1)
    fault_times.inject(before["generation"])
    host.cut()
    waiting = cluster.wait_phase("BACKOFF", timeout=30)
    fault_times.noticed_by(cluster.events(kind="host-unreachable"))
    lost = cluster.wait(lambda run: "waiting for host-1" in run["reason"], timeout=20)
    assert placed_on(waiting, "host-0")["phase"] in ("EXITED", "LOST"), (
        "nobody is left at a gate that never opens"
    )
    assert lost["first_cause"]["cause"] == "host lost"
    host.heal()
    after = fault_times.wait_again(cluster)
    assert after["restarts"] == 1
    (resumed,) = cluster.events(kind="resumed")
    assert resumed["data"]["global_step"] >= 30, "from a checkpoint, which was saved every 10 steps"
    assert not {t["pid"] for t in after["tasks"]} & {t["pid"] for t in before["tasks"]}


@pytest.mark.parametrize("direction", [pytest.param("to the host", marks=pytest.mark.long), "to the head"])
@pytest.mark.fault(26)
def test_row_26_a_cut_in_one_direction_changes_the_state_once_each_way(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes, direction: str
) -> None:
    cluster.ok("up", cluster.spec(tasks=3, timing=QUICK))
    before = cluster.wait_step(20)
    head = lab_of(cluster).head_address
    host = victim(1)
    fault_times.inject()
    host.drop(**({"source": head} if direction == "to the host" else {"to": head}))
    cut = cluster.wait(lambda run: placed_on(run, "host-1")["phase"] == "UNREACHABLE", timeout=20)
    fault_times.noticed_by(cluster.events(kind="host-unreachable"))
    cluster.wait_step(cut["global_step"] + 50)
    host.heal()
    after = cluster.wait(lambda run: placed_on(run, "host-1")["phase"] == "RUNNING", timeout=40)
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert len(cluster.events(kind="host-unreachable")) == 1, "no flapping"
    assert len(cluster.events(kind="host-back")) == 1


@pytest.mark.fault(32)
def test_row_32_when_most_hosts_vanish_it_is_the_head_that_is_cut_off(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    cluster.ok("up", cluster.spec("--lockstep", tasks=3, timing=QUICK))
    before = cluster.wait_step(20)
    hosts = [victim(1), victim(2)]
    fault_times.inject()
    for host in hosts:
        host.cut()
    cluster.wait(lambda _: bool(cluster.events(kind="cut-off")), timeout=20)
    fault_times.noticed_by(cluster.events(kind="cut-off"))
    time.sleep(4.0)  # longer than lost_after: that nothing happens takes its time
    for host in hosts:
        host.heal()
    after = cluster.wait_step(before["global_step"] + 100, timeout=60)
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert len(cluster.events(kind="cut-off")) == 1, "one notice"
    assert cluster.events(kind="stopping") == []


@pytest.mark.fault(87, 108)
def test_row_87_a_head_that_was_paused_blames_nobody(cluster: Cluster) -> None:
    """A suspended laptop, a paused container, a machine that swaps: the coordinator goes on after `lost_after`."""
    cluster.ok("up", cluster.spec("--lockstep", tasks=3, timing=QUICK))
    before = cluster.wait_step(20)
    pid = cluster.coordinator_pid
    for pause_s in (7.0, 3.5, 4.0, 7.0):  # from just above lost_after to more than twice that
        freeze(pid)
        time.sleep(pause_s)  # the fault is the time that passes
        os.kill(pid, signal.SIGCONT)
        cluster.wait_step(cluster.run()["global_step"] + 20)
    after = cluster.run()
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
    assert cluster.events(kind="host-lost") == cluster.events(kind="stopping") == []


def host_lives(run: dict[str, Any]) -> bool:
    return Path(f"/proc/{run['tasks'][0]['pid']}").exists()


@pytest.mark.fault(27)
def test_row_27_what_comes_back_is_killed_and_has_not_touched_the_new_files(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    first, second, spare = cluster.hosts(3)
    spec = cluster.spec(
        *("--lockstep", "--lonely", "--unfenced"),
        hosts=[first, second, {**spare, "spare": True}],
        timing=PATIENT,
    )
    cluster.ok("up", spec)
    before = cluster.wait(lambda run: (run["global_step"] or 0) > 20 and run["hosts"][-1]["state"] == "spare")
    host = victim(0)
    fault_times.inject(before["generation"])
    host.cut()
    fault_times.wait_again(cluster)
    after = cluster.wait(lambda run: run["global_step"] > 50)
    old, new = (cluster.directory / "ckpt" / f"gen-{run['generation']:06d}" for run in (before, after))
    frozen = [task["pid"] for task in after["tasks"]]
    for pid in frozen:
        freeze(pid)  # so that its files have one content while the zombie lives beside them
    files, stamp = digests(new), (old / "model.weights.h5").stat().st_mtime_ns
    wait_until(
        lambda: (old / "model.weights.h5").stat().st_mtime_ns > stamp, "the zombie saves, into its own"
    )
    assert host_lives(before)
    host.heal()
    healed_at = time.monotonic()
    wait_until(lambda: not host_lives(before), "it is ended")
    assert time.monotonic() - healed_at < patient(20), "a connection, and no more than that"
    assert digests(new) == files, "bit for bit"
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    later = cluster.wait_step(after["global_step"] + 50)
    unchanged = (after["generation"], after["restarts"])
    assert (later["generation"], later["restarts"]) == unchanged, cluster.ok("events", "t")


@pytest.mark.fault(28)
def test_row_28_a_zombie_chief_can_remove_only_its_own_backup(
    cluster: Cluster, victim: Callable[[int], LabHost], fault_times: FaultTimes
) -> None:
    first, *others = cluster.hosts(3)
    hosts = [first, *({**other, "spare": True} for other in others)]
    args = ("--steps", "700", "--remove-backup", "--unfenced")
    cluster.ok("up", cluster.spec(*args, tasks=1, hosts=hosts, timing=PATIENT))
    before = cluster.wait(
        lambda run: run["checkpoint"] is not None and {h["state"] for h in run["hosts"][1:]} == {"spare"}
    )
    zombie = before["tasks"][0]["pid"]
    freeze(zombie)  # it comes to its end when its successor has something to lose
    fault_times.inject(before["generation"])
    victim(0).cut()
    after = fault_times.wait_again(cluster)
    old, new = (cluster.directory / "ckpt" / f"gen-{run['generation']:06d}" for run in (before, after))
    given = digests(new)
    wait_until(lambda: digests(new) != given, "the successor saves, into its own")
    successor = after["tasks"][0]["pid"]
    # It is stopped so that its files do not change while the zombie lives beside them.
    freeze(successor)
    files = digests(new)
    assert old.exists()
    os.kill(zombie, signal.SIGCONT)
    wait_until(lambda: not old.exists(), "it comes to its end, and removes what it takes for its backup")
    assert digests(new) == files, "bit for bit"
    os.kill(successor, signal.SIGCONT)
    run = cluster.wait_phase("SUCCEEDED", "FAILED")
    assert (run["phase"], run["restarts"]) == ("SUCCEEDED", 1), cluster.ok("events", "t")


def behind(cluster: Cluster, proxies: list[Proxy]) -> list[dict[str, Any]]:
    """Return the hosts for a spec, whose sshds are reached through the proxies."""
    lab = lab_of(cluster)
    for host, proxy in zip(lab.hosts, proxies, strict=False):
        key = host.known_hosts_line.partition(" ")[2]
        with lab.known_hosts.open("a") as known:
            known.write(f"[{proxy.address}]:{proxy.port} {key}")
    return [
        {"name": host.name, "address": proxy.address, "port": proxy.port, "data_address": host.address}
        for host, proxy in zip(lab.hosts, proxies, strict=False)
    ]


class Wires:
    """Puts the hosts of a cluster behind wires; answers what a spec calls them then."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.proxies: list[Proxy] = []

    def __call__(self, cluster: Cluster, *wires: Wire) -> list[dict[str, Any]]:
        hosts = lab_of(cluster).hosts
        for host, wire in zip(hosts, wires, strict=False):
            proxy = Proxy((host.address, host.port), wire, f"127.0.0.{2 + host.index}")
            self.proxies.append(self._stack.enter_context(proxy))
        return behind(cluster, self.proxies)


@pytest.fixture
def wired() -> Iterator[Wires]:
    """Proxies, closed at the end."""
    with ExitStack() as stack:
        yield Wires(stack)


@pytest.mark.fault(29)
def test_row_29_a_slow_and_lossy_wire_is_no_reason_for_a_restart(
    cluster: Cluster, wired: Wires, long: bool
) -> None:
    bad = Wire(one_way_s=0.1, loss=0.05)
    timing = {"heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "4s", "kill_grace": "5s"}
    cluster.ok("up", cluster.spec("--lockstep", hosts=wired(cluster, bad, bad), timing=timing))
    before = cluster.wait_step(20)
    pace_s = 0.02
    cluster.wait_step(before["global_step"] + int((60 if long else 8) * 0.6 / pace_s), timeout=120)
    after = cluster.run()
    assert (after["restarts"], after["phase"]) == (0, "RUNNING")
    assert [t["pid"] for t in after["tasks"]] == [t["pid"] for t in before["tasks"]]
    assert cluster.orch("kill", "t").returncode == 0


@pytest.mark.fault(30)
def test_row_30_an_sshd_that_takes_its_time_is_not_lost(cluster: Cluster, wired: Wires, long: bool) -> None:
    hold_s = 15.0 if long else 6.0
    hosts = wired(cluster, Wire(), Wire(hold_s=hold_s))
    done = cluster.orch("up", cluster.spec("--steps", "20", hosts=hosts, timing=QUICK), "--wait", timeout=90)
    assert done.returncode == 0, done.stderr
    assert cluster.run()["restarts"] == 0
    (slow,) = cluster.events(kind="slow")
    assert "host-1" in slow["message"]
    assert cluster.events(kind="host-unreachable") == []


@pytest.mark.fault(33)
def test_row_33_an_order_within_a_reset_is_asked_again_and_done_once(
    tmp_path: Path, make_lab: MakeLab, wired: Wires
) -> None:
    cluster = Cluster(tmp_path, make_lab(2))  # fresh hosts: the agent is pushed as well
    # Within the login, that push, its first orders, and those of the start.
    hosts = wired(cluster, Wire(resets=(2_500, 30_000, 6_200)), Wire(resets=(60_000, 5_500, 6_800)))
    try:
        done = cluster.orch("up", cluster.spec("--steps", "100", hosts=hosts), "--wait", timeout=90)
        assert done.returncode == 0, done.stderr
        run = cluster.run()
        assert (run["phase"], run["restarts"], run["generation"]) == ("SUCCEEDED", 0, 1)
        assert sum(proxy.resets for proxy in wired.proxies) >= 5, "some were reset, or this shows nothing"
        for task in ("worker:0", "worker:1"):
            assert cluster.ok("logs", "t", task).count("starts at step 0") == 1
    finally:
        cluster.close()


CONNECTS = """
import json, os, sys
from jax._src.distributed import State
from orchestrator import runtime
State().initialize()
for step in range(1, 100):
    runtime.report(step)
"""

WAITS_FOR_ITS_PEERS = """
import json, os, socket, time

class State:
    def initialize(self):
        told = json.loads(os.environ["TF_CONFIG"])
        leads, peers = told["task"]["index"] == 0, told["cluster"]["worker"]
        if leads:
            with socket.create_server(("0.0.0.0", int(peers[0].rpartition(":")[2]))) as listener:
                while True:
                    peer = listener.accept()[0]
                    if peer.makefile().readline() == "1\\n":
                        peer.sendall(b"1\\n")
                        return
        host, _, port = peers[0].rpartition(":")
        while True:
            try:
                peer = socket.create_connection((host, int(port)), 60)
                peer.sendall(b"1\\n")
                if peer.recv(2):  # else it was who had held the port until then
                    return
            except OSError:
                time.sleep(0.1)
"""
"""In the place of JAX's, which waits for all processes as TensorFlow's strategy does. The lead closes on others."""


@pytest.mark.fault(85)
def test_row_85_a_run_whose_tasks_do_not_reach_each_other_never_trains(
    cluster: Cluster, tmp_path: Path, fault_times: FaultTimes
) -> None:
    """A firewall between the hosts, then none: real connections, by a library that waits as TensorFlow does."""
    workdir = tmp_path / "workdir"
    (workdir / "jax" / "_src").mkdir(parents=True)
    (workdir / "train.py").write_text(CONNECTS)
    (workdir / "jax" / "__init__.py").touch()
    (workdir / "jax" / "_src" / "__init__.py").touch()
    (workdir / "jax" / "_src" / "distributed.py").write_text(WAITS_FOR_ITS_PEERS)
    leads, victim = lab_of(cluster).hosts[:2]
    spec = cluster.spec(
        script="train.py",
        workdir=str(workdir),
        checkpoint=False,
        timing={"heartbeat": "0.5s", "start_after": "8s", "kill_grace": "1s"},
        restart={"without_progress_max": 1},
    )
    victim.drop(to=leads.address)
    fault_times.inject()
    try:
        cluster.ok("up", spec, "--detach", "--no-check")
        waits = cluster.wait(lambda run: "does not reach" in run["reason"], timeout=30)
        assert [task["stage"] for task in waits["tasks"]] == ["connecting", "connecting"]
        assert (waits["goodput"], waits["has_stepped"]) == (None, False)
        attached = cluster.orch("up", spec, "--no-check", timeout=60)
        assert attached.returncode == 1, attached.stderr
        assert "is training" not in attached.stderr
        cause = cluster.run()["first_cause"]
        assert (cause["cause"], cause["task"], cause["host"]) == ("not connected", "worker:1", "host-1")
        assert f"worker:1 on host-1 does not reach worker:0 at {leads.address}:2" in cause["sentence"]
        assert "no answer, as behind a firewall" in cause["sentence"]
        assert "open the TCP ports" in cause["advice"]
    finally:
        victim.heal()
    cluster.ok("up", spec)
    assert cluster.wait_phase("SUCCEEDED", "FAILED")["phase"] == "SUCCEEDED"

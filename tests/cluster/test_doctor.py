"""What `orch doctor` finds: each thing is really wrong on the hosts of one lab, and right again afterwards."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.plan import CheckpointPlan, HostPlan, Plan, TaskId, TaskPlan
from orchestrator.head.code import bundle
from orchestrator.head.hosts.examination import Examined, examine
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.reporting.findings import Finding
from tests.cluster.cluster import WORKDIR, Cluster
from tests.cluster.conftest import MakeLab, python_for_all
from tests.cluster.lab import FIRST_UID, Lab, LabHost
from tests.patience import patient

pytestmark = pytest.mark.lab

PORTS = (24300, 24339)


def plan_of(*hosts: HostPlan) -> Plan:
    tasks = tuple(TaskPlan(TaskId("worker", index), host.name) for index, host in enumerate(hosts))
    return Plan(
        "t", "multi_worker_mirrored", hosts, tasks, "fake_trainer.py", workdir=str(WORKDIR), ports=PORTS
    )


@pytest.fixture
def look(ssh: SshTransport) -> Callable[..., Examined]:
    """Examine these hosts, without Python and packages where nothing else is said."""

    def examined(*hosts: HostPlan, whole: bool = False, within_s: float = 10.0) -> Examined:
        return examine(plan_of(*hosts), {"ssh": ssh}, bundle.load, whole=whole, within_s=within_s)

    return examined


def ids(found: Examined) -> set[tuple[str, str, str | None]]:
    return {(one.id, one.level, one.peer or one.host) for one in found.findings}


@contextmanager
def rule(host: LabHost, *words: str) -> Iterator[None]:
    """Drop what these words of iptables match, for a while."""
    host.run("iptables", "-A", *words)
    try:
        yield
    finally:
        host.run("iptables", "-D", *words)


def listen(host: LabHost) -> list[str]:
    """Return the command that holds all ports of the run but one on a host, and says when it does."""
    code = (
        "import socket, time\n"
        f"held = [socket.create_server(('', port)) for port in range({PORTS[0] + 1}, {PORTS[1] + 1})]\n"
        "print('held', flush=True)\ntime.sleep(60)"
    )
    return ["python3", "-c", code]


def test_nothing_is_found_where_all_is_right(lab3: Lab, look: Callable[..., Examined]) -> None:
    found = look(*(host.plan() for host in lab3.hosts))
    assert found.findings == ()
    assert found.addresses == {}


def test_a_name_that_only_the_head_knows_is_replaced_by_the_address_that_peers_reach(
    lab3: Lab, look: Callable[..., Examined]
) -> None:
    """The form that `orch import` writes: an alias of ~/.ssh/config."""
    hosts = [host.plan() for host in lab3.hosts[:2]]
    named = replace(hosts[1], data_address="gpu-b")
    found = look(hosts[0], named)
    assert ids(found) == {("net.name-unresolved", "warning", "host-1")}
    assert found.addresses == {"host-1": lab3.hosts[1].address}
    assert "gpu-b" in found.findings[0].message


def test_a_name_that_means_the_peer_itself_is_found(lab3: Lab, look: Callable[..., Examined]) -> None:
    """As Debian writes it, every host has a line of its own for 127.0.1.1; here the name is in all of them."""
    hosts = [host.plan() for host in lab3.hosts[:2]]
    found = look(hosts[0], replace(hosts[1], data_address="localhost"))
    assert ids(found) == {("net.name-loopback", "warning", "host-1")}
    assert found.addresses == {"host-1": lab3.hosts[1].address}
    found = look(hosts[0], replace(hosts[1], data_address="127.0.1.1"))
    assert ids(found) == {("net.name-loopback", "error", "host-1")}


def test_a_firewall_is_found_in_the_one_direction_that_it_closes(
    lab3: Lab, look: Callable[..., Examined]
) -> None:
    first, second, _ = lab3.hosts
    with rule(second, "INPUT", "-p", "tcp", "--dport", f"{PORTS[0]}:{PORTS[1]}", "-j", "REJECT"):
        found = look(first.plan(), second.plan())
    assert ids(found) == {("net.blocked", "error", "host-1")}
    assert found.findings[0].host == "host-0"
    with rule(second, "INPUT", "-p", "tcp", "--dport", str(PORTS[1]), "-j", "REJECT"):
        assert ids(look(first.plan(), second.plan())) == {("net.blocked", "error", "host-1")}, (
            "a part is open"
        )


def test_a_network_that_loses_large_packets_is_found(lab3: Lab, look: Callable[..., Examined]) -> None:
    first, second, _ = lab3.hosts
    large = ("-p", "tcp", "--sport", f"{PORTS[0]}:{PORTS[1]}", "-m", "length", "--length", "1000:65535")
    with rule(first, "INPUT", *large, "-j", "DROP"):
        found = look(first.plan(), second.plan(), within_s=4.0)
    assert ids(found) == {("net.large-packets", "error", "host-1")}


def test_ports_that_others_hold_are_counted(lab3: Lab, look: Callable[..., Examined]) -> None:
    host = lab3.hosts[0]
    process = host.popen(*listen(host))
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        found = look(host.plan(), lab3.hosts[1].plan())
    finally:
        process.kill()
        process.wait()
    assert ids(found) == {("net.ports-busy", "error", "host-0")}
    assert str(PORTS[0] + 1) in found.findings[0].message


@pytest.mark.fault(88)
def test_one_machine_under_two_names_is_refused(lab3: Lab, look: Callable[..., Examined]) -> None:
    host = lab3.hosts[0].plan()
    found = look(host, replace(host, name="again", data_address="localhost"))
    assert ("host.twice", "error", "again") in ids(found)


def test_a_host_that_does_not_answer_holds_up_nobody(lab3: Lab, look: Callable[..., Examined]) -> None:
    first, second, third = lab3.hosts
    with rule(second, "INPUT", "-p", "tcp", "--dport", f"{PORTS[0]}:{PORTS[1]}", "-j", "REJECT"):
        third.cut()
        try:
            began_at = time.monotonic()
            found = look(*(host.plan() for host in lab3.hosts), within_s=3.0)
            took_s = time.monotonic() - began_at
        finally:
            third.heal()
    assert ids(found) == {("net.blocked", "error", "host-1"), ("ssh.no-answer", "error", "host-2")}
    assert first.name in found.findings[1].message
    assert took_s < patient(8.0)


def test_the_bandwidth_is_measured_in_both_directions_and_not_beside_a_run(
    tmp_path: Path, lab3: Lab, ssh: SshTransport
) -> None:
    first, second, _ = lab3.hosts
    plan = replace(plan_of(first.plan(), second.plan()), runtime=False)

    def measured() -> list[Finding]:
        found = examine(plan, {"ssh": ssh}, bundle.load, bandwidth=True).findings
        return [one for one in found if one.id.startswith("net.bandwidth")]

    (fine,) = (
        one for one in measured() if one.level == "fine"
    )  # a machine that does much else may be slow too
    assert fine.message.count("Gbit/s") == 2, fine.message
    second.run(
        "tc",
        "qdisc",
        "add",
        "dev",
        "eth0",
        "root",
        "tbf",
        "rate",
        "80mbit",
        "burst",
        "64k",
        "latency",
        "50ms",
    )
    try:
        *low, told = measured()
    finally:
        second.run("tc", "qdisc", "del", "dev", "eth0", "root")
    assert ("net.bandwidth-low", "host-0", "host-1") in {(one.id, one.host, one.peer) for one in low}
    assert "host-1 sends host-0 0.0" in told.message
    cluster = Cluster(tmp_path, lab3)
    try:
        cluster.ok("up", cluster.spec("--steps", "100000", tasks=1), "--detach")
        cluster.wait_phase("RUNNING")
        (busy,) = measured()
        assert busy.level == "warning"
        assert f"would disturb {cluster.run()['run_id']} on host-0" in busy.message
    finally:
        cluster.close()


def test_hosts_that_save_as_two_users_and_what_another_user_has_left(
    make_lab: MakeLab, ssh: SshTransport
) -> None:
    lab = make_lab(2)
    python = python_for_all(lab.dir)
    for host in lab.hosts:
        host.own_accounts("ann", "bob")
    shared = lab.dir / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    os.chown(shared, FIRST_UID, FIRST_UID)

    def seen(*users: str) -> dict[str, str]:
        hosts = [host.plan(user=user, python=python) for host, user in zip(lab.hosts, users, strict=True)]
        plan = replace(plan_of(*hosts), checkpoint=CheckpointPlan(str(shared)), runtime=False)
        found = examine(plan, {"ssh": ssh}, bundle.load).findings
        return {one.id: one.message for one in found if one.id.startswith("storage.")}

    assert set(seen("ann", "ann")) == {"storage.others"}, "everybody may write there"
    assert not (shared / ".orch").exists()
    shared.chmod(0o755)
    assert set(seen("ann", "ann")) == {"storage.writers"}
    found = seen("ann", "bob")
    assert found["storage.others"] == f"host-1: its owner ann may write into {shared}"
    assert found["storage.users"].startswith(
        f"the hosts write {shared} as ann (uid {FIRST_UID}) on host-0; bob (uid "
    )
    assert found["storage.owner"].startswith(
        f"host-1: {shared}/.orch belongs to ann (uid {FIRST_UID}, mode 0700)"
    )


def test_rc_files_that_print_read_or_hang_are_named(make_lab: MakeLab, ssh: SshTransport) -> None:
    """And an sshd that takes one login at a time."""
    lab = make_lab(4, {0: {"MaxStartups": "1:50:4"}})
    for host, line in zip(lab.hosts, ("", "echo welcome", "read answer", "sleep 60"), strict=True):
        (host.home / ".bashrc").write_text(f"{line}\n")
    found = examine(
        replace(plan_of(*(host.plan() for host in lab.hosts)), runtime=False),
        {"ssh": ssh},
        bundle.load,
        within_s=5.0,
    )
    assert {one for one in ids(found) if one[0].startswith("ssh.")} == {
        ("ssh.limits", "warning", "host-0"),
        ("ssh.rc-files", "warning", "host-1"),
        ("ssh.rc-files", "error", "host-2"),
        ("ssh.rc-files", "error", "host-3"),
        ("ssh.round-trip", "fine", None),
    }


def test_doctor_says_it_all_as_json(tmp_path: Path, lab3: Lab) -> None:
    """The whole of it, with Python and disks, as a person has it."""
    cluster = Cluster(tmp_path, lab3)
    try:
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").write_text("import os\nimport not_installed_anywhere\n")
        spec = cluster.spec(tasks=2, script="train.py", workdir=str(tmp_path / "code"))
        done = cluster.orch("doctor", spec, "--json")
        assert done.returncode == 1, done.stderr
        found = json.loads(done.stdout)["findings"]
        assert {(one["id"], one["level"], one["host"]) for one in found} >= {
            ("python.no-module", "error", "host-0"),
            ("python.no-module", "error", "host-1"),
        }
        assert "not_installed_anywhere (train.py:2)" in found[0]["message"]
        assert set(found[0]) == {"id", "level", "host", "peer", "message", "why", "hint"}
        fine = cluster.ok("doctor", cluster.spec(tasks=2))
        assert "error" not in fine
        assert "2 hosts reach each other, in both directions, on ports of 20000-20999: host-0 at 10." in fine
        assert "host-0 has " in fine
        assert "python.fits" in fine
        assert " is written, and synced, with " in fine
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "tensorflow.py").write_text("raise ImportError('libcudart.so.12: cannot open')")
        done = cluster.orch("doctor", cluster.spec(tasks=1, env={"PYTHONPATH": str(broken)}))
        assert done.returncode == 1
        assert "python.import-fails  host-0: `import tensorflow` fails: ImportError: libcudart" in done.stdout
    finally:
        cluster.close()


def test_up_refuses_hosts_that_do_not_reach_each_other_and_helps_where_it_can(
    tmp_path: Path, lab3: Lab
) -> None:
    cluster = Cluster(tmp_path, lab3)
    cluster.checks = True
    second = lab3.hosts[1]
    hosts = cluster.hosts(2)
    try:
        spec = cluster.spec("--steps", "5", tasks=2, hosts=hosts, ports=f"{PORTS[0]}-{PORTS[1]}")
        with rule(second, "INPUT", "-p", "tcp", "--dport", f"{PORTS[0]}:{PORTS[1]}", "-j", "REJECT"):
            refused = cluster.orch("up", spec)
        assert refused.returncode == 6
        assert "net.blocked" in refused.stderr
        assert json.loads(cluster.ok("status", "--json"))["runs"] == []
        hosts[1]["data_address"] = "only-the-head-knows"
        named = cluster.spec("--steps", "5", tasks=2, hosts=hosts)
        said = cluster.orch("up", named, "--wait")
        assert said.returncode == 0, said.stderr
        assert "net.name-unresolved" in said.stderr
        address = cluster.run()["tasks"][1]["address"]
        assert address is None or address.startswith(second.address)
    finally:
        cluster.close()


def test_a_host_that_is_off_is_refused_at_once_unless_it_is_to_be_waited_for(
    tmp_path: Path, lab3: Lab
) -> None:
    cluster = Cluster(tmp_path, lab3)
    cluster.checks = True
    off = lab3.hosts[1]
    off.stop_sshd()
    try:
        for tasks, hosts in ((2, cluster.hosts(2)), (1, cluster.hosts(2)[1:])):
            spec = cluster.spec("--steps", "5", tasks=tasks, hosts=hosts)
            refused = cluster.orch("up", spec, "--detach")
            assert refused.returncode == 6, refused.stderr
            said = " ".join(refused.stderr.split())
            assert "host-1" in said
            assert "(ssh.no-answer)" in said
            assert "--wait-for-hosts begins, and waits" in said
        assert json.loads(cluster.ok("status", "--json"))["runs"] == [], "nothing has begun"
        cluster.ok("up", spec, "--detach", "--wait-for-hosts")
        off.start_sshd()
        cluster.wait_phase("SUCCEEDED", timeout=90)
    finally:
        off.restart_sshd()
        cluster.close()


def test_the_first_hour_goes_as_its_page_says(
    tmp_path: Path, lab3: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts of ~/.ssh/config that know no other's name, and a Python with TensorFlow where people have it."""
    cluster = Cluster(tmp_path, lab3)
    cluster.checks = True
    home, shared = tmp_path / "home", tmp_path / "shared"
    (home / ".ssh").mkdir(parents=True)
    shared.mkdir()
    names = dict(zip(("gpu-a", "gpu-b", "gpu-c"), lab3.hosts, strict=True))
    blocks = [
        f"Host {name} # ours\n  HostName {host.address}\n  Port {host.port} # NAT\n"
        for name, host in names.items()
    ]
    known = f"  UserKnownHostsFile {home / 'none'}\n"
    (home / ".ssh/config").write_text(
        "".join([*blocks, f"Host *\n  User root\n  IdentityFile {lab3.identity_file}\n{known}"])
    )
    for host in lab3.hosts[:2]:
        python = host.home / "venv/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
    cluster.env |= {"HOME": str(home)}
    monkeypatch.chdir(tmp_path)
    shutil.copytree(WORKDIR / "packaged", tmp_path / "packaged")
    shutil.copy(WORKDIR / "fake_trainer.py", tmp_path)
    with (tmp_path / "packaged/train.py").open("a") as script:
        script.write("\n# model.fit(x)\n")
    page = (Path(__file__).parents[2] / "docs/first-hour.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("orch ")]
    assert len(lines) == 10
    try:
        assert "which hosts?" in cluster.orch("init").stderr
        unknown = cluster.orch("init", "gpu-a", "--output", "early.yaml")
        assert unknown.returncode == 4, "its key is trusted by nobody yet"
        assert "gpu-a was not examined" in (tmp_path / "early.yaml").read_text()
        cluster.ok("trust", "early.yaml", "--yes")
        (tmp_path / "early.yaml").write_text((tmp_path / "early.yaml").read_text().replace("gpu-a", "gpu-b"))
        cluster.ok("trust", "early.yaml", "--yes")
        said = {}
        for line in lines:
            own = (
                line.partition(" # ")[0]
                .replace("/shared", str(shared))
                .replace("train.py", "packaged/train.py")
            )
            words = shlex.split(own)[1:]
            done = cluster.orch(*words, timeout=120)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            said[words[0]] = done.stdout + done.stderr
        text = (tmp_path / "cluster.yaml").read_text()
        assert Path(text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")).exists()
        assert all(
            part in text
            for part in (
                f"dir: {shared}/first\n",
                "module: packaged.train\n",
                "strategy: multi_worker_mirrored",
                f"data_address: {names['gpu-a'].address}",
            )
        )
        for command in ("init", "doctor", "up"):
            assert "net.name-unresolved" not in said[command], "init has written the address that was tried"
        assert re.search(r"restores: proved: it was killed, and went on from step [12]0", said["init"]), said[
            "init"
        ]
        assert "modules: none but TensorFlow" in said["init"]
        assert "first-try" not in cluster.ok("runs"), "the trial is removed"
        assert not list(tmp_path.glob("shared/*/.orch/runs/first-try*"))
        assert stat.S_IMODE((shared / "first").stat().st_mode) == 0o700, "what init made is its user's alone"
        assert "`import tensorflow` " in said["doctor"], "it was imported once, really"
        assert cluster.orch("init", "gpu-a").returncode == 2, "a file that is there stays"
    finally:
        cluster.close()


def test_a_plan_with_a_checkpoint_directory_that_is_not_shared_says_so(
    tmp_path: Path, lab3: Lab, ssh: SshTransport
) -> None:
    first, second, _ = lab3.hosts
    directory = tmp_path / "shared"
    directory.mkdir()
    own = second.own_directory(directory)
    try:
        plan = replace(
            plan_of(first.plan(), second.plan()), checkpoint=CheckpointPlan(str(directory)), runtime=False
        )
        found = examine(plan, {"ssh": ssh}, bundle.load)
    finally:
        second._own = None
        second.restart_sshd()
    assert own.exists()
    assert ("storage.not-shared", "error", None) in ids(found)

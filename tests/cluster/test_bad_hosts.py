"""Hosts that are not as they should be: `orch up` says which, why, and the way out, and changes nothing."""

from __future__ import annotations

import os
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.host.agent import gpus
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import MakeLab
from tests.cluster.lab import Lab
from tests.pythons import pythons

pytestmark = pytest.mark.lab


@pytest.fixture
def one(tmp_path: Path, make_lab: MakeLab) -> Iterator[Cluster]:
    """A coordinator and one host of its own, to be spoilt."""
    made = Cluster(tmp_path, make_lab(1))
    yield made
    made.close()


def lab_of(cluster: Cluster) -> Lab:
    assert cluster.lab is not None
    return cluster.lab


def refused(cluster: Cluster, spec: str, *, exit_code: int = 1) -> str:
    """Check that `orch up` fails and leaves nothing behind, and return what it says."""
    done = cluster.orch("up", spec, timeout=60)
    assert done.returncode == exit_code, done.stderr
    assert cluster.run()["phase"] == "FAILED"
    assert cluster.marked() == []
    assert "Traceback" not in done.stderr
    assert "hint: " in done.stderr
    return done.stderr


@pytest.mark.fault(46)
def test_row_46_a_changed_host_key_is_exit_5_with_both_fingerprints(one: Cluster) -> None:
    lab = lab_of(one)
    before = lab.known_hosts.read_text()
    lab.hosts[0].stop_sshd()
    lab.hosts[0].new_host_key()
    lab.hosts[0].start_sshd()
    said = refused(one, one.spec(tasks=1), exit_code=5)
    assert said.count("SHA256:") >= 2
    assert "host-0" in said
    assert lab.known_hosts.read_text() == before
    assert "Accepted publickey" not in lab.hosts[0].log.read_text(errors="replace")


@pytest.mark.fault(47)
def test_row_47_an_unknown_host_key_is_exit_5_and_trust_is_the_way_out(one: Cluster) -> None:
    lab = lab_of(one)
    before = lab.known_hosts.read_text()
    lab.known_hosts.write_text("")
    spec = one.spec("--steps", "5", tasks=1)
    said = refused(one, spec, exit_code=5)
    assert "SHA256:" in said
    assert "orch trust" in said
    shown = one.orch("trust", spec)
    assert shown.returncode != 0, "without a terminal and without --yes nothing is trusted"
    one.ok("trust", spec, "--yes")
    assert lab.known_hosts.read_text() == "", "the user's file is never edited"
    assert one.orch("up", spec, "--wait").returncode == 0
    lab.known_hosts.write_text(before)


def test_a_wrong_python_is_named(one: Cluster) -> None:
    said = refused(one, one.spec(tasks=1, python="/opt/nowhere/bin/python"))
    assert "host-0" in said
    assert "/opt/nowhere/bin/python" in said


def test_a_python_that_is_too_old_is_named(one: Cluster) -> None:
    candidates = pythons("3.6", "3.7", "3.8")
    if not candidates:
        pytest.skip("NO OLD PYTHON HERE: a Python older than 3.10 is needed to see it refused")
    said = refused(one, one.spec(tasks=1, python=candidates[0]))
    assert "host-0" in said
    assert "3.10" in said


def test_a_host_directory_that_cannot_be_written_is_named(one: Cluster) -> None:
    host = lab_of(one).hosts[0]
    blocked = Path(host.host_dir)
    if blocked.exists():
        blocked.rmdir()
    blocked.write_text("a file where the directory should be")
    said = refused(one, one.spec(tasks=1))
    assert "host-0" in said
    assert str(blocked) in said


def test_no_space_left_is_named(one: Cluster) -> None:
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT CAN MOUNT a small file system to be filled")
    import subprocess

    host_dir = Path(lab_of(one).hosts[0].host_dir)
    host_dir.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(host_dir)], check=True)
    try:
        said = refused(one, one.spec(tasks=1))
    finally:
        subprocess.run(["umount", "-l", str(host_dir)], check=True)
    assert "host-0" in said
    assert "space" in said


def test_a_host_that_refuses_our_key_is_exit_5(one: Cluster) -> None:
    lab = lab_of(one)
    keys = lab.dir / "authorized_keys"
    before = keys.read_text()
    keys.write_text("")
    try:
        said = refused(one, one.spec(tasks=1), exit_code=5)
    finally:
        keys.write_text(before)
    assert "host-0" in said
    assert "root" in said


def test_maxsessions_1_is_enough(tmp_path: Path, make_lab: MakeLab) -> None:
    cluster = Cluster(tmp_path, make_lab(1, {0: {"MaxSessions": "1"}}))
    try:
        assert cluster.orch("up", cluster.spec("--steps", "5", tasks=1), "--wait").returncode == 0
    finally:
        cluster.close()


def test_a_chatty_shell_does_no_harm(one: Cluster) -> None:
    home = Path(lab_of(one).hosts[0].home)
    home.mkdir(parents=True, exist_ok=True)
    (home / ".bashrc").write_text("echo welcome to the cluster; echo more talk >&2; printf '\\001\\002'\n")
    assert one.orch("up", one.spec("--steps", "5", tasks=1), "--wait").returncode == 0


def test_nothing_answers_is_said_while_it_waits_and_at_the_end(one: Cluster) -> None:
    lab_of(one).hosts[0].stop_sshd()
    timing = {"start_after": "3s", "heartbeat": "0.5s", "unreachable_after": "2s", "lost_after": "8s"}
    spec = one.spec(tasks=1, timing=timing)
    one.ok("up", spec, "--detach")
    waiting = one.wait(lambda run: run["hosts"][0]["problem"] is not None, timeout=10)
    assert "host-0" in waiting["reason"]
    assert "gives up in" in waiting["reason"] or waiting["phase"] == "FAILED"
    assert one.wait_phase("FAILED", timeout=15)["problem"]["exit_code"] == 4


@pytest.mark.fault(53)
def test_a_workdir_with_a_link_out_of_the_tree_is_refused(one: Cluster) -> None:
    workdir = one.directory / "work"
    workdir.mkdir()
    (workdir / "train.py").write_text("print(1)\n")
    (one.directory / "private").write_text("hush")
    (workdir / "leak").symlink_to("../private")
    done = one.orch("up", one.spec(tasks=1, workdir=str(workdir), script="train.py"), timeout=60)
    assert done.returncode == 2, done.stderr
    assert "leak" in done.stderr


def test_a_syntax_error_is_found_before_anything_is_started(one: Cluster) -> None:
    workdir = one.directory / "work"
    workdir.mkdir()
    (workdir / "train.py").write_text("import tensorflow\nprint('unfinished'\n")
    said = refused(one, one.spec(tasks=1, workdir=str(workdir), script="train.py"), exit_code=6)
    assert "cannot compile train.py: SyntaxError in line 2" in said


@pytest.mark.fault(22)
def test_row_22_a_python_without_tensorflow_is_refused_unless_the_script_needs_none(one: Cluster) -> None:
    workdir = one.directory / "work"
    workdir.mkdir()
    (workdir / "train.py").write_text("import tensorflow as tf\n")
    (workdir / "torch_train.py").write_text("print('it would import torch')\n")
    bare = one.directory / "bare"
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    spec = one.spec(tasks=1, workdir=str(workdir), script="train.py", python=python)
    checked = one.orch("validate", "--hosts", spec)
    assert checked.returncode == 6
    for said in (checked.stderr, refused(one, spec, exit_code=6)):
        assert f"host-0: {python} has no TensorFlow, and the script imports it" in said
        assert f"on host-0: `{python} -m pip install 'tensorflow'`" in said
    spec = one.spec(
        tasks=1, workdir=str(workdir), script="torch_train.py", python=python, strategy="processes"
    )
    assert one.ok("validate", "--hosts", spec) == f"{spec}: ok\n"
    assert one.orch("up", spec, "--wait", timeout=60).returncode == 0


@pytest.mark.fault(22)
def test_row_22_a_host_without_the_gpus_of_the_spec_is_refused(one: Cluster) -> None:
    if any(os.path.exists(path) for path in gpus._OTHER_DRIVERS):
        pytest.skip("THIS MACHINE HAS A GPU: no host without one can be played")
    hosts = one.hosts(1)
    hosts[0]["gpus"] = 2
    spec = one.spec(tasks=1, hosts=hosts)
    checked = one.orch("validate", "--hosts", spec)
    assert checked.returncode == 6
    for said in (checked.stderr, refused(one, spec, exit_code=6)):
        assert (
            "host-0: the spec says that it has the GPUs 0, 1, and it has none: there is no nvidia-smi" in said
        )
        assert "remove `gpus` of this host" in said


def test_validate_with_hosts_says_it_before_anything_is_started(one: Cluster) -> None:
    examples = Path(__file__).parents[2] / "examples"
    here: list[dict[str, object]] = [{"name": "here", "transport": "local", "slots": 3}]
    fit: dict[str, Any] = {"strategy": "parameter_server", "script": "digits.py", "workdir": str(examples)}
    spec = one.spec(hosts=here, types={"chief": 1, "worker": 1, "ps": 1}, **fit)
    found = one.orch("validate", "--hosts", spec)
    assert found.returncode == 2
    line = next(line for line in found.stderr.splitlines() if ": run.strategy: " in line)
    number = next(i for i, text in enumerate(Path(spec).read_text().splitlines(), 1) if "  strategy:" in text)
    assert line.startswith(f"{spec}:{number}:")
    assert "here: Keras 3" in line
    assert "cannot train with model.fit under ParameterServerStrategy" in line
    said = refused(one, spec, exit_code=2)  # and so does `orch up`, at the same place
    assert f"{spec}:{number}:" in said

    fine = one.spec(tasks=1)
    assert one.ok("validate", "--hosts", fine) == f"{fine}: ok\n"
    host = lab_of(one).hosts[0]
    assert not Path(host.host_dir, "runs").exists()  # nothing of a run that never was
    host.stop_sshd()
    away = one.orch("validate", "--hosts", fine)
    assert away.returncode == 4
    assert ": hosts[0]: host-0: " in away.stderr

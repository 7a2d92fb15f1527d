"""A process of ours that SIGKILL does not end is known on its host, to every run and after every agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import hostdir, process
from orchestrator.checkpoints import claims
from orchestrator.host.agent import sweep as agent_sweep
from orchestrator.host.shim import record, sweep
from orchestrator.host.system import unkillable

FREEZER = Path("/sys/fs/cgroup/freezer")
RUN = "old-20260101-1"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose main thread ends at SIGUSR1, while another thread goes on."""
    code = (
        "import ctypes, signal, threading\n"
        "libc = ctypes.CDLL(None)\n"
        "def wait():\n"
        "    print(threading.get_native_id(), flush=True)\n"
        "    libc.sleep(600)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "threading.Thread(target=wait, daemon=True).start()\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "libc.syscall(60, 0)\n"  # exit of this thread alone
    )
    started = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def known(child: subprocess.Popen[bytes]) -> tuple[process.Identity, int]:
    """Return its identity, and its other thread."""
    assert child.stdout is not None
    thread = int(child.stdout.readline())
    who = process.identity(child.pid)
    assert who is not None
    return who, thread


def until_zombie(pid: int) -> None:
    give_up_at = time.monotonic() + 20
    while ") Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < give_up_at, "its main thread ends"
        time.sleep(0.005)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the system call is that of x86_64")
def test_a_process_lives_while_any_thread_of_it_does(child: subprocess.Popen[bytes]) -> None:
    who, _ = known(child)
    os.kill(child.pid, signal.SIGUSR1)
    until_zombie(child.pid)
    assert process.alive(who)
    assert process.state(who) in ("S", "R"), "of the thread that lives, and not of the one that has ended"
    assert who in process.descendants(os.getpid())
    child.kill()
    child.wait()
    assert not process.alive(who)
    assert process.state(who) is None


@pytest.mark.fault(65)
def test_a_thread_that_waits_in_the_kernel_is_named_after_its_main_thread_has_died(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    who, thread = known(child)
    group = FREEZER / f"orch-test-{os.getpid()}"
    if os.geteuid() != 0 or not (FREEZER / "tasks").exists():
        pytest.skip("NO FREEZER OF CONTROL GROUPS v1 HERE: no thread can be made unkillable")
    group.mkdir()
    (group / "tasks").write_text(str(thread))
    (group / "freezer.state").write_text("FROZEN")
    try:
        (left,) = sweep.sweep(str(tmp_path), RUN, {1}, known=[who], bound_s=0.2)
        until_zombie(child.pid)
        assert left["pid"] == child.pid
        assert left["why"].startswith("D state: it waits in the kernel")
        (told,) = unkillable.known(str(tmp_path))
        assert (told["run"], told["pid"]) == (RUN, child.pid)
        assert told["why"] == left["why"]
        assert abs(told["since"] - time.time()) < 60
    finally:
        (group / "freezer.state").write_text("THAWED")
        child.wait()
        group.rmdir()
    assert unkillable.known(str(tmp_path)) == []
    assert os.listdir(tmp_path / unkillable.DIRECTORY) == []


def test_what_is_remembered_is_one_process_of_one_boot(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    who, _ = known(child)
    host_dir = str(tmp_path)
    reused = process.Identity(who.boot_id, who.pid, who.start_time + 1)
    before_the_boot = process.Identity("0" * 36, who.pid, who.start_time)
    directory = tmp_path / unkillable.DIRECTORY
    directory.mkdir()
    for each in (reused, before_the_boot):
        (directory / f"{each.boot_id}.{each.pid}.{each.start_time}").write_text(RUN)
    (directory / "README").write_text("somebody else's")
    assert unkillable.known(host_dir) == []
    unkillable.remember(host_dir, RUN, [who, reused])
    unkillable.remember(host_dir, "another", [who])
    (told,) = unkillable.known(host_dir)
    assert (told["run"], told["pid"]) == (RUN, who.pid), "as it was first written"
    assert unkillable.living_of_run(host_dir, RUN) == [who]
    assert unkillable.living_of_run(host_dir, "another") == []
    child.kill()
    child.wait()
    assert unkillable.known(host_dir) == []
    assert os.listdir(directory) == ["README"]


def test_a_sweep_tries_again_to_kill_what_was_left(child: subprocess.Popen[bytes], tmp_path: Path) -> None:
    who, _ = known(child)
    unkillable.remember(str(tmp_path), RUN, [who])
    assert sweep.sweep(str(tmp_path), RUN, {1}) == [], "it has no marker, and its identity is known"
    assert child.wait() == -signal.SIGKILL


class Clock:
    """Time that passes only in the pauses of a sweep."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        assert self.now_s < 5.0, "it waits for ever"


def test_a_sweep_marks_a_start_that_has_no_process_yet(tmp_path: Path) -> None:
    files = {1: "exit.json", 2: "start.json", 3: "start.json"}
    for generation, name in files.items():
        directory = Path(hostdir.generation_dir(str(tmp_path), RUN, "worker:0", generation))
        directory.mkdir(parents=True)
        (directory / name).write_text("{}")
    agent_sweep.sweep(str(tmp_path), RUN, 2, [])
    marked = [
        record.is_marked(hostdir.generation_dir(str(tmp_path), RUN, "worker:0", generation), record.SWEPT)
        for generation in files
    ]
    assert marked == [False, True, False], "one has ended, and one may live"


def test_a_sweep_names_what_does_not_die_at_its_bound_and_spares_itself(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, _ = known(child)
    itself = process.identity(os.getpid())
    assert itself is not None
    clock = Clock()
    monkeypatch.setattr(sweep, "time", clock)
    monkeypatch.setattr(sweep, "kill", list)  # nothing dies of it
    left = sweep.sweep(str(tmp_path), RUN, {1}, known=[who, itself], bound_s=3.0)
    assert [one["pid"] for one in left] == [child.pid]
    assert unkillable.living_of_run(str(tmp_path), RUN) == [who], "the next sweep tries again"
    assert 3.0 <= clock.now_s < 3.1


@pytest.mark.parametrize("left", [True, False])
def test_a_run_gives_up_its_claim_only_where_nothing_of_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    directory = tmp_path / "runs" / RUN
    directory.mkdir(parents=True)
    claims.write(
        str(directory),
        {"id": "1", "head": "h", "user": "ml", "run": RUN, "name": "old", "checkpoint_dir": None},
    )
    found = [{"pid": 7, "why": "D state"}] if left else []
    monkeypatch.setattr(sweep, "sweep", lambda *_args, **_more: found)
    assert agent_sweep.sweep(str(tmp_path), RUN, 1, [], ends=True)["left"] == found
    assert claims.read(str(directory))[1] == left, "who begins in its directory is told"


def test_a_bundle_from_which_a_shim_still_imports_is_not_removed(tmp_path: Path) -> None:
    used, unused, fresh = (tmp_path / "bundle" / name for name in ("used", "unused", "fresh"))
    used.parent.mkdir()
    directory = tmp_path / "runs" / RUN / "tasks" / "worker-0" / "gen-000001"
    directory.mkdir(parents=True)
    me = process.identity(os.getpid())
    assert me is not None
    (directory / "shim.json").write_text(json.dumps({"shim": me.to_json()}))
    (directory / "start.json").write_text(json.dumps({"bundle": str(used)}))
    for path in (used, unused, fresh):
        path.touch()
    for path in (used, unused):
        os.utime(path, (0, time.time() - agent_sweep.BUNDLE_UNUSED_S - 60.0))
    agent_sweep._remove_old_bundles(str(tmp_path))
    assert sorted(os.listdir(used.parent)) == ["fresh", "used"]


def test_a_port_that_stays_in_use_is_named_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(agent_sweep, "time", clock)
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        assert agent_sweep._busy([port, port]) == [port]
    assert agent_sweep.PORTS_S <= clock.now_s < agent_sweep.PORTS_S + 0.1
    clock.now_s = 0.0
    assert agent_sweep._busy([port]) == []
    assert clock.now_s == 0.0, "a free port is not waited for"


def as_nobody(work: Callable[[], Any]) -> Any:
    """Return what `work` returns when another user calls it, as JSON."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        told = file.read()
    os.waitpid(child, 0)
    return json.loads(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have a process of another user")
def test_a_process_that_became_another_users_is_left_and_says_whose_it_is(
    child: subprocess.Popen[bytes],
) -> None:
    who, _ = known(child)
    with tempfile.TemporaryDirectory(dir="/tmp") as host_dir:
        os.chmod(host_dir, 0o777)
        (left,), (told,) = as_nobody(
            lambda: (
                sweep.sweep(host_dir, RUN, {1}, known=[who], bound_s=0.1),
                unkillable.known(host_dir),
            )
        )
    assert left["pid"] == told["pid"] == child.pid
    assert left["why"] == told["why"] == "it runs as root, and nobody may not end it"
    assert process.alive(who)
    assert (unkillable.why(who) or "").startswith("alive after SIGKILL"), (
        "root may end it, and is told no user"
    )

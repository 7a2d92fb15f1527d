"""How the shim looks for what a task leaves behind."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.both import process
from orchestrator.host.shim.spawn import StartFailed, spawn
from orchestrator.host.shim.state import Ended, StopBy
from orchestrator.host.shim.task import TaskProcess

if TYPE_CHECKING:
    from orchestrator.host.system.cgroup import Cgroup
    from orchestrator.host.system.oom import OomKills

START = {"run": "r-20260101-1", "task": "worker:0", "generation": 1}


def test_a_process_that_ended_before_its_kill_asks_for_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen(["sleep", "600"])
    ended = process.identity(child.pid)
    assert ended is not None
    child.kill()
    child.wait()
    task = TaskProcess({**START, "host_dir": str(tmp_path)})
    monkeypatch.setattr(task, "_living", lambda: {ended})
    assert task.kill() is True  # it may have left a child of its own meanwhile
    monkeypatch.setattr(task, "_living", set)
    assert task.kill() is False


def children() -> set[str]:
    """Return the pids of this process's children, those among them that nobody has waited for."""
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def said_by(command: str, directory: Path) -> str:
    """Return what a shell prints that the shim has started."""
    task = spawn(["/bin/sh", "-c", command], {"PATH": os.defpath}, str(directory), None, None)
    said = b""
    while select.select([task.stdout], [], [], 30.0)[0] and (data := os.read(task.stdout, 65536)):
        said += data
    os.close(task.stdout)
    os.close(task.stderr)
    os.waitpid(task.pid, 0)
    return said.decode()


def test_a_task_is_a_session_with_every_signal_as_it_is_at_a_login(tmp_path: Path) -> None:
    """The shim's Python ignores SIGPIPE and SIGXFSZ: a script of shells would not end where its reader has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    ignored = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2)  # by `nohup`, by `&` of a shell, and by anybody
    held = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        said = said_by("exec cat /proc/self/status /proc/self/stat", tmp_path)
    finally:
        for number, handler in zip(ignored, held, strict=True):
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    of_libc = 3 << 31  # signals 32 and 33: the C library lets nobody change them
    assert (int(status["SigBlk"], 16), int(status["SigIgn"], 16) & ~of_libc) == (0, 0)
    group, session = said.splitlines()[-1].rpartition(")")[2].split()[2:4]
    assert status["Pid"] == session == group
    assert said_by("pwd; read line || echo nothing to read", tmp_path) == f"{tmp_path}\nnothing to read\n"


@pytest.mark.parametrize(("login", "mode"), [("2", 0o644), ("27", 0o640), ("77", 0o600)])
def test_a_task_has_the_umask_of_the_login_and_lets_nobody_else_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str, mode: int
) -> None:
    monkeypatch.setenv("ORCH_UMASK", login)
    before = os.umask(0o077)  # as in the shim
    try:
        said_by(": > made", tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == mode


@pytest.mark.parametrize(
    ("argv", "directory", "said"),
    [
        (["/bin/sh"], "gone", "gone"),
        (["/no/such/python"], ".", "/no/such/python"),
        (["/bin/sh", "-c", "a\0b"], ".", "NUL"),
        (["/bin/sh", "-c", "a\ud800b"], ".", "cannot be encoded"),
    ],
)
def test_what_cannot_be_started_is_said_and_leaves_no_child(
    tmp_path: Path, argv: list[str], directory: str, said: str
) -> None:
    open_before, children_before = len(os.listdir("/proc/self/fd")), children()
    with pytest.raises(StartFailed, match=said):
        spawn(argv, {}, str(tmp_path / directory), None, None)
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert children() <= children_before, "the child that could not start was waited for"


class Group:
    """A control group that counts what the kernel has killed in it."""

    def __init__(self, kills: int | None, peak: int | None) -> None:
        self.kills, self.peak = kills, peak

    def oom_kills(self) -> int | None:
        return self.kills

    def peak_bytes(self) -> int | None:
        return self.peak


@pytest.mark.parametrize(
    ("kills", "cause", "peak"), [(1, "oom", 9 << 30), (0, "signal", 9 << 30), (None, "signal", None)]
)
def test_who_was_killed_in_his_own_control_group_for_want_of_memory_is_told_so(
    tmp_path: Path, kills: int | None, cause: str, peak: int | None
) -> None:
    task = TaskProcess({**START, "host_dir": str(tmp_path)})
    task._group = cast("Cgroup", Group(kills, peak))
    assert task.cause(Ended(100.0, signal=9), StopBy.NOBODY) == cause
    assert task.peak_rss_bytes == peak


class SharedGroup:
    """The OOM kills of a group that is not the task's alone."""

    def recent(self) -> int:
        return 1

    def is_one(self, pid: int | None, peak_bytes: int | None) -> bool:
        return (pid, peak_bytes) == (None, 9 << 30)


@pytest.mark.parametrize(("peak", "cause"), [(9 << 30, "oom"), (1 << 20, "perhaps-oom")])
def test_of_those_in_a_group_the_one_with_the_memory_was_killed_for_it(
    tmp_path: Path, peak: int, cause: str
) -> None:
    task = TaskProcess({**START, "host_dir": str(tmp_path)})
    task._oom_kills = cast("OomKills", SharedGroup())
    task.peak_rss_bytes = peak
    assert task.cause(Ended(100.0, signal=9), StopBy.NOBODY) == cause

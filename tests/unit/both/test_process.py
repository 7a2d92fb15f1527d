"""Only the very process that is meant is ever found, and ever signalled."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator.both import process
from orchestrator.host.system import cgroup, usage


def until(what: Callable[[], object], why: str) -> None:
    give_up_at = time.monotonic() + 20
    while not what():
        assert time.monotonic() < give_up_at, why
        time.sleep(0.005)


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str = "import time; time.sleep(600)", **env: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"print('up', flush=True)\n{code}"],
            env=env,
            stdout=subprocess.PIPE,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()


def known(child: subprocess.Popen[bytes]) -> process.Identity:
    who = process.identity(child.pid)
    assert who is not None
    return who


def test_an_identity_is_one_process_of_one_boot(start: Start) -> None:
    who = known(start())
    assert process.Identity.from_json(who.to_json()) == who
    assert len({who, process.Identity.from_json(who.to_json())}) == 1
    assert process.alive(who)
    assert process.state(who) in ("S", "R")
    assert who != known(start())


@pytest.mark.fault(6)
def test_a_pid_of_somebody_else_is_never_signalled(start: Start) -> None:
    child = start()
    who = known(child)
    earlier = process.Identity(who.boot_id, who.pid, who.start_time - 1)
    before_reboot = process.Identity("another-boot", who.pid, who.start_time)
    for stale in (earlier, before_reboot):
        assert not process.alive(stale)
        assert process.signal(stale, signal.SIGKILL) is False
    assert process.alive(who)
    assert process.signal(who, signal.SIGKILL) is True
    assert child.wait() == -signal.SIGKILL
    assert process.signal(who, signal.SIGKILL) is False


def test_a_zombie_is_nobody(start: Start) -> None:
    child = start("")
    until(lambda: b" Z " in open(f"/proc/{child.pid}/stat", "rb").read(), "it ends")  # noqa: SIM115
    assert process.identity(child.pid) is None


def test_a_name_with_parentheses_does_not_confuse(start: Start) -> None:
    child = start(
        "open('/proc/self/comm', 'w').write('a) S 1 (b'); print('set', flush=True)\nimport time; time.sleep(600)"
    )
    before = known(child)
    assert child.stdout is not None
    assert child.stdout.readline() == b"set\n"
    assert process.identity(child.pid) == before


def test_the_sweep_finds_what_is_marked_and_nothing_else(start: Start) -> None:
    run = f"demo-{os.getpid()}"
    mark = {"ORCH_RUN": run, "ORCH_HOST_DIR": "/a", "ORCH_TASK": "worker:0"}
    old = known(start(**mark, ORCH_GENERATION="1"))
    current = known(start(**mark, ORCH_GENERATION="2"))
    start(**mark, ORCH_GENERATION="3")
    start(**mark, ORCH_GENERATION="x")
    start(ORCH_RUN=run + "0", ORCH_HOST_DIR="/a", ORCH_TASK="worker:0", ORCH_GENERATION="1")
    sibling = known(start(**{**mark, "ORCH_TASK": "worker:1"}, ORCH_GENERATION="2"))
    elsewhere = known(start(**{**mark, "ORCH_HOST_DIR": "/b"}, ORCH_GENERATION="2"))
    assert set(process.marked(run, range(3))) == {old, current, sibling, elsewhere}
    assert set(process.marked(run, range(3), host_dir="/a")) == {old, current, sibling}
    assert set(process.marked(run, {1}, host_dir="/a")) == {old}
    assert set(process.marked(run, {2}, host_dir="/a", task="worker:0")) == {current}


def test_descendants_are_all_below(start: Start) -> None:
    child = start("import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\ntime.sleep(600)")
    until(lambda: len(process.descendants(child.pid)) == 2, "it forks twice")
    found = process.descendants(child.pid)
    assert sorted(usage.tree(child.pid)) == sorted([child.pid, *(who.pid for who in found)])
    assert known(child) in process.descendants(os.getpid())
    for who in found:
        process.signal(who, signal.SIGKILL)


def test_a_sample_is_of_the_process_and_all_below(start: Start) -> None:
    child = start("b = bytearray(60_000_000)\nprint('full', flush=True)\nwhile True: pass")
    assert child.stdout is not None
    assert child.stdout.readline() == b"full\n"
    sampler = usage.Sampler()
    begun_at = time.monotonic()
    first = sampler.sample(child.pid, begun_at)
    assert first["cpu_percent"] is None
    assert (first["rss_bytes"] or 0) > 60_000_000
    until(lambda: time.monotonic() > begun_at + 0.3, "time goes by")
    assert 1 < (sampler.sample(child.pid, time.monotonic())["cpu_percent"] or 0) <= 150
    assert (process.peak_rss_bytes(child.pid) or 0) > 60_000_000
    child.kill()
    child.wait()
    last = sampler.sample(child.pid, time.monotonic())
    assert (last["cpu_percent"], last["rss_bytes"]) == (0.0, None)
    assert process.peak_rss_bytes(child.pid) is None


def test_handlers_and_the_kernels_view(start: Start) -> None:
    child = start(
        "import signal, time\nsignal.signal(15, lambda *_: 0)\nprint('set', flush=True)\ntime.sleep(600)"
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"set\n"
    assert process.catches(child.pid, signal.SIGTERM)
    assert not process.catches(child.pid, signal.SIGUSR1)
    until(lambda: "State:\tS (sleeping)" in process.kernel_view(child.pid), "it sleeps")
    assert "wchan: " in process.kernel_view(child.pid)
    child.kill()
    child.wait()
    assert not process.catches(child.pid, signal.SIGTERM)
    assert "status: No such" in process.kernel_view(child.pid)


def test_a_group_kills_all_that_is_in_it() -> None:
    if not cgroup.usable():
        pytest.skip("THE CONTROL GROUPS OF THIS HOST ARE NOT OURS TO USE: not tested here")
    name = cgroup.name_of("/a", "demo-1", "worker:0", os.getpid())
    assert name != cgroup.name_of("/b", "demo-1", "worker:0", os.getpid())
    group = cgroup.create(name)
    assert group is not None
    assert group.pids() == []
    join = group.open_for_child()
    child = os.fork()
    if child == 0:
        group.join(join)
        os.fork()
        signal.pause()
    os.close(join)
    until(lambda: len(group.pids()) == 2, "both are in it")
    assert group.remove() is False
    found = cgroup.find(name)
    assert found is not None
    found.kill()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    until(lambda: not group.pids(), "the other is gone too")
    until(group.remove, "it can be removed")
    assert cgroup.find(name) is None


@pytest.mark.fault(108)
def test_what_cannot_be_looked_at_is_not_gone_and_gets_no_signal() -> None:
    """A host that is short of descriptors says nothing of the processes on it."""
    with subprocess.Popen(["sleep", "60"]) as child:
        who = process.identity(child.pid)
        assert who is not None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            lives, found = process.alive(who), process.identity(child.pid)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            child.kill()
    assert found is None, "it could not be looked at"
    assert lives
    assert not process.alive(who), "now it is gone"

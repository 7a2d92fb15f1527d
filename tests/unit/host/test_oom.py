"""Which count of OOM kills is taken for a process: that of its memory group, or the whole host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.host.system.oom import OomKills, OwnKills

PID = 42


class Machine:
    """A host's files in /proc and /sys/fs/cgroup, with the lines that a kernel writes."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.groups = directory / "cgroup"
        (self.proc / str(PID)).mkdir(parents=True)
        self.groups.mkdir()
        (self.proc / "kmsg").touch()
        self.on_host(0)

    def on_host(self, kills: int) -> None:
        (self.proc / "vmstat").write_text(f"nr_free_pages 1\noom_kill {kills}\nzswpin 0\n")

    def member_of(self, *lines: str) -> None:
        (self.proc / str(PID) / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def v1(self, path: str, kills: int) -> None:
        self._write(
            f"memory{path}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
        )

    def v2(self, path: str, kills: int) -> None:
        self._write(f"{path}/memory.events.local", f"low 0\noom 1\noom_kill {kills}\noom_group_kill 0\n")

    def _write(self, name: str, text: str) -> None:
        path = self.groups / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def kills(self) -> OomKills:
        return OomKills(str(self.proc), str(self.groups), str(self.proc / "kmsg"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def sampled(machine: Machine, times: int = 2) -> OomKills:
    kills = machine.kills()
    for _ in range(times):
        kills.sample(PID)
    return kills


@pytest.mark.parametrize(
    ("version", "group", "lines"),
    [
        pytest.param("v1", "/user/a", ("9:name=systemd:/", "4:cpu,memory:/user/a", "0::/"), id="v1"),
        pytest.param("v2", "/user.slice/a.scope", ("0::/user.slice/a.scope",), id="v2"),
        pytest.param(
            "v2", "/user.slice", ("0::/user.slice/a.scope/below",), id="nearest-parent-with-controller"
        ),
        pytest.param("v1", "", ("4:memory:/kube-n1/kubepods/pod946a/4bd852",), id="v1-in-a-pod"),
        pytest.param("v2", "/", ("0::/",), id="root-of-a-container"),
        pytest.param("v2", "/", ("0::/user.slice/a.scope",), id="below-the-root-of-a-container"),
    ],
)
def test_a_kill_elsewhere_on_the_host_does_not_count(
    machine: Machine, version: str, group: str, lines: tuple[str, ...]
) -> None:
    count = {"v1": machine.v1, "v2": machine.v2}[version]
    (machine.groups / "user.slice/a.scope/below").mkdir(parents=True)
    machine.member_of(*lines)
    count(group, 3)
    kills = sampled(machine)
    machine.on_host(2)
    assert kills.recent() == 0
    count(group, 4)
    assert kills.recent() == 1


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("no colon",),
        ("0::/",),
        ("0::/of/another/namespace",),
        ("4:memory:/of/another/namespace",),
    ],
)
def test_where_the_group_is_not_known_the_whole_host_counts(machine: Machine, lines: tuple[str, ...]) -> None:
    if lines:
        machine.member_of(*lines)
    if lines != ("0::/",):
        machine.v2("/", 0)  # the mount's root is not the group of a path that does not exist
    kills = sampled(machine)
    machine.on_host(1)
    assert kills.recent() == 1


def test_a_group_that_was_found_only_once_is_not_believed(machine: Machine) -> None:
    """Its launcher moves the task into another group within the first second, and it is killed there."""
    machine.member_of("0::/login")
    machine.v2("/login", 0)
    kills = sampled(machine, times=1)
    machine.on_host(1)
    assert kills.recent() == 1
    kills = sampled(machine, times=2)
    machine.member_of("0::/limited")
    machine.v2("/limited", 0)
    kills.sample(PID)
    machine.on_host(2)
    assert kills.recent() == 1


def test_a_group_whose_count_is_gone_leaves_the_whole_host(machine: Machine) -> None:
    machine.member_of("0::/login")
    machine.v2("/login", 0)
    kills = sampled(machine)
    machine.on_host(1)
    (machine.groups / "login/memory.events.local").unlink()
    assert kills.recent() == 1


@pytest.mark.parametrize(
    ("group", "above", "half"), [("max", "800", 400), ("500", "max", 250), ("max", "max", 2048)]
)
def test_what_had_half_of_the_memory_below_the_least_limit_is_the_one_that_was_killed(
    machine: Machine, group: str, above: str, half: int
) -> None:
    machine.member_of("0::/login/job")
    machine.v2("/login/job", 0)
    (machine.groups / "login/job/memory.max").write_text(f"{group}\n")
    (machine.groups / "login/memory.max").write_text(f"{above}\n")
    (machine.proc / "meminfo").write_text("MemTotal:              4 kB\nMemFree:               1 kB\n")
    kills = sampled(machine)
    assert kills.is_one(PID, half)
    assert not kills.is_one(PID, half - 1)


def test_the_one_that_the_kernel_names_was_killed_however_small(machine: Machine) -> None:
    kills = machine.kills()
    kernel_log = machine.proc / "kmsg"
    kernel_log.write_text("3,7,9,-;Memory cgroup out of memory: Killed process 420 (python) total-vm:9kB\n")
    assert not kills.is_one(PID, 1)
    with kernel_log.open("a") as file:
        file.write("3,8,9,-;Out of memory: Killed process 42 (python) total-vm:9kB\n")
    assert kills.is_one(PID, 1)


def test_nothing_is_proven_where_nothing_tells_it(machine: Machine) -> None:
    assert not sampled(machine).is_one(PID, 1 << 40)


def test_a_kill_before_the_last_two_samples_is_not_recent(machine: Machine) -> None:
    machine.member_of("0::/login")
    machine.v2("/login", 1)
    machine.on_host(1)
    assert sampled(machine).recent() == 0
    (machine.proc / "vmstat").unlink()
    (machine.groups / "login/memory.events.local").unlink()
    assert sampled(machine).recent() == 0, "nothing is counted where no file tells it"


@pytest.mark.fault(94)
def test_an_earlier_oom_kill_in_its_own_group_is_not_that_of_its_end() -> None:
    """A data loader was killed for lack of memory, and the task trained on until somebody killed it."""
    own = OwnKills()
    for at, kills in ((2.0, 0), (4.0, 1), (6.0, 1), (100.0, 1)):
        own.sample(at, kills)
    assert (own.since(0.0), own.since(3.9), own.since(96.0)) == (1, 1, 0)
    own.sample(101.0, 3)
    assert (own.since(97.0), own.since(3.0)) == (2, 3)
    assert OwnKills().since(0.0) == 0


def test_a_sample_without_a_new_kill_is_not_kept() -> None:
    """A task is sampled every few seconds, for weeks."""
    own = OwnKills()
    for number in range(100):
        own.sample(float(number), 0 if number < 50 else 1)
    assert own._seen == [(50.0, 1)]

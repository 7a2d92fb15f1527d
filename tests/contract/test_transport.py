"""What holds for every transport: the fake one, this machine's, SSH to a real sshd, a node of a real Slurm, and a pod
behind a kubectl that is a fake."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.core.errors import ConnectFailed, HostError
from orchestrator.core.plan import HostPlan
from orchestrator.head.code import bundle
from orchestrator.head.links import bootstrap
from orchestrator.head.reach.kubernetes.transport import KubernetesTransport
from orchestrator.head.reach.local import LocalTransport
from orchestrator.head.reach.slurm.transport import slurm_transport
from orchestrator.head.reach.ssh.channel import SshChannel
from orchestrator.head.reach.ssh.transport import SshTransport
from orchestrator.head.reach.transport import Channel, ChannelClosed, Transport
from tests.cluster.lab import Lab
from tests.fake_transport import FakeProcess, FakeTransport
from tests.kubernetes.cluster import Cluster, need_namespaces
from tests.kubernetes.lab import Pods
from tests.patience import comes, patient
from tests.slurm.kept import Kept
from tests.slurm.lab import SlurmLab, need_slurm

ECHO = "exec cat"
SPEAK = "echo out; echo err >&2; exit 3"
FLOOD_STDERR = "head -c 6000000 /dev/zero | tr '\\0' x >&2; echo done"
SILENT = "exec sleep 60"
MISSING = "orch-no-such-command"

LARGE = bytes(range(256)) * 32 * 1024  # 8 MiB
SOON_S = 10.0


def _echo(process: FakeProcess) -> int:
    while data := process.stdin.read(65536):
        process.stdout.write(data)
    return 0


def _speak(process: FakeProcess) -> int:
    process.stdout.write(b"out\n")
    process.write_stderr(b"err\n")
    return 3


def _flood(process: FakeProcess) -> int:
    for _ in range(600):
        process.write_stderr(b"x" * 10_000)
    process.stdout.write(b"done\n")
    return 0


def _silent(process: FakeProcess) -> int:
    process.stdin.wait_broken()
    return 0


FAKES = {ECHO: _echo, SPEAK: _speak, FLOOD_STDERR: _flood, SILENT: _silent}


@dataclass
class Rig:
    """A transport, a host to reach by it, and where there is one, the way to cut that host."""

    transport: Transport
    host: HostPlan
    cut: Callable[[], None] | None = None
    heal: Callable[[], None] | None = None
    lives: Callable[[int], bool] = lambda pid: Path(f"/proc/{pid}").exists()
    """Whether a process lives there, by the pid that it knows itself by."""


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    with Lab(1) as lab:
        yield lab


@pytest.fixture(scope="module")
def shared_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    need_slurm()
    with SlurmLab(1) as lab:
        kept = Kept(lab, tmp_path_factory.mktemp("kept"))
        kept.keep(1)
        yield kept
        kept.close()


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Pods]]:
    need_namespaces()
    cluster = Cluster()
    pods = Pods(tmp_path_factory.mktemp("state"), cluster)
    _wait_for_the_keeper(KubernetesTransport(pods.state_dir), pods.hosts[0])
    yield cluster, pods
    cluster.close()


def _wait_for_the_keeper(transport: Transport, host: HostPlan) -> None:
    """Wait until it listens: a pod counts as running from its first process on."""
    deadline = time.monotonic() + patient(SOON_S)
    while True:
        try:
            transport.open(host, "true").close()
        except ConnectFailed:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@pytest.fixture(
    params=[
        "fake",
        "local",
        pytest.param("ssh", marks=pytest.mark.lab),
        pytest.param("slurm", marks=pytest.mark.slurm),
        pytest.param("k8s", marks=pytest.mark.lab),
    ]
)
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    if request.param == "fake":
        fake, host = FakeTransport(FAKES), HostPlan("fake-a")
        yield Rig(fake, host, lambda: fake.cut(host), lambda: fake.heal(host))
    elif request.param == "local":
        yield Rig(LocalTransport(), HostPlan("here", transport="local"))
    elif request.param == "slurm":
        kept: Kept = request.getfixturevalue("shared_slurm")
        monkeypatch.setenv("SLURM_CONF", str(kept.lab.conf))
        yield Rig(
            slurm_transport(str(kept.bundle)),
            kept.host(1),
            lambda: kept.lab.cut(1),
            lambda: kept.lab.mend(1),
            lambda pid: kept.lab.lives(1, pid),
        )
    elif request.param == "k8s":
        cluster, pods = request.getfixturevalue("shared_cluster")
        yield Rig(
            KubernetesTransport(pods.state_dir),
            pods.hosts[0],
            cluster.cut,
            cluster.mend,
            lambda pid: cluster.lives("t-0", pid),
        )
    else:
        lab: Lab = request.getfixturevalue("shared_lab")
        there = lab.host(0)
        ssh = SshTransport(tmp_path / "known_hosts", home=tmp_path, config_files=(tmp_path / "config",))
        yield Rig(ssh, there.plan(), *((there.cut, there.heal) if lab.can_cut else (None, None)))


@pytest.fixture
def start(rig: Rig) -> Iterator[Callable[[str], Channel]]:
    """Opens channels, and closes them in the end."""
    yield lambda command: rig.transport.open(rig.host, command)
    rig.transport.close(rig.host)


def read_all(channel: Channel) -> bytes:
    parts = []
    while data := channel.read(65536):
        parts.append(data)
    return b"".join(parts)


def read_exactly(channel: Channel, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        data = channel.read(size - len(parts))
        assert data, f"ended after {len(parts)} bytes"
        parts += data
    return parts


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `work` in a thread. The list gets its result, or what it raised."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except (HostError, OSError) as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_what_is_written_comes_back(start: Callable[[str], Channel]) -> None:
    channel = start(ECHO)
    for text in (b"one", b"two\n", b"\0\xff"):
        channel.write(text)
        assert read_exactly(channel, len(text)) == text


def test_read_returns_what_is_there_and_does_not_wait_for_more(start: Callable[[str], Channel]) -> None:
    channel = start(ECHO)
    channel.write(b"abc")
    assert channel.read(1) == b"a"
    assert read_exactly(channel, 2) == b"bc"


def test_8_mib_both_ways_at_once(start: Callable[[str], Channel]) -> None:
    channel = start(ECHO)
    writer, _ = in_thread(lambda: channel.write(LARGE))
    assert read_exactly(channel, len(LARGE)) == LARGE
    writer.join(SOON_S)
    assert not writer.is_alive()


def test_end_exit_status_and_stderr(start: Callable[[str], Channel]) -> None:
    channel = start(SPEAK)
    assert read_all(channel) == b"out\n"
    assert channel.exit_status() == 3
    assert channel.stderr_tail() == "err\n"
    assert channel.read(10) == b"", "the end stays the end"


def test_no_exit_status_while_it_runs(start: Callable[[str], Channel]) -> None:
    assert start(SILENT).exit_status() is None


def test_a_flood_on_stderr_stops_nothing(start: Callable[[str], Channel]) -> None:
    channel = start(FLOOD_STDERR)
    assert read_all(channel) == b"done\n"
    assert channel.stderr_tail() == "x" * 4096


def test_a_command_that_is_not_there(start: Callable[[str], Channel]) -> None:
    channel = start(MISSING)
    assert read_all(channel) == b""
    assert channel.exit_status() == 127
    assert "not found" in channel.stderr_tail()


def test_close_wakes_a_blocked_read(start: Callable[[str], Channel]) -> None:
    channel = start(SILENT)
    reader, results = in_thread(lambda: channel.read(10))
    reader.join(0.1)
    assert reader.is_alive(), "there was nothing to read"
    channel.close()
    reader.join(SOON_S)
    assert results == [b""]


def test_close_wakes_a_blocked_write(start: Callable[[str], Channel]) -> None:
    channel = start(SILENT)

    def write_on() -> None:
        for _ in range(32):  # srun itself takes 20 MiB in a second, whether anybody reads them or not
            channel.write(LARGE)

    writer, results = in_thread(write_on)
    writer.join(0.3)
    assert writer.is_alive(), "nobody took 256 MiB"
    channel.close()
    writer.join(SOON_S)
    assert isinstance(results[0], ChannelClosed)


def test_writing_to_what_has_ended_raises(start: Callable[[str], Channel]) -> None:
    channel = start(SPEAK)
    read_all(channel)
    channel.exit_status()
    with pytest.raises(ChannelClosed):
        channel.write(LARGE)


def test_close_twice_and_use_after_close(start: Callable[[str], Channel]) -> None:
    channel = start(ECHO)
    channel.close()
    channel.close()
    assert channel.read(1) == b""
    with pytest.raises(ChannelClosed):
        channel.write(b"x")


def test_the_transport_closes_what_is_open(rig: Rig) -> None:
    channels = [rig.transport.open(rig.host, ECHO) for _ in range(2)]
    rig.transport.close(rig.host)
    assert [channel.read(1) for channel in channels] == [b"", b""]


def test_the_command_learns_that_the_channel_was_closed(start: Callable[[str], Channel], rig: Rig) -> None:
    if isinstance(rig.transport, FakeTransport):
        pytest.skip("a fake program learns it by the return of its read, which _echo shows")
    channel = start("echo $$; exec cat")
    pid = int(channel.read(20))
    channel.close()
    deadline = time.monotonic() + SOON_S
    while rig.lives(pid) and time.monotonic() < deadline:
        rig.transport.close(rig.host)  # also reaps children
        threading.Event().wait(0.02)
    assert not rig.lives(pid)


def test_a_line_of_activate_that_hangs_leaves_nothing_behind(rig: Rig) -> None:
    if isinstance(rig.transport, FakeTransport):
        pytest.skip("a fake host has no shell")
    mark = f"600.{os.getpid()}{time.monotonic_ns()}"
    line = f"timeout 900 sleep {mark} & setsid -f sleep {mark}; sleep {mark}"
    host = replace(rig.host, activate=line)
    channel = rig.transport.open(host, bootstrap.COMMAND)
    starting, results = in_thread(
        lambda: bootstrap.start_agent(channel, host, bundle.load(), timeout_s=patient(5.0))
    )
    assert comes(lambda: len(having(f"sleep {mark}", "timeout")) == 4, patient(4.0)), "they do not hang"
    starting.join(patient(20.0))
    (error,) = results
    assert "`activate` did not end in time there: timeout 900" in str(error)
    assert comes(lambda: not having(mark), SOON_S), having(mark)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("exec >/dev/null; echo lost", None),
        ("cd /; umask 077; set -eu; trap 'echo bye' EXIT; printf 'no newline'", None),
        ("exit 0", "`activate` ended its shell there, as `exit` and `exec` do: exit 0"),
        ("exec cat", "`activate` ended its shell there"),
        (
            "echo why >&2; false",
            "`activate` failed there with exit code 1: echo why >&2; false; it said: why",
        ),
        ("yes", "`activate` prints without end there: yes"),
    ],
)
def test_what_a_line_of_activate_may_do_and_what_is_said_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str | None
) -> None:
    monkeypatch.setenv("ORCH_HOST_DIR", str(tmp_path / "host"))
    host = HostPlan("gpu-a", transport="local", python=sys.executable, activate=line)
    transport = LocalTransport()
    try:
        channel = transport.open(host, bootstrap.COMMAND)
        if says is None:
            assert bootstrap.start_agent(channel, host, bundle.load(), timeout_s=patient(15.0)).hello
            return
        with pytest.raises(HostError) as refused:
            bootstrap.start_agent(channel, host, bundle.load(), timeout_s=patient(15.0))
        assert says in str(refused.value)
    finally:
        transport.close(host)


def having(text: str, *words: str) -> list[str]:
    """Return the command lines of living processes with this text, but for a shell that is told to run it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if text in line and (not words or line.startswith(("sleep", *words)))]


def test_a_cut_is_silent_and_close_still_wakes_the_reader(start: Callable[[str], Channel], rig: Rig) -> None:
    if rig.cut is None or rig.heal is None:
        pytest.skip("this transport has no link that could be cut")
    channel = start(ECHO)
    channel.write(b"a")
    assert channel.read(1) == b"a"
    rig.cut()
    try:
        channel.write(b"b")
        reader, results = in_thread(lambda: channel.read(1))
        reader.join(0.5)
        assert reader.is_alive(), "a cut link says nothing"
        channel.close()
        reader.join(SOON_S)
        assert results == [b""]
    finally:
        rig.heal()


def test_a_short_cut_loses_nothing(start: Callable[[str], Channel], rig: Rig) -> None:
    if rig.cut is None or rig.heal is None:
        pytest.skip("this transport has no link that could be cut")
    channel = start(ECHO)
    rig.cut()
    channel.write(b"kept")
    rig.heal()
    assert read_exactly(channel, 4) == b"kept"


class Fed:
    """Takes what a channel feeds."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.heard = bytearray()
        self.pieces = 0
        self.ends = 0
        self.together = 0
        self.pause_s = pause_s
        self.after_end = 0
        self._lock = threading.Lock()

    def receive(self, data: bytes) -> float:
        if not self._lock.acquire(blocking=False):
            self.together += 1
            return 0.0
        try:
            self.after_end += self.ends
            self.ends += not data
            self.pieces += 1
            self.heard += data
            return self.pause_s
        finally:
            self._lock.release()

    def wait(self, condition: Callable[[], bool]) -> None:
        assert comes(condition, 3 * SOON_S, 0.01), f"{len(self.heard)} bytes, {self.ends} ends"


def test_who_is_fed_gets_all_and_then_the_end_once(start: Callable[[str], Channel]) -> None:
    channel, fed = start(SPEAK), Fed()
    time.sleep(0.2)  # some of it has come before
    channel.feed(fed.receive)
    fed.wait(lambda: fed.ends > 0)
    assert bytes(fed.heard) == b"out\n"
    assert channel.exit_status() == 3
    assert "err" in channel.stderr_tail()
    channel.close()
    time.sleep(0.1)
    assert (fed.ends, fed.together, fed.after_end) == (1, 0, 0)


def test_8_mib_are_fed_in_order(start: Callable[[str], Channel]) -> None:
    channel, fed = start(ECHO), Fed()
    channel.feed(fed.receive)
    channel.write(LARGE)
    fed.wait(lambda: len(fed.heard) >= len(LARGE))
    assert bytes(fed.heard) == LARGE
    channel.close()
    fed.wait(lambda: fed.ends > 0)
    assert (fed.ends, fed.together, fed.after_end) == (1, 0, 0)


def test_a_flood_on_stderr_delays_nobody_who_is_fed(start: Callable[[str], Channel]) -> None:
    channel, fed = start(FLOOD_STDERR), Fed()
    channel.feed(fed.receive)
    fed.wait(lambda: fed.ends > 0)
    assert bytes(fed.heard) == b"done\n"


def test_who_wants_a_pause_is_fed_nothing_for_so_long_and_others_go_on(
    start: Callable[[str], Channel],
) -> None:
    slow, fast = Fed(pause_s=0.4), Fed()
    channels = [start(ECHO), start(ECHO)]
    for channel, fed in zip(channels, (slow, fast), strict=True):
        channel.feed(fed.receive)
    channels[0].write(b"one")
    slow.wait(lambda: slow.heard == b"one")
    began_at = time.monotonic()
    channels[0].write(b"two")
    channels[1].write(b"here")
    fast.wait(lambda: fast.heard == b"here")
    assert slow.heard == b"one" or time.monotonic() - began_at > 0.3
    slow.wait(lambda: slow.heard == b"onetwo")
    assert time.monotonic() - began_at > 0.3


def test_what_comes_in_a_pause_is_fed_in_a_few_pieces(start: Callable[[str], Channel]) -> None:
    """So of many reports the newest is heard soon: each alone, with a pause after it, would come minutes late."""
    channel, fed = start(ECHO), Fed(pause_s=0.4)
    channel.feed(fed.receive)
    channel.write(b"first")
    fed.wait(lambda: fed.heard == b"first")
    for _ in range(200):
        channel.write(b"report\n")
    fed.wait(lambda: len(fed.heard) == len(b"first") + 200 * len(b"report\n"))
    assert fed.pieces < 10


def test_to_close_ends_the_feeding_also_in_a_pause(start: Callable[[str], Channel]) -> None:
    channel, fed = start(ECHO), Fed(pause_s=60.0)
    channel.feed(fed.receive)
    channel.write(b"x")
    fed.wait(lambda: fed.heard == b"x")
    channel.close()
    fed.wait(lambda: fed.ends > 0)
    assert (fed.ends, fed.together, fed.after_end) == (1, 0, 0)


def test_who_closes_while_being_fed_is_told_the_end(start: Callable[[str], Channel]) -> None:
    channel, fed = start(ECHO), Fed()

    def receive(data: bytes) -> float:
        if data:
            channel.close()
        return fed.receive(data)

    channel.feed(receive)
    channel.write(b"x")
    fed.wait(lambda: fed.ends > 0)
    assert bytes(fed.heard) == b"x"


def test_a_channel_that_is_closed_feeds_the_end_alone(start: Callable[[str], Channel]) -> None:
    channel, fed = start(ECHO), Fed()
    channel.close()
    channel.feed(fed.receive)
    fed.wait(lambda: fed.ends > 0)
    assert (bytes(fed.heard), fed.ends) == (b"", 1)


def test_who_is_fed_misses_nothing_while_keys_are_exchanged(
    start: Callable[[str], Channel], rig: Rig
) -> None:
    if not isinstance(rig.transport, SshTransport):
        pytest.skip("only SSH exchanges keys")
    channel, fed = start(ECHO), Fed()
    assert isinstance(channel, SshChannel)
    connection = channel._session.transport
    assert connection is not None
    exchanged = connection.session_id, connection.H
    connection.packetizer.REKEY_BYTES = 1 << 20  # paramiko's own is 512 MiB
    channel.feed(fed.receive)
    for _ in range(3):
        channel.write(LARGE)
    fed.wait(lambda: len(fed.heard) >= 3 * len(LARGE))
    assert bytes(fed.heard) == 3 * LARGE
    assert exchanged[1] != connection.H, "keys were exchanged"
    channel.close()
    fed.wait(lambda: fed.ends > 0)
    assert (fed.ends, fed.together, fed.after_end) == (1, 0, 0)

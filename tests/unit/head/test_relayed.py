"""How a relay's lines are told from what an engine's client and a command print on stderr."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.errors import AllocationGone, ConnectFailed
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.relayed import RelayTransport

HOST = HostPlan("n1", transport="test", allocation="7.0")


class Script:
    """An engine whose client is a line of the shell; $1 is the relay's mark."""

    def __init__(self, line: str, ended: str | None = None) -> None:
        self._line = line
        self._ended = ended

    def client(self, host: HostPlan, relay: list[str]) -> list[str]:  # noqa: ARG002
        return ["/bin/sh", "-c", self._line, "client", relay[2]]

    def ended(self, host: HostPlan) -> str | None:  # noqa: ARG002
        return self._ended

    def waits(self, host: HostPlan) -> str | None:  # noqa: ARG002
        return None


def read_all(line: str) -> tuple[bytes, int | None, str]:
    transport = RelayTransport(Script(line))
    channel = transport.open(HOST, "true")
    heard = b""
    while data := channel.read(100):
        heard += data
    found = heard, channel.exit_status(), channel.stderr_tail()
    transport.close(HOST)
    return found


def test_all_that_a_short_command_says_may_come_at_once() -> None:
    line = r'printf "engine talks\n$1 open\nerr\n$1 exit 3\n" >&2; echo out'
    assert read_all(line) == (b"out\n", 3, "err\n")


def test_a_command_that_says_much_on_stderr_at_once_is_open_all_the_same(tmp_path: Path) -> None:
    line = f'printf "$1 open\\n%020000d\\n$1 exit 3\\n" 0 > {tmp_path}/f; cat {tmp_path}/f >&2; echo out'
    found: object = None
    with contextlib.suppress(ConnectFailed):
        found = read_all(line)
    assert found == (b"out\n", 3, "0" * 4095 + "\n")


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Hold all descriptors below 1100."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (4096 if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if hard < 1200:
        pytest.skip(f"THIS MACHINE ALLOWS ONLY {hard} DESCRIPTORS")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), limits[1]))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        descriptor = 0
        while descriptor < 1100:
            descriptor = os.open(os.devnull, os.O_RDONLY)
            held.callback(os.close, descriptor)
        yield


@pytest.mark.usefixtures("many_descriptors")
def test_a_channel_opens_though_the_coordinator_has_more_than_a_thousand_descriptors() -> None:
    assert read_all(r'printf "$1 open\n$1 exit 3\n" >&2; echo out')[:2] == (b"out\n", 3)


def test_a_client_that_breaks_off_has_no_exit_code() -> None:
    line = r'printf "$1 open\n" >&2; echo half; echo "srun: error: Node failure" >&2; exit 1'
    assert read_all(line) == (b"half\n", None, "srun: error: Node failure\n")


def test_a_command_that_a_signal_ended_has_no_exit_code() -> None:
    assert read_all(r'printf "$1 open\n$1 exit -\n" >&2')[1] is None


def test_a_mark_of_somebody_else_is_a_line_like_any_other() -> None:
    line = r'printf "$1 open\norch-relay-00 exit 0\n" >&2'
    assert read_all(line)[1:] == (None, "orch-relay-00 exit 0\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (r'printf "srun: error: Invalid job\n" >&2; exit 1', "srun: error: Invalid job"),
        (r'printf "$1 no-keeper Connection refused\n" >&2', "no keeper answers there: Connection refused"),
        ("exit 0", "ended without output"),
    ],
)
def test_without_the_relays_word_there_is_no_connection(line: str, says: str) -> None:
    with pytest.raises(ConnectFailed, match=says):
        RelayTransport(Script(line)).open(HOST, "true")


def test_an_allocation_that_is_gone_is_said_so() -> None:
    with pytest.raises(AllocationGone, match="n1: job 7 has ended"):
        RelayTransport(Script("exit 1", ended="job 7 has ended (TIMEOUT)")).open(HOST, "true")


def test_a_client_that_says_nothing_is_given_up() -> None:
    with pytest.raises(
        ConnectFailed, match="the relay did not answer in time; the engine's client said: waiting"
    ):
        RelayTransport(Script("echo waiting >&2; exec sleep 60"), open_s=0.2).open(HOST, "true")


def test_a_keeper_starts_what_a_relay_hands_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    from orchestrator.head.code import bundle

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    archive = tmp_path / "orch.pyz"
    archive.write_bytes(bundle.load().code.data)
    python = [sys.executable, "-I", "-S", str(archive)]
    keeper = subprocess.Popen([*python, "keeper", "7.0"], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    try:
        assert b'"ready"' in keeper.stdout.readline()

        class Here(Script):
            def client(self, host: HostPlan, relay: list[str]) -> list[str]:  # noqa: ARG002
                return [*python, *relay]

        channel = RelayTransport(Here("")).open(HOST, "cat; echo $PPID >&2; exit 4")
        channel.write(b"\0\xff")
        assert channel.read(10) == b"\0\xff"
        channel._stdin.close()  # type: ignore[attr-defined]
        assert channel.read(10) == b""
        assert (channel.exit_status(), channel.stderr_tail()) == (4, f"{keeper.pid}\n")
        keeper.terminate()
        assert keeper.stdout.readline() == b'{"leaving": "TERM"}\n'
        second = subprocess.run([*python, "keeper", "7.0"], capture_output=True, check=False)
        assert second.returncode == 1
        assert b"another keeper" in second.stderr
    finally:
        keeper.kill()
        keeper.wait()
        keeper.stdout.close()


def test_the_keeper_of_a_pod_gives_its_boot_a_name_and_ends_when_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import subprocess

    from orchestrator.head.code import bundle

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    archive = tmp_path / "orch.pyz"
    archive.write_bytes(bundle.load().code.data)
    python = [sys.executable, "-I", "-S", str(archive)]

    class Here(Script):
        def client(self, host: HostPlan, relay: list[str]) -> list[str]:  # noqa: ARG002
            return [*python, *relay]

    boots = []
    for _ in range(2):
        environ = {**os.environ, "ORCH_POD_UID": "0c1d-uid"}
        keeper = subprocess.Popen([*python, "keeper", "7.0"], stdout=subprocess.PIPE, env=environ)
        assert keeper.stdout is not None
        try:
            keeper.stdout.readline()
            channel = RelayTransport(Here("")).open(HOST, 'echo "$ORCH_BOOT_ID"; exec cat')
            boots.append(channel.read(100).decode().strip())
            keeper.terminate()
            assert keeper.stdout.readline() == b'{"leaving": "TERM"}\n'
            assert keeper.poll() is None, "a command still runs"
            channel.close()
            assert keeper.wait(10) == 0
        finally:
            keeper.kill()
            keeper.wait()
            keeper.stdout.close()
    assert all(boot.startswith("0c1d-uid-") for boot in boots)
    assert boots[0] != boots[1], "the next first process of the same pod is another boot"

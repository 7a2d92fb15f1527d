"""What a keeper writes of its host's leaving is what every agent reports, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.both import process
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.relayed import RelayTransport
from orchestrator.host.system import leaving
from tests.patience import comes

HOST = HostPlan("n1", transport="test", allocation="7.0")
MAIN = "import sys; from orchestrator.host.keeper import {0}; sys.exit({0}.main(sys.argv[1:]))"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "leaving"
    monkeypatch.setenv(leaving.VARIABLE, str(path))
    return path


def test_a_host_that_nobody_lends_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(leaving.VARIABLE, raising=False)
    assert leaving.read() is None


def test_the_time_that_is_left_is_told(file: Path) -> None:
    assert leaving.read() is None
    leaving.write(str(file), "the time limit is near", 120.0)
    told = leaving.read()
    assert told is not None
    assert told["why"] == "the time limit is near"
    assert 110.0 < told["in_s"] <= 120.0
    leaving.write(str(file), "Slurm preempts the job", 30.0)
    leaving.write(str(file), "the time limit is near", 120.0)
    sooner = leaving.read()
    assert sooner is not None
    assert sooner["why"] == "Slurm preempts the job", "the sooner end stays"
    leaving.write(str(file), "at an unknown time", 0.0)
    assert leaving.read() == {"why": "at an unknown time", "in_s": 0.0}


@pytest.mark.parametrize("text", ["", "[]", '{"why": 7, "at": 1}', '{"why": "x"}', '{"why": "x", "at": "y"}'])
def test_what_is_damaged_says_nothing(file: Path, text: str) -> None:
    file.write_text(text)
    assert leaving.read() is None


class Here:
    """An engine whose hosts are this machine."""

    def client(self, host: HostPlan, relay: list[str]) -> list[str]:  # noqa: ARG002
        return [sys.executable, "-c", MAIN.format("relay"), *relay[1:]]

    def ended(self, host: HostPlan) -> str | None:  # noqa: ARG002
        return None

    def waits(self, host: HostPlan) -> str | None:  # noqa: ARG002
        return None


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    warnings = ["USR1:120:the time limit: near", "TERM:30:Slurm preempts the job"]
    child = start(*warnings)
    yield child
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def start(*warnings: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", MAIN.format("main"), HOST.allocation, *warnings]
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert "ready" in said(child)
    return child


def said(child: subprocess.Popen[bytes]) -> dict[str, object]:
    assert child.stdout is not None
    found: dict[str, object] = json.loads(child.stdout.readline())
    return found


def asked() -> object:
    """Return what an agent that the keeper has started would report."""
    program = "import json; from orchestrator.host.system import leaving; print(json.dumps(leaving.read()))"
    channel = RelayTransport(Here()).open(HOST, f"exec {sys.executable} -c '{program}'")
    heard = b""
    while data := channel.read(65536):
        heard += data
    channel.close()
    return json.loads(heard)


def test_a_signal_to_the_keeper_is_what_its_agents_report(
    keeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert asked() is None
    keeper.send_signal(signal.SIGUSR1)
    assert said(keeper) == {"leaving": "USR1"}
    told = asked()
    assert isinstance(told, dict)
    assert told["why"] == "the time limit: near"
    assert 100.0 < told["in_s"] <= 120.0
    keeper.kill()
    keeper.wait()
    again = start()
    assert isinstance(asked(), dict), "that the host leaves stays true for the next keeper"
    again.kill()
    again.wait()
    assert again.stdout is not None
    again.stdout.close()


def test_a_signal_of_which_the_engine_has_said_nothing_leaves_the_tasks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes deletes a pod and makes it anew: the coordinator sees that, and decides."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    child = start()
    child.send_signal(signal.SIGTERM)
    assert said(child) == {"leaving": "TERM"}
    assert asked() is None
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_a_command_whose_channel_was_taken_away_ends(keeper: subprocess.Popen[bytes]) -> None:
    """Nobody else would end it: its stdin may stay open, and it may never write."""
    channel = RelayTransport(Here()).open(HOST, "echo $$; exec sleep 600")
    pid = int(channel.read(65536))
    command = process.identity(pid)
    assert command is not None
    channel._child.kill()  # type: ignore[attr-defined]
    try:
        assert comes(lambda: not process.alive(command), 20.0)
    finally:
        process.signal(command, signal.SIGKILL)
        channel.close()
    assert keeper.poll() is None, "the keeper serves on"


@pytest.mark.parametrize("words", [[], ["7.0", "HUP:1:no"], ["7.0", "TERM:soon:x"], ["7.0", "TERM"]])
def test_a_keeper_that_is_called_wrongly_says_how(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN.format("main"), *words], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"usage: keeper" in done.stderr

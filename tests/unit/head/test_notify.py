"""What a service tells systemd, at a socket that plays it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.head.coordinator.main import kept_alive
from orchestrator.head.node.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind("s")
        made.settimeout(10.0)
        yield made


def test_it_says_when_it_is_ready_lives_and_ends(manager: socket.socket) -> None:
    notifier = Notifier("s")
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    assert [manager.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_a_socket_without_a_file_is_reached_too() -> None:
    name = f"orch-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        Notifier(f"@{name}").ready()
        assert manager.recv(99) == b"READY=1"


def test_without_a_manager_nothing_is_said_and_nothing_breaks(manager: socket.socket) -> None:
    Notifier().ready()
    Notifier("gone").ready()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(99)


def test_what_systemd_has_set_reaches_no_child() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/n",
        "WATCHDOG_USEC": "2000000",
        "WATCHDOG_PID": str(os.getpid()),
        "A": "1",
    }
    assert Notifier.from_environment(environ).watchdog_s == 2.0
    assert environ == {"A": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        {"WATCHDOG_USEC": "2000000"},
        {"NOTIFY_SOCKET": "/run/n"},
        {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"},
    ],
)
def test_nobody_waits_for_a_sign_of_life(environ: dict[str, str]) -> None:
    assert Notifier.from_environment(environ).watchdog_s is None


def test_the_deciding_thread_itself_says_that_it_lives(manager: socket.socket) -> None:
    said_by = []

    def call(command: Callable[[], Any], *, timeout_s: float) -> None:
        assert timeout_s == 0.01
        said_by.append(command)
        command()

    with kept_alive(Notifier("s", 0.04), call):
        assert [manager.recv(99) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    assert len(said_by) >= 3


def test_one_that_hangs_says_nothing_and_is_asked_again(manager: socket.socket) -> None:
    asked = threading.Semaphore(0)

    def call(command: Callable[[], Any], *, timeout_s: float) -> None:
        asked.release()
        raise TimeoutError

    with kept_alive(Notifier("s", 0.04), call):
        assert all(asked.acquire(timeout=10.0) for _ in range(3))
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(99)

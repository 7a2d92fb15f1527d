"""How many handshakes with one sshd go on at once, counted at the sshd's end of real connections."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.core.errors import HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.transport import SshTransport

ONE_MORE_WAIT_S = 0.1
"""How long one more is waited for, which must not come; one that is late makes the test weaker, not wrong."""


class Gatekeeper:
    """Takes connections and answers none, until `let_go`: then each hears that this sshd is too old for it."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.server.settimeout(15.0)
        self.held: list[socket.socket] = []

    def take(self, count: int) -> None:
        """So many, and then all that come without being asked for."""
        for _ in range(count):
            self.held.append(self.server.accept()[0])
        while select.select([self.server], [], [], ONE_MORE_WAIT_S)[0]:
            self.held.append(self.server.accept()[0])

    def let_go(self) -> None:
        while self.held:
            with contextlib.closing(self.held.pop()) as client:
                client.sendall(b"SSH-1.0-old\r\n")


@pytest.fixture
def gatekeeper() -> Iterator[Gatekeeper]:
    made = Gatekeeper()
    yield made
    made.let_go()
    made.server.close()


@pytest.mark.fault(31)
def test_64_hosts_behind_one_sshd_shake_hands_8_at_a_time(gatekeeper: Gatekeeper, tmp_path: Path) -> None:
    address, port = gatekeeper.server.getsockname()
    known = tmp_path / "known_hosts"
    ssh = SshTransport(known, home=tmp_path, config_files=(tmp_path / "config",))
    hosts = [
        HostPlan(f"gpu-{number}", address=address, user="ml", port=port, known_hosts=str(known))
        for number in range(64)
    ]
    known.touch()

    def refused(host: HostPlan) -> bool:
        try:
            ssh.open(host, "true")
        except HostUnfit as e:
            return "have no algorithm in common" in e.message
        return False

    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = [pool.submit(refused, host) for host in hosts]
        for _ in range(8):
            gatekeeper.take(8)
            assert len(gatekeeper.held) == 8
            gatekeeper.let_go()
        assert all(answer.result(15.0) for answer in answers)

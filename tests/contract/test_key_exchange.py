"""Which key exchange and cipher a connection ends up with, at a server that has them all; and what keeps it open."""

# ruff: noqa: ARG002 - the signatures are those of the library

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from orchestrator.core.errors import AuthRefused, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.transport import SshTimeouts, SshTransport
from tests.patience import comes


class Noting(paramiko.Transport):
    """Notes what was agreed upon, which is forgotten once the keys are made."""

    agreed: list[tuple[str, str]]

    def _activate_outbound(self) -> None:
        self.agreed.append((vars(self)["kex_engine"].name, vars(self)["remote_cipher"]))
        super()._activate_outbound()  # type: ignore[misc]  # not in the stubs


class Welcoming(paramiko.ServerInterface):
    """Lets everybody in and starts nothing; notes what is asked outside of any channel."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True

    def check_global_request(self, kind: str, msg: paramiko.Message) -> bool:
        self._asked.append(kind)
        return False


class Server:
    """A server of the library's own: it takes what the client asks for first, and lets nobody in by itself."""

    def __init__(self, interface: paramiko.ServerInterface | None = None) -> None:
        self._interface = interface or paramiko.ServerInterface()
        self.key = paramiko.ECDSAKey.generate()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.agreed: list[tuple[str, str]] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                transport = Noting(self.socket.accept()[0])
                transport.agreed = self.agreed
                transport.add_server_key(self.key)
                with contextlib.suppress(paramiko.SSHException, EOFError):
                    transport.start_server(server=self._interface)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.socket.close()


def agreed(server: Server, home: Path, config: str = "") -> tuple[str, str]:
    """Connect as far as that server lets anybody, and say what was agreed upon."""
    (home / "config").write_text(config)
    ssh = SshTransport(home / "own", home=home, config_files=(home / "config",))
    with pytest.raises(AuthRefused):
        ssh.open(known(server, home), "true")
    return server.agreed[-1]


def known(server: Server, home: Path) -> HostPlan:
    """Return the server as a host whose key is known."""
    address, port = server.socket.getsockname()
    (home / "known_hosts").write_text(
        f"[{address}]:{port} {server.key.get_name()} {server.key.get_base64()}\n"
    )
    return HostPlan("gpu-a", address=address, port=port, user="ml", known_hosts=str(home / "known_hosts"))


def test_a_post_quantum_exchange_is_used_where_both_have_it(server: Server, tmp_path: Path) -> None:
    if "mlkem768x25519-sha256" not in paramiko.Transport._preferred_kex:  # type: ignore[attr-defined]
        pytest.skip("NO ML-KEM HERE: this cryptography cannot do it")
    assert agreed(server, tmp_path) == ("mlkem768x25519-sha256", "aes128-gcm@openssh.com")


def test_ssh_config_decides(server: Server, tmp_path: Path) -> None:
    config = "Host 127.*\n  KexAlgorithms ecdh-sha2-nistp384\n  Ciphers aes256-ctr\n"
    assert agreed(server, tmp_path, config) == ("ecdh-sha2-nistp384", "aes256-ctr")


def test_what_only_other_software_has_is_refused_before_anything_is_sent(
    server: Server, tmp_path: Path
) -> None:
    with pytest.raises(HostUnfit, match="KexAlgorithms sntrup761x25519") as refused:
        agreed(server, tmp_path, "KexAlgorithms sntrup761x25519-sha512@openssh.com\n")
    assert "Host block" in (refused.value.hint or "")
    assert server.agreed == []


def test_an_idle_connection_is_kept_open_beyond_what_routers_on_the_way_forget(tmp_path: Path) -> None:
    asked: list[str] = []
    server = Server(Welcoming(asked))
    key = tmp_path / "key"
    paramiko.ECDSAKey.generate().write_private_key_file(str(key))
    (tmp_path / "config").write_text(f"Host *\n  IdentityFile {key}\n")
    config = (tmp_path / "config",)
    ssh = SshTransport(
        tmp_path / "own", home=tmp_path, config_files=config, timeouts=SshTimeouts(keepalive_s=1)
    )
    channel = ssh.open(known(server, tmp_path), "sleep 60")
    try:
        assert comes(lambda: "keepalive@lag.net" in asked, 15.0, every_s=0.2)
    finally:
        channel.close()
        server.socket.close()

"""`orch trust`: which hosts are meant, what is shown, and that nothing is trusted unasked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import pytest

from orchestrator.adapters.ssh.config import Hop
from orchestrator.adapters.ssh.known_hosts import HostKey
from orchestrator.adapters.ssh.transport import ScannedKey
from orchestrator.cli.commands.trust import hosts_of, trust
from orchestrator.cli.session import Session
from orchestrator.core.errors import ConnectFailed, Refused, SomeHostsOnly, UsageError
from orchestrator.core.plan import HostPlan


class Sshds:
    """Hosts that show a key each; `down` refuses. What was trusted is known from then on."""

    def __init__(self) -> None:
        self.trusted: list[str] = []

    def scan(self, host: HostPlan) -> list[ScannedKey]:
        if host.name == "down":
            raise ConnectFailed("down", "nothing answers", hint="is it on?")
        # A bastion that is not trusted yet shows its own key in place of the host's.
        behind = host.proxy_jump is not None and "bastion" not in self.trusted
        return [self._key("bastion" if behind else host.name)]

    def trust(self, keys: Iterable[ScannedKey]) -> int:
        new = [key.hop.address for key in keys]
        self.trusted += new
        return len(new)

    def _key(self, address: str) -> ScannedKey:
        hop = Hop(address, 22, "ml", address, (), False, False, ())
        return ScannedKey(hop, HostKey("ssh-ed25519", address.encode()), address in self.trusted)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    environ = {"ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "run")}
    return Session(StringIO(), StringIO(), environ)


def put_out(session: Session) -> str:
    assert isinstance(session.out, StringIO)
    return session.out.getvalue()


def test_yes_trusts_what_is_shown(session: Session) -> None:
    sshds = Sshds()
    assert trust(session, sshds, hosts_of(["gpu-a", "gpu-b"]), yes=True, as_json=False) == 0
    assert sshds.trusted == ["gpu-a", "gpu-b"]
    assert put_out(session).splitlines()[0] == (
        "gpu-a  gpu-a:22  ssh-ed25519  SHA256:b0T8VSFKVI24uu9EoenP8oScj6FXxxb9FbQbeVBkAU4  new"
    )


def test_nobody_to_ask_trusts_nothing(session: Session) -> None:
    sshds = Sshds()
    with pytest.raises(Refused, match="nobody is there to ask") as caught:
        trust(session, sshds, hosts_of(["gpu-a"]), yes=False, as_json=False)
    assert (sshds.trusted, caught.value.exit_code) == ([], 6)
    assert "SHA256:" in put_out(session)


def test_a_host_that_is_known_is_not_asked_about(session: Session) -> None:
    sshds = Sshds()
    sshds.trusted.append("gpu-a")
    assert trust(session, sshds, hosts_of(["gpu-a"]), yes=False, as_json=False) == 0


def test_behind_a_bastion_it_takes_two_rounds(session: Session) -> None:
    sshds = Sshds()
    host = HostPlan("gpu-a", address="gpu-a", proxy_jump="bastion")
    assert trust(session, sshds, [host], yes=True, as_json=True) == 0
    assert sshds.trusted == ["bastion", "gpu-a"]
    assert json.loads(put_out(session))["added"] == 2


def test_some_hosts_only(session: Session) -> None:
    with pytest.raises(SomeHostsOnly, match="1 of 2 hosts showed no key"):
        trust(session, Sshds(), hosts_of(["gpu-a", "down"]), yes=True, as_json=False)


def test_the_only_host_is_down(session: Session) -> None:
    with pytest.raises(ConnectFailed, match="nothing answers"):
        trust(session, Sshds(), hosts_of(["down"]), yes=True, as_json=False)


def test_hosts_as_people_write_them() -> None:
    found = [
        (h.address, h.user, h.port) for h in hosts_of(["a", "ml@b", "c:2222", "ml@10.0.0.1:22", "fd00::7"])
    ]
    assert found == [
        ("a", None, None),
        ("b", "ml", None),
        ("c", None, 2222),
        ("10.0.0.1", "ml", 22),
        ("fd00::7", None, None),
    ]


@pytest.mark.parametrize("target", ["", "a:b", "a:0", "a:65536", "-oProxyCommand=x", "@a", "ml@-x"])
def test_what_is_no_host(target: str) -> None:
    with pytest.raises(UsageError):
        hosts_of([target])

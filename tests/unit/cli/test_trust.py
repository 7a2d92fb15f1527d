"""`orch trust`: which hosts are meant, what is shown, and that nothing is trusted unasked, or in place of another."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping
from io import StringIO
from pathlib import Path

import pytest

from orchestrator.cli.commands.trust import AT_ONCE, TrustRequest, hosts_of, trust
from orchestrator.cli.session import Session
from orchestrator.core.errors import ConnectFailed, HostKeyChanged, Refused, SomeHostsOnly, UsageError
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.config import Hop
from orchestrator.head.reach.ssh.errors import refusal
from orchestrator.head.reach.ssh.known_hosts import HostKey, Judgement, KnownHostsLine
from orchestrator.head.reach.ssh.transport import ScannedKey

ASK, YES = TrustRequest(), TrustRequest(yes=True)
OWN, USERS = Path("/state/known_hosts"), Path("/home/ml/.ssh/known_hosts")


class Sshds:
    """Hosts that show a key each; `down` refuses. What was trusted is known from then on.

    `changed` are known by another key, in the file that is given; `revoked` are marked so in the user's.
    """

    def __init__(self, changed: Mapping[str, Path] | None = None, revoked: Collection[str] = ()) -> None:
        self.trusted: list[str] = []
        self.scanned: list[str] = []
        self.changed = dict(changed or {})
        self.revoked = revoked

    def scan(self, host: HostPlan) -> list[ScannedKey]:
        if host.name == "down":
            raise ConnectFailed("down", "nothing answers", hint="is it on?")
        # A bastion that is not trusted yet shows its own key in place of the host's.
        behind = host.proxy_jump is not None and "bastion" not in self.trusted
        self.scanned.append("bastion" if behind else host.name)
        return [self._key(host, "bastion" if behind else host.name)]

    def bastions(self, host: HostPlan) -> tuple[tuple[str, int], ...]:
        return (("bastion", 22),) if host.proxy_jump else ()

    def trust(self, keys: Iterable[ScannedKey]) -> int:
        new = list(dict.fromkeys(key.hop.address for key in keys if key.state in ("new", "changed")))
        self.trusted += new
        return len(new)

    def warnings(self, host: HostPlan) -> list[str]:
        return [] if host.name == "down" else ["~/.ssh/config:3: ignored: orch does not do Match exec"]

    def _key(self, host: HostPlan, address: str) -> ScannedKey:
        hop = Hop(address, 22, "ml", address, (), False, False, (), bastion=address == "bastion")
        key = HostKey("ssh-ed25519", address.encode())
        if address in self.trusted:
            return ScannedKey(hop, key, "known")
        if address in self.revoked:
            line = KnownHostsLine(address, key, "@revoked", USERS, 7)
            error = refusal(host, hop, key, Judgement("revoked", line), OWN)
            return ScannedKey(hop, key, "revoked", line, error)
        if address in self.changed:
            line = KnownHostsLine(address, HostKey("ssh-ed25519", b"old"), "", self.changed[address], 3)
            error = refusal(host, hop, key, Judgement("changed", line, (line,)), OWN)
            return ScannedKey(hop, key, "changed", line, error, self.changed[address] == OWN)
        return ScannedKey(hop, key, "new")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    environ = {"ORCH_STATE_DIR": str(tmp_path / "state"), "ORCH_RUNTIME_DIR": str(tmp_path / "run")}
    return Session(StringIO(), StringIO(), environ)


def put_out(session: Session) -> str:
    assert isinstance(session.out, StringIO)
    return session.out.getvalue()


def test_yes_trusts_what_is_shown(session: Session) -> None:
    sshds = Sshds()
    trust(session, sshds, hosts_of(["gpu-a", "gpu-b"]), YES)
    assert sshds.trusted == ["gpu-a", "gpu-b"]
    assert put_out(session).splitlines()[0] == (
        "gpu-a  gpu-a:22  ssh-ed25519  SHA256:b0T8VSFKVI24uu9EoenP8oScj6FXxxb9FbQbeVBkAU4  new"
    )


class Slow(Sshds):
    """Hosts of which the first answers only after the eighth: the others wait for nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.asked = 0
        self.asked_now = 0
        self.asked_at_once = 0
        self.eighth = threading.Event()

    def scan(self, host: HostPlan) -> list[ScannedKey]:
        with self.lock:
            self.asked += 1
            self.asked_now += 1
            self.asked_at_once = max(self.asked_at_once, self.asked_now)
            if self.asked == AT_ONCE:
                self.eighth.set()
        if host.name == "gpu-00":
            assert self.eighth.wait(30.0)
        with self.lock:
            self.asked_now -= 1
        return super().scan(host)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_eight_hosts_are_asked_at_a_time_and_shown_in_their_order(session: Session) -> None:
    sshds, names = Slow(), [f"gpu-{number:02}" for number in range(40)]
    session.err = Terminal()
    trust(session, sshds, hosts_of(names), YES)
    assert [line.split()[0] for line in put_out(session).splitlines()] == names
    assert sshds.asked_at_once <= AT_ONCE
    assert sshds.trusted == names
    written = session.err.getvalue()
    assert "\r\x1b[K40 of 40 hosts have answered" in written
    assert "\r" not in written.partition("Added 40 keys")[2]
    assert written.partition("Added 40 keys")[0].endswith("\r\x1b[K"), (
        "the count is taken back from the screen"
    )


def test_a_few_hosts_or_no_terminal_are_not_counted(session: Session) -> None:
    many = [f"gpu-{number:02}" for number in range(40)]
    trust(session, Sshds(), hosts_of(many), YES)
    assert isinstance(session.err, StringIO)
    assert "have answered" not in session.err.getvalue()
    session.err = Terminal()
    trust(session, Sshds(), hosts_of(many[:AT_ONCE]), YES)
    assert "have answered" not in session.err.getvalue()


def test_what_of_ssh_config_does_not_count_is_said_once(session: Session) -> None:
    trust(session, Sshds(), hosts_of(["gpu-a", "gpu-b"]), YES)
    assert isinstance(session.err, StringIO)
    assert session.err.getvalue().count("Match exec") == 1


def test_nobody_to_ask_trusts_nothing(session: Session) -> None:
    sshds = Sshds()
    with pytest.raises(Refused, match="no terminal to confirm") as caught:
        trust(session, sshds, hosts_of(["gpu-a"]), ASK)
    assert (sshds.trusted, caught.value.exit_code) == ([], 6)
    assert "SHA256:" in put_out(session)


def test_a_host_that_is_known_is_not_asked_about(session: Session) -> None:
    sshds = Sshds()
    sshds.trusted.append("gpu-a")
    trust(session, sshds, hosts_of(["gpu-a"]), ASK)
    assert sshds.trusted == ["gpu-a"]


def test_behind_a_bastion_it_takes_two_rounds(session: Session) -> None:
    sshds = Sshds()
    host = HostPlan("gpu-a", address="gpu-a", proxy_jump="bastion")
    session.wants_json = True
    trust(session, sshds, [host], YES)
    assert sshds.trusted == ["bastion", "gpu-a"]
    assert json.loads(put_out(session))["added"] == 2


def test_many_hosts_behind_a_bastion_that_is_not_trusted_ask_it_once(session: Session) -> None:
    sshds = Sshds()
    hosts = [HostPlan(f"gpu-{n}", address=f"gpu-{n}", proxy_jump="bastion") for n in range(36)]
    trust(session, sshds, hosts, YES)
    assert sshds.scanned.count("bastion") == 1, "OpenSSH 9.8 bans who connects often without a login"
    assert sorted(sshds.trusted) == sorted(["bastion", *(host.name for host in hosts)])
    shown = put_out(session)
    assert shown.count("  bastion:22  ") == 1
    assert all(f"{host.name}  {host.name}:22  " in shown for host in hosts)


@pytest.mark.fault(61)
@pytest.mark.parametrize("request_", [ASK, YES])
def test_a_changed_key_is_refused_whoever_says_yes(session: Session, request_: TrustRequest) -> None:
    sshds = Sshds(changed={"gpu-a": OWN})
    with pytest.raises(HostKeyChanged) as caught:
        trust(session, sshds, hosts_of(["gpu-a"]), request_)
    assert (sshds.trusted, caught.value.exit_code) == ([], 5)
    old, new = HostKey("", b"old").fingerprint, HostKey("", b"gpu-a").fingerprint
    assert put_out(session).splitlines() == [
        f"gpu-a  gpu-a:22  ssh-ed25519  {new}  changed (was {old}, {OWN}:3)"
    ]
    assert old in caught.value.message
    assert new in caught.value.message
    assert "orch trust --replace gpu-a" in (caught.value.hint or "")


@pytest.mark.fault(61)
def test_replace_takes_a_changed_key_and_asks_before(session: Session) -> None:
    sshds = Sshds(changed={"gpu-a": OWN})
    with pytest.raises(Refused, match="no terminal to confirm"):
        trust(session, sshds, hosts_of(["gpu-a"]), TrustRequest(replace=True))
    assert sshds.trusted == []
    trust(session, sshds, hosts_of(["gpu-a"]), TrustRequest(yes=True, replace=True))
    assert sshds.trusted == ["gpu-a"]


@pytest.mark.fault(61)
def test_a_file_that_is_not_ours_is_not_overruled(session: Session) -> None:
    sshds = Sshds(changed={"gpu-a": USERS})
    with pytest.raises(HostKeyChanged) as caught:
        trust(session, sshds, hosts_of(["gpu-a"]), TrustRequest(yes=True, replace=True))
    assert sshds.trusted == []
    assert f"{USERS}:3" in caught.value.message
    assert caught.value.hint == (
        "ask its owner whether the host was set up anew; if so, "
        f"`ssh-keygen -R gpu-a -f {USERS}`, then `orch trust gpu-a`"
    )


@pytest.mark.fault(61)
def test_a_revoked_key_is_never_taken(session: Session) -> None:
    sshds = Sshds(revoked=["gpu-a"])
    with pytest.raises(HostKeyChanged, match="revoked") as caught:
        trust(session, sshds, hosts_of(["gpu-a"]), TrustRequest(yes=True, replace=True))
    assert (sshds.trusted, caught.value.code) == ([], "host-key-revoked")
    assert put_out(session).rstrip().endswith(f"revoked ({USERS}:7)")


def test_a_refused_host_keeps_no_other_from_being_trusted(session: Session) -> None:
    sshds = Sshds(changed={"gpu-a": OWN})
    session.wants_json = True
    with pytest.raises(HostKeyChanged):
        trust(session, sshds, hosts_of(["gpu-a", "gpu-b"]), YES)
    assert sshds.trusted == ["gpu-b"]
    shown = [host["keys"][0] for host in json.loads(put_out(session))["hosts"]]
    assert [(key["state"], key["known"], key["line"]) for key in shown] == [
        ("changed", False, f"{OWN}:3"),
        ("new", False, None),
    ]
    assert shown[0]["was"] == HostKey("", b"old").fingerprint


def test_a_bastion_that_has_changed_is_what_is_shown(session: Session) -> None:
    sshds = Sshds(changed={"bastion": OWN})
    host = HostPlan("gpu-a", address="gpu-a", proxy_jump="bastion")
    with pytest.raises(HostKeyChanged, match="bastion"):
        trust(session, sshds, [host], YES)
    trust(session, sshds, [host], TrustRequest(yes=True, replace=True))
    assert sshds.trusted == ["bastion", "gpu-a"]


def test_the_hint_can_be_typed_as_it_stands(session: Session) -> None:
    with pytest.raises(HostKeyChanged) as caught:
        trust(session, Sshds(changed={"gpu-a": OWN}), hosts_of(["ml@gpu-a:2222"]), YES)
    assert "`orch trust --replace ml@gpu-a:2222`" in (caught.value.hint or "")


def test_some_hosts_only(session: Session) -> None:
    with pytest.raises(SomeHostsOnly, match="no key from 1 of 2 hosts"):
        trust(session, Sshds(), hosts_of(["gpu-a", "down"]), YES)


def test_the_only_host_is_down(session: Session) -> None:
    with pytest.raises(ConnectFailed, match="nothing answers"):
        trust(session, Sshds(), hosts_of(["down"]), YES)


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


@pytest.mark.parametrize(
    "target", ["a\x1b[2J", "", "a:b", "a:0", "a:65536", "-oProxyCommand=x", "@a", "ml@-x"]
)
def test_what_is_no_host(target: str) -> None:
    with pytest.raises(UsageError):
        hosts_of([target])

"""SSH against real sshds: strict keys, the bastion, and every refusal as a sentence with a way out."""

from __future__ import annotations

import base64
import getpass
import hmac
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from orchestrator.core.errors import (
    AuthRefused,
    ConnectFailed,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnfit,
)
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.transport import SshTimeouts, SshTransport
from orchestrator.head.reach.transport import Channel
from tests.cluster.conftest import MakeLab
from tests.cluster.lab import Lab, LabHost
from tests.cluster.processes import is_alive
from tests.patience import comes, patient

pytestmark = pytest.mark.lab

HELLO = "echo hello; exit 0"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts that no test changes."""
    with Lab(3) as made:
        yield made


def read_all(channel: Channel) -> bytes:
    parts = []
    while data := channel.read(65536):
        parts.append(data)
    channel.close()
    return b"".join(parts)


def says_hello(ssh: SshTransport, host: HostPlan) -> bool:
    return read_all(ssh.open(host, HELLO)) == b"hello\n"


def fingerprint(host: LabHost) -> str:
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(host.host_key.with_suffix(".pub"))],
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split()[1]


def quick(tmp_path: Path, seconds: float = 1.0) -> SshTransport:
    timeouts = SshTimeouts(connect_s=seconds, auth_s=seconds, session_s=seconds)
    return SshTransport(
        tmp_path / "own", home=tmp_path, config_files=(tmp_path / "config",), timeouts=timeouts
    )


class TestHostKeys:
    def test_a_known_host_answers(self, lab: Lab, ssh: SshTransport) -> None:
        assert says_hello(ssh, lab.host(0).plan())

    @pytest.mark.fault(47)
    def test_an_unknown_key_is_refused_with_its_fingerprint(
        self, lab: Lab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        there = lab.host(0)
        with pytest.raises(HostKeyUnknown) as refused:
            ssh.open(there.plan(known_hosts=str(tmp_path / "empty")), HELLO)
        assert fingerprint(there) in refused.value.message
        assert f"orch trust {there.name}" in (refused.value.hint or "")
        assert refused.value.exit_code == 5

    @pytest.mark.fault(46)
    def test_a_changed_key_is_refused_before_any_authentication(
        self, make_lab: MakeLab, ssh: SshTransport
    ) -> None:
        lab = make_lab(1, {0: {"LogLevel": "DEBUG1"}})
        there = lab.host(0)
        before, known = fingerprint(there), lab.known_hosts.read_bytes()
        there.new_host_key()
        there.log.write_text("")
        with pytest.raises(HostKeyChanged) as refused:
            ssh.open(there.plan(), HELLO)
        assert before in refused.value.message
        assert fingerprint(there) in refused.value.message
        assert f"{lab.known_hosts}:1" in refused.value.message
        assert refused.value.exit_code == 5
        assert lab.known_hosts.read_bytes() == known, "the user's file is never edited"
        assert "userauth-request" not in there.log.read_text()
        lab.trust_all()
        assert says_hello(ssh, there.plan())
        assert "userauth-request" in there.log.read_text(), "the log does show authentications"

    def test_a_revoked_key_has_its_own_sentence(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        there = lab.host(0)
        path = tmp_path / "revoked"
        path.write_text(there.known_hosts_line + "@revoked " + there.known_hosts_line)
        with pytest.raises(HostKeyChanged, match="revoked") as refused:
            ssh.open(there.plan(known_hosts=str(path)), HELLO)
        assert refused.value.code == "host-key-revoked"
        assert f"{path}:2" in refused.value.message

    def test_an_authority_and_odd_lines_harm_nothing(
        self, lab: Lab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        there = lab.host(0)
        authority = "@cert-authority * " + there.known_hosts_line.split(maxsplit=1)[1]
        path = tmp_path / "odd"
        path.write_text(f"{authority}bad line\nhost ssh-rsa %%%\n")
        host = there.plan(known_hosts=str(path))
        with pytest.raises(HostKeyUnknown, match="not known") as refused:
            ssh.open(host, HELLO)
        assert "HostCertificate" in (refused.value.hint or "")
        assert len(ssh.warnings(host)) == 2
        path.write_text(path.read_text() + there.known_hosts_line)
        assert says_hello(ssh, host), "the file is read again once it has changed"

    def test_a_hashed_name_is_known(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        there = lab.host(0)
        name, rest = there.known_hosts_line.split(maxsplit=1)
        salt = b"s" * 20
        digest = hmac.new(salt, name.encode(), "sha1").digest()
        path = tmp_path / "hashed"
        path.write_text(f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} {rest}")
        assert says_hello(ssh, there.plan(known_hosts=str(path)))

    def test_a_host_is_asked_for_the_type_of_key_that_is_known(
        self, make_lab: MakeLab, ssh: SshTransport
    ) -> None:
        lab = make_lab(1)
        there = lab.host(0)
        ecdsa = there.dir / "ecdsa"
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(ecdsa)], check=True)
        there.restart_sshd(HostKey=f"{there.host_key}\nHostKey {ecdsa}")
        name = there.known_hosts_line.split()[0]
        lab.known_hosts.write_text(f"{name} {ecdsa.with_suffix('.pub').read_text()}")
        assert says_hello(ssh, there.plan())

    def test_scan_shows_and_trust_adds_to_our_own_file(
        self, lab: Lab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        there = lab.host(0)
        host = there.plan(known_hosts=str(tmp_path / "empty"))
        scanned = ssh.scan(host)
        assert [(shown.key.type, shown.state) for shown in scanned] == [("ssh-ed25519", "new")]
        assert scanned[0].key.fingerprint == fingerprint(there)
        assert ssh.trust(scanned) == 1
        assert ssh.trust(scanned) == 0
        assert says_hello(ssh, host)
        assert ssh.scan(host)[0].state == "known"
        assert not (tmp_path / "empty").exists()

    @pytest.mark.fault(61)
    def test_a_changed_key_is_taken_only_where_it_replaces_one_of_ours(
        self, make_lab: MakeLab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        lab = make_lab(1)
        there = lab.host(0)
        ours = there.plan(known_hosts=str(tmp_path / "empty"))
        ssh.trust(ssh.scan(ours))
        before = fingerprint(there)
        there.new_host_key()

        changed = ssh.scan(ours)
        assert [(shown.state, shown.was and shown.was.key.fingerprint) for shown in changed] == [
            ("changed", before)
        ]
        with pytest.raises(HostKeyChanged) as refused:
            ssh.open(ours, HELLO)
        assert "orch trust --replace" in (refused.value.hint or "")

        with pytest.raises(HostKeyChanged) as refused:
            ssh.trust(ssh.scan(there.plan()))
        assert f"{lab.known_hosts}:1" in refused.value.message, "the user's file has the old key too"

        assert ssh.trust(changed) == 1
        assert says_hello(ssh, ours)
        with pytest.raises(HostKeyChanged, match=f"{lab.known_hosts}:1"):
            ssh.open(there.plan(), HELLO)  # our file knows the new key, and overrules nobody
        lab.trust_all()
        assert says_hello(ssh, there.plan())


class TestPolicy:
    def test_fabrics_own_policy_is_on_no_connection(self, ssh: SshTransport) -> None:
        route = ssh.route(HostPlan("a", address="192.0.2.1", proxy_jump="192.0.2.2"))
        connections = ssh._connections(route)
        assert len(connections) == 2
        assert connections[1].gateway is connections[0]
        for connection in connections:
            assert isinstance(connection.client._policy, paramiko.RejectPolicy)
            assert connection.forward_agent is False


class TestBastion:
    def test_both_hops_are_strict_and_work(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        bastion, there = lab.host(0), lab.host(1)
        jump = f"{getpass.getuser()}@{bastion.address}:{bastion.port}"
        assert says_hello(ssh, there.plan(proxy_jump=jump))

        only_target = tmp_path / "only-target"
        only_target.write_text(there.known_hosts_line)
        with pytest.raises(HostKeyUnknown, match="bastion"):
            ssh.open(there.plan(proxy_jump=jump, known_hosts=str(only_target)), HELLO)

        only_bastion = tmp_path / "only-bastion"
        only_bastion.write_text(bastion.known_hosts_line)
        with pytest.raises(HostKeyUnknown) as refused:
            ssh.open(there.plan(proxy_jump=jump, known_hosts=str(only_bastion)), HELLO)
        assert "bastion" not in refused.value.message
        assert fingerprint(there) in refused.value.message

    def test_trust_goes_hop_by_hop(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        bastion, there = lab.host(0), lab.host(1)
        host = there.plan(
            proxy_jump=f"{bastion.address}:{bastion.port}",
            known_hosts=str(tmp_path / "empty"),
            user=getpass.getuser(),
        )
        first = ssh.scan(host)
        assert first[0].hop.bastion
        ssh.trust(first)
        second = ssh.scan(host)
        assert not second[0].hop.bastion
        ssh.trust(second)
        assert says_hello(ssh, host)

    def test_ssh_config_names_the_bastion(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        bastion, there = lab.host(0), lab.host(1)
        directory = tmp_path / ".ssh"
        directory.mkdir()
        (directory / "config").write_text(
            "Include more/*.conf\n"
            'Match exec "touch /nonexistent/x"\n  Port 1\n'
            f"Host gate\n  HostName {bastion.address}\n  Port {bastion.port}\n  User {getpass.getuser()}\n"
            f"Host *\n  IdentityFile {lab.identity_file}\n  UserKnownHostsFile {lab.known_hosts}\n"
        )
        (directory / "more").mkdir()
        (directory / "more/gpu.conf").write_text(
            f"Host gpu-a\n  HostName {there.address}\n  Port {there.port}\n  ProxyJump gate\n"
        )
        host = HostPlan("gpu-a", address="gpu-a")
        assert says_hello(ssh, host)
        assert any("Match exec" in warning for warning in ssh.warnings(host))
        with pytest.raises(ConnectFailed, match="port 1 "):
            ssh.open(replace(host, port=1, proxy_jump="none"), HELLO)

    def test_a_bastion_goes_by_its_own_bastion(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        outer, inner, there = lab.hosts
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh/config").write_text(
            f"Host inner\n  HostName {inner.address}\n  Port {inner.port}\n  ProxyJump {outer.address}:{outer.port}\n"
        )
        before = inner.log.read_text().count(f"from {outer.address}")
        assert says_hello(ssh, there.plan(proxy_jump="inner"))
        assert inner.log.read_text().count(f"from {outer.address}") > before

    def test_a_command_of_ssh_config_connects_and_the_key_behind_it_is_judged(
        self, lab: Lab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        outer, _, there = lab.hosts
        (tmp_path / ".ssh").mkdir()
        pids = tmp_path / "pids"
        relay = (
            "import socket,sys,threading,os\n"
            "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
            "def back():\n"
            "    while d:=s.recv(65536): os.write(1,d)\n"
            "    os._exit(0)\n"
            "threading.Thread(target=back,daemon=True).start()\n"
            "while d:=os.read(0,65536): s.sendall(d)\n"
        )
        (tmp_path / "relay.py").write_text(relay)
        way = f"sh -c 'echo $$ >> {pids}; exec {sys.executable} {tmp_path}/relay.py %h %p'"
        (tmp_path / ".ssh/config").write_text(
            f"Host gpu-a\n  HostName {there.address}\n  Port {there.port}\n  ProxyCommand {way}\n"
            f"Host gate\n  HostName {outer.address}\n  Port {outer.port}\n  ProxyCommand {way}\n"
        )
        plan = replace(there.plan(), address="gpu-a", port=None)
        assert says_hello(ssh, plan)
        assert says_hello(ssh, there.plan(proxy_jump="gate")), "and a bastion too"
        with pytest.raises(HostKeyUnknown):
            ssh.open(replace(plan, known_hosts=str(tmp_path / "none")), HELLO)
        assert {scanned.state for scanned in ssh.scan(plan)} <= {"known", "not needed"}
        started = [int(pid) for pid in pids.read_text().split()]
        assert len(started) > 3
        assert comes(lambda: not any(map(is_alive, started)), 10), "none of them is left"

    def test_a_certificate_that_lies_elsewhere(
        self, make_lab: MakeLab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        host = make_lab(1).host(0)
        ca, key = tmp_path / "ca", tmp_path / "key"
        for made in (ca, key):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made)], check=True)
        sign = ["ssh-keygen", "-q", "-s", str(ca), "-I", "me", "-n", getpass.getuser(), f"{key}.pub"]
        subprocess.run(sign, check=True)
        (tmp_path / "key-cert.pub").rename(tmp_path / "mine.pub")
        host.restart_sshd(TrustedUserCAKeys=f"{ca}.pub", AuthorizedKeysFile="none")
        plan = host.plan(identity_file=str(key))
        with pytest.raises(AuthRefused):
            ssh.open(plan, HELLO)
        (tmp_path / ".ssh").mkdir()
        (tmp_path / ".ssh/config").write_text(f"Host *\n  CertificateFile {tmp_path}/mine.pub\n")
        assert says_hello(ssh, plan)

    def test_a_closed_port_behind_the_bastion(self, lab: Lab, ssh: SshTransport) -> None:
        bastion, there = lab.host(0), lab.host(1)
        with pytest.raises(ConnectFailed, match="bastion cannot connect"):
            ssh.open(there.plan(proxy_jump=f"{bastion.address}:{bastion.port}", port=9), HELLO)

    def test_a_bastion_that_forbids_forwarding(self, make_lab: MakeLab, ssh: SshTransport) -> None:
        lab = make_lab(2, {0: {"AllowTcpForwarding": "no"}})
        bastion, there = lab.hosts
        with pytest.raises(HostUnfit, match="forbids forwarding"):
            ssh.open(there.plan(proxy_jump=f"{bastion.address}:{bastion.port}"), HELLO)


class TestServers:
    def test_one_session_is_enough(self, make_lab: MakeLab, ssh: SshTransport) -> None:
        assert says_hello(ssh, make_lab(1, {0: {"MaxSessions": "1"}}).host(0).plan())

    def test_no_session_at_all(self, make_lab: MakeLab, ssh: SshTransport) -> None:
        with pytest.raises(HostUnfit, match="starts no command"):
            ssh.open(make_lab(1, {0: {"MaxSessions": "0"}}).host(0).plan(), HELLO)

    @pytest.mark.fault(31)
    def test_16_connections_get_through_few_startups(self, make_lab: MakeLab, ssh: SshTransport) -> None:
        there = make_lab(1, {0: {"MaxStartups": "2:50:4"}}).host(0)
        with ThreadPoolExecutor(16) as pool:
            hosts = [there.plan(name=f"gpu-{number}") for number in range(16)]
            assert all(pool.map(lambda host: says_hello(ssh, host), hosts))
        assert "MaxStartups" in there.log.read_text(), "sshd has dropped some, or this shows nothing"

    def test_what_an_rc_file_says_comes_before_the_command(
        self, make_lab: MakeLab, ssh: SshTransport
    ) -> None:
        there = make_lab(1).host(0)
        (there.home / ".bashrc").write_text("echo welcome to the cluster\n")
        if not pwd.getpwuid(os.getuid()).pw_shell.endswith("bash"):
            pytest.skip("only bash reads an rc file for a command over SSH")
        assert read_all(ssh.open(there.plan(), HELLO)) == b"welcome to the cluster\nhello\n"

    def test_the_hosts_environment_is_its_own(self, lab: Lab, ssh: SshTransport) -> None:
        there = lab.host(0)
        command = (
            "echo $HOME; echo $ORCH_HOST_DIR; python3 -c 'import sys; print(sys.version_info >= (3, 11))'"
        )
        lines = read_all(ssh.open(there.plan(), command)).decode().splitlines()
        assert lines == [str(there.home), str(there.host_dir), "True"]


class TestAuthentication:
    def test_a_key_that_the_host_does_not_have(self, lab: Lab, ssh: SshTransport, tmp_path: Path) -> None:
        stranger = tmp_path / "stranger"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
        with pytest.raises(AuthRefused) as refused:
            ssh.open(lab.host(0).plan(identity_file=str(stranger)), HELLO)
        assert f"user {getpass.getuser()}" in refused.value.message
        assert str(stranger) in refused.value.message
        assert "authorized_keys" in (refused.value.hint or "")
        assert refused.value.exit_code == 5

    def test_a_key_that_is_missing_or_locked_or_no_key(
        self, lab: Lab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        locked = tmp_path / "locked"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
        rubbish = tmp_path / "rubbish"
        rubbish.write_text("no key\n")
        rubbish.chmod(0o600)
        for path, why in (
            (tmp_path / "absent", "no such file"),
            (locked, "passphrase"),
            (rubbish, "cannot be read"),
        ):
            with pytest.raises(AuthRefused, match=why):
                ssh.open(lab.host(0).plan(identity_file=str(path)), HELLO)

    def test_keys_of_an_ssh_agent(
        self, lab: Lab, ssh: SshTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "agent.sock"
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
        try:
            while not path.exists():
                assert agent.poll() is None
                threading.Event().wait(0.01)
            monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
            subprocess.run(["ssh-add", "-q", str(lab.identity_file)], check=True)
            assert says_hello(ssh, lab.host(0).plan(identity_file=None))
            monkeypatch.delenv("SSH_AUTH_SOCK")
            (tmp_path / ".ssh").mkdir()
            for said, is_found in (("none", False), (f"{path} # of this test", True)):
                (tmp_path / ".ssh/config").write_text(f"Host *\n  IdentityAgent {said}\n")
                if is_found:
                    assert says_hello(ssh, lab.host(0).plan(identity_file=None))
                else:
                    with pytest.raises(AuthRefused, match="there was none to offer"):
                        ssh.open(lab.host(0).plan(identity_file=None), HELLO)
        finally:
            agent.terminate()
            agent.wait()

    def test_a_server_that_takes_no_keys(self, make_lab: MakeLab, ssh: SshTransport) -> None:
        lab = make_lab(1, {0: {"PubkeyAuthentication": "no", "PasswordAuthentication": "yes"}})
        with pytest.raises(AuthRefused, match="takes no keys, only password") as refused:
            ssh.open(lab.host(0).plan(), HELLO)
        assert "can answer no question" in (refused.value.hint or "")

    def test_a_server_that_asks_for_a_second_factor(self, make_lab: MakeLab, ssh: SshTransport) -> None:
        wanted = {"AuthenticationMethods": "publickey,password", "PasswordAuthentication": "yes"}
        there = make_lab(1, {0: wanted}).host(0).plan()
        with pytest.raises(
            AuthRefused, match=f"wants more than the key {there.identity_file}: password"
        ) as more:
            ssh.open(there, HELLO)
        hint = more.value.hint or ""
        assert "orch connects by itself, at any hour, and can answer no question" in hint
        assert "`Match User YOU Address HEAD` with `AuthenticationMethods publickey`" in hint
        assert "authorized_keys" not in hint, "the key was taken"


class TestUnreachable:
    def test_a_closed_port(self, lab: Lab, ssh: SshTransport) -> None:
        with pytest.raises(ConnectFailed, match="refuses the connection") as refused:
            ssh.open(lab.host(0).plan(port=9), HELLO)
        assert refused.value.host == lab.host(0).name
        assert f"{lab.host(0).address} port 9" in refused.value.message

    def test_a_name_that_is_none(self, ssh: SshTransport) -> None:
        with pytest.raises(ConnectFailed, match="cannot be resolved"):
            ssh.open(HostPlan("gpu-a", address="no-such-host.invalid"), HELLO)

    @pytest.mark.parametrize("address", ["a..b", "a" * 64])
    def test_a_name_that_no_resolver_can_be_asked_for(self, ssh: SshTransport, address: str) -> None:
        with pytest.raises(HostUnfit, match=f"{address} is not a host name"):
            ssh.open(HostPlan("gpu-a", address=address), HELLO)

    def test_a_host_that_is_cut_off(self, make_lab: MakeLab, tmp_path: Path) -> None:
        lab = make_lab(1)
        there = lab.host(0)
        there.drop(source=lab.head_address)
        started = time.monotonic()
        with pytest.raises(ConnectFailed, match="does not answer within 1 s"):
            quick(tmp_path).open(there.plan(), HELLO)
        assert time.monotonic() - started < patient(5.0)

    def test_a_port_that_accepts_and_says_nothing(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            host = HostPlan("gpu-a", address="127.0.0.1", port=server.getsockname()[1])
            with pytest.raises(ConnectFailed, match="does not answer within 1 s"):
                quick(tmp_path).open(host, HELLO)

    @pytest.mark.fault(48)
    def test_an_address_with_a_user_in_it(self, ssh: SshTransport) -> None:
        for address in ("ml@10.0.0.1", "10.0.0.1:22", "-oProxyCommand=x"):
            with pytest.raises(HostUnfit, match="is not an address"):
                ssh.open(HostPlan("gpu-a", address=address), HELLO)

    def test_close_ends_the_connection_of_a_host_that_is_cut(self, make_lab: MakeLab, tmp_path: Path) -> None:
        there = make_lab(1).host(0)
        ssh = quick(tmp_path, 5.0)
        channel = ssh.open(there.plan(), "exec cat")
        there.cut()
        _closes_while_one_writes(channel)


def _closes_while_one_writes(channel: Channel) -> None:
    writer = threading.Thread(target=_write_until_closed, args=(channel,), daemon=True)
    writer.start()
    writer.join(0.5)
    started = time.monotonic()
    channel.close()
    assert time.monotonic() - started < patient(2.0)
    writer.join(5.0)
    assert not writer.is_alive()


def _write_until_closed(channel: Channel) -> None:
    with pytest.raises(OSError, match="closed"):
        channel.write(b"x" * 64_000_000)


def test_a_link_that_is_cut_during_the_bastion_also_closes(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(2)
    bastion, there = lab.hosts
    channel = quick(tmp_path, 5.0).open(
        there.plan(proxy_jump=f"{bastion.address}:{bastion.port}"), "exec cat"
    )
    bastion.cut()
    _closes_while_one_writes(channel)

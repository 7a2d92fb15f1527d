"""What ssh_config says of keys and algorithms, at a real sshd: honoured, or refused with a sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.errors import AuthRefused, HostKeyChanged, HostKeyUnknown, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.transport import SshTransport
from tests.cluster.conftest import MakeLab
from tests.cluster.lab import Lab, LabHost
from tests.cluster.test_ssh import HELLO, fingerprint, says_hello

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One host that says in its log what was agreed upon."""
    with Lab(1, {0: {"LogLevel": "DEBUG2"}}) as made:
        yield made


@pytest.fixture
def there(lab: Lab) -> LabHost:
    lab.host(0).log.write_text("")
    return lab.host(0)


def write(tmp_path: Path, *lines: str) -> None:
    (tmp_path / ".ssh").mkdir(exist_ok=True)
    (tmp_path / ".ssh/config").write_text("Host *\n" + "".join(f"  {line}\n" for line in lines))


def keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True)


class TestAlgorithms:
    def test_ciphers_macs_and_key_exchange_are_those_of_ssh_config(
        self, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        write(
            tmp_path,
            "Ciphers aes256-ctr",
            "MACs hmac-sha2-512-etm@openssh.com",
            "KexAlgorithms curve25519-sha256,ecdh-sha2-nistp521",
        )
        assert says_hello(ssh, there.plan())
        agreed = there.log.read_text()
        assert "kex: algorithm: curve25519-sha256@libssh.org" in agreed
        assert "kex: client->server cipher: aes256-ctr MAC: hmac-sha2-512-etm@openssh.com" in agreed

    def test_a_type_of_host_key_that_is_forbidden_is_not_asked_for(
        self, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        write(tmp_path, "HostKeyAlgorithms rsa-sha2-512")
        with pytest.raises(HostUnfit, match="have no algorithm in common") as refused:
            ssh.open(there.plan(), HELLO)
        assert "`HostKeyAlgorithms rsa-sha2-512` of ssh_config counts" in (refused.value.hint or "")
        with pytest.raises(HostUnfit, match="no host key of a type that orch may ask for"):
            ssh.scan(there.plan())

    def test_an_old_sshd_is_told_with_what_ssh_config_says_already(
        self, make_lab: MakeLab, ssh: SshTransport, tmp_path: Path
    ) -> None:
        old = {"KexAlgorithms": "diffie-hellman-group1-sha1"}
        there = make_lab(1, {0: old}).host(0).plan()
        with pytest.raises(HostUnfit, match="have no algorithm in common") as refused:
            ssh.open(there, HELLO)
        assert refused.value.hint == "update its sshd, or go by a bastion that it speaks with"
        write(tmp_path, "KexAlgorithms curve25519-sha256,ecdh-sha2-nistp521", "Ciphers aes256-ctr")
        with pytest.raises(HostUnfit, match="have no algorithm in common") as refused:
            ssh.open(there, HELLO)
        named = "`KexAlgorithms curve25519-sha256,ecdh-sha2-nistp521` and `Ciphers aes256-ctr` of ssh_config counts"
        assert named in (refused.value.hint or "")

    def test_a_key_that_may_not_sign_is_not_offered(
        self, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        write(tmp_path, "PubkeyAcceptedAlgorithms rsa-sha2-512")
        with pytest.raises(AuthRefused, match="PubkeyAcceptedAlgorithms of ssh_config forbids ssh-ed25519"):
            ssh.open(there.plan(), HELLO)
        assert "querying public key" not in there.log.read_text()

    def test_an_rsa_key_signs_as_ssh_config_says(
        self, lab: Lab, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        keygen("-t", "rsa", "-b", "2048", "-N", "", "-f", str(tmp_path / "rsa"))
        authorized = lab.dir / "authorized_keys"
        before = authorized.read_text()
        authorized.write_text(before + (tmp_path / "rsa.pub").read_text())
        write(tmp_path, "PubkeyAcceptedAlgorithms -rsa-sha2-512")
        try:
            assert says_hello(ssh, there.plan(identity_file=str(tmp_path / "rsa")))
        finally:
            authorized.write_text(before)
        log = there.log.read_text()
        assert "rsa-sha2-256" in log
        assert "public key rsa-sha2-512" not in log


class TestRevokedHostKeys:
    def test_a_key_of_the_list_is_refused_although_it_is_known(
        self, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        write(tmp_path, "RevokedHostKeys ~/.ssh/revoked")
        revoked = tmp_path / ".ssh/revoked"
        revoked.write_text("# stolen\n")
        assert says_hello(ssh, there.plan())
        revoked.write_text("# stolen\n" + there.host_key.with_suffix(".pub").read_text())
        with pytest.raises(HostKeyChanged, match=f"{revoked}:2 marks as revoked") as refused:
            ssh.open(there.plan(), HELLO)
        assert refused.value.code == "host-key-revoked"
        assert [shown.state for shown in ssh.scan(there.plan())] == ["revoked"]

    def test_a_list_that_cannot_be_read_refuses_every_host(
        self, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        write(tmp_path, "RevokedHostKeys ~/.ssh/revoked")
        with pytest.raises(
            HostKeyUnknown, match=r"RevokedHostKeys of ssh_config cannot be read: .*No such file"
        ):
            ssh.open(there.plan(), HELLO)
        keygen("-k", "-f", str(tmp_path / ".ssh/revoked"), str(there.host_key.with_suffix(".pub")))
        with pytest.raises(HostKeyUnknown, match="binary form") as refused:
            ssh.open(there.plan(), HELLO)
        assert refused.value.exit_code == 5


class TestOwnKeys:
    def test_a_private_key_that_others_can_read_is_not_used(
        self, lab: Lab, there: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        copy = tmp_path / "id"
        copy.write_bytes(lab.identity_file.read_bytes())
        for mode in (0o644, 0o640, 0o602):
            copy.chmod(mode)
            with pytest.raises(AuthRefused, match=f"mode {mode:04o}: others can read it; `chmod 600` it"):
                ssh.open(there.plan(identity_file=str(copy)), HELLO)
        copy.chmod(0o400)
        assert says_hello(ssh, there.plan(identity_file=str(copy)))


class TestCertificates:
    @pytest.fixture
    def certified(self, there: LabHost, tmp_path: Path) -> Iterator[LabHost]:
        """The host with a certificate of an authority, `tmp_path/authority`."""
        keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "authority"))
        self.certify(there, tmp_path)
        yield there
        there.restart_sshd(HostCertificate="none")

    def certify(self, there: LabHost, tmp_path: Path, *options: str) -> None:
        public = there.host_key.with_suffix(".pub")
        keygen(
            "-s", str(tmp_path / "authority"), "-I", "gpu", "-h", "-n", there.address, *options, str(public)
        )
        there.restart_sshd(HostCertificate=str(there.host_key.with_name(there.host_key.name + "-cert.pub")))

    def plan(self, there: LabHost, tmp_path: Path) -> HostPlan:
        """With a known_hosts that knows the authority only."""
        key = " ".join((tmp_path / "authority.pub").read_text().split()[:2])
        (tmp_path / "known").write_text(f"@cert-authority 10.*,127.*,[127.*]:* {key}\n")
        return there.plan(known_hosts=str(tmp_path / "known"))

    def test_an_authority_makes_its_hosts_known(
        self, certified: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        host = self.plan(certified, tmp_path)
        assert says_hello(ssh, host)
        assert [(shown.key.fingerprint, shown.state) for shown in ssh.scan(host)] == [
            (fingerprint(certified), "known")
        ]
        (tmp_path / "revoked").write_text((tmp_path / "authority.pub").read_text())
        write(tmp_path, f"RevokedHostKeys {tmp_path}/revoked")
        with pytest.raises(
            HostKeyChanged, match=r"a certificate for its host key, signed by SHA256:.* revoked"
        ):
            ssh.open(host, HELLO)

    def test_one_that_is_no_good_is_refused_with_the_reason(
        self, certified: LabHost, ssh: SshTransport, tmp_path: Path
    ) -> None:
        self.certify(certified, tmp_path, "-V", "20200101:20210101")
        with pytest.raises(
            HostKeyUnknown, match="its certificate does not count: it expired on 20"
        ) as refused:
            ssh.open(self.plan(certified, tmp_path), HELLO)
        assert fingerprint(certified) in refused.value.message

    def test_without_an_authority_the_key_counts_as_ever(self, certified: LabHost, ssh: SshTransport) -> None:
        assert says_hello(ssh, certified.plan())

"""Host certificates by the rules of ssh: who signed it, for whom, for how long, and that nothing of it is revoked."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.hazmat.primitives.serialization.ssh import SSHCertificateBuilder, SSHCertificateType

from orchestrator.head.reach.ssh.certificates import judge
from orchestrator.head.reach.ssh.known_hosts import HostKey, KnownHosts

NOW = 1_800_000_000
HOST, AUTHORITY, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2, 3))


def public(key: Ed25519PrivateKey) -> HostKey:
    type_, text = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode().split()
    return HostKey.parse(type_, text)


def certificate(
    *,
    by: Ed25519PrivateKey = AUTHORITY,
    type: SSHCertificateType = SSHCertificateType.HOST,
    principals: tuple[str, ...] = ("gpu-a",),
    valid: tuple[int, int] = (NOW - 10, NOW + 10),
    option: bool = False,
) -> bytes:
    builder = (
        SSHCertificateBuilder()
        .public_key(HOST.public_key())
        .serial(1)
        .type(type)
        .key_id(b"gpu-a")
        .valid_after(valid[0])
        .valid_before(valid[1])
    )
    builder = (
        builder.valid_principals([name.encode() for name in principals])
        if principals
        else builder.valid_for_all_principals()  # type: ignore[no-untyped-call]
    )
    if option:
        builder = builder.add_critical_option(b"unheard-of", b"")
    return base64.b64decode(builder.sign(by).public_bytes().split()[1])


def read(tmp_path: Path, *lines: str) -> KnownHosts:
    (tmp_path / "known_hosts").write_text("\n".join(lines) + "\n")
    return KnownHosts.read([tmp_path / "known_hosts"])


def line(names: str, key: Ed25519PrivateKey) -> str:
    return f"{names} ssh-ed25519 {public(key).base64}"


def verdict(known: KnownHosts, shown: bytes, *, name: str = "gpu-a", **settings: str) -> tuple[str, str]:
    judged, why_not = judge(
        known, public(HOST), shown, key_name=name, principal="gpu-a", settings=settings, now=lambda: NOW
    )
    return judged.verdict, why_not or ""


def test_a_good_certificate_makes_the_host_known(tmp_path: Path) -> None:
    known = read(tmp_path, "@cert-authority " + line("gpu-*", AUTHORITY))
    assert verdict(known, certificate()) == ("known", "")
    assert verdict(known, certificate(principals=("other", "gpu-?"))) == ("known", "")
    assert verdict(known, certificate(), name="[gpu-a]:2222") == ("known", "")
    assert verdict(known, certificate(valid=(0, 2**64 - 1))) == ("known", "")
    assert known.judge("gpu-a", public(HOST)).verdict == "unknown", "without the certificate"


def tampered(blob: bytes) -> bytes:
    """Return the certificate with the last bit of its signature flipped."""
    return blob[:-1] + bytes([blob[-1] ^ 1])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: certificate(by=STRANGER), "no @cert-authority line has SHA256:"),
        (lambda: certificate(type=SSHCertificateType.USER), "it is a certificate for users"),
        (lambda: certificate(principals=("gpu-b", "gpu-c")), "it is for gpu-b, gpu-c, not for gpu-a"),
        (lambda: certificate(principals=()), "it is for nobody, not for gpu-a"),
        (lambda: certificate(valid=(NOW + 1, NOW + 9)), "it is not valid before 2027-01-15 08:00 UTC"),
        (lambda: certificate(valid=(0, NOW)), "it expired on 2027-01-15 08:00 UTC"),
        (lambda: certificate(option=True), "it has critical options"),
        (lambda: tampered(certificate()), "its signature is not by SHA256:"),
        (lambda: certificate().replace(b"gpu-a", b"gpu-b"), "its signature is not by SHA256:"),
        (lambda: b"\0\0\0\1x", "it cannot be read"),
    ],
)
def test_a_bad_one_does_not_and_says_why(tmp_path: Path, make: Callable[[], bytes], why: str) -> None:
    known = read(tmp_path, "@cert-authority " + line("gpu-*", AUTHORITY))
    found, said = verdict(known, make())
    assert found == "unknown"
    assert said.startswith(why)


def test_a_bad_one_beside_a_known_key_does_no_harm(tmp_path: Path) -> None:
    known = read(tmp_path, line("gpu-a", HOST), "@cert-authority " + line("gpu-*", AUTHORITY))
    assert verdict(known, certificate(valid=(0, NOW))) == ("known", "")


def test_an_authority_of_other_hosts_vouches_for_none_else(tmp_path: Path) -> None:
    known = read(tmp_path, "@cert-authority " + line("web-*", AUTHORITY))
    assert verdict(known, certificate())[0] == "unknown"


@pytest.mark.parametrize("key", [AUTHORITY, HOST])
def test_what_is_revoked_is_refused_also_where_the_key_is_known(
    tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    known = read(
        tmp_path,
        line("gpu-a", HOST),
        "@cert-authority " + line("gpu-*", AUTHORITY),
        "@revoked " + line("*", key),
    )
    assert verdict(known, certificate())[0] == "revoked"


def test_signatures_of_authorities_are_those_that_ssh_config_accepts(tmp_path: Path) -> None:
    known = read(tmp_path, "@cert-authority " + line("gpu-*", AUTHORITY))
    found, why = verdict(known, certificate(), casignaturealgorithms="rsa-sha2-512")
    assert (found, why) == ("unknown", "it is signed by ssh-ed25519, which is not accepted")

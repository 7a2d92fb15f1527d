"""Checks host certificates against the `@cert-authority` lines of known_hosts, by the rules of ssh.

The library reads a certificate's key, and checks that the host has it. This module checks the certificate itself. The
format is OpenSSH's PROTOCOL.certkeys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase

import paramiko
from paramiko.pkey import UnknownKeyType

from orchestrator.head.reach.ssh.algorithms import CERTIFICATE, permits
from orchestrator.head.reach.ssh.errors import one_line
from orchestrator.head.reach.ssh.known_hosts import HostKey, Judgement, KnownHosts

_PUBLIC_FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    **{f"ecdsa-sha2-nistp{bits}": 2 for bits in (256, 384, 521)},
}
"""The number of strings in a public key, by type."""

_FOR_HOSTS = 2
_NEVER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate by an authority over a host's key."""

    key: HostKey
    authority: HostKey
    kind: int
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: bool
    """Whether it has critical options. For hosts, none is defined."""
    algorithm: str
    """The algorithm of the authority's signature."""
    is_signed: bool
    """Whether that signature is good."""

    @staticmethod
    def read(blob: bytes) -> Certificate:
        """Parse a certificate in the wire format. Raises ValueError if it is none."""
        message = paramiko.Message(blob)
        type_ = message.get_text().removesuffix(CERTIFICATE)
        if type_ not in _PUBLIC_FIELDS:
            raise ValueError(f"a certificate of a key of type {type_}")
        message.get_binary()  # a nonce
        key = paramiko.Message()
        key.add_string(type_)
        for _ in range(_PUBLIC_FIELDS[type_]):
            key.add_string(message.get_binary())
        message.get_int64()  # a serial number
        kind = message.get_int()
        message.get_binary()  # the key id
        principals = _strings(message.get_binary())
        valid_after, valid_before = message.get_int64(), message.get_int64()
        critical = message.get_binary()
        message.get_binary()  # extensions, which need not be understood
        message.get_binary()  # reserved
        authority = message.get_binary()
        signed = message.get_so_far()
        signature = message.get_binary()
        by = HostKey(paramiko.Message(authority).get_text(), authority)
        return Certificate(
            key=HostKey(type_, key.asbytes()),
            authority=by,
            kind=kind,
            principals=tuple(name.decode("utf-8", "replace") for name in principals),
            valid_after=valid_after,
            valid_before=valid_before,
            critical=bool(critical),
            algorithm=paramiko.Message(signature).get_text(),
            is_signed=_is_signed(by, signed, signature),
        )

    def why_not(self, name: str, settings: Mapping[str, str], now: float) -> str | None:
        """Return why it does not vouch for the host called `name` at `now`; None if it does."""
        if not self.is_signed:
            return f"its signature is not by {self.authority.fingerprint}"
        if not permits(settings, "casignaturealgorithms", self.algorithm):
            return f"it is signed by {one_line(self.algorithm)}, which is not accepted"
        if self.kind != _FOR_HOSTS:
            return "it is a certificate for users, not for hosts"
        if self.critical:
            return "it has critical options, which a host certificate must not have"
        if not any(fnmatchcase(name, principal.replace("[", "[[]")) for principal in self.principals):
            return f"it is for {one_line(', '.join(self.principals)) or 'nobody'}, not for {name}"
        if now < self.valid_after:
            return f"it is not valid before {_day(self.valid_after)}"
        if self.valid_before != _NEVER and now >= self.valid_before:
            return f"it expired on {_day(self.valid_before)}"
        return None


def judge(
    known: KnownHosts,
    shown: HostKey,
    certificate: bytes | None,
    *,
    key_name: str,
    principal: str,
    settings: Mapping[str, str],
    now: Callable[[], float],
) -> tuple[Judgement, str | None]:
    """Return the judgement of a key that a host shows, and why a certificate that came with it does not help.

    Args:
        certificate: In the wire format; None if the host showed only its key.
        key_name: The name of the host in known_hosts.
        principal: The name of the host in a certificate, which has no port.
        settings: The settings of ssh_config about algorithms.
    """
    judged = known.judge(key_name, shown)
    if certificate is None or judged.verdict == "revoked":
        return judged, None
    try:
        parsed = Certificate.read(certificate)
    except (ValueError, paramiko.SSHException) as error:
        return judged, f"it cannot be read: {one_line(error)}"
    by = known.judge(key_name, parsed.authority)
    if by.verdict == "revoked":
        return by, None
    if judged.verdict == "known":
        return judged, None
    if parsed.key != shown:
        return judged, "it is over another key than the host's"
    if parsed.authority not in [entry.key for entry in known.authorities(key_name)]:
        return judged, f"no @cert-authority line has {parsed.authority.fingerprint} for this host"
    why_not = parsed.why_not(principal, settings, now())
    return (judged, why_not) if why_not else (Judgement("known"), None)


def _is_signed(authority: HostKey, signed: bytes, signature: bytes) -> bool:
    try:
        key = paramiko.PKey.from_type_string(authority.type, authority.blob)
        return bool(key.verify_ssh_sig(signed, paramiko.Message(signature)))
    except (UnknownKeyType, paramiko.SSHException, ValueError):
        return False


def _strings(packed: bytes) -> list[bytes]:
    strings, message = [], paramiko.Message(packed)
    while message.get_remainder():
        strings.append(message.get_binary())
    return strings


def _day(instant: int) -> str:
    try:
        return datetime.fromtimestamp(instant, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"second {instant}"

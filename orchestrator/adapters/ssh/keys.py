"""Keys on both sides of an SSH connection: those that a host shows, and those that a user is known by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
from paramiko.ssh_exception import BadAuthenticationType

from orchestrator.adapters.ssh.config import Hop
from orchestrator.adapters.ssh.errors import refusal
from orchestrator.adapters.ssh.known_hosts import HostKey, KnownHosts
from orchestrator.core.errors import AuthRefused
from orchestrator.core.plan import HostPlan


class KnownOnly(paramiko.RejectPolicy):
    """Asked for every key, since the client itself knows none; lets pass only what known_hosts has.

    `own` is the project's own file among them.
    """

    def __init__(self, host: HostPlan, hop: Hop, known: KnownHosts, own: Path) -> None:
        self._host, self._hop, self._known, self._own = host, hop, known, own

    def missing_host_key(  # type: ignore[override]  # it also lets pass
        self,
        client: paramiko.SSHClient,  # noqa: ARG002 - the base class's signature
        hostname: str,  # noqa: ARG002
        key: paramiko.PKey,
    ) -> None:
        shown = host_key(key)
        judged = self._known.judge(self._hop.key_name, shown)
        if judged.verdict != "known":
            raise refusal(self._host, self._hop, shown, judged, self._own)


class Keys:
    """Offers keys: of the files, then of the SSH agent. What paramiko calls an auth strategy."""

    def __init__(self, host: HostPlan, hop: Hop, key_of: Callable[[Path], paramiko.PKey]) -> None:
        self._host, self._hop = host, hop
        self._key_of = key_of
        self._tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        agent = paramiko.Agent()
        try:
            refused = 0
            for label, key in self._keys(agent):
                try:
                    more = transport.auth_publickey(self._hop.user, key)
                except BadAuthenticationType as error:
                    raise self._refused("takes no keys, only " + ", ".join(error.allowed_types)) from error
                except paramiko.SSHException:
                    if not transport.is_active() and not refused:
                        raise  # lost before it had judged any key: no refusal
                    refused += 1
                    self._tried.append(label)
                    if not transport.is_active():
                        raise self._refused("closed the connection after too many keys") from None
                    continue
                if more:
                    raise self._refused(f"wants more than the key {label}: " + ", ".join(more))
                return []
            raise self._refused("refused")
        finally:
            agent.close()

    def _refused(self, what: str) -> AuthRefused:
        hop = self._hop
        tried = "; ".join(self._tried) if self._tried else "there was none to offer"
        return AuthRefused(
            self._host.name,
            f"{hop} {what} for user {hop.user}; keys tried: {tried}",
            hint=f"add a public key to ~/.ssh/authorized_keys of {hop.user} there, or name another user or "
            "identity_file; a key with a passphrase must be in the SSH agent",
        )

    def _keys(self, agent: paramiko.Agent) -> Iterator[tuple[str, paramiko.PKey]]:
        blobs = set()
        for path in self._hop.identity_files:
            if not path.exists():
                if self._hop.identity_explicit:
                    self._tried.append(f"{path} (no such file)")
                continue
            blobs.add(_public_part(path))
            try:
                key = self._key_of(path)
            except (TypeError, paramiko.PasswordRequiredException):
                self._tried.append(f"{path} (has a passphrase)")
                continue
            except (ValueError, OSError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
                self._tried.append(f"{path} (cannot be read: {error})")
                continue
            blobs.add(key.asbytes())
            yield str(path), key
        for held in sorted(agent.get_keys(), key=lambda held: held.asbytes() not in blobs):
            if held.asbytes() in blobs or not self._hop.identities_only:
                yield f"{host_key(held).fingerprint} (SSH agent)", held


def host_key(key: paramiko.PKey) -> HostKey:
    """Return the key as known_hosts writes it."""
    return HostKey(key.get_name(), key.asbytes())


def _public_part(path: Path) -> bytes | None:
    try:
        key_type, text, *_ = path.with_name(path.name + ".pub").read_text(encoding="utf-8").split()
        return HostKey.parse(key_type, text).blob
    except (OSError, ValueError):
        return None

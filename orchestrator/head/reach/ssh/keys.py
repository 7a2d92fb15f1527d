"""Keys on both sides of an SSH connection: judges the host's key, and offers the user's keys."""

from __future__ import annotations

import copy
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH
from paramiko.ssh_exception import BadAuthenticationType

from orchestrator.core.errors import AuthRefused
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh import certificates
from orchestrator.head.reach.ssh.algorithms import CERTIFICATE, Transport, permits
from orchestrator.head.reach.ssh.config import Hop
from orchestrator.head.reach.ssh.errors import one_line, refusal
from orchestrator.head.reach.ssh.known_hosts import HostKey, Judgement, KnownHosts

_SECOND_FACTOR = (
    "orch connects by itself, at any hour, and can answer no question: ask for an exception in sshd_config there, "
    "`Match User YOU Address HEAD` with `AuthenticationMethods publickey`; or go by a ProxyCommand that holds a login"
)


class KnownOnly(paramiko.RejectPolicy):
    """Accepts only keys that known_hosts has. It is asked about every key, since the client itself knows none.

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
        judged, not_vouched = self.judge(key)
        if judged.verdict != "known":
            raise refusal(self._host, self._hop, host_key(key), judged, self._own, not_vouched)

    def judge(self, key: paramiko.PKey) -> tuple[Judgement, str | None]:
        """Return the judgement of a key that the host shows, and why its certificate does not help."""
        hop = self._hop
        return certificates.judge(
            self._known,
            host_key(key),
            _certificate(key),
            key_name=hop.key_name,
            principal=hop.alias or hop.address.lower(),
            settings=hop.algorithms,
            now=time.time,
        )


class Keys:
    """Offers the keys of the files, then those of the SSH agent: an auth strategy of paramiko."""

    def __init__(self, host: HostPlan, hop: Hop, key_of: Callable[[Path], paramiko.PKey]) -> None:
        self._host, self._hop = host, hop
        self._key_of = key_of
        self._tried: list[str] = []

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        agent = _Agent(self._hop.agent)
        try:
            refused = 0
            for label, key in self._keys(agent):
                try:
                    # Let the next key sign by these only. The library itself adds the algorithms for certificates.
                    names = [name for name in _algorithms(key) if self._accepts(name)]
                    if isinstance(transport, Transport):
                        plain = tuple(name.removesuffix(CERTIFICATE) for name in names)
                        transport.algorithms = replace(transport.algorithms, pubkeys=plain)
                    more = transport.auth_publickey(self._hop.user, key)
                except BadAuthenticationType as error:
                    raise self._refused(
                        "takes no keys, only " + one_line(", ".join(error.allowed_types)), _SECOND_FACTOR
                    ) from error
                except paramiko.SSHException:
                    if not transport.is_active() and not refused:
                        raise  # the connection was lost before the host judged any key, so this is no refusal
                    refused += 1
                    self._tried.append(label)
                    if not transport.is_active():
                        raise self._refused("closed the connection after too many keys") from None
                    continue
                if more:
                    raise self._refused(
                        f"wants more than the key {label}: " + one_line(", ".join(more)), _SECOND_FACTOR
                    )
                return []
            raise self._refused("refused")
        finally:
            agent.close()

    def _refused(self, what: str, hint: str | None = None) -> AuthRefused:
        hop = self._hop
        tried = "; ".join(self._tried) if self._tried else "there was none to offer"
        return AuthRefused(
            self._host.name,
            f"{hop} {what} for user {hop.user}; keys tried: {tried}",
            hint=hint
            or f"add a public key to ~/.ssh/authorized_keys of {hop.user} there, or name another user or "
            "identity_file; a key with a passphrase must be in the SSH agent",
        )

    def _keys(self, agent: paramiko.Agent) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the keys that may be offered, each with a label; note why the others may not."""
        blobs = set()
        for path in self._hop.identity_files:
            blobs.add(_public_part(path))
            key = self._read_key(path)
            if key is None:
                continue
            blobs.add(key.asbytes())
            yield from self._offered(str(path), key)
        for held in sorted(agent.get_keys(), key=lambda held: held.asbytes() not in blobs):
            label = f"{host_key(held).fingerprint} (SSH agent)"
            may_be_offered = held.asbytes() in blobs or not self._hop.identities_only
            if may_be_offered:
                yield from self._offered(label, held)

    def _offered(self, label: str, key: paramiko.PKey) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield the key with each certificate over it that ssh_config names, and then without one."""
        for path in self._hop.certificates:
            try:
                certificate = paramiko.pkey.PublicBlob.from_file(str(path))
            except (OSError, ValueError, paramiko.SSHException) as error:
                self._tried.append(f"{path} (cannot be read: {error})")
                continue
            if _is_over(certificate.key_blob, key):
                certified = copy.copy(key)
                certified.public_blob = certificate
                if self._may_offer(str(path), certified):
                    yield f"{label} with {path}", certified
        if self._may_offer(label, key):
            yield label, key

    def _read_key(self, path: Path) -> paramiko.PKey | None:
        try:
            status = path.stat()
            if status.st_uid == os.getuid() and status.st_mode & 0o077:  # as ssh does
                mode = stat.S_IMODE(status.st_mode)
                self._tried.append(f"{path} (mode {mode:04o}: others can read it; `chmod 600` it)")
                return None
            return self._key_of(path)
        except FileNotFoundError:
            if self._hop.identity_explicit:
                self._tried.append(f"{path} (no such file)")
        except (TypeError, paramiko.PasswordRequiredException):
            self._tried.append(f"{path} (has a passphrase)")
        except (ValueError, OSError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            self._tried.append(f"{path} (cannot be read: {error})")
        return None

    def _may_offer(self, label: str, key: paramiko.PKey) -> bool:
        names = _algorithms(key)
        if any(self._accepts(name) for name in names):
            return True
        self._tried.append(f"{label} (PubkeyAcceptedAlgorithms of ssh_config forbids {' and '.join(names)})")
        return False

    def _accepts(self, name: str) -> bool:
        return permits(self._hop.algorithms, "pubkeyacceptedalgorithms", name)


class _Agent(paramiko.Agent):
    """The SSH agent behind a socket; None: the one in the environment. One that does not answer has no keys."""

    def __init__(self, place: str | None) -> None:
        if place is None:
            super().__init__()
            return
        AgentSSH.__init__(self)
        if place == "none":
            return
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(place)
        except OSError:
            connection.close()
            return
        self._connect(connection)  # type: ignore[attr-defined]  # of AgentSSH, in paramiko since 1.7


def host_key(key: paramiko.PKey) -> HostKey:
    """Return the key as known_hosts writes it."""
    return HostKey(key.get_name(), key.asbytes())


def _certificate(key: paramiko.PKey) -> bytes | None:
    """Return the certificate that came with a key, in the wire format."""
    blob = getattr(key, "public_blob", None)
    return blob.key_blob if blob is not None and blob.key_type.endswith(CERTIFICATE) else None


def _is_over(certificate: bytes, key: paramiko.PKey) -> bool:
    """Return whether a certificate in the wire format is over that key: it repeats the key's numbers."""
    message = paramiko.Message(certificate)
    message.get_string()
    message.get_string()
    own = paramiko.Message(key.asbytes())
    own.get_string()
    return message.get_remainder().startswith(own.get_remainder())


def _algorithms(key: paramiko.PKey) -> list[str]:
    """Return the names of the signature algorithms that a key of ours may use."""
    blob = getattr(key, "public_blob", None)
    type_ = blob.key_type if blob is not None else key.get_name()
    if not type_.startswith("ssh-rsa"):
        return [type_]
    return [name + type_.removeprefix("ssh-rsa") for name in ("rsa-sha2-512", "rsa-sha2-256")]


def _public_part(path: Path) -> bytes | None:
    try:
        key_type, text, *_ = path.with_name(path.name + ".pub").read_text(encoding="utf-8").split()
        return HostKey.parse(key_type, text).blob
    except (OSError, ValueError):
        return None

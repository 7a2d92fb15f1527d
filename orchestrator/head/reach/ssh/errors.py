"""Makes the errors about connections to an sshd, of those of the libraries too: the host, the cause, the way out."""

from __future__ import annotations

import random
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.core.errors import ConnectFailed, HostError, HostKeyChanged, HostKeyUnknown, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.core.words import duration, plain
from orchestrator.head.reach.ssh.algorithms import KEYWORDS
from orchestrator.head.reach.ssh.config import Hop
from orchestrator.head.reach.ssh.known_hosts import HostKey, Judgement

T = TypeVar("T")

RETRY_DELAYS_S = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0)
"""The waits after a handshake that sshd dropped, each ± 50 %. A refused key or a silent host is not tried again."""


_SAID_MAX = 300


def one_line(words: object) -> str:
    """Return a message of an sshd or a library as one short line that is harmless to a terminal."""
    text = plain(str(words))
    return text if len(text) <= _SAID_MAX else f"{text[:_SAID_MAX]}…"


class Dropped(ConnectFailed):
    """The sshd ended the handshake, as it does at random above MaxStartups. So it is tried again at once."""


def retried(attempt: Callable[[], T]) -> T:
    """Return what `attempt` returns. It is called again where sshd drops the handshake."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return attempt()
        except Dropped:
            time.sleep(delay_s * random.uniform(0.5, 1.5))
    return attempt()


def refusal(
    host: HostPlan, hop: Hop, shown: HostKey, judged: Judgement, own: Path, not_vouched: str | None = None
) -> HostError:
    """Return the error for a host key of `hop` that is not accepted.

    Args:
        own: The project's own known_hosts file.
        not_vouched: Why the certificate that it also shows does not help.
    """
    entry = judged.entry
    if judged.verdict == "revoked" and entry is not None:
        signed = (
            "" if entry.key == shown else f"a certificate for its host key, signed by {entry.key.fingerprint}"
        )
        return HostKeyChanged(
            host.name,
            f"{hop} shows {signed or f'the host key {shown.fingerprint}'}, which {entry.where} marks as revoked",
            hint="give the host a new key: anybody who has this one can pose as the host",
            code="host-key-revoked",
        )
    if judged.verdict == "changed" and entry is not None:
        return HostKeyChanged(
            host.name,
            f"{hop} shows the host key {shown.fingerprint} ({shown.type}), but {_known(judged)}; "
            "nothing was sent to it",
            hint="ask its owner whether the host was set up anew; if so, " + _way_out(host, hop, judged, own),
        )
    message = f"the host key of {hop} is not known: {shown.fingerprint} ({shown.type})"
    hint = f"compare the fingerprint with the host's own, then `{_trust(host)}`"
    if not_vouched is not None:
        message += f"; its certificate does not count: {not_vouched}"
    elif judged.authority is not None:
        hint += (
            f"; or, since {judged.authority.where} trusts an authority for it, let its sshd show a certificate "
            "(HostCertificate)"
        )
    return HostKeyUnknown(host.name, message, hint=hint)


def unreadable_revocations(host: HostPlan, why: str) -> HostError:
    """Return the error for a RevokedHostKeys file that cannot be read."""
    return HostKeyUnknown(
        host.name,
        f"no host key is accepted while RevokedHostKeys of ssh_config cannot be read: {why}",
        hint="correct the file, or remove RevokedHostKeys from ssh_config for this host",
        code="revoked-keys-unreadable",
    )


def _known(judged: Judgement) -> str:
    """Say which line of each file has another key."""
    first = {entry.path: entry for entry in reversed(judged.against)}
    shown = sorted(first.values(), key=lambda entry: entry is not judged.entry)
    return " and ".join(f"{e.where} has {e.key.fingerprint} ({e.key.type})" for e in shown)


def _way_out(host: HostPlan, hop: Hop, judged: Judgement, own: Path) -> str:
    """Return how a person accepts the new key. orch changes only its own file."""
    theirs = dict.fromkeys(entry.path for entry in judged.against if entry.path != own)
    steps = [f"`ssh-keygen -R {shlex.quote(hop.key_name)} -f {shlex.quote(str(path))}`" for path in theirs]
    replaces = any(entry.path == own for entry in judged.against)
    return ", then ".join([*steps, f"`{_trust(host, ' --replace' if replaces else '')}`"])


def _trust(host: HostPlan, option: str = "") -> str:
    # Name the spec where there is one: the host's name alone gives orch neither its address nor its bastion.
    return f"orch trust{option} {shlex.quote(host.spec or host.name)}"


def silent(host: HostPlan, hop: Hop, connect_s: float) -> ConnectFailed:
    """Return the error for a hop that sent nothing back in `connect_s` seconds."""
    return ConnectFailed(
        host.name,
        f"{hop} does not answer within {duration(connect_s)}",
        hint="is it up, and does a firewall drop its SSH port?",
    )


def dropped(host: HostPlan, hop: Hop, how: str) -> Dropped:
    """Return the error for a connection that ended before a login."""
    return Dropped(
        host.name,
        f"{hop} {how} before a login",
        hint="sshd there may be short of MaxStartups, or refuse this address; its log says which",
    )


def unreachable(host: HostPlan, hop: Hop, error: OSError | EOFError, connect_s: float) -> ConnectFailed:
    """Return the operating system's error of a connection to `hop` as an error of ours."""
    match error:
        case socket.gaierror():
            return ConnectFailed(
                host.name,
                f"the name {hop.address} cannot be resolved: {error.strerror}",
                hint="give its address in the spec, or a HostName in ~/.ssh/config",
            )
        case TimeoutError():
            return silent(host, hop, connect_s)
        case ConnectionRefusedError():
            return ConnectFailed(
                host.name, f"{hop} refuses the connection: no sshd listens there", hint="is the port right?"
            )
        case ConnectionResetError() | BrokenPipeError() | EOFError():
            return dropped(host, hop, "closes the connection")
        case _:
            return ConnectFailed(host.name, f"{hop} cannot be reached: {error.strerror or error}")


@contextmanager
def explained(host: HostPlan, hop: Hop, connect_s: float) -> Iterator[None]:
    """Raise errors of the libraries and the system as errors of ours."""
    started = time.monotonic()
    try:
        yield
    except HostError:
        raise
    except (paramiko.SSHException, EOFError, OSError, UnicodeError) as error:
        late = time.monotonic() - started >= 0.95 * connect_s
        raise _explain(host, hop, error, late=late, connect_s=connect_s) from error


def _explain(host: HostPlan, hop: Hop, error: Exception, *, late: bool, connect_s: float) -> HostError:
    match error:
        case NoValidConnectionsError():
            inner = next(iter(error.errors.values()))
            return unreachable(host, hop, inner if isinstance(inner, OSError) else error, connect_s)
        case OSError() | EOFError():
            return unreachable(host, hop, error, connect_s)
        case paramiko.ChannelException(code=1):
            return HostUnfit(
                host.name,
                f"the bastion forbids forwarding to {hop}",
                hint="AllowTcpForwarding and PermitOpen in the bastion's sshd_config must allow it",
            )
        case paramiko.ChannelException():
            return ConnectFailed(host.name, f"the bastion cannot connect to {hop}: {one_line(error.text)}")
        case paramiko.ssh_exception.IncompatiblePeer():
            ours = " and ".join(f"`{KEYWORDS[keyword]} {value}`" for keyword, value in hop.algorithms.items())
            hint = "update its sshd, or go by a bastion that it speaks with"
            if ours:
                hint += f"; {ours} of ssh_config counts: it must allow one that the sshd and orch's SSH library have"
            return HostUnfit(
                host.name, f"{hop} and orch have no algorithm in common: {one_line(error)}", hint=hint
            )
        case UnicodeError() if not isinstance(error, UnicodeDecodeError):
            # Python itself refuses such a name, and asks no resolver.
            return HostUnfit(
                host.name,
                f"{hop.address} is not a host name: a part of it between two dots is empty or too long",
                hint="correct its address in the spec, or its HostName in ~/.ssh/config",
            )
        case _ if late:
            return silent(host, hop, connect_s)
        case _:
            return dropped(host, hop, f"breaks off ({one_line(error)})")

"""Turns errors of the libraries and the system on the way to an sshd into errors of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.core.errors import ConnectFailed, HostError, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.ssh.algorithms import KEYWORDS
from orchestrator.head.reach.ssh.config import Hop
from orchestrator.head.reach.ssh.errors import dropped, one_line, silent, unreachable


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

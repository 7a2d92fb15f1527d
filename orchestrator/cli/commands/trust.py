"""`orch trust`: shows the keys of hosts, and adds them to the project's own known_hosts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from orchestrator.cli.quantities import plural
from orchestrator.cli.session import Session
from orchestrator.core.errors import HostError, OrchestratorError, Refused, SomeHostsOnly, UsageError
from orchestrator.core.plan import HostPlan

if TYPE_CHECKING:
    from orchestrator.adapters.ssh.transport import ScannedKey


class Scanner(Protocol):
    """What of the SSH transport is needed here."""

    def scan(self, host: HostPlan) -> list[ScannedKey]: ...

    def trust(self, keys: Iterable[ScannedKey]) -> int: ...

    def warnings(self, host: HostPlan) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Request:
    """What a person allows. `yes`: do not ask. `replace`: keys that have changed, too."""

    yes: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """What one host showed, or why it showed nothing."""

    host: HostPlan
    keys: tuple[ScannedKey, ...]
    error: HostError | None = None

    def refusal(self, *, replace: bool) -> HostError | None:
        """Return why no key of this host may be taken, however often a person says yes; None where they may."""
        for key in self.keys:
            if key.error is not None and not (replace and key.replaceable):
                return key.error
        return None

    @property
    def to_take(self) -> tuple[ScannedKey, ...]:
        """The keys that are not trusted yet: new ones, and those that take the place of others."""
        return tuple(key for key in self.keys if key.state in ("new", "changed"))


def hosts_of(targets: Sequence[str]) -> list[HostPlan]:
    """Return a file's SSH hosts, or the hosts named: `[user@]address[:port]`."""
    files = [target for target in targets if target.endswith((".yaml", ".yml")) or os.path.isfile(target)]
    if files:
        if len(targets) > 1:
            raise UsageError("name either one cluster spec or hosts")
        from orchestrator.spec.plan import load_plan

        return [host for host in load_plan(files[0])[0].hosts if host.transport == "ssh"]
    return [_host(target) for target in targets]


def _host(target: str) -> HostPlan:
    user, at, address = target.rpartition("@")
    port: int | None = None
    if address.count(":") == 1:  # with more of them it is an IPv6 address
        address, _, written = address.partition(":")
        if not written.isdecimal() or not 0 < int(written) < 65536:
            raise UsageError(f"{target!r}: no port: {written!r}")
        port = int(written)
    if not address or address.startswith("-") or (at and not user):
        raise UsageError(f"{target!r} is no host; one reads like gpu-a, ml@gpu-a or ml@10.0.0.11:2222")
    return HostPlan(name=address, address=address, user=user or None, port=port, spec=target)


def scan(transport: Scanner, hosts: Sequence[HostPlan]) -> list[Scanned]:
    """Ask all hosts at once for their keys. Nothing is authenticated, nothing is trusted."""
    from concurrent.futures import ThreadPoolExecutor

    def one(host: HostPlan) -> Scanned:
        try:
            return Scanned(host, tuple(transport.scan(host)))
        except HostError as e:
            return Scanned(host, (), e)

    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(one, hosts))


def document(scanned: Sequence[Scanned], added: int) -> dict[str, Any]:
    """Return what `--json` shows."""
    return {
        "added": added,
        "hosts": [
            {
                "host": found.host.name,
                "error": str(found.error) if found.error else None,
                "keys": [
                    {
                        "address": key.hop.address,
                        "port": key.hop.port,
                        "type": key.key.type,
                        "fingerprint": key.key.fingerprint,
                        "known": key.state == "known",
                        "state": key.state,
                        "was": key.was.key.fingerprint if key.was else None,
                        "line": key.was.where if key.was else None,
                    }
                    for key in found.keys
                ],
            }
            for found in scanned
        ],
    }


def lines(scanned: Sequence[Scanned]) -> list[str]:
    """Return for people each host with its fingerprints, as ssh-keygen shows them."""
    shown = []
    for found in scanned:
        for key in found.keys:
            where = f"{key.hop.address}:{key.hop.port}"
            shown.append(f"{found.host.name}  {where}  {key.key.type}  {key.key.fingerprint}  {_state(key)}")
    return shown


def _state(key: ScannedKey) -> str:
    if key.state == "changed" and key.was is not None:
        return f"changed (was {key.was.key.fingerprint}, {key.was.where})"
    if key.state == "revoked" and key.was is not None:
        return f"revoked ({key.was.where})"
    return "not needed (another key of it is known)" if key.state == "not needed" else key.state


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="HOST...|FILE")
@click.option("--yes", is_flag=True, help="Trust what is new without asking. A changed key stays refused.")
@click.option(
    "--replace",
    is_flag=True,
    help="Take changed keys too: they replace the old ones in the project's own known_hosts.",
)
@click.option("--json", "as_json", is_flag=True, help="A document, for scripts.")
@click.pass_obj
def command(session: Session, targets: tuple[str, ...], yes: bool, replace: bool, as_json: bool) -> int:
    """Show the keys of hosts, and trust them: of the hosts named, or of all in a cluster spec.

    The keys come over the network that you want to secure: compare the fingerprints with what the hosts'
    owner tells you, or what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints there.

    A key that has changed is refused (exit 5) unless --replace is given, and a revoked one always. Your own
    known_hosts is only read: where it has another key, `ssh-keygen -R` is yours to call.
    """
    hosts = hosts_of(targets)
    if not hosts:
        session.say("no host of this file is reached by SSH; there is nothing to trust")
        return 0
    from orchestrator.adapters.ssh.transport import SshTransport

    session.paths.ensure()
    transport = SshTransport(Path(session.paths.known_hosts))
    return trust(session, transport, hosts, Request(yes, replace), as_json=as_json)


def trust(
    session: Session, transport: Scanner, hosts: Sequence[HostPlan], request: Request, *, as_json: bool
) -> int:
    """Scan, ask, add, and tell.

    Where a host's key is refused its own error is raised, after the keys of the others were taken. SomeHostsOnly
    where a host showed no key, its own error where none did.
    """
    say_skipped(session, transport, hosts)
    scanned, added = trust_rounds(session, transport, hosts, request, quiet=as_json)
    if as_json:
        session.put_json(document(scanned, added))
    failed = [found.error for found in scanned if found.error is not None]
    refused = [error for found in scanned if (error := found.refusal(replace=request.replace)) is not None]
    if len(failed) == len(scanned) == 1:
        raise failed[0]
    for error in [*failed, *refused[1:]]:
        session.say(f"{error}; {error.hint}" if error.hint else str(error))
    if len(failed) + len(refused) < len(scanned):
        session.say(
            f"{plural(added, 'key')} added to {session.paths.known_hosts}"
            if added
            else "nothing new to trust"
        )
    if refused:
        raise refused[0]
    if failed:
        raise SomeHostsOnly(f"{len(failed)} of {len(scanned)} hosts showed no key")
    return 0


def say_skipped(session: Session, transport: Scanner, hosts: Sequence[HostPlan]) -> None:
    """Tell what of ssh_config and known_hosts does not count, although it may be meant to."""
    skipped: dict[str, None] = {}
    for host in hosts:
        with contextlib.suppress(HostError):  # which the connection tells
            skipped.update(dict.fromkeys(transport.warnings(host)))
    for warning in skipped:
        session.say(f"note: {warning}")


def trust_rounds(
    session: Session, transport: Scanner, hosts: Sequence[HostPlan], request: Request, *, quiet: bool
) -> tuple[list[Scanned], int]:
    """Scan, ask, trust; and once more, for behind a bastion nothing can be asked before it is trusted."""
    added = 0
    scanned = scan(transport, hosts)
    for _ in range(2):
        shown = lines(scanned)
        if shown and not quiet:
            session.put("\n".join(shown))
        takes = [
            found for found in scanned if found.to_take and found.refusal(replace=request.replace) is None
        ]
        if not takes:
            break
        if not request.yes:
            _ask(session, [key for found in takes for key in found.to_take])
        try:
            added += transport.trust(key for found in takes for key in found.keys)
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) else e
            raise OrchestratorError(f"cannot write {session.paths.known_hosts}: {why}") from e
        if not any(key.hop.bastion for found in scanned for key in found.keys):
            break
        scanned = scan(transport, hosts)
    return scanned, added


def _ask(session: Session, keys: Sequence[ScannedKey]) -> None:
    """Make sure that a person says yes. Refused where there is none to ask, or who says no."""
    if not (sys.stdin.isatty() and session.err.isatty()):
        raise Refused(
            "nobody is there to ask whether these keys are the right ones",
            hint="compare the fingerprints, then add --yes",
        )
    changed = sum(key.state == "changed" for key in keys)
    instead = f", {changed} of them in place of a key that was trusted" if changed else ""
    session.err.write(f"Trust {'this key' if len(keys) == 1 else f'these {len(keys)} keys'}{instead}? [y/N] ")
    session.err.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("nothing was trusted")

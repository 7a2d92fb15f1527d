"""`orch trust`: show the SSH keys of hosts, and add them to orch's own known_hosts file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.host_queries import confirm, is_interactive
from orchestrator.cli.inventory_option import inventory_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import HostError, OrchestratorError, Refused, SomeHostsOnly, UsageError
from orchestrator.core.plan import HostPlan
from orchestrator.core.words import counted

if TYPE_CHECKING:
    from concurrent.futures import Future

    from orchestrator.head.reach.ssh.transport import ScannedKey


AT_ONCE = 8
"""How many hosts are asked at a time. A bastion's sshd drops some of more than ten connections without a login."""


class Scanner(Protocol):
    """The part of the SSH transport that this command uses."""

    def scan(self, host: HostPlan) -> list[ScannedKey]: ...

    def trust(self, keys: Iterable[ScannedKey]) -> int: ...

    def warnings(self, host: HostPlan) -> list[str]: ...

    def bastions(self, host: HostPlan) -> tuple[tuple[str, int], ...]: ...


@dataclass(frozen=True, slots=True)
class TrustRequest:
    """The user's options. `yes`: do not ask. `replace`: accept changed keys too."""

    yes: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """The keys of a host, or why there are none."""

    host: HostPlan
    keys: tuple[ScannedKey, ...]
    error: HostError | None = None

    def refusal(self, *, replace: bool) -> HostError | None:
        """Return why the keys of this host are refused without asking the user; None if they are not."""
        for key in self.keys:
            if key.error is not None and not (replace and key.replaceable):
                return key.error
        return None

    @property
    def to_take(self) -> tuple[ScannedKey, ...]:
        """The keys that are not trusted yet: new ones, and changed ones."""
        return tuple(key for key in self.keys if key.state in ("new", "changed"))


def hosts_of(targets: Sequence[str]) -> list[HostPlan]:
    """Return the SSH hosts of a file, or the named hosts: `[user@]address[:port]`."""
    files = [target for target in targets if target.endswith((".yaml", ".yml")) or os.path.isfile(target)]
    if files:
        if len(targets) > 1:
            raise UsageError("give either one cluster spec or hosts, not both")
        from orchestrator.spec.plan import load_plan

        return [host for host in load_plan(files[0])[0].hosts if host.transport == "ssh"]
    return [_host(target) for target in targets]


def _host(target: str) -> HostPlan:
    user, at, address = target.rpartition("@")
    port: int | None = None
    if address.count(":") == 1:  # with more of them it is an IPv6 address
        address, _, written = address.partition(":")
        if not written.isdecimal() or not 0 < int(written) < 65536:
            raise UsageError(f"{target!r} has no valid port", hint="a port is a number from 1 to 65535")
        port = int(written)
    if not target.isprintable() or not address or address.startswith("-") or (at and not user):
        raise UsageError(f"{target!r} is not a host", hint="examples: gpu-a, ml@gpu-a, ml@10.0.0.11:2222")
    return HostPlan(name=address, address=address, user=user or None, port=port, spec=target)


def scan(
    transport: Scanner,
    hosts: Sequence[HostPlan],
    show: Callable[[Scanned], None],
    count: Callable[[int], None],
) -> list[Scanned]:
    """Get the keys of all hosts, some at a time. This authenticates nothing and trusts nothing.

    Args:
        show: is called with each host in their order, as soon as those before it have answered too.
        count: is called with the number of hosts that have answered.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    def scan_host(host: HostPlan) -> Scanned:
        try:
            return Scanned(host, tuple(transport.scan(host)))
        except HostError as e:
            return Scanned(host, (), e)

    first: dict[tuple[object, ...], Future[Scanned]] = {}

    def scan_behind(host: HostPlan, before: Future[Scanned]) -> Scanned:
        """Ask the host, unless the first behind the same bastion has got no further than to the bastion's keys.

        Each connection without a login counts against us: OpenSSH 9.8 bans who makes many (PerSourcePenalties).
        """
        keys = before.result().keys
        return Scanned(host, keys) if keys and all(key.hop.bastion for key in keys) else scan_host(host)

    def submit(host: HostPlan) -> Future[Scanned]:
        bastions = transport.bastions(host)
        if bastions in first:
            return pool.submit(scan_behind, host, first[bastions])
        asking = pool.submit(scan_host, host)
        if bastions:
            first[bastions] = asking
        return asking

    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    scanned: list[Scanned] = []
    try:
        asked = [submit(host) for host in hosts]
        for answered, _ in enumerate(as_completed(asked), 1):
            count(answered)
            while len(scanned) < len(asked) and asked[len(scanned)].done():
                scanned.append(asked[len(scanned)].result())
                show(scanned[-1])
    finally:
        # An interruption ends the command: no other host is asked
        pool.shutdown(wait=False, cancel_futures=True)
    return scanned


def document(scanned: Sequence[Scanned], added: int) -> dict[str, Any]:
    """Return the document for `--json`."""
    return {
        "added": added,
        "hosts": [
            {
                "host": host.host.name,
                "error": str(host.error) if host.error else None,
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
                    for key in host.keys
                ],
            }
            for host in scanned
        ],
    }


def lines(scanned: Scanned) -> list[str]:
    """Return a host's keys with their fingerprints, as ssh-keygen prints them."""
    return [
        f"{scanned.host.name}  {key.hop.address}:{key.hop.port}  {key.key.type}  {key.key.fingerprint}  {_state(key)}"
        for key in scanned.keys
    ]


def _state(key: ScannedKey) -> str:
    if key.state == "changed" and key.was is not None:
        return f"changed (was {key.was.key.fingerprint}, {key.was.where})"
    if key.state == "revoked" and key.was is not None:
        return f"revoked ({key.was.where})"
    return "not needed (another key of this host is known)" if key.state == "not needed" else key.state


@orch_command(
    acts=True,
    examples=[
        ("orch trust cluster.yaml", "Show the keys of all hosts of a spec, and ask"),
        ("orch trust ml@10.0.0.11:2222", "Show the key of one host, and ask"),
        ("orch trust gpu-a --replace", "Accept the new key of a host that was installed again"),
    ],
)
@click.argument("targets", nargs=-1, required=True, metavar="HOST...|FILE")
@inventory_option
@click.option("--yes", is_flag=True, help="Trust new keys without asking. Changed keys are still refused.")
@click.option("--replace", is_flag=True, help="Accept changed keys too, in orch's own known_hosts.")
@json_option()
def command(session: Session, targets: tuple[str, ...], yes: bool, replace: bool) -> None:
    """Show the SSH keys of hosts, or of all hosts in FILE, and add them to known_hosts after you confirm.

    The keys arrive over the network that they are to secure. Compare the fingerprints with those that the hosts' owner
    gives you, or that `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints on the host.

    A changed key is refused (exit code 5) unless --replace is given, and a revoked key always. Your own known_hosts is
    never changed: remove a key that it has with `ssh-keygen -R`.

    Eight hosts are asked at a time. Their keys are shown in the order of the file, and a terminal counts the hosts.
    """
    hosts = hosts_of(targets)
    if not hosts:
        session.say("No host of this file uses SSH; nothing to trust")
        return
    from orchestrator.head.reach.ssh.transport import SshTransport

    session.paths.ensure()
    transport = SshTransport(Path(session.paths.known_hosts))
    trust(session, transport, hosts, TrustRequest(yes, replace))


def trust(session: Session, transport: Scanner, hosts: Sequence[HostPlan], request: TrustRequest) -> None:
    """Scan, ask and add.

    Where a host's key is refused, its error is raised after the keys of the others have been added. Raises
    SomeHostsOnly if a host gave no key; where the only host gave none, its error.
    """
    # Warn about lines of ssh_config and known_hosts that orch does not apply
    skipped: dict[str, None] = {}
    for host in hosts:
        with contextlib.suppress(HostError):  # the connection reports it
            skipped.update(dict.fromkeys(transport.warnings(host)))
    for warning in skipped:
        session.warn(warning)
    scanned, added = trust_rounds(session, transport, hosts, request)
    session.answer(document(scanned, added))
    failed = [host_keys.error for host_keys in scanned if host_keys.error is not None]
    refused = [
        error for host_keys in scanned if (error := host_keys.refusal(replace=request.replace)) is not None
    ]
    if len(failed) == len(scanned) == 1:
        raise failed[0]
    for error in [*failed, *refused[1:]]:
        session.warn(str(error))
        session.hint(error.hint)
    if len(failed) + len(refused) < len(scanned):
        session.say(
            f"Added {counted(added, 'key')} to {session.paths.known_hosts}" if added else "No new keys"
        )
    if refused:
        raise refused[0]
    if failed:
        raise SomeHostsOnly(f"no key from {len(failed)} of {len(scanned)} hosts")


def trust_rounds(
    session: Session, transport: Scanner, hosts: Sequence[HostPlan], request: TrustRequest
) -> tuple[list[Scanned], int]:
    """Scan, ask and add. Repeat it once with a bastion: hosts behind it answer only after the bastion is trusted."""
    added = 0
    for last in (False, True):
        scanned = _scan_and_show(session, transport, hosts)
        takes = [
            host_keys
            for host_keys in scanned
            if host_keys.to_take and host_keys.refusal(replace=request.replace) is None
        ]
        if not takes:
            break
        if not request.yes:
            to_take = [key for host_keys in takes for key in host_keys.to_take]
            keys = list({(key.hop.address, key.hop.port, key.key): key for key in to_take}.values())
            if not is_interactive(session):
                raise Refused(
                    "no terminal to confirm the keys on",
                    hint="compare the fingerprints, then add --yes",
                )
            changed = sum(key.state == "changed" for key in keys)
            instead = f"; {counted(changed, 'trusted key')} will be replaced" if changed else ""
            if not confirm(
                session, f"Trust {'this key' if len(keys) == 1 else f'these {len(keys)} keys'}{instead}?"
            ):
                raise Refused("not confirmed; no key was added")
        try:
            added += transport.trust(key for host_keys in takes for key in host_keys.keys)
        except (OSError, ValueError) as e:
            why = e.strerror if isinstance(e, OSError) else e
            raise OrchestratorError(f"cannot write {session.paths.known_hosts}: {why}") from e
        if last or not any(key.hop.bastion for host_keys in scanned for key in host_keys.keys):
            break
    return scanned, added


def _scan_and_show(session: Session, transport: Scanner, hosts: Sequence[HostPlan]) -> list[Scanned]:
    seen = set[str]()

    def show(scanned: Scanned) -> None:
        shown = [line for line in lines(scanned) if line.partition("  ")[2] not in seen]
        seen.update(line.partition("  ")[2] for line in shown if any(key.hop.bastion for key in scanned.keys))
        if shown and not session.wants_json:
            session.put("\n".join(shown))

    def count(answered: int) -> None:
        if len(hosts) > AT_ONCE:
            session.rewrite(f"{answered} of {len(hosts)} hosts have answered")

    return scan(transport, hosts, show, count)

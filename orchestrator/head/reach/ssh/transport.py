"""Transport `ssh`, by fabric over paramiko. Only this room imports them, and their exceptions never leave it.

Host keys: every connection, also to a bastion, gets a RejectPolicy of ours before it is opened. The policy alone
decides, by known_hosts files that we read ourselves (fabric would add any unknown key). No agent is forwarded. One
connection carries one exec, so a host with MaxSessions 1 is enough.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import fabric
import paramiko

from orchestrator.core.errors import ConnectFailed, HostError, HostKeyChanged, HostKeyUnknown, HostUnfit
from orchestrator.core.plan import HostPlan
from orchestrator.head.reach.alarm import ALARMS
from orchestrator.head.reach.ssh import config
from orchestrator.head.reach.ssh.algorithms import CERTIFICATE, Algorithms, algorithms, for_host
from orchestrator.head.reach.ssh.algorithms import Transport as SshConnection
from orchestrator.head.reach.ssh.channel import SshChannel, hang_up, prepared
from orchestrator.head.reach.ssh.config import Hop, Route
from orchestrator.head.reach.ssh.errors import explained, refusal, retried, unreadable_revocations
from orchestrator.head.reach.ssh.gate import Gate
from orchestrator.head.reach.ssh.keys import Keys, KnownOnly, host_key
from orchestrator.head.reach.ssh.known_hosts import (
    SSH_PORT,
    HostKey,
    Judgement,
    KnownHosts,
    KnownHostsLine,
    RevokedUnreadable,
    State,
)
from orchestrator.head.reach.ssh.known_hosts import append as append_known_host
from orchestrator.head.reach.ssh.known_hosts import replace as replace_known_host
from orchestrator.head.reach.ssh.proxy import ProxySocket
from orchestrator.head.reach.transport import Channel, OpenChannels

T = TypeVar("T")


class FileCache(Generic[T]):
    """Caches the value that `make` derives, until one of the files changes that `make` returns with it."""

    def __init__(self, make: Callable[[], tuple[T, tuple[Path, ...]]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[T, tuple[Path, ...], list[object]] | None = None

    def get(self) -> T:
        with self._lock:
            if self._made is None or _stamps(self._made[1]) != self._made[2]:
                value, sources = self._make()
                self._made = (value, sources, _stamps(sources))
            return self._made[0]


def _stamps(paths: tuple[Path, ...]) -> list[object]:
    stamps: list[object] = []
    for path in paths:
        try:
            status = path.stat()
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            stamps.append(None)
    return stamps


# paramiko logs its exceptions with tracebacks, which our own errors replace.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)

_SCAN_TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
)


@dataclass(frozen=True, slots=True)
class SshTimeouts:
    """How long each part of a connection may take, in seconds."""

    connect_s: float = 20.0
    """For TCP, and again from there to the end of the key exchange. A slow sshd answers after 15 s."""
    auth_s: float = 30.0
    """For each key that is offered."""
    session_s: float = 30.0
    """To start the command, and for a bastion to reach the host."""
    keepalive_s: int = 30


@dataclass(frozen=True, slots=True)
class ScannedKey:
    """A host key that an sshd showed, before anybody trusts it."""

    hop: Hop
    key: HostKey
    state: State
    was: KnownHostsLine | None = None
    """The line that has another key, or marks this one as revoked."""
    error: HostError | None = None
    """Why a connection refuses the key: it has changed or is revoked."""
    replaceable: bool = False
    """Whether a person may replace the known key: only the project's own file has another one."""


IDLE_WAKE_S = 5.0
"""How often paramiko's reading thread wakes on an idle connection. Its default of 0.1 s means ten wake-ups a second for
each host; only the keep-alive needs any. Closing does not wait for it: see `hang_up`."""


class SshTransport:
    """Connections to hosts, several at once.

    Args:
        known_hosts: The project's own file, read in addition to the user's and the system's; `trust` adds to it.
        home: The home directory with .ssh.
        config_files: ssh_config files; the default is the user's, then the system's.
    """

    def __init__(
        self,
        known_hosts: Path,
        *,
        home: Path | None = None,
        config_files: tuple[Path, ...] | None = None,
        timeouts: SshTimeouts = SshTimeouts(),
    ) -> None:
        self._own_known_hosts = known_hosts
        self._home = home or Path.home()
        self._timeouts = timeouts
        self._channels = OpenChannels()
        files = config_files or (self._home / ".ssh/config", Path("/etc/ssh/ssh_config"))
        self._config = FileCache(lambda: self._read_config(list(files)))
        self._known: dict[tuple[tuple[Path, ...], ...], FileCache[KnownHosts]] = {}
        self._keys: dict[Path, FileCache[paramiko.PKey]] = {}
        self._gates: dict[tuple[object, ...], Gate] = {}
        # Lazy and with an empty ssh_config: neither fabric.yaml nor fabric's reading of ~/.ssh/config counts.
        self._fabric = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())

    def open(self, host: HostPlan, command: str) -> Channel:
        """Connect and start `command`. Raises the HostErrors of core.errors, each with its way out."""
        route = self.route(host)
        connections = retried(lambda: self._connect(route))
        try:
            session = self._start(route, connections, command)
        except BaseException:
            hang_up(connections)
            raise
        channel = SshChannel(session, connections)
        channel.forget = self._channels.add(host, channel)
        return channel

    def close(self, host: HostPlan) -> None:
        """Close every channel to this host that is still open."""
        self._channels.close(host)

    def scan(self, host: HostPlan) -> list[ScannedKey]:
        """Return the host keys that the host shows, for a person to judge. It does not authenticate to the host.

        If a bastion's own key is not known, its keys are returned, since nothing beyond it can be reached before it is
        trusted. Then trust them, and scan again. Raises as `open` does.
        """
        route = self.route(host)
        connections = self._connections(route)
        try:
            for bastion, connection in zip(route.bastions, connections, strict=False):
                try:
                    retried(partial(self._open_hop, route, bastion, connection))
                except (HostKeyUnknown, HostKeyChanged):
                    return self._shown(route, bastion, connection)
            return self._shown(route, route.target, connections[-1])
        finally:
            hang_up(connections)

    def trust(self, keys: Iterable[ScannedKey]) -> int:
        """Add all keys that hosts showed to the project's own known_hosts. Return how many are new there.

        Where a key has changed, the new keys replace those of the host in the file, or the key's own error is raised.
        OSError if the file cannot be written.
        """
        by_hop: dict[tuple[str, int], list[ScannedKey]] = {}
        for scanned in keys:
            if scanned.error is not None and not scanned.replaceable:
                raise scanned.error
            # The name and port under which the project's own file has the host
            hop = scanned.hop
            by_hop.setdefault(((hop.alias, SSH_PORT) if hop.alias else (hop.address, hop.port)), []).append(
                scanned
            )
        added = 0
        for (name, port), shown in by_hop.items():
            if any(scanned.state == "changed" for scanned in shown):
                taken = [scanned.key for scanned in shown if scanned.state != "not needed"]
                added += replace_known_host(self._own_known_hosts, name, port, taken)
                continue
            for scanned in shown:
                if scanned.state == "new":
                    added += append_known_host(self._own_known_hosts, name, port, scanned.key)
        return added

    def warnings(self, host: HostPlan) -> list[str]:
        """Return what was skipped in the ssh_config and known_hosts files that count for this host."""
        route = self.route(host)
        warnings = list(self._config.get()[1])
        for hop in route.hops:
            warnings += [*hop.not_done, *self._known_hosts(host, hop).warnings]
        return list(dict.fromkeys(warnings))

    def bastions(self, host: HostPlan) -> tuple[tuple[str, int], ...]:
        """Return address and port of each bastion on the way. Empty where orch does not support the way."""
        try:
            return tuple((hop.address, hop.port) for hop in self.route(host).bastions)
        except HostError:
            return ()

    def proxy_commands(self, host: HostPlan) -> list[str]:
        """Return the commands of ssh_config that connect to the sshds on the way, each as the shell gets it."""
        return [hop.proxy_command for hop in self.route(host).hops if hop.proxy_command is not None]

    def route(self, host: HostPlan) -> Route:
        """Return the way to a host, by its spec and ~/.ssh/config. Raises HostUnfit where orch does not support it."""
        try:
            read, _ = self._config.get()
            return config.route(host, read.lookup, self._home)
        except paramiko.SSHException as error:
            raise HostUnfit(
                host.name, f"~/.ssh/config: {error}", hint="`ssh -G` with its address shows how ssh reads it"
            ) from error

    def _read_config(self, files: list[Path]) -> tuple[tuple[_Config, tuple[str, ...]], tuple[Path, ...]]:
        read = config.read_config(files, self._home)
        return (_Config.from_text(read.text), read.warnings), read.sources

    def _known_hosts(self, host: HostPlan, hop: Hop) -> KnownHosts:
        paths = (*hop.known_hosts, *hop.system_known_hosts, self._own_known_hosts)
        revoked = hop.revoked_keys
        cached = self._known.setdefault(
            (paths, revoked), FileCache(lambda: (KnownHosts.read(paths, revoked), (*paths, *revoked)))
        )
        try:
            return cached.get()
        except RevokedUnreadable as error:
            raise unreadable_revocations(host, str(error)) from error

    def _key(self, path: Path) -> paramiko.PKey:
        """Return the private key in a file, cached while the file stays: parsing costs a seventh of a connection."""
        return self._keys.setdefault(path, FileCache(lambda: (paramiko.PKey.from_path(path), (path,)))).get()

    def _connections(self, route: Route) -> list[_Connection]:
        """Return a connection for each hop, none of them open yet, each strict about host keys."""
        made: list[_Connection] = []
        for hop in route.hops:
            connection = _Connection(
                hop.address,
                user=hop.user,
                port=hop.port,
                config=self._fabric,
                gateway=made[-1] if made else hop.proxy_command or False,
                forward_agent=False,
                connect_kwargs={
                    "timeout": self._timeouts.connect_s,
                    "banner_timeout": self._timeouts.connect_s,
                    "auth_timeout": self._timeouts.auth_s,
                    "channel_timeout": self._timeouts.session_s,
                    "transport_factory": self._factory(self._algorithms(route.host, hop)),
                    "auth_strategy": Keys(route.host, hop, self._key),
                },
            )
            connection.client.set_missing_host_key_policy(self._policy(route.host, hop))
            made.append(connection)
        return made

    def _policy(self, host: HostPlan, hop: Hop) -> KnownOnly:
        return KnownOnly(host, hop, self._known_hosts(host, hop), self._own_known_hosts)

    def _algorithms(self, host: HostPlan, hop: Hop) -> Algorithms:
        """Return the algorithms that ssh_config allows for this hop, with known types of host keys first."""
        known = self._known_hosts(host, hop)
        try:
            allowed = algorithms(hop.algorithms)
        except ValueError as error:
            raise HostUnfit(
                host.name,
                f"{hop}: {error}",
                hint="allow one of these for it in a Host block of ~/.ssh/config, or connect another way",
            ) from error
        certified = bool(known.authorities(hop.key_name))
        return for_host(allowed, types=known.types(hop.key_name), certified=certified)

    def _factory(self, offered: Algorithms) -> Callable[..., SshConnection]:
        def make(sock: Any, disabled_algorithms: Any = None) -> SshConnection:  # noqa: ARG001 - fabric's
            _without_delay(sock)
            transport = SshConnection(sock, offered)
            transport.handshake_timeout = self._timeouts.connect_s
            return transport

        return make

    def _connect(self, route: Route) -> list[_Connection]:
        connections = self._connections(route)
        try:
            for hop, connection in zip(route.hops, connections, strict=True):
                self._open_hop(route, hop, connection)
        except BaseException:
            hang_up(connections)
            raise
        return connections

    def _open_hop(self, route: Route, hop: Hop, connection: _Connection) -> None:
        with self._handshake(route, hop), self._explained(route, hop, connection):
            connection.open()
        connection.transport.set_keepalive(self._timeouts.keepalive_s)
        connection.transport.sock.settimeout(IDLE_WAKE_S)

    @contextmanager
    def _explained(self, route: Route, hop: Hop, connection: _Connection) -> Iterator[None]:
        """Raise errors as errors of ours, with the last words of a ProxyCommand."""
        try:
            with explained(route.host, hop, self._timeouts.connect_s):
                yield
        except ConnectFailed as error:
            proxy = connection.proxy
            raise error if proxy is None else proxy.explained(route.host, hop, error) from error

    def _handshake(self, route: Route, hop: Hop) -> AbstractContextManager[None]:
        way = route.hops[: route.hops.index(hop) + 1]
        return self._gates.setdefault(tuple((hop.address, hop.port) for hop in way), Gate()).handshake()

    def _start(self, route: Route, connections: list[_Connection], command: str) -> paramiko.Channel:
        connection = connections[-1]
        transport = connection.transport
        # paramiko waits for the reply to an exec without a limit; a link that is cut just here must end too.
        with ALARMS.after(self._timeouts.session_s, partial(hang_up, connections)):
            try:
                _without_delay(transport.sock)
                session = prepared(connection.create_session())
                session.exec_command(command)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if transport.is_active():
                    raise HostUnfit(
                        route.host.name,
                        f"{route.target} accepts the key of {route.target.user}, but starts no command",
                        hint="look for MaxSessions 0, ForceCommand, restrict or nologin in sshd's settings there",
                        code="no-session",
                    ) from error
                raise ConnectFailed(
                    route.host.name, f"{route.target} was lost before the command had started"
                ) from error
        return session

    def _shown(self, route: Route, hop: Hop, connection: _Connection) -> list[ScannedKey]:
        asked = (retried(partial(self._show_one, route, hop, connection, type_)) for type_ in _SCAN_TYPES)
        keys = [key for key in asked if key is not None]
        policy = self._policy(route.host, hop)
        if not keys:
            raise HostUnfit(
                route.host.name,
                f"{hop} shows no host key of a type that orch may ask for",
                hint="look at HostKey in its sshd_config, and at HostKeyAlgorithms of ssh_config here",
            )
        certified = [host_key(key) for key in keys if policy.judge(key)[0] == Judgement("known")]
        shown = [host_key(key) for key in keys]
        states = self._known_hosts(route.host, hop).states(hop.key_name, shown, certified)
        return [
            self._scanned(route.host, hop, key, *judged) for key, judged in zip(shown, states, strict=True)
        ]

    def _scanned(self, host: HostPlan, hop: Hop, key: HostKey, state: State, judged: Judgement) -> ScannedKey:
        if state not in ("changed", "revoked"):
            return ScannedKey(hop, key, state)
        own = self._own_known_hosts
        ours_alone = all(entry.path == own for entry in judged.against)
        error = refusal(host, hop, key, judged, own)
        return ScannedKey(hop, key, state, judged.entry, error, state == "changed" and ours_alone)

    def _show_one(
        self, route: Route, hop: Hop, connection: _Connection, key_type: str
    ) -> paramiko.PKey | None:
        """Return the key of that type that the sshd shows, or None. It does not authenticate."""
        offered = self._algorithms(route.host, hop)
        names = tuple(name for name in offered.host_keys if name.removesuffix(CERTIFICATE) == key_type)
        if not names:
            return None  # HostKeyAlgorithms of ssh_config forbids it
        with self._handshake(route, hop), self._explained(route, hop, connection):
            if connection.gateway:
                sock = connection.open_gateway()
            else:
                sock = socket.create_connection((hop.address, hop.port), self._timeouts.connect_s)
            transport = self._factory(replace(offered, host_keys=names))(sock)
            try:
                transport.start_client(timeout=self._timeouts.connect_s)
                return transport.get_remote_server_key()
            except paramiko.ssh_exception.IncompatiblePeer:
                return None
            finally:
                transport.close()
                sock.close()


class _Connection(fabric.Connection):  # type: ignore[misc]  # untyped
    # Fabric's attributes are entries of its Config where the class does not name them: slow, and the Config is
    # shared by all connections here.
    __setattr__ = object.__setattr__

    proxy: ProxySocket | None = None

    def open_gateway(self) -> Any:
        """Return what is read and written in the place of a TCP connection: of a bastion, or of a ProxyCommand."""
        if not isinstance(self.gateway, str):
            return super().open_gateway()
        self.proxy = ProxySocket(self.gateway)
        return self.proxy


class _Config(paramiko.SSHConfig):
    # %l is this machine's full name: paramiko asks DNS for it at every look-up, used or not, and a resolver
    # that drops packets then costs 10 s.
    TOKENS_BY_CONFIG_KEY = {  # noqa: RUF012 - paramiko's own attribute
        key: [token for token in tokens if token != "%l" and key != "proxycommand"]  # it: `config.route`
        for key, tokens in paramiko.SSHConfig.TOKENS_BY_CONFIG_KEY.items()
    }


def _without_delay(sock: object) -> None:
    """Send at once, and acknowledge the next packets at once.

    sshd writes several small packets around the login, and its Nagle algorithm holds back each until the one before is
    acknowledged: 40 ms each time, while the rest of a connection takes 30 ms.
    """
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_QUICKACK"):  # only Linux has it, and clears it by itself
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

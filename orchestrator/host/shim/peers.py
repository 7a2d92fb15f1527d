"""Which peers a task does not reach before its first step, as its shim sees it.

TensorFlow waits in the strategy's constructor for up to an hour, without a word, and holds Python's lock while it does.
So the shim checks the sockets of the process, and if there is none to a peer, it tries a connection of its own. A
peer that was reached once is not checked again.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading

from orchestrator.both import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestrator.protocol.reports import Finding, Peer

CONNECT_S = 2.0
"""How long the connection to one peer may take."""

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""What gRPC reads, in this order."""

_ESTABLISHED = "01"


class Peers:
    """The peers that a released task talks to. Without a TF_CONFIG of several tasks it has none."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        env = env or {}
        self._left = from_tf_config(env.get("TF_CONFIG", ""))
        self._thread: threading.Thread | None = None
        self.unreached: list[Peer] = []

    def check(self, pid: int) -> None:
        """Check the peers that were not reached yet, in a thread of its own, since resolving a name may take long."""
        if self._left and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._check, args=(pid,), daemon=True)
            self._thread.start()

    def _check(self, pid: int) -> None:
        connected, proxied = addresses_of(pid), proxied_from(pid)
        unreached: list[Peer] = []
        for task, (host, port) in list(self._left.items()):
            finding = _finding(host, port, connected, proxied)
            if finding is None:
                del self._left[task]
            else:
                unreached.append({"task": task, "finding": finding})
        self.unreached = unreached


def _finding(
    host: str, port: int, connected: set[tuple[str, int]], proxied: Callable[[str], bool]
) -> Finding | None:
    """Return why this peer is not reached; None if it is."""
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return "unresolved"
    if any((address, port) in connected for address in addresses):
        return None
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as e:
        return "no-route" if e.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH) else "silent"
    return "proxy" if proxied(host) else None


def proxied_from(pid: int) -> Callable[[str], bool]:
    """Return a function that says whether gRPC goes through a proxy to a host, by the environment of the process."""
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in process.environment(pid).items()}
    names = [
        name.strip().lstrip("*")
        for name in (env.get("no_grpc_proxy") or env.get("no_proxy") or "").split(",")
    ]
    is_set = any(env.get(name) for name in _PROXIES)
    return lambda host: is_set and not any(name and host.endswith(name) for name in names)


def from_tf_config(tf_config: str) -> dict[str, tuple[str, int]]:
    """Return the addresses of the peers that a task of this TF_CONFIG talks to, by name.

    Those are the task that leads, its own address included, and its neighbours in the ring; of a parameter server's
    chief, the first of the servers and workers.
    """
    try:
        config = json.loads(tf_config or "{}")
        cluster, kind, index = config.get("cluster", {}), config["task"]["type"], int(config["task"]["index"])
        every = {
            f"{job}:{n}": address
            for job in ("chief", "worker", "ps")
            for n, address in enumerate(cluster.get(job, []))
        }
        names = list(every)
        if len(every) < 2 or f"{kind}:{index}" not in every:
            return {}
        at = names.index(f"{kind}:{index}")
        if "ps" in cluster:
            wanted = names[1:4] if kind == "chief" else []
        else:
            wanted = [names[0], names[at - 1], names[(at + 1) % len(names)]]
        split = {name: every[name].rpartition(":") for name in wanted}
        return {name: (host.strip("[]"), int(port)) for name, (host, _, port) in split.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def addresses_of(pid: int) -> set[tuple[str, int]]:
    """Return the addresses to which the process is connected, as the kernel tells them."""
    addresses = set()
    try:
        links = (_link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        mine = {link[8:-1] for link in links if link.startswith("socket:[")}
        for table in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                for columns in map(str.split, lines):
                    if len(columns) > 9 and columns[3] == _ESTABLISHED and columns[9] in mine:
                        addresses.add(_address(columns[2]))
    except OSError:
        return addresses
    return addresses


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it was closed meanwhile


def _address(text: str) -> tuple[str, int]:
    """Return `0100007F:59D9` as an address: the kernel writes each word of it in the machine's own order."""
    host, _, port = text.partition(":")
    words = bytes.fromhex(host)
    octets = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    if len(octets) == 16 and octets.startswith(b"\0" * 10 + b"\xff\xff"):
        octets = octets[12:]
    family = socket.AF_INET if len(octets) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, octets), int(port, 16)

"""Tests whether the hosts of a run reach each other: listens on the run's ports, and connects to its peers' ports.

A listener sends everyone its token and a few large packets. So a peer learns whether it reached this host, and whether
the network carries more than the handshake. A peer that then sends the listener's secret gets data for a while, so
that `orch doctor --bandwidth` can measure.
"""

from __future__ import annotations

import errno
import socket
import time
from functools import partial

from orchestrator.host.agent.streams import READ, WRITE, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.protocol.orders.hosts import Outcome, Seen, Target

LISTENERS = 2
"""One at each end of the range, since a firewall may have opened only a part of it."""

FILL_BYTES = 24 << 10
"""The number of bytes after the token: several packets of the largest usual size."""

SLOW_NAME_S = 5.0
"""A name that is not resolved within this time counts as not found."""

BULK_S = 1.0
BULK_BYTES_MAX = 4 << 30
STREAMS = 4
"""A bandwidth measurement: maximum time and bytes of a connection, and the number of parallel connections. A single one
would be limited by its buffers."""

_NAMED_MAX = 8
_BUFFER_BYTES = 256 << 10
_ZEROS = memoryview(bytes(1 << 20))


class Listeners:
    """The listening sockets of this host. They are closed after their time, or when the agent ends."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: list[socket.socket] = []

    def begin(
        self, ports: tuple[int, int], token: str, listen_s: float, secret: str = ""
    ) -> tuple[list[int], int, list[int]]:
        """Listen on the first and the last free port. Earlier listeners are closed.

        Returns:
            The ports on which it listens, the number of free ports, and the first busy ones.
        """
        self._end(self._open)
        free, busy = _free_ports(ports)
        wanted = dict.fromkeys([*free[:1], *free[-1:]] if token else [])
        made = [door for door in map(_listener, wanted) if door is not None]
        answer = token.encode() + bytes(FILL_BYTES)
        for door in made:
            self._loop.watch(door.fileno(), READ, partial(self._answer, door, answer, secret.encode()))
        self._open = made
        self._loop.after(listen_s, lambda: self._end(made))
        return [door.getsockname()[1] for door in made], len(free), busy[:_NAMED_MAX]

    def _answer(self, listener: socket.socket, answer: bytes, secret: bytes, _events: int) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # it has hung up already
        connection.setblocking(False)
        try:
            connection.send(answer)
        except OSError:
            secret = b""
        if secret:
            self._open.append(connection)  # so it ends with the listeners at the latest
            self._loop.watch(connection.fileno(), READ, lambda _events: self._asked(connection, secret))
        else:
            connection.close()

    def _asked(self, connection: socket.socket, secret: bytes) -> None:
        try:
            is_right = connection.recv(len(secret)) == secret
        except OSError:
            is_right = False
        if not is_right:
            self._end([connection])
            return
        end_at, left = time.monotonic() + BULK_S, BULK_BYTES_MAX

        def send(_events: int) -> None:
            nonlocal left
            try:
                left -= connection.send(_ZEROS[:left])
            except BlockingIOError:
                pass
            except OSError:
                left = 0
            if left <= 0 or time.monotonic() >= end_at:
                self._end([connection])

        self._loop.watch(connection.fileno(), WRITE, send)
        self._loop.after(BULK_S, lambda: self._end([connection]))  # who does not read is not waited for

    def _end(self, these: list[socket.socket]) -> None:
        for door in these:
            if door.fileno() >= 0:
                self._loop.forget(door.fileno())
                door.close()


def _free_ports(ports: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Return the ports of the range that can be bound, and those that cannot. None stays bound."""
    free, busy = [], []
    for port in range(ports[0], ports[1] + 1):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError:
                busy.append(port)
            else:
                free.append(port)
    return free, busy


def _listener(port: int) -> socket.socket | None:
    """Return a socket that listens on all addresses, of IPv6 and IPv4 if possible; None if the port cannot be bound."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        door = None
        try:
            door = socket.socket(family)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Inherited by each connection: all of the answer fits, so nobody is waited for.
            door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            door.bind((anywhere, port))
            door.listen(128)
            door.setblocking(False)
        except OSError:
            if door is not None:
                door.close()
            continue
        return door
    return None


def reach(targets: list[Target], within_s: float) -> list[Seen]:
    """Connect to all targets at once, and return the results. It runs in a fork, since a name server may hang."""
    from orchestrator.host.system.patience import all_within

    give_up_at = time.monotonic() + within_s
    seen: list[Seen] = []

    def connect(target: Target) -> None:
        seen.append(_reach(target, give_up_at))

    all_within(within_s + 0.2, [partial(connect, target) for target in targets])
    return list(seen)


def _reach(target: Target, give_up_at: float) -> Seen:
    began_at = time.monotonic()
    seen: Seen = {
        "host": target["host"],
        "address": target["address"],
        "outcome": "fine",
        "resolved": [],
        "resolve_s": 0.0,
        "port": None,
        "why": None,
    }
    try:
        addresses = _resolve(target["address"], min(SLOW_NAME_S, give_up_at - began_at))
    except OSError as e:
        return {**seen, "outcome": "no-name", "resolve_s": time.monotonic() - began_at, "why": _words(e)}
    seen["resolved"] = [str(place[0]) for _, place in addresses][:_NAMED_MAX]
    seen["resolve_s"] = time.monotonic() - began_at
    if target.get("secret"):
        bytes_per_s, outcome, why = _measured(target, addresses, give_up_at)
        return {**seen, "outcome": outcome, "why": why, "bytes_per_s": bytes_per_s}
    for port in target["ports"]:
        outcome, why = _connect(addresses, port, target["token"].encode(), give_up_at)
        if outcome != "fine":
            return {**seen, "outcome": outcome, "port": port, "why": why}
    return seen


def _measured(
    target: Target, places: list[tuple[int, tuple[object, ...]]], give_up_at: float
) -> tuple[float, Outcome, str | None]:
    """Return the bandwidth from a peer over several connections, in bytes per second, or why there is none."""
    from orchestrator.host.system.patience import all_within

    token, secret = target["token"].encode(), target["secret"].encode()
    came: list[tuple[int, float, float]] = []
    failed: list[tuple[Outcome, str | None]] = []

    def read(port: int) -> None:
        bytes_, began_at = 0, time.monotonic()

        def bulk(connection: socket.socket) -> None:
            nonlocal bytes_, began_at
            connection.sendall(secret)
            buffer, began_at = bytearray(_BUFFER_BYTES), time.monotonic()
            end_at = min(give_up_at, began_at + target["measure_s"])
            while time.monotonic() < end_at and (got := connection.recv_into(buffer)):
                bytes_ += got

        outcome, why = _connect(places, port, token, give_up_at, bulk)
        if bytes_:
            came.append((bytes_, began_at, time.monotonic()))
        else:
            failed.append((outcome, why))

    ports = [target["ports"][number % len(target["ports"])] for number in range(STREAMS)]
    all_within(give_up_at - time.monotonic(), [partial(read, port) for port in ports])
    if not came:
        return (0.0, *(failed[0] if failed else ("timeout", "nothing answers")))
    taken_s = max(end for _, _, end in came) - min(began_at for _, began_at, _ in came)
    return sum(bytes_ for bytes_, _, _ in came) / max(taken_s, 0.001), "fine", None


def _resolve(name: str, limit_s: float) -> list[tuple[int, tuple[object, ...]]]:
    """Return families and addresses of a name. Raises OSError if there are none, or none in time."""
    from orchestrator.host.system.patience import within

    hangs: list[tuple[int, tuple[object, ...]]] = []

    def look_up() -> list[tuple[int, tuple[object, ...]]]:
        bare = name.strip("[]").encode()
        return [(row[0], row[4]) for row in socket.getaddrinfo(bare, 0, 0, socket.SOCK_STREAM)]

    addresses = within(limit_s, look_up, hangs)
    if addresses is hangs:
        raise TimeoutError(errno.ETIMEDOUT, f"no name server has answered for {limit_s:.0f} s")
    return addresses


def _connect(
    places: list[tuple[int, tuple[object, ...]]],
    port: int,
    token: bytes,
    give_up_at: float,
    then: Callable[[socket.socket], None] = lambda _: None,
) -> tuple[Outcome, str | None]:
    """Try the addresses in order, as a library would, and return the result of the last try.

    `then` is called with a connection on which the right token arrived.
    """
    outcome: Outcome = "no-route"
    why: str | None = "the name has no address"
    for family, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(max(0.05, give_up_at - time.monotonic()))
                connection.connect((place[0], port, *place[2:]))
                outcome, why = _read(connection, token, give_up_at)
                if outcome == "fine":
                    then(connection)
        except ConnectionRefusedError as e:
            outcome, why = "refused", _words(e)
        except TimeoutError:
            outcome, why = "timeout", "nothing answers"
        except OSError as e:
            outcome, why = "no-route", _words(e)
        else:
            return outcome, why
    return outcome, why


def _read(connection: socket.socket, token: bytes, give_up_at: float) -> tuple[Outcome, str | None]:
    data = bytearray()
    try:
        while len(data) < len(token) + FILL_BYTES:
            connection.settimeout(max(0.05, give_up_at - time.monotonic()))
            part = connection.recv(65536)
            if not part:
                break
            data += part
    except OSError as e:
        if not data.startswith(token):
            return "cut", f"it accepts the connection, and nothing arrives: {_words(e)}"
    if not data.startswith(token):
        return "stranger", "somebody else answers there"
    if len(data) < len(token) + FILL_BYTES:
        return "cut", f"{len(data)} bytes of {len(token) + FILL_BYTES} have arrived"
    return "fine", None


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__

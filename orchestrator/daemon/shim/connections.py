"""The shim's ends of its sockets: to the agents that are connected, and to the runtime in the task.

Nothing here waits: a peer that does not read loses reports, which are levels and come again, and is dropped
where even replies pile up.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from functools import partial

from orchestrator.adapters.channel import Decoder, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HEARTBEAT_S = 2.0
_UNSENT_BYTES_MAX = 4 << 20
_LINE_BYTES_MAX = 1 << 20


class Gone(Exception):
    """The peer has closed, or speaks what we do not understand."""


def is_ours(sock: socket.socket, uid: int) -> bool:
    """Whether the peer belongs to that user: the socket's mode says so too, where its file system keeps modes."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] in (uid, 0))


def _received(sock: socket.socket) -> bytes:
    """What has come by now, which may be nothing. Gone at the end of it."""
    try:
        data = sock.recv(65536)
    except BlockingIOError:
        return b""
    except OSError as e:
        raise Gone from e
    if not data:
        raise Gone
    return data


class AgentLink:
    """One connected agent."""

    def __init__(self, sock: socket.socket, at: float) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.heartbeat_s = HEARTBEAT_S
        self.report_at = at
        """When the next report is due at the latest."""
        self._decoder = Decoder()
        self._unsent = bytearray()

    def receive(self) -> list[dict[str, Any]]:
        """The orders that have come. Gone where the agent has."""
        data = _received(self.sock)
        try:
            return [message for message, _ in self._decoder.feed(data)]
        except FrameError as e:
            raise Gone from e

    def report(self, task: dict[str, Any], at: float) -> None:
        """Sends a report, unless the one before has not gone out yet: the next says all of it again."""
        self.report_at = at + self.heartbeat_s
        self.flush()
        if not self._unsent:
            self.send({"report": task})

    def send(self, message: dict[str, Any]) -> None:
        """Sends it as far as the socket takes it now. Gone where the agent has, or does not read at all."""
        if len(self._unsent) > _UNSENT_BYTES_MAX:
            raise Gone
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Sends what is left, as far as it goes. Gone where the agent has."""
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as e:
            raise Gone from e

    def say_last(self, message: dict[str, Any], wait_s: float) -> None:
        """Sends it and waits for it to go out; then there is no more to say."""
        try:
            self.send(message)
            self.sock.settimeout(wait_s)
            self.sock.sendall(self._unsent)
        except (Gone, OSError):
            return  # the agent reads the exit record instead


class Agents:
    """All agents that are connected: one as a rule, two while a new one takes over."""

    def __init__(
        self, selector: selectors.BaseSelector, handle: Callable[[AgentLink, dict[str, Any]], None]
    ) -> None:
        self._selector = selector
        self._handle = handle
        self._links: list[AgentLink] = []

    def listen(self, listener: socket.socket) -> None:
        """Takes in whoever connects; a first report goes out at once."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def due_at(self) -> list[float]:
        """When each must hear something."""
        return [link.report_at for link in self._links]

    def report(self, task: dict[str, Any], at: float, *, all: bool = True) -> None:
        """To all, or to those whose heartbeat is due."""
        for link in list(self._links):
            if all or at >= link.report_at:
                try:
                    link.report(task, at)
                except Gone:
                    self._drop(link)

    def send(self, link: AgentLink, message: dict[str, Any]) -> None:
        """To one of them, if it is still there."""
        try:
            link.send(message)
        except Gone:
            self._drop(link)

    def say_last(self, message: dict[str, Any], wait_s: float) -> None:
        """To all; then there is no more to say."""
        for link in self._links:
            link.say_last(message, wait_s)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        if not is_ours(sock, os.getuid()):
            sock.close()
            return
        link = AgentLink(sock, time.monotonic())
        self._links.append(link)
        self._selector.register(sock, selectors.EVENT_READ, partial(self._hear, link))

    def _hear(self, link: AgentLink) -> None:
        try:
            link.flush()
            orders = link.receive()
        except Gone:
            self._drop(link)
            return
        for order in orders:
            self._handle(link, order)

    def _drop(self, link: AgentLink) -> None:
        if link in self._links:
            self._links.remove(link)
            self._selector.unregister(link.sock)
            link.sock.close()


class RuntimeLink:
    """The socket to the runtime: JSON lines."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._received = b""

    def receive(self) -> list[dict[str, Any]]:
        """What the runtime has said, without what is no JSON object. Gone at the end of it."""
        data = _received(self.sock)
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _LINE_BYTES_MAX:
            self._received = b""
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the script may write to this socket as well; its noise is not ours to judge
            if isinstance(message, dict):
                messages.append(message)
        return messages

    def send(self, message: dict[str, Any]) -> bool:
        """False where the runtime does not take it: gone, or it has not read for a long time."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            # A few small lines in the life of a task: a socket's buffer takes them whole, or it is stuck.
            return self.sock.send(data) == len(data)
        except OSError:
            return False

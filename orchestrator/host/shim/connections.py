"""The shim's ends of its sockets to the connected agents, and to the runtime in the task.

Nothing here waits. A peer that does not read misses reports; each report holds the whole state, so the next one makes
up for it. A peer whose unread replies pile up is disconnected.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from functools import partial

from orchestrator.both import private_socket
from orchestrator.host.shim.report import CUTS, cut
from orchestrator.protocol.channel import Decoder, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.protocol.reports import Task
    from orchestrator.protocol.runtime_lines import ShimLine

HEARTBEAT_S = 2.0
_UNSENT_BYTES_MAX = 4 << 20
_LINE_BYTES_MAX = 1 << 20


class Gone(Exception):
    """The peer has closed the connection, or sends something that is not our protocol."""


def _received(sock: socket.socket) -> bytes:
    """Return what has arrived, which may be nothing. Raises Gone at the end of the stream."""
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
    """The connection to one agent."""

    def __init__(self, sock: socket.socket, at: float) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.heartbeat_s = HEARTBEAT_S
        self.report_at = at
        """When the next report is due at the latest (monotonic)."""
        self._decoder = Decoder()
        self._unsent = bytearray()

    def receive(self) -> list[dict[str, Any]]:
        """Return the orders that have arrived. Raises Gone once the agent is."""
        data = _received(self.sock)
        try:
            return [message for message, _ in self._decoder.feed(data)]
        except FrameError as e:
            raise Gone from e

    def report(self, task: Task, at: float) -> bool:
        """Send a report, unless the one before is still unsent: the next one repeats everything."""
        self.report_at = at + self.heartbeat_s
        self.flush()
        if self._unsent:
            return False
        self._send(_report_frame(task))
        return True

    def reply(self, id: Any, answer: dict[str, Any]) -> None:
        """Send a reply, or that it is too long for a frame. Raises Gone."""
        try:
            frame = encode({"reply": id, **answer})
        except FrameError as e:
            error = {"code": "too-large", "message": f"the answer does not fit in a frame: {e}", "hint": None}
            frame = encode({"reply": id, "error": error})
        self._send(frame)

    def _send(self, frame: bytes) -> None:
        """Send as much as the socket takes now. Raises Gone if the agent is, or does not read."""
        if len(self._unsent) > _UNSENT_BYTES_MAX:
            raise Gone
        self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send as much of the rest as the socket takes now. Raises Gone if the agent is."""
        try:
            while self._unsent:
                del self._unsent[: self.sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError as e:
            raise Gone from e

    def say_last(self, task: Task, wait_s: float) -> None:
        """Send the last message, and wait up to `wait_s` until the socket has taken it."""
        try:
            self._send(_report_frame(task))
            self.sock.settimeout(wait_s)
            self.sock.sendall(self._unsent)
        except (Gone, OSError):
            return  # the agent will read the exit record instead


def _report_frame(task: Task) -> bytes:
    """Return the report of a task, cut as often as it takes to fit into a frame."""
    for cuts in range(1, CUTS):
        try:
            return encode({"report": cut(task, cuts)})
        except FrameError:
            continue
    return encode({"report": cut(task, CUTS)})  # some kilobytes


class Agents:
    """All connected agents: normally one, and two while a new one takes over."""

    def __init__(
        self, selector: selectors.BaseSelector, handle: Callable[[AgentLink, dict[str, Any]], None]
    ) -> None:
        self._selector = selector
        self._handle = handle
        self._links: list[AgentLink] = []

    def listen(self, listener: socket.socket) -> None:
        """Accept connections. Each gets a first report at once."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, partial(self._accept, listener))

    def due_at(self) -> list[float]:
        """Return when the next report to each agent is due."""
        return [link.report_at for link in self._links]

    def report(self, task: Task, at: float, *, all: bool = True) -> bool:
        """Send a report to all agents, or without `all` to those whose heartbeat is due. Return if any was sent."""
        is_sent = False
        for link in list(self._links):
            if all or at >= link.report_at:
                try:
                    is_sent |= link.report(task, at)
                except Gone:
                    self._drop(link)
        return is_sent

    def reply(self, link: AgentLink, id: Any, answer: dict[str, Any]) -> None:
        """Send a message to one agent, if it is still connected."""
        try:
            link.reply(id, answer)
        except Gone:
            self._drop(link)

    def say_last(self, task: Task, wait_s: float) -> None:
        """Send the last message to all agents."""
        for link in self._links:
            link.say_last(task, wait_s)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        _, uid = private_socket.peer(sock)
        if uid not in (os.getuid(), 0):  # not every file system enforces a socket's mode
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
    """The socket to the runtime, which carries JSON lines."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._received = b""

    def receive(self) -> list[dict[str, Any]]:
        """Return the JSON objects that the runtime has sent. Raises Gone at the end of the stream."""
        data = _received(self.sock)
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _LINE_BYTES_MAX:
            self._received = b""
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the script may write to this socket as well; such lines are ignored
            if isinstance(message, dict):
                messages.append(message)
        return messages

    def send(self, message: ShimLine) -> bool:
        """Send a message. Return False if the runtime is gone, or has not read for a long time."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            # A task gets only a few small lines in its life. If the socket's buffer is full, the task is stuck.
            return self.sock.send(data) == len(data)
        except OSError:
            return False

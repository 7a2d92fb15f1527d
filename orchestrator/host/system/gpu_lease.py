"""The lease of a GPU or of a slot: all users of a host see who has it, and one process at a time can take it.

A lease is a Unix socket that listens under an abstract name, one per GPU (with its number), per MIG instance (with its
UUID) and per slot, where a spec says how many tasks a host may hold (`slot-0`). The kernel gives a name to one process
at a time, tells whoever connects which user that is, and frees the name when the last process that holds the socket
ends. So nobody's word is needed, there is no directory to share, and nothing is left behind by a crash or a reboot. The
names belong to a network name space: containers with networks of their own do not see each other's leases.

The holder answers each connection with a line of JSON that says for which run it holds the GPU. A process of the same
user also gets the socket itself: so a new agent shares the leases that shims have held meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import struct

from orchestrator.both import logind, private_socket
from orchestrator.both.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_ANSWER_BYTES_MAX = 4096
_HELD_MAX = 1024


SLOT = "slot-"

_PREFIX = "\0orch/gpu/"
_LEASED = re.compile(r"(slot-)?(0|[1-9]\d{0,8})|(GPU|MIG)-[\w/-]{1,90}", re.ASCII)


def _name(gpu: int | str) -> str:
    return f"{_PREFIX}{gpu}"


def in_words(gpu: int | str) -> str:
    """Return what is leased, for people."""
    name = str(gpu)
    return f"slot {name[len(SLOT) :]}" if name.startswith(SLOT) else f"GPU {name}"


def held() -> list[int | str]:
    """Return all GPUs and slots of this host that somebody has leased, by the kernel's table of sockets."""
    prefix = _PREFIX.replace("\0", "@")
    try:
        with open("/proc/net/unix", errors="replace") as table:
            paths = {words[7] for line in table if len(words := line.split()) == 8}
    except OSError:
        return []
    # Any user may bind a name that is no GPU
    names = sorted(
        name for path in paths if _LEASED.fullmatch(name := path.removeprefix(prefix)) and name != path
    )
    return [int(name) if name.isdecimal() else name for name in names[:_HELD_MAX]]


def who(gpu: int | str, within_s: float) -> Holder:
    """Return who holds a lease. It waits for the holder's answer."""
    asking = ask(gpu)
    if asking is None:
        return Holder(None, {"user": owner(gpu)})
    with asking:
        select.select([asking], [], [], within_s)
        holder = read_answer(asking, gpu)
    if holder.shared is not None:
        holder.shared.close()
    return holder


def acquire(gpu: int | str) -> socket.socket | None:
    """Return the lease of a GPU; None if somebody else holds it."""
    lease = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        lease.bind(_name(gpu))
        lease.listen(socket.SOMAXCONN)  # while its holder is stopped, who asks and goes still takes a place
    except OSError as e:
        lease.close()
        if e.errno == errno.EADDRINUSE:
            return None
        raise
    return lease


def answer(lease: socket.socket, about: Mapping[str, Any]) -> None:
    """Answer one connection with what the lease is for; a process of the same user also gets the lease."""
    try:
        asker, _ = lease.accept()
    except OSError:
        return  # another process that holds the lease was faster
    with asker:
        asker.setblocking(False)
        shared = [lease.fileno()] if _user(asker) == os.geteuid() else []
        try:
            socket.send_fds(asker, [json.dumps(about).encode() + b"\n"], shared)
        except OSError:
            return  # it has gone


def ask(gpu: int | str) -> socket.socket | None:
    """Connect to the holder of a GPU's lease, without waiting.

    None if nobody holds it any more, or its holder accepts no connection: then `owner` names its user.
    """
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        asking.connect(_name(gpu))
    except OSError:
        asking.close()
        return None
    return asking


_ACCEPTS, _UNCONNECTED = 0x10000, "01"
_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST, _SHOW_UID, _UID, _NO_COOKIE = 4, 20, 1, 0x40, 7, 0xFFFFFFFF


def owner(gpu: int | str) -> str | None:
    """Return the user whose socket has the name, whatever its process does; None if none has it, or none is known.

    The kernel's table of sockets has the inode, and tells everybody the user of it.
    """
    path = _name(gpu).replace("\0", "@")
    try:
        with open("/proc/net/unix", errors="replace") as table:
            rows = [words for line in table if (words := line.split())[7:] == [path]]
        # a connection that its holder has not accepted has the name too
        inode = next(int(row[6]) for row in rows if int(row[3], 16) & _ACCEPTS or row[5] == _UNCONNECTED)
        family = getattr(socket, "AF_NETLINK", -1)
        with socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_SOCK_DIAG) as asking:
            question = (socket.AF_UNIX, 0, 0, _NO_COOKIE, inode, _SHOW_UID, _NO_COOKIE, _NO_COOKIE)
            asking.send(struct.pack("=IHHIIBBHIIIII", 40, _BY_FAMILY, _REQUEST, 0, 0, *question))
            data = asking.recv(4096)
        at = 32  # behind the headers: attributes, each with its length and kind
        while at < len(data):
            length, kind = struct.unpack_from("=HH", data, at)
            if kind == _UID:
                return logind.user_name(struct.unpack_from("=I", data, at + 4)[0])
            at += max(4, (length + 3) & ~3)
    except (OSError, StopIteration, ValueError, struct.error):
        return None
    return None


class Holder(Value):
    """Who holds the lease of a GPU. The kernel names the user; the rest is the holder's own answer."""

    uid: int | None
    answer: Mapping[str, Any]
    shared: socket.socket | None = None
    """The lease itself, where the holder is of our user."""
    has_closed: bool = False
    """Whether it has closed the connection without an answer, in most cases because it has ended."""

    @property
    def user(self) -> str | None:
        """Return the user's name, or the number of one without."""
        return None if self.uid is None else logind.user_name(self.uid)


def read_answer(asking: socket.socket, gpu: int | str) -> Holder:
    """Read what the holder has answered, if anything.

    Descriptors are accepted from our own user only. Others may send anything, and even closing it may block.
    """
    holder = Holder(_user(asking), {})
    data = b""
    fds: list[int] = []
    try:
        if holder.uid == os.geteuid():
            data, fds, _, _ = socket.recv_fds(asking, _ANSWER_BYTES_MAX, 4, socket.MSG_CMSG_CLOEXEC)
        else:
            data = asking.recv(_ANSWER_BYTES_MAX)
    except BlockingIOError:
        return holder
    except OSError:
        pass  # it has closed the connection
    for fd in fds:
        if holder.shared is None:
            holder.shared = _lease(fd, gpu)
        else:
            os.close(fd)
    holder.has_closed = not data
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    holder.answer = value if isinstance(value, dict) else {}
    return holder


def _lease(fd: int, gpu: int | str) -> socket.socket | None:
    """Return the descriptor as the lease of that GPU; close it and return None if it is something else."""
    try:
        lease = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        return None
    if lease.getsockname() == _name(gpu).encode():
        return lease
    lease.close()
    return None


def _user(connection: socket.socket) -> int | None:
    """Return the user at the other end; None while there is none."""
    try:
        _, uid = private_socket.peer(connection)
    except OSError:
        return None
    return uid if uid >= 0 else None

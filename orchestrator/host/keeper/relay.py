"""The relay: a channel's own process on a host. It hands its stdin, stdout and stderr to the keeper, and waits.

What it says of itself goes to stderr, in lines that begin with a mark of the head's: that the keeper is there, and in
the end the exit code of the command. It exits with 0 whatever the command did, since the engine's own client would
print a sentence of its own about any other code.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys

from orchestrator.host.keeper import place

_ANSWER_BYTES_MAX = 64 << 10


def main(argv: list[str]) -> int:
    """Relay the command. `argv`: the allocation, the mark, the command."""
    if len(argv) != 3:
        sys.stderr.write("usage: relay ALLOCATION MARK COMMAND\n")
        return 2
    allocation, mark, command = argv
    # These mean that the engine takes the host away. The keeper hears them too, and the run ends in order.
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        keeper.connect(place.path_of(allocation))
        if not place.is_ours(keeper):
            raise ValueError("the keeper belongs to another user")
        _say(f"{mark} open")
        request = json.dumps({"command": command}).encode()
        keeper.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    except (OSError, ValueError) as e:
        _say(f"{mark} no-keeper {e}")
        return 0
    # Only the command may hold these descriptors now: when it closes its stdout, the head must see the end of the
    # stream.
    for descriptor in (0, 1):
        os.close(descriptor)
    _say(f"{mark} {_end(keeper)}")
    return 0


def _end(keeper: socket.socket) -> str:
    """Wait for the end of the command, and say it."""
    heard = b""
    while len(heard) < _ANSWER_BYTES_MAX and not heard.endswith(b"\n"):
        try:
            data = keeper.recv(4096)
        except OSError:
            data = b""
        if not data:
            return "lost the keeper has ended"
        heard += data
    answer = json.loads(heard)
    if "error" in answer:
        return f"error {answer['error']}"
    return f"exit {'-' if answer.get('exit') is None else answer['exit']}"


def _say(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n")
    except OSError:
        return

"""Connects its stdin and stdout with a Unix socket of this host: how a client elsewhere reaches a coordinator."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from orchestrator.host.keeper import place

ABSENT = 3
"""The exit code where nothing listens there."""


def main(argv: list[str]) -> int:
    """Carry bytes both ways until both sides have ended."""
    if len(argv) != 1:
        sys.stderr.write("usage: dial SOCKET\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        there.connect(argv[0])
    except OSError as e:
        sys.stderr.write(f"orch-absent {e.strerror}\n")
        return ABSENT
    if not place.is_ours(there):
        sys.stderr.write("orch-absent it belongs to another user\n")
        return ABSENT
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(there, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == 0:
                data = os.read(0, 1 << 16)
                if not data:
                    return 0
                there.sendall(data)
            else:
                data = there.recv(1 << 16)
                if not data:
                    return 0
                while data:
                    data = data[os.write(1, data) :]

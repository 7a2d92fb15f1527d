"""The port of a task, which its shim holds until the task is released, so that nothing else takes it."""

from __future__ import annotations

import socket
import time

MOVE_WAIT_S = 0.5
"""How long the release of a task waits for a port that its dead predecessor had. The kernel gives it back at once."""


def bind(port: int) -> socket.socket:
    """Return a socket that holds the port. Raises OSError if it cannot be had."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A task that is restarted alone takes its old port, on which connections may still be in TIME_WAIT; so
        # SO_REUSEADDR is needed. With it, only a listening socket keeps others away, so this one listens.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("0.0.0.0", int(port)))
        held.listen(1)
    except OSError:
        held.close()
        raise
    return held


def move(port: int) -> tuple[socket.socket | None, str]:
    """Return a socket that holds the port; or None, and why it is not free even after a short wait."""
    give_up_at = time.monotonic() + MOVE_WAIT_S
    while True:
        try:
            return bind(port), ""
        except OSError as e:
            if time.monotonic() >= give_up_at:
                return None, e.strerror or str(e)
            time.sleep(0.02)

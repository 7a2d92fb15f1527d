"""The port of a task, which its shim holds until the task is released, so that nothing else takes it."""

from __future__ import annotations

import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

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


def take(ports: Sequence[int], wait_s: float) -> tuple[socket.socket | None, str]:
    """Return a socket that holds the first free port; or None, and why the last one is not free even after a wait."""
    give_up_at, why = time.monotonic() + wait_s, ""
    while True:
        for port in ports:
            try:
                return bind(port), ""
            except OSError as e:
                why = e.strerror or str(e)
        if time.monotonic() >= give_up_at:
            return None, why
        time.sleep(0.02)

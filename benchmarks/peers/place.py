"""Where the two workers train: on two hosts of the lab, which can be cut; without root both on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cluster.lab import Lab, can_cut, missing

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Place:
    """The hosts of the workers."""

    lab: Lab | None

    def address(self, worker: int) -> str:
        """Return the address of a worker's host."""
        return self.lab.host(worker).address if self.lab is not None else "127.0.0.1"

    def enter(self, worker: int) -> list[str]:
        """Return the words before a command that has to run on a worker's host."""
        return self.lab.host(worker).enter() if self.lab is not None else []

    def environment(self) -> dict[str, str]:
        """Return what libraries need to know that guess their network by the machine's name."""
        return {"GLOO_SOCKET_IFNAME": "eth0"} if self.lab is not None else {}

    def free_port(self, worker: int) -> int:
        """Return a port for a worker. A host of the lab has them all for itself."""
        if self.lab is not None:
            return 29400 + worker
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return int(free.getsockname()[1])


@contextmanager
def place_of() -> Iterator[Place]:
    """Yield two new hosts where that is possible."""
    if not can_cut() or missing():
        yield Place(None)
        return
    with Lab(WORKERS) as lab:
        yield Place(lab)

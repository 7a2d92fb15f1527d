"""The TensorBoards that people start from the page: an `orch tensorboard` for each run, which ends with the page."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import IO, NamedTuple

from orchestrator.both import process
from orchestrator.core.errors import Refused

STARTS_S = 90.0
"""How long it may take to fetch the files and to serve them."""


class Started(NamedTuple):
    """One that was started: its port, its process, and what that says."""

    port: int
    server: subprocess.Popen[bytes]
    said: IO[bytes]


class TensorBoards:
    """Those that were started, by run."""

    def __init__(self, program: tuple[str, ...] = ("-m", "orchestrator.cli.main", "tensorboard")) -> None:
        self._program = program
        self._started: dict[str, Started] = {}

    def start(self, run_id: str) -> Started:
        """Start one, unless there is one. What a thread has started ends with that thread, so it must last."""
        known = self._started.get(run_id)
        if known is not None and known.server.poll() is None:
            return known
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        said = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open; a pipe that nobody reads would stop it
        process.load_prctl()
        server = subprocess.Popen(
            [sys.executable, "-P", *self._program, run_id, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            preexec_fn=partial(process.die_with_parent, os.getpid()),
        )
        self._started[run_id] = started = Started(port, server, said)
        return started


def address(started: Started) -> str:
    """Return where it serves, once it does. Raises Refused with what it said if it does not, and the way out."""
    until = time.monotonic() + STARTS_S
    while started.server.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", started.port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return f"http://127.0.0.1:{started.port}/"
    started.said.seek(0)
    words = started.said.read().decode(errors="replace").strip()[-500:]
    if started.server.poll() is None:
        raise Refused("TensorBoard is still starting", hint="ask again in a moment")
    raise Refused(
        f"TensorBoard has ended: {words}", hint="`orch tensorboard` in a terminal shows all that it says"
    )

"""Serve the coordinator's API on a private Unix socket.

We bind the socket with mode 0600 before the server gets it, because uvicorn would make it 0666. The peer's user is
also checked at every connection, so that even a wrong mode lets no other user in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.concurrency import run_in_threadpool

from orchestrator.both import private_socket
from orchestrator.core.errors import Refused
from orchestrator.head.api.routes import application

if TYPE_CHECKING:
    from orchestrator.head.coordinator.coordinator import Coordinator

log = logging.getLogger(__name__)


class PrivateSocket(socket.socket):
    """A listening Unix socket that refuses every user except its owner and root."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in (os.getuid(), 0):
            connection.close()
            raise BlockingIOError(f"user {uid} was turned away")  # the server takes it as no connection
        return connection, address


def listen(path: str) -> PrivateSocket:
    """Bind a socket that is private from the first moment. One that a dead coordinator left is replaced.

    Raises:
        Refused: a coordinator answers there. Two journals may share a runtime directory by mistake.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) == 0:
            raise Refused(
                f"another coordinator answers behind {path}",
                hint="`orch coordinator status` shows it; give this one its own $ORCH_RUNTIME_DIR",
            )
    listener = PrivateSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    private_socket.listen(listener, path, 64)
    return listener


class _Uvicorn(uvicorn.Server):
    """Waits for `end`. Uvicorn's own loop wakes ten times a second: a third of the CPU time of an idle coordinator."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._end_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await run_in_threadpool(bool)  # starts the thread pool, for which the first request would wait
        if not self.should_exit:
            await self._end_asked.wait()

    def end(self) -> None:
        """Answer the requests under way, and end. Any thread may call it."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._end_asked.set)


class Server:
    """Runs uvicorn in a thread of its own. If that ends by itself, the coordinator ends too.

    Without its API it would hold the lock of the journal, and nobody could speak to it or start another.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.failure: str | None = None
        """Why the thread has ended by itself."""
        self._coordinator = coordinator
        self._stopping = False
        self._path = coordinator.paths.socket
        config = uvicorn.Config(
            application(coordinator),
            log_level="warning",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = _Uvicorn(config)
        self._listener = listen(self._path)
        self._thread = threading.Thread(target=self._serve, name="api", daemon=True)

    def start(self) -> None:
        """Begin to answer. Clients that connected earlier wait in the socket's queue."""
        self._thread.start()

    def stop(self) -> None:
        """Answer pending requests, then close and remove the socket."""
        self._stopping = True
        self._server.end()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _serve(self) -> None:
        error: BaseException | None = None
        try:
            self._server.run(sockets=[self._listener])
        except BaseException as e:  # SystemExit too: uvicorn raises it where it cannot start
            error = e
        if not self._stopping:
            what = f"{type(error).__name__}: {error}" if error is not None else "without an error"
            self.failure = f"the API has ended by itself ({what}); the coordinator ends too, and tasks go on"
            log.critical("%s", self.failure, exc_info=error)
            self._coordinator.loop.stop()

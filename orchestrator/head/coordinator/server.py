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
import threading
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.concurrency import run_in_threadpool

from orchestrator.both import private_socket
from orchestrator.core.errors import OrchestratorError, Refused
from orchestrator.head.coordinator.routes import application
from orchestrator.head.node import holder
from orchestrator.head.node.paths import Paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.head.coordinator.coordinator import Coordinator

log = logging.getLogger(__name__)


class PrivateSocket(socket.socket):
    """A listening Unix socket that refuses every user except its owner and root."""

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        _, uid = private_socket.peer(connection)
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


SOCKET_SEEN_EVERY_S = 2.0
"""How often the coordinator looks whether the path of its socket is there."""


def _file_at(path: str) -> tuple[int, int] | None:
    """Return which file is at the path; None if there is none."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


class _Uvicorn(uvicorn.Server):
    """Waits for `end`. Uvicorn's own loop wakes ten times a second: a third of the CPU time of an idle coordinator."""

    _loop: asyncio.AbstractEventLoop | None = None
    listen_again: Callable[[], PrivateSocket | None] = staticmethod(lambda: None)

    async def main_loop(self) -> None:
        self._end_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await run_in_threadpool(bool)  # starts the thread pool, for which the first request would wait
        while not self.should_exit:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._end_asked.wait(), SOCKET_SEEN_EVERY_S)
            again = None if self.should_exit else self.listen_again()
            if again is not None:
                self.servers.append(await self._loop.create_server(self._protocol, sock=again))

    def _protocol(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

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
        self._paths = coordinator.paths
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
        self._server.listen_again = self._listen_again
        self._listener = listen(self._paths.socket)
        self._seen = _file_at(self._paths.socket)
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
        if _file_at(self._paths.socket) == self._seen:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._paths.socket)

    def _listen_again(self) -> PrivateSocket | None:
        """Return a new socket where the path of the present one was removed, as by a logout; None if it is there.

        Where its directory cannot be made again, the new one is in the state directory. The lock's file tells clients.
        """
        paths = self._paths
        if _file_at(paths.socket) == self._seen:
            return None
        listener = None
        for path in (paths.socket, os.path.join(paths.state_dir, os.path.basename(paths.socket))):
            try:
                paths.ensure()
                listener = listen(path)
            except (OSError, OrchestratorError) as e:
                log.warning("the socket %s is gone, and %s cannot be made: %s", paths.socket, path, e)
                paths = Paths(paths.state_dir, paths.state_dir)
                continue
            self._paths.socket, self._seen = path, _file_at(path)
            log.warning("the socket was gone; it is %s now", path)
            with contextlib.suppress(OSError):
                holder.write(self._paths)
            break
        return listener

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

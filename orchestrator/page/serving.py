"""The server of the page and of `orch metrics`, which strangers on this machine may connect to as well.

A connection without a request may wait for a limited time, and if there are too many of them, the oldest is closed:
so idle connections keep nobody else out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""How long a new connection may take to ask something: to the end of its headers."""

SILENT_MAX = 64
"""How many connections may wait that have asked nothing yet."""


class _Patient(H11Protocol):
    """Closes a connection that sends no request in time. uvicorn handles the others."""

    _silent: OrderedDict[_Patient, asyncio.TimerHandle]
    """Those of one server, the oldest first."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        while len(self._silent) >= SILENT_MAX:
            oldest, timer = self._silent.popitem(last=False)
            timer.cancel()
            oldest.transport.abort()
        self._silent[self] = self.loop.call_later(REQUEST_S, transport.abort)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None:
            self._asked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._asked()
        super().connection_lost(exc)

    def _asked(self) -> None:
        timer = self._silent.pop(self, None)
        if timer is not None:
            timer.cancel()


class _Server(uvicorn.Server):
    """Tells when it has begun to serve."""

    def __init__(self, config: uvicorn.Config, begun: Callable[[], None]) -> None:
        super().__init__(config)
        self._begun = begun

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._begun()


def serve(listener: socket.socket, app: ASGIApp, begun: Callable[[], None] = lambda: None) -> None:
    """Answer until Ctrl-C or SIGTERM. `begun` is called once requests are answered, and must not wait."""
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended by then, and raises it again
        server(app, begun).run(sockets=[listener])


def server(app: ASGIApp, begun: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """Return the server. Its sockets are given to `run`."""
    protocol: Any = type("_PatientHere", (_Patient,), {"_silent": OrderedDict()})
    config = uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        loop="asyncio",
        http=protocol,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return _Server(config, begun)

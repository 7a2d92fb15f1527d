"""What the page's server sends as one file, and how long a connection may take to ask."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.server import ServerState

from orchestrator.page import serving
from orchestrator.page.server import FILES, joined, read


def test_the_modules_become_one_script_and_the_styles_stay_as_they_are() -> None:
    assert joined(".css") == "\n".join(read(name) for name in FILES if name.endswith(".css"))
    script = joined(".js")
    assert script.startswith('"use strict";\n')
    assert not [line for line in script.splitlines() if line.startswith(("import ", "export "))]


class Transport(asyncio.Transport):
    """A connection of which only this is known: whether it was cut, and what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut, self.sent = False, b""

    def abort(self) -> None:
        self.is_cut = True

    def is_closing(self) -> bool:
        return self.is_cut

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None: ...


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("sent", "is_cut"),
    [("", True), ("GET / HTTP/1.1\r\n", True), ("GET / HTTP/1.1\r\nHost: here\r\n\r\n", False)],
)
def test_who_has_asked_is_answered_however_long_that_takes_and_who_has_not_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, sent: str, is_cut: bool
) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.0)

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await passed.wait()  # as the stream of the page, which ends when the viewer goes
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        answered.set()

    async def connect() -> Transport:
        connection = Transport()
        config = serving.server(application).config
        config.load()
        protocol: Any = config.http_protocol_class
        made = protocol(config=config, server_state=ServerState(), app_state={})
        made.connection_made(connection)
        if sent:
            made.data_received(sent.encode())
        # The time in which it may ask passes: a later timer of the same loop fires after that one.
        loop = asyncio.get_running_loop()
        loop.call_later(1e-6, passed.set)
        await passed.wait()
        if not is_cut:
            await answered.wait()
        return connection

    passed, answered = asyncio.Event(), asyncio.Event()
    connection = asyncio.run(connect())
    assert (connection.is_cut, connection.sent.startswith(b"HTTP/1.1 204")) == (is_cut, not is_cut)

"""Those who are told, on loopback: a real SMTP server, and a real HTTP server that remembers what it was sent."""

from __future__ import annotations

import json
import socket
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


class Web:
    """An HTTP server that takes what is posted, or answers with an error."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.status = 200
        self.held = threading.Event()
        self.held.set()
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told.paths.append(self.path)
                told.held.wait(30)
                if told.status == 200:
                    told.bodies.append((self.headers["Content-Type"], body))
                    if self.headers["Content-Type"].startswith("application/json"):
                        told.got.append(json.loads(body))
                self.send_response(told.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"json://127.0.0.1:{self.port}/{path}"

    def close(self) -> None:
        self.held.set()
        self._server.shutdown()
        self._server.server_close()


class Mail:
    """An SMTP server; `got` are the mails as (subject, text)."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)
        self._controller.start()

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        mail = message_from_bytes(envelope.content, policy=policy.default)
        text = mail.get_body(("plain", "html"))
        assert text is not None
        self.got.append((str(mail["Subject"]), text.get_content()))
        return "250 taken"

    @property
    def url(self) -> str:
        return f"mailto://127.0.0.1:{self.port}?from=orch@example.org&to=me@example.org&format=text"

    def close(self) -> None:
        self._controller.stop()

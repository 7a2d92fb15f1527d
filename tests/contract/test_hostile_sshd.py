"""An sshd that sends escape sequences for the terminal in whatever it may say before a login."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.cli.session import Session

CLEAR, TITLE = b"\x1b[2J\x1b[1;1H", b"\x1b]0;pwned\x07"


class Hostile:
    """Says its piece to everybody, and hangs up."""

    def __init__(self, says: bytes) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self._says = says
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.server.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(10.0)
                    client.sendall(self._says)
                    client.recv(4096)  # a client that has read it all


@pytest.fixture(
    params=[
        pytest.param(b"SSH-1.5-" + CLEAR + TITLE + b"\r\n", id="an old version"),
        pytest.param(b"SSH-2.0\r" + CLEAR + TITLE + b"\r\n", id="no version"),
        pytest.param(b"HTTP/1.1 400 " + CLEAR + TITLE + b"\r\n\r\n", id="another protocol"),
        pytest.param(b"welcome" + CLEAR + b"\r\nSSH-2.0-x\r\n" + TITLE * 10, id="a banner, then no packet"),
    ]
)
def hostile(request: pytest.FixtureRequest) -> Iterator[str]:
    made = Hostile(request.param)
    host, port = made.server.getsockname()
    yield f"{host}:{port}"
    made.server.close()


@pytest.mark.fault(60)
def test_nothing_that_an_sshd_says_acts_on_the_terminal(
    hostile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.head.reach.ssh.errors.RETRY_DELAYS_S", (0.0,))
    environ = {
        "ORCH_STATE_DIR": str(tmp_path / "s"),
        "ORCH_RUNTIME_DIR": str(tmp_path / "r"),
        "HOME": str(tmp_path),
    }
    session = Session(StringIO(), StringIO(), environ)
    code = run(["trust", "--yes", "--json", hostile], session)
    assert isinstance(session.out, StringIO)
    assert isinstance(session.err, StringIO)
    assert code != 0
    shown = session.out.getvalue() + session.err.getvalue()
    assert "\x1b" not in shown
    assert "\x07" not in shown
    error = json.loads(session.out.getvalue())["hosts"][0]["error"]
    assert error.isprintable(), "neither where a script reads it, nor in the journal"
    assert "127.0.0.1" in error

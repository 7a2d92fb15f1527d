"""Unix sockets that nobody else can open."""

from __future__ import annotations

import socket
from pathlib import Path

from orchestrator.both import private_socket


def test_it_is_private_and_takes_the_place_of_one_that_is_left_over(tmp_path: Path) -> None:
    path = tmp_path / "s"
    for _ in range(2):  # a Unix socket stays behind when its process ends
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            private_socket.listen(listener, str(path), 1)
            assert path.stat().st_mode & 0o777 == 0o600
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                assert peer.connect_ex(str(path)) == 0
    (tmp_path / "after").touch()
    assert (tmp_path / "after").stat().st_mode & 0o777 != 0o600, "files of others are made as before"

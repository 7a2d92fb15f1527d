"""What paramiko reads of a connection is what came, in the order in which it came, with far fewer system calls."""

from __future__ import annotations

import socket
import threading

import pytest

from orchestrator.head.reach.ssh.read_ahead import ReadAhead


class Counting:
    """A real socket that counts how often it is read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.sock, name)

    def recv(self, size: int) -> bytes:
        self.reads += 1
        return self.sock.recv(size)


def test_all_bytes_come_in_order_whatever_is_asked_for() -> None:
    ours, theirs = socket.socketpair()
    sent = bytes(range(256)) * 8000

    def write() -> None:
        theirs.sendall(sent)
        theirs.close()

    writing = threading.Thread(target=write)
    writing.start()
    counting = Counting(ours)
    reader, came, sizes = ReadAhead(counting), bytearray(), [16, 32_700, 1, 128]
    while data := reader.recv(sizes[len(came) % len(sizes)]):
        came += data
    writing.join()
    assert bytes(came) == sent
    assert counting.reads < len(sent) / 4096
    ours.close()


def test_no_more_than_was_asked_for_is_given() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"0123456789")
    reader = ReadAhead(ours)
    assert [reader.recv(4), reader.recv(4), reader.recv(4)] == [b"0123", b"4567", b"89"]
    ours.close()
    theirs.close()


def test_a_time_out_loses_nothing_and_the_end_is_told() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(0.01)
    reader = ReadAhead(ours)
    theirs.sendall(b"abc")
    assert reader.recv(2) == b"ab"
    assert reader.recv(2) == b"c"
    with pytest.raises(TimeoutError):
        reader.recv(2)
    theirs.sendall(b"d")
    theirs.close()
    assert [reader.recv(8), reader.recv(8)] == [b"d", b""]
    ours.close()

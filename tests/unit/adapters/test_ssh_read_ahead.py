"""What paramiko reads of a connection is what came, in the order in which it came, with far fewer system calls."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Sequence

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.message import Message
from paramiko.packet import Packetizer

from orchestrator.adapters.ssh.read_ahead import Packets, ReadAhead


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


class Wire:
    """A socket whose bytes are all there, and come in pieces of any size."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        self._data = data
        self._sizes = itertools.cycle(sizes)

    def recv(self, size: int) -> bytes:
        size = min(size, next(self._sizes))
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def sent(contents: Sequence[bytes]) -> bytes:
    """Return what paramiko sends of them under AES-GCM."""
    ours, theirs = socket.socketpair()
    packets = under_gcm(Packetizer(ours), outbound=True)
    data = bytearray()
    for content in contents:
        packets.send_message(Message(content))
        data += theirs.recv(1 << 20)
    ours.close()
    theirs.close()
    return bytes(data)


def under_gcm(packets: Packetizer, *, outbound: bool = False) -> Packetizer:
    begin = packets.set_outbound_cipher if outbound else packets.set_inbound_cipher
    iv = {"iv_out" if outbound else "iv_in": b"i" * 12}
    begin(AESGCM(b"k" * 32), 16, None, 16, None, aead=True, **iv)  # type: ignore[arg-type]
    return packets


def state(packets: Packetizer) -> dict[str, object]:
    """Return what a packet changes of those who read it."""
    changes = ("iv_in", "sequence_number_in", "received_bytes", "received_packets", "need_rekey")
    return {name: vars(packets)[f"_Packetizer__{name}"] for name in changes}


CONTENTS = [
    bytes([94, n % 256]) + os.urandom(size) for n, size in enumerate((0, 1, 13, 32_780, 700, 32_780) * 3)
]


@pytest.mark.parametrize("sizes", [(1 << 18,), (40_000,), (7, 33_000, 1), (20, 16, 4)])
def test_a_packet_says_and_changes_what_it_does_to_paramiko(sizes: Sequence[int]) -> None:
    data = sent(CONTENTS)
    ours = under_gcm(Packets(Wire(data, sizes)))
    theirs = under_gcm(Packetizer(Wire(data, [1 << 18])))  # type: ignore[arg-type]
    for content in CONTENTS:
        (kind, message), (_, like) = ours.read_message(), theirs.read_message()
        assert bytes([kind]) + message.asbytes() == content
        assert (message.asbytes(), message.seqno) == (like.asbytes(), like.seqno)
        assert state(ours) == state(theirs)
    with pytest.raises(EOFError):
        ours.read_message()


def test_a_packet_that_was_changed_on_its_way_is_refused() -> None:
    data = bytearray(sent(CONTENTS[:4]))
    data[-40] ^= 1
    packets = under_gcm(Packets(Wire(bytes(data), [1 << 18])))
    for _ in range(3):
        packets.read_message()
    with pytest.raises(InvalidTag):
        packets.read_message()


def test_keys_are_exchanged_when_paramiko_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packetizer, "REKEY_PACKETS", 5)
    packets = under_gcm(Packets(Wire(sent(CONTENTS[:6]), [1 << 18])))
    due = []
    for _ in range(6):
        packets.read_message()
        due.append(packets.need_rekey())
    assert due == [False] * 4 + [True] * 2


def test_the_reader_says_that_it_is_about_to_wait_only_when_all_is_handled() -> None:
    packets = Packets(Wire(sent(CONTENTS[:3]), [1 << 18]))
    under_gcm(packets)
    handled: list[int] = []
    waits: list[int] = []
    packets.source.about_to_wait = lambda: waits.append(len(handled))
    for number in range(3):
        packets.read_message()
        handled.append(number)
    with pytest.raises(EOFError):
        packets.read_message()
    assert waits == [0, 3]

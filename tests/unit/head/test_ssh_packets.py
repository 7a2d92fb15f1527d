"""Packets are the same to paramiko, and change the same, whether it reads and sends them or we do."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator, Sequence

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.message import Message
from paramiko.packet import Packetizer

from orchestrator.head.reach.ssh.packets import Packets


class Wire:
    """A socket whose bytes are all there, and come in pieces of any size."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        self._data = data
        self._sizes = itertools.cycle(sizes)

    def recv(self, size: int) -> bytes:
        size = min(size, next(self._sizes))
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def sent(contents: Sequence[bytes], kind: type[Packetizer] = Packetizer) -> bytes:
    """Return what paramiko, or another kind, sends of them under AES-GCM."""
    return b"".join(data for data, _ in sending(contents, kind))


def sending(contents: Sequence[bytes], kind: type[Packetizer]) -> Iterator[tuple[bytes, dict[str, object]]]:
    """Send them under AES-GCM, and yield each packet's bytes with what it has changed."""
    ours, theirs = socket.socketpair()
    packets = under_gcm(kind(ours), outbound=True)
    for content in contents:
        packets.send_message(Message(content))
        yield theirs.recv(1 << 20), state(packets, SENDS)
    ours.close()
    theirs.close()


def under_gcm(packets: Packetizer, *, outbound: bool = False) -> Packetizer:
    begin = packets.set_outbound_cipher if outbound else packets.set_inbound_cipher
    iv = {"iv_out" if outbound else "iv_in": b"i" * 12}
    begin(AESGCM(b"k" * 32), 16, None, 16, None, aead=True, **iv)  # type: ignore[arg-type]
    return packets


READS = ("iv_in", "sequence_number_in", "received_bytes", "received_packets", "need_rekey")
SENDS = ("iv_out", "sequence_number_out", "sent_bytes", "sent_packets", "need_rekey")


def state(packets: Packetizer, changes: Sequence[str] = READS) -> dict[str, object]:
    """Return what a packet changes of those who read or send it."""
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


def test_what_we_send_is_for_paramiko_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packetizer, "REKEY_PACKETS", 15)
    ours, theirs = (list(sending(CONTENTS, kind)) for kind in (Packets, Packetizer))
    assert [changed for _, changed in ours] == [changed for _, changed in theirs]
    assert [changed["need_rekey"] for _, changed in ours] == [False] * 14 + [True] * 4
    assert [len(data) for data, _ in ours] == [len(data) for data, _ in theirs]
    reader = under_gcm(Packetizer(Wire(b"".join(data for data, _ in ours), [1 << 18])))  # type: ignore[arg-type]
    for content in CONTENTS:
        kind, message = reader.read_message()
        assert bytes([kind]) + message.asbytes() == content


def test_packets_before_there_is_a_key_are_paramikos() -> None:
    ours, theirs = socket.socketpair()
    Packets(ours).send_message(Message(b"\x14hello"))
    assert b"hello" in theirs.recv(1 << 10)
    ours.close()
    theirs.close()


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

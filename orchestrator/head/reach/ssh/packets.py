"""Paramiko's packets of SSH, read and sent with fewer copies and system calls under the ciphers of today.

Of a checkpoint there are thirty thousand a gigabyte, and paramiko copies each six times, in either direction. So under
an authenticated cipher a packet is decrypted from where it lies, and is encrypted from where it is put together.
Whatever else may be due with a packet, such as to begin an exchange of keys, is left to paramiko.
"""

from __future__ import annotations

import os
import struct
from typing import Any, NamedTuple

import paramiko
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.message import Message
from paramiko.packet import Packetizer

from orchestrator.head.reach.ssh.read_ahead import ReadAhead

_LENGTH = struct.Struct(">I")
_DATA_HEAD = struct.Struct(">BII")
_LAST_NUMBER = 0xFFFFFFFF
"""The last number of a packet before they begin again."""
_AROUND_BYTES_MAX = 300
"""What a packet has besides its content: lengths, padding and a tag."""


class _Way(NamedTuple):
    """Paramiko's names for the state of a direction."""

    compression: str
    packets: str
    bytes: str
    number: str


_IN, _OUT = (
    _Way(*(f"_Packetizer__{name}" for name in names))
    for names in (
        ("compress_engine_in", "received_packets", "received_bytes", "sequence_number_in"),
        ("compress_engine_out", "sent_packets", "sent_bytes", "sequence_number_out"),
    )
)


class Packets(Packetizer):
    """The packets of a connection, over a socket that reads ahead."""

    def __init__(self, sock: Any) -> None:
        self.source = ReadAhead(sock)
        super().__init__(self.source)  # type: ignore[arg-type]  # it is as good as one
        # Paramiko has no public names for what a packet changes. Tests compare both ways, packet by packet.
        self._own: dict[str, Any] = vars(self)

    def read_message(self) -> tuple[int, Message]:
        """Return the next packet's type and content. Raises as paramiko's does."""
        held = self.source.held
        if len(held) < _LENGTH.size or not self._own["_Packetizer__aead_in"]:
            return super().read_message()
        size = _LENGTH.unpack_from(held)[0]
        whole = _LENGTH.size + size + self._own["_Packetizer__mac_size_in"]
        if self._is_more_due(_IN, whole):
            return super().read_message()
        if whole > len(held):
            begun = bytes(held)
            self.source.skip(len(begun))
            return self._decrypted(memoryview(begun + self.read_all(whole - len(begun))), size)
        self.source.skip(whole)
        return self._decrypted(held[:whole], size)

    def send_message(self, data: Message) -> None:
        """Send a packet with that content. Raises as paramiko's does."""
        own, content = self._own, data.asbytes()
        with own["_Packetizer__write_lock"]:
            if not own["_Packetizer__aead_out"] or self._is_more_due(_OUT, len(content) + _AROUND_BYTES_MAX):
                super().send_message(data)
                return
            packet = self._encrypted(content)
            self.write_all(packet)
            own["_Packetizer__sent_bytes"] += len(packet)
            own["_Packetizer__sent_packets"] += 1

    def _is_more_due(self, way: _Way, size: int) -> bool:
        """Return whether a packet of that size does more than to be taken or sent."""
        own = self._own
        return (
            own["_Packetizer__need_rekey"]
            or own["_Packetizer__dump_packets"]
            or own[way.compression] is not None
            or own[way.packets] + 1 >= self.REKEY_PACKETS
            or own[way.bytes] + size >= self.REKEY_BYTES
            or own[way.number] >= _LAST_NUMBER
        )

    def _decrypted(self, packet: memoryview, size: int) -> tuple[int, Message]:
        """Return what a whole packet says, and count it."""
        own, length = self._own, _LENGTH.size
        iv, number = own["_Packetizer__iv_in"], own["_Packetizer__sequence_number_in"]
        plain = own["_Packetizer__block_engine_in"].decrypt(iv, packet[length:], packet[:length])
        own["_Packetizer__iv_in"] = self._inc_iv_counter(iv)  # type: ignore[attr-defined]  # its stub lacks it
        own["_Packetizer__sequence_number_in"] = number + 1
        own["_Packetizer__received_bytes"] += len(packet)
        own["_Packetizer__received_packets"] += 1
        message = Message(plain[2 : size - plain[0]])
        message.seqno = number
        return plain[1], message

    def _encrypted(self, content: bytes) -> bytes:
        """Return the next packet, with its length and its tag."""
        own, iv, block = self._own, self._own["_Packetizer__iv_out"], self._own["_Packetizer__block_size_out"]
        # RFC 4253 demands at least four bytes of padding.
        padding = 3 + block - (_LENGTH.size + len(content)) % block
        plain = b"".join((bytes((padding,)), content, os.urandom(padding)))
        length = _LENGTH.pack(len(plain))
        packet = length + own["_Packetizer__block_engine_out"].encrypt(iv, plain, length)
        own["_Packetizer__iv_out"] = self._inc_iv_counter(iv)  # type: ignore[attr-defined]  # its stub lacks it
        own["_Packetizer__sequence_number_out"] += 1
        return bytes(packet)


def send(session: paramiko.Channel, data: memoryview) -> int:
    """Send of `data` what fits into a packet, and return how much; 0 where the session is closed.

    It is `Channel.send` without its message, into which the data would be copied. Raises as that does.
    """
    own: Any = session
    with own.lock:
        if own.closed:
            raise OSError("the session is closed")
        size: int = own._wait_for_send_window(len(data))
    if size:  # without the lock: while keys are exchanged, whoever exchanges them may need it
        own.transport._send_user_message(_Data(own.remote_chanid, data[:size]))
    return size


class _Data:
    """A message with data of a session."""

    def __init__(self, session: int, data: memoryview) -> None:
        self._head = _DATA_HEAD.pack(MSG_CHANNEL_DATA, session, len(data))
        self._data = data

    def asbytes(self) -> bytes:
        """Return the message, for `send_message`."""
        return b"".join((self._head, self._data))

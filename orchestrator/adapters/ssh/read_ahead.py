"""Reads from a connection what has come, in one piece: paramiko asks the kernel twice for each packet.

That is a hundred thousand times for a checkpoint of a gigabyte, and each time another thread takes the interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from paramiko.message import Message
from paramiko.packet import Packetizer

_LEAST_BYTES = 1 << 12
"""Asked for while little comes. Each connection that is silent holds a buffer of that size."""
MOST_BYTES = 1 << 18
_NOTHING = memoryview(b"")
_LENGTH = struct.Struct(">I")
_LAST_NUMBER = 0xFFFFFFFF
"""The last number of a packet before they begin again."""


class ReadAhead:
    """A socket for paramiko's packets, of one reader."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._held = _NOTHING
        self._size = _LEAST_BYTES
        self.about_to_wait: Callable[[], object] = lambda: None
        """Called by the reader when it has handled all that came, before it asks for more."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end. Raises what the socket raises, and keeps what it holds."""
        if not self._held:
            self.about_to_wait()
            data = self._sock.recv(max(size, self._size))
            if len(data) >= self._size:
                self._size = min(self._size * 8, MOST_BYTES)
            elif len(data) < self._size // 16:
                self._size = _LEAST_BYTES
            if len(data) <= size:
                return bytes(data)
            self._held = memoryview(data)
        taken = bytes(self._held[:size])
        self.skip(size)
        return taken

    @property
    def held(self) -> memoryview:
        """What was read and not taken yet."""
        return self._held

    def skip(self, size: int) -> None:
        """Take the first of what is held."""
        # An empty queue must not keep its buffer: it may take long until more data comes.
        self._held = self._held[size:] if size < len(self._held) else _NOTHING


class Packets(Packetizer):
    """Paramiko's packets over a socket that reads ahead.

    Of a checkpoint there are thirty thousand a gigabyte, and paramiko copies each six times. So under an authenticated
    cipher a packet is decrypted from where it lies. Whatever else may be due with a packet is left to paramiko.
    """

    def __init__(self, sock: Any) -> None:
        self.source = ReadAhead(sock)
        super().__init__(self.source)  # type: ignore[arg-type]  # it is as good as one
        # Paramiko has no public names for what a packet changes. A test compares both ways, packet by packet.
        self._own: dict[str, Any] = vars(self)

    def read_message(self) -> tuple[int, Message]:
        """Return the next packet's type and content. Raises as paramiko's does."""
        held = self.source.held
        if len(held) < _LENGTH.size or not self._own["_Packetizer__aead_in"]:
            return super().read_message()
        size = _LENGTH.unpack_from(held)[0]
        whole = _LENGTH.size + size + self._own["_Packetizer__mac_size_in"]
        if self._is_more_due(whole):
            return super().read_message()
        if whole > len(held):
            begun = bytes(held)
            self.source.skip(len(begun))
            return self._decrypted(memoryview(begun + self.read_all(whole - len(begun))), size)
        self.source.skip(whole)
        return self._decrypted(held[:whole], size)

    def _is_more_due(self, size: int) -> bool:
        """Return whether a packet of that size does more than to be taken, such as to begin an exchange of keys."""
        own = self._own
        return (
            own["_Packetizer__need_rekey"]
            or own["_Packetizer__compress_engine_in"] is not None
            or own["_Packetizer__dump_packets"]
            or own["_Packetizer__received_packets"] + 1 >= self.REKEY_PACKETS
            or own["_Packetizer__received_bytes"] + size >= self.REKEY_BYTES
            or own["_Packetizer__sequence_number_in"] >= _LAST_NUMBER
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

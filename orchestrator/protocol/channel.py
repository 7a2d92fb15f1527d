"""The codec of the frames that coordinator, agent and shim exchange: a JSON object and an optional blob of bytes.

A frame consists of two big-endian uint32 (the length of the JSON, the length of the blob), the JSON object in UTF-8,
and the blob. This module knows nothing of pipes and sockets: a reader feeds the bytes that it received to `Decoder`,
and a writer sends what `encode` returned.
"""

from __future__ import annotations

import json
import struct
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

JSON_BYTES_MAX = 4 << 20
BLOB_BYTES_MAX = 1 << 20

_LARGE_BYTES = 8 << 10
"""Received data of at least this size is kept as it came, without a copy."""

_HEADER = struct.Struct(">II")


class FrameError(ValueError):
    """The bytes are not a valid frame. The stream can no longer be trusted, and its reader must close it."""


def encode(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    """Return `message` and `blob` as one frame. Raises as `beginning` does."""
    return beginning(message, len(blob)) + blob


def beginning(message: Mapping[str, Any], blob_bytes: int) -> bytes:
    """Return a frame up to its blob, which is sent after it.

    Raises:
        FrameError: the frame would be too long, or JSON cannot represent a value.
    """
    try:
        try:
            text = _as_json(message)
        except ValueError:
            # A diverged loss is NaN. JSON cannot represent NaN, and a reader must not fail because of one.
            text = _as_json(_finite(message))
    except (ValueError, TypeError, RecursionError) as e:
        raise FrameError(f"the message cannot be written as JSON: {e}") from e
    # A name or a log line may hold a lone surrogate (from bytes that are not UTF-8). It becomes '?'.
    body = text.encode("utf-8", "replace")
    if len(body) > JSON_BYTES_MAX:
        raise FrameError(f"the message has {len(body)} bytes; at most {JSON_BYTES_MAX} fit in a frame")
    if blob_bytes > BLOB_BYTES_MAX:
        raise FrameError(f"the blob has {blob_bytes} bytes; at most {BLOB_BYTES_MAX} fit in a frame")
    return _HEADER.pack(len(body), blob_bytes) + body


class Decoder:
    """Assembles frames from bytes that arrive in pieces of any size. Each byte of a large piece is copied once."""

    def __init__(self) -> None:
        self._large: deque[memoryview] = deque()
        self._small = bytearray()
        """Small pieces that came after those. Each of its own would need more memory than its bytes."""
        self._held_bytes = 0
        self._lengths: tuple[int, int] | None = None
        """The lengths of the JSON and the blob of the frame that is under way; None before its header is complete."""

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that `data` completes, in order.

        Raises:
            FrameError: the stream does not carry our frames. Frames of `data` before the bad one are lost with it;
                nothing depends on them, since reports are repeated and orders are asked again.
        """
        if len(data) >= _LARGE_BYTES:
            self._gather()
            self._large.append(memoryview(data))
        else:
            self._small += data
        self._held_bytes += len(data)
        frames = []
        while True:
            if self._lengths is None:
                if self._held_bytes < _HEADER.size:
                    break
                self._lengths = _lengths(self._taken(_HEADER.size))
            body_bytes, blob_bytes = self._lengths
            if self._held_bytes < body_bytes + blob_bytes:
                break
            body = self._taken(body_bytes)
            try:
                message = json.loads(body.decode("utf-8"))
            except (ValueError, RecursionError) as e:
                raise FrameError(f"a frame that is no JSON: {e}") from e
            if not isinstance(message, dict):
                raise FrameError(f"a frame that is no JSON object but a {type(message).__name__}")
            frames.append((message, self._taken(blob_bytes)))
            self._lengths = None
        return frames

    def _taken(self, size: int) -> bytes:
        """Take out the next `size` bytes, all of which have come."""
        self._gather()
        self._held_bytes -= size
        taken = []
        while size:
            first = self._large.popleft()
            if len(first) > size:
                self._large.appendleft(first[size:])
                first = first[:size]
            taken.append(first)
            size -= len(first)
        return b"".join(taken)

    def _gather(self) -> None:
        if self._small:
            self._large.append(memoryview(bytes(self._small)))
            self._small.clear()


def _lengths(header: bytes) -> tuple[int, int]:
    body_bytes, blob_bytes = _HEADER.unpack(header)
    if body_bytes > JSON_BYTES_MAX or blob_bytes > BLOB_BYTES_MAX:
        raise FrameError(
            f"a frame of {body_bytes} + {blob_bytes} bytes; the limits are "
            f"{JSON_BYTES_MAX} + {BLOB_BYTES_MAX}. Does something else write to this channel?"
        )
    return body_bytes, blob_bytes


def _as_json(message: Mapping[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    """Return `value` with None in place of NaN and the infinities."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

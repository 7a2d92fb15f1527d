"""The codec of the frames that coordinator, agent and shim exchange: a JSON object and an optional blob of bytes.

A frame consists of two big-endian uint32 (the length of the JSON, the length of the blob), the JSON object in UTF-8,
and the blob. This module knows nothing of pipes and sockets: a reader feeds the bytes that it received to `Decoder`,
and a writer sends what `encode` returned.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

JSON_BYTES_MAX = 4 << 20
BLOB_BYTES_MAX = 1 << 20

_HEADER = struct.Struct(">II")


class FrameError(ValueError):
    """The bytes are not a valid frame. The stream can no longer be trusted, and its reader must close it."""


def encode(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    """Return `message` and `blob` as one frame.

    Raises:
        FrameError: the frame would be too long, or JSON cannot represent a value.
    """
    try:
        # A diverged loss is NaN. JSON cannot represent NaN, and a reader must not fail because of one.
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        try:
            text = json.dumps(_finite(message), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as e:
            raise FrameError(f"the message cannot be written as JSON: {e}") from e
    except (TypeError, RecursionError) as e:
        raise FrameError(f"the message cannot be written as JSON: {e}") from e
    # A name or a log line may hold a lone surrogate (from bytes that are not UTF-8). It becomes '?'.
    body = text.encode("utf-8", "replace")
    if len(body) > JSON_BYTES_MAX:
        raise FrameError(f"the message has {len(body)} bytes; at most {JSON_BYTES_MAX} fit in a frame")
    if len(blob) > BLOB_BYTES_MAX:
        raise FrameError(f"the blob has {len(blob)} bytes; at most {BLOB_BYTES_MAX} fit in a frame")
    return _HEADER.pack(len(body), len(blob)) + body + blob


class Decoder:
    """Assembles frames from bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame are buffered. At the end of a stream, any mean that it was cut off."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that `data` completes, in order.

        Raises:
            FrameError: the stream does not carry our frames. Frames of `data` before the bad one are lost with it;
                nothing depends on them, since reports are repeated and orders are asked again.
        """
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        while len(buffer) - at >= _HEADER.size:
            body_bytes, blob_bytes = _HEADER.unpack_from(buffer, at)
            if body_bytes > JSON_BYTES_MAX or blob_bytes > BLOB_BYTES_MAX:
                raise FrameError(
                    f"a frame of {body_bytes} + {blob_bytes} bytes; the limits are "
                    f"{JSON_BYTES_MAX} + {BLOB_BYTES_MAX}. Does something else write to this channel?"
                )
            body_at = at + _HEADER.size
            blob_at = body_at + body_bytes
            end = blob_at + blob_bytes
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:  # a slice of the buffer itself would be a second copy
                body, blob = bytes(view[body_at:blob_at]), bytes(view[blob_at:end])
            frames.append((_parse(body), blob))
            at = end
        if at:
            del buffer[:at]
        return frames


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise FrameError(f"a frame that is no JSON: {e}") from e
    if not isinstance(message, dict):
        raise FrameError(f"a frame that is no JSON object but a {type(message).__name__}")
    return message


def _finite(value: Any) -> Any:
    """Return `value` with None in place of NaN and the infinities."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

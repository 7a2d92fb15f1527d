"""CRC-32C as TensorFlow writes it into its files, computed fast enough without TensorFlow.

Importing TensorFlow only to check a sum would cost seconds of a restart. Google's C library does it at the speed of
memory; it is 27 kB, and travels in the archive of our own code. Where it cannot be loaded (another processor, another
libc), the index of a checkpoint is summed here byte by byte, and TensorFlow reads the tensors.
"""

from __future__ import annotations

import os

from orchestrator.both.memory_file import memory_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBRARY = "libcrc32c.so"
"""The name of the library in the archive, beside this module."""

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8

_tables: dict[str, Any] = {}


def masked(crc: int) -> int:
    """Return `crc` in the form in which TensorFlow stores it. A CRC over data that holds plain CRCs would be weak."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """Return the CRC of `data`. `crc` is the CRC of the data before it, from which the computation continues."""
    extend = _extend()
    if extend is not None and isinstance(data, bytes):
        return extend(crc, data, len(data))
    return by_table(data, crc)


def is_fast() -> bool:
    """Return whether the C library is there: else TensorFlow sums tensors faster, its import included."""
    return _extend() is not None


def _extend() -> Callable[[int, bytes, int], int] | None:
    if "library" not in _tables:
        _tables["library"] = library()
    extend: Callable[[int, bytes, int], int] | None = _tables["library"]
    return extend


def library() -> Callable[[int, bytes, int], int] | None:
    """Load the C library, and return its `crc32c_extend`; None if it is not there or is not for this machine.

    It is loaded from memory, since an archive is no file system and a host's home may be mounted `noexec`.
    """
    import pkgutil

    try:
        code = pkgutil.get_data(__package__, LIBRARY)
        if code is None:
            return None
        import ctypes

        descriptor = memory_file("crc32c", code)
        try:
            extend = ctypes.CDLL(f"/proc/self/fd/{descriptor}").crc32c_extend
        finally:
            os.close(descriptor)
    except (OSError, AttributeError, ImportError):
        return None
    extend.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
    extend.restype = ctypes.c_uint32
    function: Callable[[int, bytes, int], int] = extend
    return function


def by_table(data: bytes | memoryview, crc: int = 0) -> int:
    """Return the CRC of `data` without the library, byte by byte."""
    state = crc ^ 0xFFFFFFFF
    table = _table()
    for byte in memoryview(data).cast("B"):
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def _table() -> list[int]:
    """Return what each value of a byte becomes."""
    if "table" not in _tables:
        table = []
        for value in range(256):
            for _ in range(8):
                value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
            table.append(value)
        _tables["table"] = table
    cached: list[int] = _tables["table"]
    return cached

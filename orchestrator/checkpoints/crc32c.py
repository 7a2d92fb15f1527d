"""CRC-32C as TensorFlow writes it into its files, computed fast enough without TensorFlow.

Importing TensorFlow only to check a sum would cost seconds of a restart. Google's C library does it at the speed of
memory; it is 27 kB, and travels in the archive of our own code. Where it cannot be loaded (another processor, another
libc), NumPy does it several times slower: CRC is linear, so many stretches of the data are computed side by side, and
the results are combined.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBRARY = "libcrc32c.so"
"""The name of the library in the archive, beside this module."""

_POLYNOMIAL = 0x82F63B78
_LANES = 4096
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
    return by_numpy(data, crc)


def is_fast() -> bool:
    """Return whether the C library is there: else TensorFlow sums large files faster, its import included."""
    return _extend() is not None


def _extend() -> Callable[[int, bytes, int], int] | None:
    if "library" not in _tables:
        _tables["library"] = library()
    found: Callable[[int, bytes, int], int] | None = _tables["library"]
    return found


def library() -> Callable[[int, bytes, int], int] | None:
    """Load the C library, and return its `crc32c_extend`; None where it is not there or is not for this machine.

    It is loaded from memory, since an archive is no file system and a host's home may be mounted `noexec`.
    """
    import pkgutil

    try:
        code = pkgutil.get_data(__package__, LIBRARY)
        if code is None:
            return None
        import ctypes

        descriptor = os.memfd_create("crc32c")
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(code)
            extend = ctypes.CDLL(f"/proc/self/fd/{descriptor}").crc32c_extend
        finally:
            os.close(descriptor)
    except (OSError, AttributeError, ImportError):
        return None
    extend.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
    extend.restype = ctypes.c_uint32
    found: Callable[[int, bytes, int], int] = extend
    return found


def by_numpy(data: bytes | memoryview, crc: int = 0) -> int:
    """Return the CRC of `data` without the library; without NumPy too, byte by byte."""
    state = crc ^ 0xFFFFFFFF
    view = memoryview(data).cast("B")
    stretch = (len(view) // _LANES) & ~3
    if stretch >= 16 and _numpy() is not None:
        state = _side_by_side(view[: stretch * _LANES], stretch, state)
        view = view[stretch * _LANES :]
    table = _bytes_table()
    for byte in view:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _bytes_table() -> list[int]:
    if "bytes" not in _tables:
        table = []
        for value in range(256):
            for _ in range(8):
                value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
            table.append(value)
        _tables["bytes"] = table
    found: list[int] = _tables["bytes"]
    return found


def _word_tables() -> tuple[Any, Any]:
    """Return two tables of 65536 entries: what the low and high half of a 32-bit word become after four bytes."""
    if "words" not in _tables:
        np = _numpy()
        one = np.array(_bytes_table(), dtype=np.uint32)
        values = np.arange(65536, dtype=np.uint32)

        def after(state: Any, count: int) -> Any:
            for _ in range(count):
                state = one[state & 0xFF] ^ (state >> 8)
            return state

        _tables["words"] = (after(values, 4), after(values << 16, 4))
    found: tuple[Any, Any] = _tables["words"]
    return found


def _side_by_side(view: memoryview, stretch: int, state: int) -> int:
    """Return the state after `_LANES` stretches of `stretch` bytes each; `stretch` is a multiple of 4."""
    np = _numpy()
    low, high = _word_tables()
    words = np.frombuffer(view, dtype="<u4").reshape(_LANES, stretch // 4)
    states = np.zeros(_LANES, dtype=np.uint32)
    states[0] = state
    for start in range(0, stretch // 4, 64):
        # The array is transposed block by block: reading a column of the whole would miss the cache at every word.
        for column in np.ascontiguousarray(words[:, start : start + 64].T):
            states ^= column
            states = low[states & 0xFFFF] ^ high[states >> 16]
    shift = _shift_tables(stretch)
    total = int(states[0])
    for other in states[1:].tolist():
        total = (
            shift[0][total & 0xFF]
            ^ shift[1][(total >> 8) & 0xFF]
            ^ shift[2][(total >> 16) & 0xFF]
            ^ shift[3][total >> 24]
            ^ other
        )
    return total


def _shift_tables(count: int) -> list[list[int]]:
    """Return four tables, one for each byte of a state, of what that byte becomes after `count` zero bytes."""
    table = _bytes_table()
    one_byte = [table[bit & 0xFF] ^ (bit >> 8) for bit in (1 << n for n in range(32))]
    matrix = [1 << n for n in range(32)]
    while count:
        if count & 1:
            matrix = [_apply(one_byte, column) for column in matrix]
        one_byte = [_apply(one_byte, column) for column in one_byte]
        count >>= 1
    return [[_apply(matrix, value << (8 * byte)) for value in range(256)] for byte in range(4)]


def _apply(matrix: list[int], vector: int) -> int:
    result = 0
    for column in matrix:
        if vector & 1:
            result ^= column
        vector >>= 1
    return result

"""Zstandard frames (RFC 8878), without the library: the index of an Orbax checkpoint is packed with it.

Slow, a megabyte or so a second, and so for indexes only. No dictionaries. Whatever is wrong with the data ends as one
of the errors that `torn.reading` knows.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

MAGIC = b"\x28\xb5\x2f\xfd"

_RAW, _RLE, _PACKED, _AS_BEFORE = range(4)

Table = list[tuple[int, int, int]]
"""For each state: the symbol, how many bits are read for the next state, and what is added to them."""


def _spread(bits: list[int], base: int) -> list[tuple[int, int]]:
    """Return (base, extra bits) for codes of which each begins where the one before ends."""
    found = []
    for extra in bits:
        found.append((base, extra))
        base += 1 << extra
    return found


_LITERAL_CODES = _spread([0] * 16 + [1] * 4 + [2, 2, 3, 3, 4, *range(6, 17)], 0)
_MATCH_CODES = _spread([0] * 32 + [1] * 4 + [2, 2, 3, 3, 4, 4, 5, *range(7, 17)], 3)
_OFFSET_CODES = [(1 << code, code) for code in range(32)]

_LITERAL_SHARES = [4, 3, *[2] * 11, 1, 1, 1, *[2] * 9, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1]
_MATCH_SHARES = [1, 4, 3, *[2] * 6, *[1] * 37, *[-1] * 7]
_OFFSET_SHARES = [*[1] * 6, 2, 2, 2, *[1] * 15, *[-1] * 5]


def decompress(data: bytes, bytes_max: int) -> bytes:
    """Unpack one frame. ValueError, or IndexError, where it is damaged or gives more than `bytes_max`."""
    at = _after_header(data)
    out = bytearray()
    unpacker = _Unpacker(out)
    is_last = False
    while not is_last:
        header = int.from_bytes(_cut(data, at, 3), "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        at += 3
        if kind == _RLE:
            out += _cut(data, at, 1) * size
            at += 1
        elif kind == _RAW:
            out += _cut(data, at, size)
            at += size
        elif kind == _PACKED:
            unpacker.block(_cut(data, at, size))
            at += size
        else:
            raise ValueError("a block of no known kind")
        if len(out) > bytes_max:
            raise ValueError(f"more than {bytes_max} bytes")
    return bytes(out)


def skim(file: IO[bytes]) -> None:
    """Follow the blocks of a frame to its last, and unpack none. ValueError or IndexError where it is cut off."""
    head = file.read(18)
    at = _after_header(head)
    end = file.seek(0, os.SEEK_END)
    is_last = False
    while not is_last:
        file.seek(at)
        header = int.from_bytes(_cut(file.read(3), 0, 3), "little")
        is_last = bool(header & 1)
        at += 3 + (1 if header >> 1 & 3 == _RLE else header >> 3)
    if at > end:
        raise ValueError(f"it is cut off: {end} of {at} bytes")


def _after_header(data: bytes) -> int:
    """Return where the first block begins."""
    if data[:4] != MAGIC:
        raise ValueError("no zstd frame")
    descriptor = data[4]
    is_single = descriptor >> 5 & 1
    dictionary = (0, 1, 2, 4)[descriptor & 3]
    content = (is_single, 2, 4, 8)[descriptor >> 6]
    return 5 + (1 - is_single) + dictionary + content


def _cut(data: bytes, at: int, size: int) -> bytes:
    part = data[at : at + size]
    if len(part) != size:
        raise ValueError("it is cut off")
    return part


class _Bits:
    """A stream that is read from its end, whose last set bit ends it."""

    def __init__(self, data: bytes) -> None:
        if not data or not data[-1]:
            raise ValueError("a stream without its end")
        self._data = bytes(8) + data  # zeros in front, since a look ahead may go beyond the first byte
        self._at = 8 * len(self._data) - 9 + data[-1].bit_length()

    @property
    def left(self) -> int:
        return self._at - 64

    def look(self, count: int) -> int:
        at = self._at - count
        if at < 0:
            raise ValueError("a stream is cut off")
        return int.from_bytes(self._data[at >> 3 : (at >> 3) + 8], "little") >> (at & 7) & ((1 << count) - 1)

    def skip(self, count: int) -> None:
        self._at -= count

    def take(self, count: int) -> int:
        value = self.look(count)
        self._at -= count
        return value


class _Unpacker:
    """What one block leaves for the next."""

    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._codes: tuple[list[tuple[int, int]], int] | None = None
        self._tables: list[tuple[Table, int] | None] = [None, None, None]
        self._offsets = [1, 4, 8]

    def block(self, data: bytes) -> None:
        literals, at = self._literals(data)
        count, at = _count(data, at)
        if not count:
            self._out += literals
            return
        modes = data[at]
        at += 1
        defaults = ((_LITERAL_SHARES, 6), (_OFFSET_SHARES, 5), (_MATCH_SHARES, 6))
        for which in range(3):
            at = self._table(data, at, which, modes >> (6 - 2 * which) & 3, *defaults[which])
        self._sequences(_Bits(data[at:]), count, literals)

    def _literals(self, data: bytes) -> tuple[bytes, int]:
        """Return what the block copies from nowhere, and where its sequences begin."""
        kind, form = data[0] & 3, data[0] >> 2 & 3
        if kind in (_RAW, _RLE):
            width, shift = ((1, 3), (2, 4), (1, 3), (3, 4))[form]
            size = int.from_bytes(_cut(data, 0, width), "little") >> shift
            if kind == _RLE:
                return _cut(data, width, 1) * size, width + 1
            return _cut(data, width, size), width + size
        width, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        sizes = int.from_bytes(_cut(data, 0, width), "little") >> 4
        size, packed = sizes & ((1 << bits) - 1), sizes >> bits
        content = _cut(data, width, packed)
        if kind == _PACKED:
            used, self._codes = _huffman(content)
            content = content[used:]
        if self._codes is None:
            raise ValueError("literals without their codes")
        return _decode(content, size, self._codes, streams=1 if form == 0 else 4), width + packed

    def _table(self, data: bytes, at: int, which: int, mode: int, shares: list[int], accuracy: int) -> int:
        """Have the table for literal lengths, offsets or match lengths; return where what follows begins."""
        if mode == _RAW:
            self._tables[which] = _states(shares, accuracy), accuracy
        elif mode == _RLE:
            self._tables[which] = [(data[at], 0, 0)], 0
            return at + 1
        elif mode == _PACKED:
            shares, accuracy, used = _shares(data[at:])
            self._tables[which] = _states(shares, accuracy), accuracy
            return at + used
        elif self._tables[which] is None:
            raise ValueError("a table as before, and there is none")
        return at

    def _sequences(self, bits: _Bits, count: int, literals: bytes) -> None:
        tables = [table for table in self._tables if table is not None]
        states = [bits.take(accuracy) for _, accuracy in tables]
        at = 0
        for left in range(count - 1, -1, -1):
            found = [table[state] for (table, _), state in zip(tables, states, strict=True)]
            base, extra = _OFFSET_CODES[found[1][0]]
            offset = base + bits.take(extra)
            base, extra = _MATCH_CODES[found[2][0]]
            match = base + bits.take(extra)
            base, extra = _LITERAL_CODES[found[0][0]]
            length = base + bits.take(extra)
            if left:
                for which in (0, 2, 1):
                    _, width, add = found[which]
                    states[which] = add + bits.take(width)
            self._out += _cut(literals, at, length)
            at += length
            self._copy(self._distance(offset, length), match)
        self._out += literals[at:]

    def _distance(self, offset: int, length: int) -> int:
        """Return the distance of a match. Small numbers stand for one of the last three distances."""
        last = self._offsets
        if offset > 3:
            distance = offset - 3
            self._offsets = [distance, last[0], last[1]]
            return distance
        which = offset - 1 + (length == 0)
        distance = last[which] if which < 3 else last[0] - 1
        if which:
            self._offsets = [distance, last[0], last[1] if which > 1 else last[2]]
        return distance

    def _copy(self, distance: int, length: int) -> None:
        start = len(self._out) - distance
        if not 0 <= start < len(self._out):
            raise ValueError("a copy of what is not there")
        stretch = self._out[start : start + length]
        while len(stretch) < length:  # it overlaps itself
            stretch += stretch[: length - len(stretch)]
        self._out += stretch


def _count(data: bytes, at: int) -> tuple[int, int]:
    """Return how many sequences there are, and where what follows begins."""
    first = data[at]
    if first < 128:
        return first, at + 1
    if first < 255:
        return (first - 128 << 8) + data[at + 1], at + 2
    return data[at + 1] + (data[at + 2] << 8) + 0x7F00, at + 3


def _shares(data: bytes) -> tuple[list[int], int, int]:
    """Read how often each symbol is; return that, the accuracy, and the bytes that were read."""
    stream = int.from_bytes(data[:256], "little")
    accuracy, at = (stream & 15) + 5, 4
    if accuracy > 9:
        raise ValueError("a table that is too large")
    left, shares = 1 << accuracy, list[int]()
    while left > 0:
        width = (left + 1).bit_length()
        value = stream >> at & ((1 << width) - 1)
        low, spare = (1 << width - 1) - 1, (1 << width) - 2 - left
        if value & low < spare:
            value &= low
            at += width - 1
        else:
            value -= spare if value > low else 0
            at += width
        shares.append(value - 1)
        left -= abs(value - 1)
        more = value == 1
        while more:
            zeros = stream >> at & 3
            at += 2
            shares += [0] * zeros
            more = zeros == 3
        if len(shares) > 256:
            raise ValueError("a table of too many symbols")
    if left < 0 or at > 8 * len(data):
        raise ValueError("a table that is damaged")
    return shares, accuracy, (at + 7) // 8


def _states(shares: list[int], accuracy: int) -> Table:
    """Lay the symbols out over the states."""
    size = 1 << accuracy
    symbols, free = [0] * size, size
    for symbol, share in enumerate(shares):
        if share == -1:
            free -= 1
            symbols[free] = symbol
    at = 0
    for symbol, share in enumerate(shares):
        for _ in range(share):
            symbols[at] = symbol
            at = at + (size >> 1) + (size >> 3) + 3 & size - 1
            while at >= free:
                at = at + (size >> 1) + (size >> 3) + 3 & size - 1
    following = [abs(share) for share in shares]
    table = []
    for symbol in symbols:
        state = following[symbol]
        following[symbol] += 1
        width = accuracy - state.bit_length() + 1
        table.append((symbol, width, (state << width) - size))
    return table


def _huffman(data: bytes) -> tuple[int, tuple[list[tuple[int, int]], int]]:
    """Read the codes of literals; return the bytes that were read, and (symbol, width) by all that may come."""
    head = data[0]
    if head >= 128:
        count = head - 127
        used = 1 + (count + 1) // 2
        weights = [data[1 + i // 2] >> (0 if i & 1 else 4) & 15 for i in range(count)]
    else:
        used = 1 + head
        weights = _weights(_cut(data, 1, head))
    total = sum(1 << weight - 1 for weight in weights if weight)
    width = total.bit_length()
    rest = (1 << width) - total
    if not total or width > 11 or rest & (rest - 1):
        raise ValueError("codes that do not add up")
    weights.append(rest.bit_length())
    table: list[tuple[int, int]] = []
    for weight in range(1, width + 1):
        for symbol, mine in enumerate(weights):
            if mine == weight:
                table += [(symbol, width + 1 - weight)] * (1 << weight - 1)
    return used, (table, width)


def _weights(data: bytes) -> list[int]:
    """Two states take turns, until the stream has no more bits for one of them."""
    shares, accuracy, used = _shares(data)
    table, bits = _states(shares, accuracy), _Bits(data[used:])
    states, weights = [bits.take(accuracy), bits.take(accuracy)], list[int]()
    while len(weights) < 255:
        symbol, width, add = table[states[0]]
        weights.append(symbol)
        if bits.left < width:
            return [*weights, table[states[1]][0]]
        states = [states[1], add + bits.take(width)]
    raise ValueError("too many weights")


def _decode(data: bytes, size: int, codes: tuple[list[tuple[int, int]], int], *, streams: int) -> bytes:
    table, width = codes
    parts, sizes = [data], [size]
    if streams == 4:
        ends = [6]
        for i in range(3):
            ends.append(ends[-1] + int.from_bytes(_cut(data, 2 * i, 2), "little"))
        parts = [data[start:end] for start, end in zip(ends, [*ends[1:], len(data)], strict=True)]
        quarter = (size + 3) // 4
        sizes = [quarter, quarter, quarter, size - 3 * quarter]
    out = bytearray()
    for part, count in zip(parts, sizes, strict=True):
        bits = _Bits(part)
        for _ in range(count):
            symbol, used = table[bits.look(width)]
            out.append(symbol)
            bits.skip(used)
        if bits.left != 0:
            raise ValueError("a stream of another length")
    return bytes(out)

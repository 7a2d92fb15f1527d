"""OCDBT, the database in which Orbax keeps the arrays of a checkpoint: a manifest, and a B+tree in data files.

Manifest and nodes have a CRC-32C each, and say which part of which file every value is. So a file that is missing or
too short is found. The values themselves, the chunks of the arrays, have no checksum.

The format: https://google.github.io/tensorstore/kvstore/ocdbt/
"""

from __future__ import annotations

import os

from orchestrator.checkpoints import zstd
from orchestrator.checkpoints.crc32c import crc32c
from orchestrator.checkpoints.torn import Torn, opened, reading

MANIFEST = "manifest.ocdbt"

_MANIFEST_MAGIC, _NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
_BYTES_MAX = 64 << 20
"""The most bytes of one manifest or node, unpacked; 8 MiB are usual."""

_HEADER_BYTES_MIN = 14
_NUMBERED = 1
"""A kind of manifest that Orbax does not write: its tree is in other files."""

_Place = tuple[str, int, int]
"""A file, relative to the database; where in it; how long."""


def glance(directory: str) -> None:
    """Read the manifest, and look for the file that it names. Torn."""
    for name, offset, length, _ in _roots(directory):
        _check_place(directory, (name, offset, length), {})


def read(directory: str) -> int:
    """Read every node of the tree, and find the place of every value. Return how many values there are. Torn."""
    sizes: dict[str, int] = {}
    done: set[_Place] = set()
    values = 0
    waiting = [((name, offset, length), base) for name, offset, length, base in _roots(directory)]
    while waiting:
        place, base = waiting.pop()
        if place in done:
            continue
        done.add(place)
        _check_place(directory, place, sizes)
        with reading(f"the index in {place[0]} cannot be read"):
            children, found = _node(_read_place(directory, place), base)
        for value in found:
            _check_place(directory, value, sizes)
        values += len(found)
        waiting += children
    return values


def _roots(directory: str) -> list[tuple[str, int, int, str]]:
    """Read the manifest; return the place of the newest tree's root with the path that its own paths begin with."""
    path = os.path.join(directory, MANIFEST)
    with opened(path) as file:
        data = file.read(_BYTES_MAX)
    with reading(f"{MANIFEST} cannot be read"):
        body = _Body(data, _MANIFEST_MAGIC)
        body.skip(16)
        if body.number() == _NUMBERED:
            return []
        body.number()
        body.number()
        body.skip(1)
        if body.number():
            body.skip(4)
        files = body.files("")
        count = body.number()
        body.numbers(count)
        heights = [body.skip(1) for _ in range(count)]
        ids, offsets, lengths = body.numbers(count), body.numbers(count), body.numbers(count)
        if not count or (not lengths[-1] and not heights[-1]):
            return []  # an empty tree
        name, base = files[ids[-1]]
        return [(name, offsets[-1], lengths[-1], base)]


def _node(data: bytes, base: str) -> tuple[list[tuple[_Place, str]], list[_Place]]:
    """Return the nodes below a node, and the values in files that it tells of."""
    body = _Body(data, _NODE_MAGIC)
    height = body.skip(1)
    files = body.files(base)
    count = body.number()
    body.numbers(count - 1)
    suffixes = body.numbers(count)
    if height:
        body.numbers(count)
        body.skip(sum(suffixes))
        ids, offsets, lengths = body.numbers(count), body.numbers(count), body.numbers(count)
        places = zip(ids, offsets, lengths, strict=True)
        return [((files[i][0], offset, length), files[i][1]) for i, offset, length in places], []
    body.skip(sum(suffixes))
    lengths, kinds = body.numbers(count), body.numbers(count)
    apart = [length for length, kind in zip(lengths, kinds, strict=True) if kind]
    ids, offsets = body.numbers(len(apart)), body.numbers(len(apart))
    return [], [(files[i][0], offset, n) for i, offset, n in zip(ids, offsets, apart, strict=True)]


def _check_place(directory: str, place: _Place, sizes: dict[str, int]) -> None:
    name, offset, length = place
    if name not in sizes:
        if name.startswith("/") or ".." in name.split("/"):
            raise Torn(f"it names {name!r}, which lies outside")
        try:
            sizes[name] = os.lstat(os.path.join(directory, name)).st_size
        except OSError:
            raise Torn(f"its data file {name} is missing") from None
    if sizes[name] < offset + length:
        raise Torn(f"its data file {name} is cut off: {sizes[name]} bytes, and {offset + length} are needed")


def _read_place(directory: str, place: _Place) -> bytes:
    name, offset, length = place
    if length > _BYTES_MAX:
        raise Torn(f"a node in {name} has {length} bytes")
    with opened(os.path.join(directory, name)) as file:
        file.seek(offset)
        return file.read(length)


class _Body:
    """What is in a manifest or node, after its header and before its checksum. ValueError, IndexError where damaged."""

    def __init__(self, data: bytes, magic: int) -> None:
        length = int.from_bytes(data[4:12], "little")
        if len(data) < _HEADER_BYTES_MIN or int.from_bytes(data[:4], "big") != magic or length != len(data):
            raise ValueError(f"{len(data)} bytes that do not begin as they should")
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise ValueError("it does not have its checksum")
        self._data, self._at = data[:-4], 12
        version, packed = self.number(), self.number()
        if version:
            raise ValueError(f"format version {version}")
        content = self._data[self._at :]
        self._data, self._at = (zstd.decompress(content, _BYTES_MAX) if packed else content), 0

    def skip(self, count: int) -> int:
        """Go on; return the byte that was here."""
        self._at += count
        if self._at > len(self._data):
            raise ValueError("it ends too early")
        return self._data[self._at - count] if count else 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def files(self, base: str) -> list[tuple[str, str]]:
        """(path, the part of it that the paths in that file begin with) of each file of a table."""
        count = self.number()
        shared = [0, *self.numbers(count - 1)][:count]
        fresh, bases = self.numbers(count), self.numbers(count)
        found, path = [], b""
        for length, kept, own in zip(fresh, shared, bases, strict=True):
            self.skip(length)
            path = path[:kept] + self._data[self._at - length : self._at]
            found.append((base + path.decode(), base + path[:own].decode()))
        return found

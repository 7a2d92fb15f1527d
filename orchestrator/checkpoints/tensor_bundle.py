"""A reader for TensorFlow's checkpoint format that needs no TensorFlow.

`PREFIX.index` is a sorted table like LevelDB's. Each entry tells the shard and the offset of a tensor, and its
CRC-32C. Structure and index are checked in milliseconds, and the tensors at hundreds of MB per second. For what this
reader does not support (variants, the other byte order, compressed tables) it raises `NotUnderstood`, and TensorFlow
itself reads the checkpoint.
"""

from __future__ import annotations

import os
import struct

from orchestrator.checkpoints.crc32c import crc32c, masked
from orchestrator.checkpoints.torn import NotUnderstood, Torn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from orchestrator.both.within import Tree

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_INDEX_BYTES_MAX = 1 << 30
_CHUNK_BYTES = 1 << 20

DT_INT32, DT_STRING, DT_INT64, DT_RESOURCE, DT_VARIANT = 3, 7, 9, 20, 21


class BundleEntry:
    """The index's entry for one tensor."""

    __slots__ = ("crc", "dtype", "elements", "offset", "shard", "size", "sliced")

    def __init__(self) -> None:
        self.dtype = 0
        self.elements = 1
        self.shard = 0
        self.offset = 0
        self.size = 0
        self.crc = 0
        self.sliced = False


class Bundle:
    """An opened checkpoint. Its index is whole, and its shards are long enough to hold all entries."""

    def __init__(self, tree: Tree, prefix: str) -> None:
        """Read the index and check the sizes of the shards.

        Raises:
            Torn: the index is damaged, or a shard is missing or too short.
            NotUnderstood: this reader does not support the index.
        """
        self.tree = tree
        self.prefix = prefix
        self.entries, self.shards = _read_index(tree, f"{prefix}.index")
        ends: dict[int, int] = {}
        for entry in self.entries.values():
            ends[entry.shard] = max(ends.get(entry.shard, 0), entry.offset + entry.size)
        for shard in range(self.shards):
            path = self.shard_path(shard)
            try:
                size = tree.stat(path).st_size
            except OSError:
                raise Torn(f"its shard {os.path.basename(path)} is missing") from None
            if size < ends.get(shard, 0):
                raise Torn(f"{os.path.basename(path)} is cut off: {size} of {ends[shard]} bytes")

    def shard_path(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self.shards:05d}"

    @property
    def data_bytes(self) -> int:
        return sum(entry.size for entry in self.entries.values())

    def check_tensors(self) -> None:
        """Check the CRC of every tensor.

        Raises:
            Torn: a tensor is damaged.
            NotUnderstood: the checkpoint holds variants.
        """
        for shard in range(self.shards):
            mine = [
                (e.offset, name, e) for name, e in self.entries.items() if e.shard == shard and not e.sliced
            ]
            with self.tree.reading(self.shard_path(shard)) as file:
                for offset, name, entry in sorted(mine, key=lambda item: item[:2]):
                    if entry.dtype in (DT_VARIANT, DT_RESOURCE):
                        raise NotUnderstood("it holds variants")
                    file.seek(offset)
                    is_text = entry.dtype == DT_STRING
                    actual = _string_sum(file, entry) if is_text else _sum(file, entry.size, 0)
                    if masked(actual) != entry.crc:
                        raise Torn(f"the tensor {name} does not have its checksum")

    def integer(self, name: str) -> int | None:
        """Return the value of an integer scalar. None: the entry is something else."""
        entry = self.entries[name]
        if entry.elements != 1 or entry.size not in (4, 8) or entry.dtype not in (DT_INT64, DT_INT32):
            return None
        with self.tree.reading(self.shard_path(entry.shard)) as f:
            f.seek(entry.offset)
            return int.from_bytes(f.read(entry.size), "little", signed=True)


def _sum(file: IO[bytes], size: int, crc: int) -> int:
    while size > 0:
        data = file.read(min(size, _CHUNK_BYTES))
        if not data:
            raise Torn("a shard is cut off")
        crc = crc32c(data, crc)
        size -= len(data)
    return crc


def _string_sum(file: IO[bytes], entry: BundleEntry) -> int:
    """Return the CRC of a tensor of strings, and check the CRC of their lengths.

    The tensor is stored as the lengths (varints), a CRC of the lengths, and the bytes. Both CRCs cover the lengths
    as 32-bit words (64-bit above 4 GiB), not as the varints that are stored.
    """
    if not entry.elements <= entry.size <= _INDEX_BYTES_MAX:
        raise Torn(f"a tensor of strings claims {entry.elements} of them in {entry.size} bytes")
    data = file.read(entry.size)
    if len(data) != entry.size:
        raise Torn("a shard is cut off")
    at, crc, total = 0, 0, 0
    for _ in range(entry.elements):
        length, at = _varint(data, at)
        total += length
        crc = crc32c(struct.pack("<I" if length <= 0xFFFFFFFF else "<Q", length), crc)
    if at + 4 + total != entry.size:
        raise Torn("a tensor of strings has a wrong length")
    if data[at : at + 4] != struct.pack("<I", masked(crc)):
        raise Torn("the lengths of a tensor of strings do not have their checksum")
    return crc32c(data[at:], crc)


def _read_index(tree: Tree, path: str) -> tuple[dict[str, BundleEntry], int]:
    name = os.path.basename(path)
    try:
        with tree.reading(path) as f:
            table = f.read(_INDEX_BYTES_MAX)
    except OSError as e:
        raise Torn(f"{name} cannot be read: {e.strerror}") from e
    if len(table) < _FOOTER_BYTES:
        raise Torn(f"{name} is cut off: {len(table)} bytes")
    footer = table[-_FOOTER_BYTES:]
    if struct.unpack_from("<Q", footer, 40)[0] != _MAGIC:
        raise Torn(f"{name} is torn: no end mark")
    entries: dict[str, BundleEntry] = {}
    shards = key_bytes = 0
    try:
        _, at = _varint(footer, 0)
        _, at = _varint(footer, at)
        offset, at = _varint(footer, at)
        size, at = _varint(footer, at)
        for _, handle in _block(table, offset, size):
            inner_offset, after = _varint(handle, 0)
            inner_size, _ = _varint(handle, after)
            for key, value in _block(table, inner_offset, inner_size):
                key_bytes += len(key)
                if key_bytes > _INDEX_BYTES_MAX:
                    raise Torn(f"the names in {name} claim more than is read")
                if key:
                    entries[key.decode("utf-8", "replace")] = _entry(value)
                else:
                    shards = 1
                    for field, number in _fields(value):
                        if field == 1 and isinstance(number, int):
                            shards = number
                        elif field == 2 and number != 0:
                            raise NotUnderstood("it was written on a machine of the other byte order")
    except (IndexError, struct.error, ValueError) as e:
        raise Torn(f"{name} is torn: {e}") from e
    if shards < 1:
        raise Torn(f"{name} has no header")
    return entries, shards


def _block(table: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    end = offset + size
    if end + 5 > len(table):
        raise Torn("the index is cut off")
    if masked(crc32c(memoryview(table)[offset : end + 1])) != struct.unpack_from("<I", table, end + 1)[0]:
        raise Torn("a block of the index does not have its checksum")
    if table[end] != 0:
        raise NotUnderstood("its index is compressed")
    restarts = struct.unpack_from("<I", table, end - 4)[0]
    limit = end - 4 - 4 * restarts
    key, at = b"", offset
    while at < limit:
        shared, at = _varint(table, at)
        fresh, at = _varint(table, at)
        length, at = _varint(table, at)
        key = key[:shared] + table[at : at + fresh]
        at += fresh
        yield key, table[at : at + length]
        at += length


def _entry(value: bytes) -> BundleEntry:
    entry = BundleEntry()
    for field, content in _fields(value):
        if field == 2 and isinstance(content, bytes):
            for inner, dimension in _fields(content):
                if inner == 2 and isinstance(dimension, bytes):
                    sizes = [n for f, n in _fields(dimension) if f == 1 and isinstance(n, int)]
                    entry.elements *= sizes[0] if sizes else 0
        elif field == 7:
            entry.sliced = True
        elif isinstance(content, int):
            name = {1: "dtype", 3: "shard", 4: "offset", 5: "size", 6: "crc"}.get(field)
            if name:
                setattr(entry, name, content)
    return entry


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a protocol buffer message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield tag >> 3, number
        elif kind == 2:
            length, at = _varint(message, at)
            yield tag >> 3, message[at : at + length]
            at += length
        elif kind == 5:
            yield tag >> 3, struct.unpack_from("<I", message, at)[0]
            at += 4
        elif kind == 1:
            yield tag >> 3, struct.unpack_from("<Q", message, at)[0]
            at += 8
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number without an end")

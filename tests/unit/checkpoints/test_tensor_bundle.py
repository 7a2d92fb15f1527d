"""TensorFlow's format, byte by byte: what an index may say, and what of it is torn, or not understood."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from orchestrator import checkpoints
from orchestrator.both.within import Tree
from orchestrator.checkpoints.crc32c import LIBRARY, by_table, crc32c, library, masked
from orchestrator.checkpoints.tensor_bundle import Bundle
from orchestrator.checkpoints.torn import NotUnderstood, Torn
from orchestrator.head.code.bundle import crc32c_library
from tests.unit.checkpoints.saved import _block, _field, _varint

FLOAT, STRING, INT64, VARIANT = 1, 7, 9, 21


def number(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def entry(
    data: bytes, *, dtype: int = FLOAT, shape: tuple[int, ...] = (), shard: int = 0, at: int = 0
) -> bytes:
    dimensions = b"".join(_field(2, number(1, size)) for size in shape)
    summed = bytes([6 << 3 | 5]) + struct.pack("<I", masked(crc32c(data)))
    where = (number(3, shard) if shard else b"") + (number(4, at) if at else b"")
    return number(1, dtype) + _field(2, dimensions) + where + number(5, len(data)) + summed


HEADER = number(1, 1) + _field(3, number(1, 1))


def bundle(root: Path, shards: list[bytes], rows: dict[str, bytes], header: bytes | None = HEADER) -> Bundle:
    for shard, data in enumerate(shards):
        (root / f"m.data-{shard:05d}-of-{len(shards):05d}").write_bytes(data)
    listed = ([(b"", header)] if header is not None else []) + [
        (k.encode(), v) for k, v in sorted(rows.items())
    ]
    table = bytearray()
    handles = [_block(table, block) for block in (listed, [])]
    index = _block(table, [(listed[-1][0], handles[0])])
    table += (handles[1] + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    (root / "m.index").write_bytes(table)
    return Bundle(Tree(str(root)), str(root / "m"))


def test_tensors_of_two_shards_are_each_summed_in_their_own(tmp_path: Path) -> None:
    first, second, third = b"a" * 8, b"b" * 12, b"c" * 4
    rows = {
        "x": entry(second, shape=(3,), at=8),
        "y": entry(first, shape=(2,)),
        "z": entry(third, shape=(1,), shard=1),
    }
    read = bundle(tmp_path, [first + second, third], rows, number(1, 2))
    read.check_tensors()
    assert (read.shards, read.data_bytes) == (2, 24)
    assert {name: each.elements for name, each in read.entries.items()} == {"x": 3, "y": 2, "z": 1}
    for shard, at in ((0, 7), (0, 19), (1, 3)):
        path = tmp_path / f"m.data-{shard:05d}-of-00002"
        whole = path.read_bytes()
        path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
        with pytest.raises(Torn, match="does not have its checksum"):
            read.check_tensors()
        path.write_bytes(whole)


def test_a_bundle_without_tensors_is_whole(tmp_path: Path) -> None:
    read = bundle(tmp_path, [b""], {})
    read.check_tensors()
    assert (read.entries, read.shards, read.data_bytes) == ({}, 1, 0)


def test_a_shard_is_as_long_as_its_furthest_tensor(tmp_path: Path) -> None:
    """Which need not be the last by name."""
    rows = {"a": entry(b"b" * 12, at=8), "b": entry(b"a" * 8)}
    bundle(tmp_path, [b"a" * 8 + b"b" * 12], rows)
    with pytest.raises(Torn, match="cut off: 19 of 20 bytes"):
        bundle(tmp_path, [b"a" * 8 + b"b" * 11], rows)
    (tmp_path / "m.data-00000-of-00001").unlink()
    with pytest.raises(Torn, match=r"m\.data-00000-of-00001 is missing"):
        Bundle(Tree(str(tmp_path)), str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("header", "error", "said"),
    [
        (None, Torn, "has no header"),
        (number(1, 0), Torn, "has no header"),
        (number(1, 1) + number(2, 1), NotUnderstood, "other byte order"),
        (bytes([1 << 3 | 3, 1]), Torn, "wire type 3"),
        (bytes([1 << 3, *[0x80] * 12]), Torn, "without an end"),
        (bytes([1 << 3, 0x80]), Torn, "is torn"),
    ],
)
def test_a_header_that_is_not_there_or_not_ours(
    tmp_path: Path, header: bytes | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        bundle(tmp_path, [b"a" * 4], {"x": entry(b"a" * 4)}, header)


def test_a_header_without_a_number_is_of_one_shard_and_fields_of_other_kinds_are_passed_over(
    tmp_path: Path,
) -> None:
    eight = bytes([9 << 3 | 1]) + b"\xff" * 8
    assert bundle(tmp_path, [b"a" * 4], {"x": eight + entry(b"a" * 4) + eight}, number(2, 0)).shards == 1


@pytest.mark.parametrize(
    ("data", "dtype", "shape", "expected"),
    [
        (struct.pack("<q", -5), INT64, (), -5),
        (struct.pack("<q", 2**40), INT64, (1,), 2**40),
        (struct.pack("<i", 7), 3, (), 7),
        (struct.pack("<q", 7), FLOAT, (), None),
        (struct.pack("<2q", 7, 8), INT64, (2,), None),
        (struct.pack("<h", 7), INT64, (), None),
    ],
)
def test_what_is_a_whole_number(
    tmp_path: Path, data: bytes, dtype: int, shape: tuple[int, ...], expected: int | None
) -> None:
    read = bundle(tmp_path, [b"...." + data], {"x": entry(data, dtype=dtype, shape=shape, at=4)})
    assert read.integer("x") == expected


def strings(*texts: bytes) -> tuple[bytes, bytes]:
    """Return a tensor of strings as it is stored, and what its sum is of."""
    lengths = b"".join(struct.pack("<I", len(text)) for text in texts)
    summed = struct.pack("<I", masked(crc32c(lengths)))
    stored = b"".join(_varint(len(text)) for text in texts) + summed + b"".join(texts)
    return stored, lengths + summed + b"".join(texts)


def test_a_tensor_of_strings_has_two_sums(tmp_path: Path) -> None:
    stored, summed = strings(b"one", b"", b"x" * 200)
    row = entry(summed, dtype=STRING, shape=(3,)).replace(number(5, len(summed)), number(5, len(stored)))
    read = bundle(tmp_path, [stored], {"s": row})
    read.check_tensors()
    path = tmp_path / "m.data-00000-of-00001"
    for at, said in (
        (0, "wrong length"),
        (5, "do not have their checksum"),
        (len(stored) - 1, "the tensor s does not"),
    ):
        path.write_bytes(stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
        with pytest.raises(Torn, match=said):
            read.check_tensors()


def test_variants_are_not_understood_and_slices_are_summed_in_their_own_entries(tmp_path: Path) -> None:
    with pytest.raises(NotUnderstood, match="variants"):
        bundle(tmp_path, [b"a" * 4], {"x": entry(b"a" * 4, dtype=VARIANT)}).check_tensors()
    sliced = entry(b"other than is there") + _field(7, b"")
    bundle(tmp_path, [b"a" * 19], {"x": sliced, "x/0": entry(b"a" * 4)}).check_tensors()


@pytest.mark.parametrize(
    ("harm", "error", "said"),
    [
        (lambda table: table[:47], Torn, "cut off: 47 bytes"),
        (lambda table: table[:-1] + b"?", Torn, "no end mark"),
        (lambda table: table[:3] + b"?" + table[4:], Torn, "a block of the index"),
    ],
)
def test_an_index_that_is_damaged(tmp_path: Path, harm: object, error: type[Exception], said: str) -> None:
    bundle(tmp_path, [b"a" * 4], {"x": entry(b"a" * 4)})
    path = tmp_path / "m.index"
    path.write_bytes(harm(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(error, match=said):
        Bundle(Tree(str(tmp_path)), str(tmp_path / "m"))


def test_a_block_that_is_compressed_is_not_understood(tmp_path: Path) -> None:
    bundle(tmp_path, [b"a" * 4], {"x": entry(b"a" * 4)})
    path = tmp_path / "m.index"
    table = bytearray(path.read_bytes())
    # The block of the index is the last before the footer: its kind, and the checksum that covers it.
    kind = len(table) - 48 - 5
    (summed,) = struct.unpack_from("<I", table, kind + 1)
    start = next(at for at in range(kind) if masked(crc32c(bytes(table[at : kind + 1]))) == summed)
    table[kind] = 1
    struct.pack_into("<I", table, kind + 1, masked(crc32c(bytes(table[start : kind + 1]))))
    path.write_bytes(table)
    with pytest.raises(NotUnderstood, match="compressed"):
        Bundle(Tree(str(tmp_path)), str(tmp_path / "m"))


@pytest.mark.parametrize("python_is_old", [False, True])
def test_the_library_that_lies_beside_the_module_computes_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_is_old: bool
) -> None:
    """Without it all is right as well, and hundreds of times as slow."""
    of_wheel = crc32c_library()
    if of_wheel is None:
        pytest.skip("NO C LIBRARY IN GOOGLE-CRC32C HERE")
    shutil.copy(of_wheel, tmp_path / LIBRARY)
    monkeypatch.setattr(checkpoints, "__file__", str(tmp_path / "__init__.py"))
    if python_is_old:  # conda's is built for a C library that has no such function
        monkeypatch.delattr(os, "memfd_create")
    extend = library()
    assert extend is not None
    data = bytes(range(256)) * 5
    assert extend(7, data, len(data)) == by_table(data, 7)

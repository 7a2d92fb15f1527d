"""Checkpoints as scripts of several frameworks save them, written by hand to the formats that are published."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.both import backup_file
from orchestrator.both.within import Tree
from orchestrator.checkpoints import discovery, places
from orchestrator.checkpoints.crc32c import crc32c, masked

FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"


def generations(root: Path | str) -> list[int]:
    """Return the generations in a checkpoint directory, newest first."""
    with Tree(str(root)) as tree:
        return places.generations(tree)


def pinned(root: Path) -> list[tuple[int, str]]:
    """Return (generation, directory) of each pinned copy."""
    with Tree(str(root)) as tree:
        return places.pinned(tree)


def found(directory: Path, *, is_root: bool = False) -> discovery.Contents:
    """Return what lies below a directory. Its tree stays open, since units read from it."""
    tree = Tree(str(directory))
    return discovery.find(tree, tree.path, is_root=is_root)


def npz(path: Path, step: int | None = None, **arrays: Any) -> Path:
    """Call `numpy.savez`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counted: dict[str, Any] = {} if step is None else {"global_step": np.int64(step)}
    np.savez(path, w=np.arange(2000.0), **counted, **arrays)
    return path


def tensor_bundle(prefix: Path, tensor_bytes: int, count: int) -> Path:
    """Write a checkpoint of TensorFlow's format: `count` tensors of zeros, in a sparse shard that takes no disk.

    The index is a table as LevelDB's, in which BundleHeaderProto and BundleEntryProto stand by name.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{prefix}.data-00000-of-00001").open("wb") as shard:
        shard.truncate(tensor_bytes * count)
    crc = struct.pack("<I", masked(_crc_of_zeros(tensor_bytes)))
    shape = _field(2, _field(2, b"\x08" + _varint(tensor_bytes // 4)))
    rows = [(b"", b"\x08\x01" + _field(3, b"\x08\x01"))]
    for number in range(count):
        place = b"\x20" + _varint(tensor_bytes * number) + b"\x28" + _varint(tensor_bytes)
        rows.append((f"w{number:04d}".encode(), b"\x08\x01" + shape + place + b"\x35" + crc))
    table = bytearray()
    handles = [_block(table, block) for block in (rows, [])]
    index = _block(table, [(rows[-1][0], handles[0])])
    table += (handles[1] + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    Path(f"{prefix}.index").write_bytes(table)
    return prefix


def handed_over(folder: Path, step: int, *, says: bool = True) -> Path:
    """Write a prefix as a survivor hands it over, with the file beside it that says what it is."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = tensor_bundle(folder / f"rescued-by-worker-1-{step}", 40, 3)
    shards = {
        path.name[len(prefix.name) :]: path.stat().st_size for path in folder.glob(f"{prefix.name}.data-*")
    }
    with open(f"{prefix}.index", "rb") as index:
        about = backup_file.about(backup_file.sums_of_prefix(index, shards), step)
    if says:
        Path(f"{prefix}.about").write_bytes(about)
    return prefix


def _crc_of_zeros(count: int) -> int:
    crc, zeros = 0, bytes(min(count, 32 << 20))
    while count > 0:
        crc = crc32c(zeros[:count], crc)
        count -= len(zeros)
    return crc


def _block(table: bytearray, rows: list[tuple[bytes, bytes]]) -> bytes:
    """Append a block whose keys are all written whole, and return its handle: offset and size."""
    starts, block = [], bytearray()
    for key, value in rows:
        starts.append(len(block))
        block += b"\0" + _varint(len(key)) + _varint(len(value)) + key + value
    block += struct.pack(f"<{len(starts or [0]) + 1}I", *(starts or [0]), len(starts or [0]))
    handle = _varint(len(table)) + _varint(len(block))
    table += block + b"\0" + struct.pack("<I", masked(crc32c(bytes(block) + b"\0")))
    return handle


def _field(number: int, message: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(message)) + message


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def orbax(folder: Path, step: int) -> Path:
    """Copy a step of Orbax's CheckpointManager, as Orbax wrote it, under another step."""
    return Path(shutil.copytree(FIXTURES / "orbax" / "200", folder / str(step)))


def aged(directory: Path, age_s: float = 0.0) -> Path:
    """Give the files below a directory times of their own, a second apart, in the order of their names."""
    paths = sorted((path for path in directory.rglob("*") if path.is_file()), key=_by_number)
    for place, path in enumerate(paths):
        os.utime(path, (0, 1_700_000_000 - age_s + place))
    return directory


def _by_number(path: Path) -> list[tuple[int, str]]:
    words = "".join(letter if letter.isalnum() else " " for letter in str(path)).split()
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size if size >= 0 else path.stat().st_size + size)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40
    path.write_bytes(data)

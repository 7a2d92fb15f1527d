"""HDF5, as Keras writes weights and models: `.h5`, `.hdf5`. The data is read by h5py, where the run's Python has it."""

from __future__ import annotations

import json
import os
import zlib

from orchestrator.both import backup_file
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.torn import Torn, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    from orchestrator.both.within import Tree

WEIGHTS, METADATA = "latest.weights.h5", "training_metadata.json"
"""The pair that Keras 3's BackupAndRestore writes."""

_SLAB_BYTES = 64 << 20
_PACKED_MAX = 1032
"""How many times larger data may be than what is stored of it: gzip packs no better."""
_EMPTY_BYTES_MAX = 1 << 20
"""A dataset that was never written has this much at most, of which nothing is stored."""
_JSON_BYTES_MAX = 1 << 20

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def check_structure(tree: Tree, path: str) -> None:
    """Compare the size with the one that the file tells, and read the epoch beside a backup. Torn."""
    with opened(tree, path) as file:
        head = file.read(64)
        size = file.seek(0, os.SEEK_END)
    if head[:8] != _SIGNATURE or len(head) < 48:
        raise Torn(f"it is no HDF5 file ({size} bytes)")
    # Where the file says its own end is: after the addresses, whose place depends on the superblock's version.
    at = {0: 40, 1: 44}.get(head[8], 28)
    end = int.from_bytes(head[at : at + 8], "little")
    if size < end:
        raise Torn(f"it is cut off: {size} of {end} bytes")
    _check_metadata(tree, path)


def read_step(tree: Tree, path: str) -> int | None:
    """Return the global step, without reading the tensors. Torn."""
    with opened(tree, path) as file:
        return read_file(file, scalars_only=True)


def read(tree: Tree, path: str) -> int | None:
    """Read every tensor. Return the global step. Torn."""
    with opened(tree, path) as file:
        return read_file(file, is_backup=backup_file.is_backup(path))


def lacks_about(tree: Tree, path: str) -> bool:
    """Return whether a backup of ours does not say of which run, generation and step it is."""
    try:
        import h5py

        with tree.reading(path) as file, h5py.File(file, "r") as h5:
            return backup_file.ABOUT not in h5
    except (ImportError, OSError):
        return False


def read_file(file: IO[bytes], *, scalars_only: bool = False, is_backup: bool = False) -> int | None:
    """Read an open file. Return the global step. Torn; also where it must be a backup of ours, and is none."""
    try:
        import h5py
    except ImportError:
        return None  # a Python without h5py cannot restore it either; the structure was looked at
    steps: dict[str, int] = {}
    sums: dict[str, int] = {}
    texts: dict[str, bytes] = {}
    size = file.seek(0, os.SEEK_END)

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            sums[name] = 0
            if item.shape is None or (scalars_only and item.shape != ()):
                return
            _check_size(name, item, size)
            for value in _slabs(item):
                if has_sums:
                    sums[name] = zlib.crc32(value, sums[name])
                if is_integer(value):
                    steps[name] = int(value)
                if name in backup_file.TEXTS:
                    texts[name] = texts.get(name, b"") + bytes(value)

    try:
        with h5py.File(file, "r") as h5:
            has_sums = backup_file.CHECKSUMS in h5
            h5.visititems(visit)
        if is_backup:
            backup_file.check(sums, texts, steps.get(backup_file.STEPS))
        elif backup_file.CHECKSUMS in texts and not scalars_only:
            backup_file.check_sums(sums, dict(json.loads(texts[backup_file.CHECKSUMS])))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, MemoryError) as e:
        raise Torn(f"HDF5: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e
    if not sums:
        raise Torn("it lacks data")
    return choose_step(steps)


def _check_size(name: str, item: Any, size: int) -> None:
    """Raise Torn for a dataset that claims more than is stored for it, or is in another file: before it is read."""
    if item.external or item.is_virtual:
        raise Torn(f"{name} is kept in another file")
    stored = item.id.get_storage_size()
    chunk = item.dtype.itemsize
    for length in item.chunks or ():
        chunk *= length
    if stored > size or max(item.nbytes, chunk) > max(_EMPTY_BYTES_MAX, _PACKED_MAX * stored):
        raise Torn(f"{name} claims {item.nbytes} bytes, and has {stored}")


def _slabs(item: Any) -> Iterator[Any]:
    """Yield a dataset in slabs, in order: memory is needed for one of them only."""
    if item.nbytes <= _SLAB_BYTES or not item.shape:
        yield item[()]
        return
    from itertools import product

    # Cut the first axis of which a single row is small enough, and take all axes before it index by index
    axis, row = 0, item.nbytes // item.shape[0]
    while row > _SLAB_BYTES and axis + 1 < len(item.shape):
        axis += 1
        row //= item.shape[axis]
    count = max(1, _SLAB_BYTES // max(row, 1))
    for before in product(*map(range, item.shape[:axis])):
        for start in range(0, item.shape[axis], count):
            yield item[(*before, slice(start, start + count))]


def is_integer(value: Any) -> bool:
    """Return whether it is a NumPy scalar, or an array without dimensions, of whole numbers."""
    return getattr(value, "ndim", 1) == 0 and getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u")


def _check_metadata(tree: Tree, weights: str) -> None:
    """Read the epoch that Keras keeps in a file beside the weights: Keras fails at one that is torn."""
    folder, name = os.path.split(weights)
    if name.removesuffix(".bkp") != WEIGHTS:
        return
    path = os.path.join(folder, name.replace(WEIGHTS, METADATA))
    try:
        with tree.reading(path) as f:
            int(json.loads(f.read(_JSON_BYTES_MAX))["epoch"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise Torn(f"{os.path.basename(path)} beside it is torn: {e}") from e

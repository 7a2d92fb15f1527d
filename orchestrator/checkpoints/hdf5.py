"""HDF5, as Keras writes weights and models: `.h5`, `.hdf5`. The data is read by h5py, where the run's Python has it."""

from __future__ import annotations

import json
import os
import zlib

from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.torn import Torn, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from orchestrator.both.within import Tree

WEIGHTS, METADATA = "latest.weights.h5", "training_metadata.json"
"""The pair that Keras 3's BackupAndRestore writes."""

CHECKSUMS = "orch-checksums"
"""Where a backup of ours keeps the CRC-32 of each other dataset, by name, as JSON."""

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def glance(tree: Tree, path: str) -> None:
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


def peek(tree: Tree, path: str) -> int | None:
    """Return the global step, without reading the tensors. Torn."""
    with opened(tree, path) as file:
        return read_file(file, scalars_only=True)


def read(tree: Tree, path: str) -> int | None:
    """Read every tensor. Return the global step. Torn."""
    with opened(tree, path) as file:
        return read_file(file)


def read_file(file: IO[bytes], *, scalars_only: bool = False) -> int | None:
    """Read an open file. Return the global step. Torn."""
    try:
        import h5py
    except ImportError:
        return None  # a Python without h5py cannot restore it either; the structure was looked at
    steps: dict[str, int] = {}
    seen: set[str] = set()
    sums: dict[str, int] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            seen.add(name)
            if scalars_only and item.shape != ():
                return
            value = item[()]
            if name in sums and zlib.crc32(value) != sums[name]:
                raise Torn(f"{name} is not what was written")
            if is_integer(value):
                steps[name] = int(value)

    try:
        with h5py.File(file, "r") as h5:
            if CHECKSUMS in h5:
                sums = dict(json.loads(bytes(h5[CHECKSUMS][()])))
            h5.visititems(visit)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as e:
        raise Torn(f"HDF5: {str(e).splitlines()[0] if str(e) else type(e).__name__}") from e
    if not seen or not seen.issuperset(sums):
        raise Torn("it lacks data")
    return choose_step(steps)


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
            int(json.load(f)["epoch"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise Torn(f"{os.path.basename(path)} beside it is torn: {e}") from e

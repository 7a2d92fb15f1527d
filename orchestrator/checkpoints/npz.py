"""NumPy's archives: `.npz`, a zip with an `.npy` for each array. No pickled array is ever loaded."""

from __future__ import annotations

import zipfile

from orchestrator.checkpoints.keras_archive import check_sizes, check_structure, to_end
from orchestrator.checkpoints.steps import choose_step
from orchestrator.checkpoints.torn import Torn, opened, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from orchestrator.both.within import Tree

__all__ = ["check_structure", "read", "read_step"]

_MAGIC = b"\x93NUMPY"
_HEADER_BYTES_MAX = 1 << 20
_SCALAR_BYTES_MAX = 8


def read_step(tree: Tree, path: str) -> int | None:
    """Return the global step, without reading the large arrays. Torn."""
    return _read_step(tree, path, whole=False)


def read(tree: Tree, path: str) -> int | None:
    """Compare every array with its CRC-32 and the length that its header tells. Return the global step. Torn."""
    return _read_step(tree, path, whole=True)


def _read_step(tree: Tree, path: str, *, whole: bool) -> int | None:
    steps: dict[str, int] = {}
    with opened(tree, path) as packed, reading("zip"), zipfile.ZipFile(packed) as archive:
        check_sizes(archive, packed)
        for info in archive.infolist():
            if whole or info.file_size <= _HEADER_BYTES_MAX:
                with archive.open(info) as file:
                    _array(file, info.filename, info.file_size, steps)
    return choose_step(steps)


def _array(file: IO[bytes], member: str, size: int, steps: dict[str, int]) -> None:
    """Read one member to its end; its value goes to `steps` where it is a whole number."""
    if not member.endswith(".npy"):
        to_end(file)
        return
    header = _header(file, member)
    start = file.tell()
    dtype, shape = header["descr"], header["shape"]
    item, count = _item_bytes(dtype), 1
    for length in shape:
        count *= length
    if item is not None and start + item * count != size:
        raise Torn(f"{member} holds {size - start} of {item * count} bytes")
    if item is not None and count == 1 and item <= _SCALAR_BYTES_MAX and dtype[1] in "iu":
        order: Any = "big" if dtype[0] == ">" else "little"
        steps[member.removesuffix(".npy")] = int.from_bytes(file.read(item), order, signed=dtype[1] == "i")
    to_end(file)


def _header(file: IO[bytes], member: str) -> dict[str, Any]:
    """Return what an `.npy` says of itself: `descr`, `fortran_order` and `shape`. Torn."""
    from ast import literal_eval

    start = file.read(8)
    width = 2 if start[6:7] == b"\x01" else 4
    length = int.from_bytes(file.read(width), "little")
    if start[:6] != _MAGIC or not 0 < length <= _HEADER_BYTES_MAX:
        raise Torn(f"{member} does not begin as an array")
    header = literal_eval(file.read(length).decode("utf-8"))
    if not (isinstance(header, dict) and "descr" in header and isinstance(header.get("shape"), tuple)):
        raise Torn(f"{member} has no header of an array")
    return header


def _item_bytes(dtype: object) -> int | None:
    """Return the size of one item; None of records, and of objects, which are pickled.

    >>> [_item_bytes(dtype) for dtype in ("<f4", "|b1", "<U5", "|O", [("a", "<i4")])]
    [4, 1, 20, None, None]
    """
    if not isinstance(dtype, str) or dtype[1:2] not in tuple("biufcSUVmM"):
        return None
    digits = dtype[2:].partition("[")[0]
    return int(digits) * (4 if dtype[1] == "U" else 1) if digits.isdecimal() else None

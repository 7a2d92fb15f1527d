"""A model that Keras saved: `.keras`, a zip archive with the weights as HDF5 in it."""

from __future__ import annotations

import os
import zipfile

from orchestrator.checkpoints import hdf5
from orchestrator.checkpoints.torn import Torn, opened, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

    from orchestrator.both.within import Tree

_CHUNK_BYTES = 1 << 20
_PACKED_MAX = 1032
"""How many times larger a member may be than its archive: the packing of zip does no better."""


def check_structure(tree: Tree, path: str) -> None:
    """Look for the archive's directory, which is at its end. Torn."""
    with opened(tree, path) as file:
        if not zipfile.is_zipfile(file):
            raise Torn("it is no whole zip archive")


def read_step(_tree: Tree, _path: str) -> int | None:
    """Return None: the step is found by reading the weights only."""
    return None


def read(tree: Tree, path: str) -> int | None:
    """Compare every member with its CRC-32, and read the weights. Return the global step. Torn."""
    step = None
    with opened(tree, path) as packed, reading("zip"), zipfile.ZipFile(packed) as archive:
        check_sizes(archive, packed)
        for member in archive.namelist():
            with archive.open(member) as file:
                to_end(file)
            if member.endswith(".h5"):
                # Opened again: zipfile checks no checksum once a member was sought in
                with archive.open(member) as file:
                    step = hdf5.read_file(file)
    return step


def check_sizes(archive: zipfile.ZipFile, file: IO[bytes]) -> None:
    """Raise Torn where the members claim more than the archive can hold, before anything is unpacked."""
    claimed = sum(info.file_size for info in archive.infolist())
    packed = {info.compress_type for info in archive.infolist()} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    if packed or claimed > _PACKED_MAX * os.fstat(file.fileno()).st_size:
        raise Torn(
            f"its {len(archive.infolist())} members claim {claimed} bytes, or are packed in another way"
        )


def to_end(file: IO[bytes]) -> int:
    """Read the rest of a member, at whose end zipfile compares the checksum. Return the bytes."""
    count = 0
    while data := file.read(_CHUNK_BYTES):
        count += len(data)
    return count

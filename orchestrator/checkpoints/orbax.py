"""Orbax: a directory for each step, with a directory for each item in it, and the arrays in OCDBT or as zarr.

A save is finished when Orbax has taken `.orbax-checkpoint-tmp` off the directory's name, or, where it could not rename,
when `commit_success.txt` is in it.
"""

from __future__ import annotations

import json
import os

from orchestrator.checkpoints import names, ocdbt, zstd
from orchestrator.checkpoints.torn import Torn, opened, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_STEP_METADATA, _ITEM_METADATA, _MARK = "_CHECKPOINT_METADATA", "_METADATA", "orbax.checkpoint"
_COMMITTED = "commit_success.txt"
_OF_ONE_PROCESS = "ocdbt.process_"
_ZARR, _ZARR3 = ".zarray", "zarr.json"
_ARRAYS = "array_metadatas"
_AS_JSON = (_ITEM_METADATA, "_sharding", _ZARR, _ZARR3)


def is_one(folder: str, folders: Sequence[str], files: Sequence[str]) -> bool:
    """Return whether a directory is a checkpoint of Orbax. Older ones are known by their items alone."""
    own = (_STEP_METADATA, _MARK, _ITEM_METADATA, ocdbt.MANIFEST)
    if any(name in files for name in own):
        return True
    items = (os.path.join(folder, name, of) for name in folders for of in (_ITEM_METADATA, ocdbt.MANIFEST))
    return names.is_step_folder(os.path.basename(folder)) and any(map(os.path.isfile, items))


def glance(directory: str) -> None:
    """Look whether the save was finished, and read the metadata and the manifests. Torn."""
    _check_commit(directory)
    for folder, files in _folders(directory):
        for name in files:
            if name in _AS_JSON or os.path.basename(folder) == _ARRAYS:
                _load(os.path.join(folder, name))
        _check_merged(folder)
        if ocdbt.MANIFEST in files and not _is_of_one_process(folder):
            ocdbt.glance(folder)


def peek(directory: str) -> int | None:
    """Return None: the step is the name of the directory."""
    glance(directory)
    return None


def read(directory: str) -> int | None:
    """Read the index of every item, and look at the files that it names. Return None. Torn."""
    glance(directory)
    for folder, files in _folders(directory):
        if ocdbt.MANIFEST in files and not _is_of_one_process(folder):
            ocdbt.read(folder)
        if _ZARR in files or _ZARR3 in files:
            _check_chunks(folder)
    return None


def _check_commit(directory: str) -> None:
    there = os.path.join(directory, _STEP_METADATA)
    if not os.path.exists(there):
        return
    found = _load(there)
    if "commit_timestamp_nsecs" not in found or os.path.exists(os.path.join(directory, _COMMITTED)):
        return
    if found["commit_timestamp_nsecs"] is None:
        raise Torn(f"Orbax has not committed it: it has no {_COMMITTED}")


def _check_merged(folder: str) -> None:
    """Each process writes a database of its own; the one that Orbax reads joins them."""
    parts = [name for name in os.listdir(folder) if name.startswith(_OF_ONE_PROCESS)]
    if parts and not os.path.exists(os.path.join(folder, ocdbt.MANIFEST)):
        raise Torn(f"{os.path.basename(folder)} has no {ocdbt.MANIFEST}: Orbax has not joined {parts[0]}")


def _is_of_one_process(folder: str) -> bool:
    return os.path.basename(folder).startswith(_OF_ONE_PROCESS)


def _check_chunks(folder: str) -> None:
    """No chunk may be empty. One that zstd packed must have its last block."""
    for below, _, files in os.walk(folder):
        for name in files:
            if name in (_ZARR, _ZARR3):
                continue
            path = os.path.join(below, name)
            with opened(path) as file:
                where = os.path.relpath(path, folder)
                if not os.fstat(file.fileno()).st_size:
                    raise Torn(f"the chunk {os.path.basename(folder)}/{where} is empty")
                if _ZARR in files and file.read(4) == zstd.MAGIC:
                    file.seek(0)
                    with reading(f"the chunk {os.path.basename(folder)}/{where}"):
                        zstd.skim(file)


def _folders(directory: str) -> list[tuple[str, list[str]]]:
    """Every directory with its files. OSError where one cannot be read: `os.walk` alone would pass it over."""

    def fail(error: OSError) -> None:
        raise error

    return [(folder, files) for folder, _, files in os.walk(directory, onerror=fail)]


def _load(path: str) -> dict[str, Any]:
    with opened(path) as file, reading(f"{os.path.basename(path)} cannot be read"):
        found: dict[str, Any] = json.load(file)
        found.keys()
        return found

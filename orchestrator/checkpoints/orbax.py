"""Orbax: a directory for each step, with a directory for each item in it, and the arrays in OCDBT or as zarr.

A save is finished when Orbax has taken `.orbax-checkpoint-tmp` off the directory's name, or, where it could not rename,
when `commit_success.txt` is in it. That mark decides: the arrays are not read, and so the checkpoint is never called
verified.
"""

from __future__ import annotations

import json
import os
import stat

from orchestrator.checkpoints import names
from orchestrator.checkpoints.torn import Torn, opened, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from orchestrator.both.within import Tree

_STEP_METADATA, _ITEM_METADATA, _MARK = "_CHECKPOINT_METADATA", "_METADATA", "orbax.checkpoint"
_COMMITTED = "commit_success.txt"
_MANIFEST, _OF_ONE_PROCESS = "manifest.ocdbt", "ocdbt.process_"
_ZARR, _ZARR3 = ".zarray", "zarr.json"
_ARRAYS = "array_metadatas"
_JSON_BYTES_MAX = 64 << 20
_AS_JSON = (_ITEM_METADATA, "_sharding", _ZARR, _ZARR3)


def is_one(tree: Tree, folder: str, folders: Sequence[str], files: Sequence[str]) -> bool:
    """Return whether a directory is a checkpoint of Orbax. Older ones are known by their items alone."""
    own = (_STEP_METADATA, _MARK, _ITEM_METADATA, _MANIFEST)
    if any(name in files for name in own):
        return True
    items = (os.path.join(folder, name, file) for name in folders for file in (_ITEM_METADATA, _MANIFEST))
    return names.is_step_folder(os.path.basename(folder)) and any(
        tree.kind(item) == stat.S_IFREG for item in items
    )


def check_structure(tree: Tree, directory: str) -> None:
    """Look whether the save was finished, and read the metadata. Torn."""
    _check_commit(tree, directory)
    for folder, folders, files in tree.walk(directory):
        for name in files:
            if name in _AS_JSON or os.path.basename(folder) == _ARRAYS:
                _load(tree, os.path.join(folder, name))
        # Each process writes a database of its own; the one that Orbax reads joins them
        parts = [name for name in folders + files if name.startswith(_OF_ONE_PROCESS)]
        if parts and _MANIFEST not in files:
            raise Torn(f"{os.path.basename(folder)} has no {_MANIFEST}: Orbax has not joined {parts[0]}")


def read_step(tree: Tree, directory: str) -> int | None:
    """Return None: the step is the name of the directory."""
    check_structure(tree, directory)
    return None


def read(tree: Tree, directory: str) -> int | None:
    """Do as `read_step`: what is in the arrays cannot be checked without Orbax."""
    return read_step(tree, directory)


def _check_commit(tree: Tree, directory: str) -> None:
    path = os.path.join(directory, _STEP_METADATA)
    if not tree.has(path):
        return
    metadata = _load(tree, path)
    if "commit_timestamp_nsecs" not in metadata or tree.has(os.path.join(directory, _COMMITTED)):
        return
    if metadata["commit_timestamp_nsecs"] is None:
        raise Torn(f"Orbax has not committed it: it has no {_COMMITTED}")


def _load(tree: Tree, path: str) -> dict[str, Any]:
    with opened(tree, path) as file, reading(f"{os.path.basename(path)} cannot be read"):
        content: dict[str, Any] = json.loads(file.read(_JSON_BYTES_MAX))
        content.keys()
        return content

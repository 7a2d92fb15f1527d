"""Copies checkpoints file by file: with their times, as hard links where that is safe, and never through a symlink."""

from __future__ import annotations

import os
import shutil

from orchestrator.checkpoints import places
from orchestrator.checkpoints.places import MARKER, is_full, no_space
from orchestrator.checkpoints.torn import Torn
from orchestrator.checkpoints.units import ORBAX, TENSORFLOW, Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DATA_FILE_LETTERS = 32


def copied(unit: Unit, source: str, building: str, *, link: bool = False) -> Unit:
    """Copy a unit into `building`, and return the copy.

    Args:
        unit: what to copy.
        source: the directory that contains it.
        building: the directory that will contain the copy.
        link: make hard links where possible, since nobody writes the files again.

    Raises:
        Torn: the unit was removed meanwhile; or written, where reading the copy would not show it.
    """
    unit.settle(building)
    for path in unit.paths:
        try:
            place(path, within(path, source, building), link=link or is_linked(path, unit.kind))
        except FileNotFoundError as e:
            raise Torn(f"{os.path.basename(path)} went away") from e
    # TensorFlow removes its oldest while it is copied, and a copy that reads whole is as good as any.
    if unit.kind != TENSORFLOW and not unit.is_unchanged():
        raise Torn("it was written, or removed, while it was copied")
    return unit.moved(source, building)


def drop(unit: Unit, source: str, building: str) -> None:
    """Remove a partial copy, and directories that are then empty, since a script may interpret their names."""
    for path in unit.paths:
        copy = within(path, source, building)
        if os.path.lexists(copy):
            os.unlink(copy)
        folder = os.path.dirname(copy)
        while folder != building and os.path.isdir(folder) and not os.listdir(folder):
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def copy_others(source: str, others: list[str], building: str, rejected: list[dict[str, str]]) -> None:
    for path in others:
        if os.path.basename(path) == MARKER:
            continue
        try:
            place(path, within(path, source, building))
        except FileNotFoundError:
            rejected.append({"path": path, "why": "it went away"})


def copy_link(path: str, source: str, target: str) -> None:
    """Make the same symbolic link in a copy if its target is in the copy."""
    copy = within(path, source, target)
    leads_to = os.path.realpath(os.path.join(os.path.dirname(copy), os.readlink(path)))
    inside = os.path.join(os.path.realpath(target), "")
    if leads_to.startswith(inside) and os.path.exists(leads_to) and not os.path.lexists(copy):
        os.symlink(os.readlink(path), copy)


def copy(source: str, target: str) -> dict[str, Any]:
    """Copy a seeded directory to `target`, a task's own checkpoint directory. Do nothing if that was done before."""
    if os.path.exists(os.path.join(target, MARKER)):
        return {"files": 0, "bytes": 0}
    try:
        return _copy(source, target)
    except OSError as e:
        # Empty a directory that holds half a checkpoint. The directory itself stays, since others made it.
        for name in places.names_in(target):
            path = os.path.join(target, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        if is_full(e):
            sizes = [
                size(os.path.join(folder, name)) for folder, _, names in os.walk(source) for name in names
            ]
            raise no_space(e, target, sum(sizes)) from e
        raise


def _copy(source: str, target: str) -> dict[str, Any]:
    files = total = 0
    marker, links = None, []
    for folder, folders, names in os.walk(source):
        links += [path for name in folders + names if os.path.islink(path := os.path.join(folder, name))]
        os.makedirs(os.path.join(target, os.path.relpath(folder, source)), exist_ok=True)
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                continue
            if name == MARKER and folder == source:
                marker = path
                continue
            place(path, within(path, source, target), link=is_linked(path, TENSORFLOW))
            files += 1
            total += os.lstat(path).st_size
    for link in links:
        copy_link(link, source, target)
    if marker:
        place(marker, os.path.join(target, MARKER))  # last, because it says that the rest is complete
    return {"files": files, "bytes": total}


def place(source: str, target: str, *, link: bool = False) -> None:
    """Copy a file with its times, or make a hard link where that is wanted and possible."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.lexists(target):
        os.unlink(target)
    if link:
        try:
            os.link(source, target, follow_symlinks=False)
            return
        except FileNotFoundError:
            raise
        except OSError:
            pass  # the target is on another file system, or the file system has no links
    shutil.copy2(source, target, follow_symlinks=False)


def is_linked(path: str, kind: str) -> bool:
    """Return whether a hard link is as good as a copy.

    TensorFlow replaces data shards by rename, and Orbax writes a data file once, under a random name. TensorFlow's
    index and HDF5 files are rewritten in place, so through a link a left-over process would write into the new
    generation's file.
    """
    folder, name = os.path.split(path)
    if kind == ORBAX:
        return os.path.basename(folder) == "d" and len(name) == _DATA_FILE_LETTERS
    return kind == TENSORFLOW and ".data-" in name


def emptied(directory: str) -> None:
    if os.path.lexists(directory):
        shutil.rmtree(directory)
    os.makedirs(directory)


def within(path: str, source: str, building: str) -> str:
    return os.path.join(building, os.path.relpath(path, source))


def size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0

"""Copies checkpoints file by file: with their times, as hard links where that is safe, and never through a symlink."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack

from orchestrator.both.backup_file import is_ours
from orchestrator.both.within import Tree
from orchestrator.checkpoints import places
from orchestrator.checkpoints.places import MARKER, SeedError, is_full, no_space
from orchestrator.checkpoints.torn import Torn
from orchestrator.checkpoints.units import GONE, ORBAX, TENSORFLOW, Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COPIES = 4
"""How often a checkpoint is copied that its writer replaces meanwhile."""

_DATA_FILE_LETTERS = 32

_REPLACED = (*GONE, errno.ELOOP, errno.EINVAL)
"""The errors of a file that was removed meanwhile, or has become a link, a pipe or the like."""


def copied(unit: Unit, source: str, building: Tree, *, link: bool = False) -> Unit:
    """Copy a unit as it is now: it may have been replaced since it was found, and be replaced meanwhile.

    A task saves on while it is looked for, and so does a zombie on a host that is cut off. Raises as `copied_once`.
    """
    for _ in range(_COPIES - 1):
        try:
            return copied_once(unit, source, building, link=link)
        except Torn:
            now = unit.found_again()
            if now.is_same(unit) or not unit.is_verified:
                raise
            unit = now
    return copied_once(unit, source, building, link=link)


def copied_once(unit: Unit, source: str, building: Tree, *, link: bool = False) -> Unit:
    """Copy a unit into `building` if it is as it was when it was found, and return the copy.

    Args:
        unit: what to copy.
        source: the directory that contains it.
        building: the directory that will contain the copy.
        link: make hard links where possible, since nobody writes the files again.

    Raises:
        Torn: the unit was removed meanwhile; or written, where reading the copy would not show it.
    """
    unit.settle(building.path)
    for path in unit.paths:
        target = os.path.relpath(path, source)
        try:
            place(unit.tree, path, building, target, link=link or is_linked(path, unit.kind))
        except OSError as e:
            if e.errno in _REPLACED:
                raise Torn(f"{os.path.basename(path)} went away") from e
            raise
    # TensorFlow removes its oldest while it is copied, and a copy that reads whole is as good as any.
    if unit.kind != TENSORFLOW and not unit.is_unchanged():
        raise Torn("it was written, or removed, while it was copied")
    return unit.moved(source, building)


def drop(unit: Unit, source: str, building: Tree) -> None:
    """Remove a partial copy, and directories that are then empty, since a script may interpret their names."""
    for path in unit.paths:
        copy = os.path.relpath(path, source)
        building.remove(copy)
        while (copy := os.path.dirname(copy)) and not building.names(copy):
            building.remove(copy)


def copy_others(
    tree: Tree, source: str, others: list[str], building: Tree, rejected: list[dict[str, str]]
) -> None:
    for path in others:
        if os.path.basename(path) == MARKER:
            continue
        try:
            place(tree, path, building, os.path.relpath(path, source))
        except OSError as e:
            if e.errno not in _REPLACED:
                raise
            rejected.append({"path": path, "why": "it went away"})


def copy_link(tree: Tree, path: str, target: Tree, copy: str) -> None:
    """Make the same symbolic link in a copy if its target is in the copy."""
    if _leads_to(tree, path, target, copy) is not None and not target.has(copy):
        target.symlink(tree.link_text(path), copy)


def copy_linked(tree: Tree, path: str, target: Tree, copy: str) -> None:
    """Give the file that a link leads to its name too, in a copy that is sent to hosts: only files are."""
    leads_to = _leads_to(tree, path, target, copy)
    if leads_to is not None and target.kind(leads_to) == stat.S_IFREG and not target.has(copy):
        place(target, leads_to, target, copy, link=True)


def _leads_to(tree: Tree, path: str, target: Tree, copy: str) -> str | None:
    """Return the path in `target` to which a link leads from its place `copy` there; None if it leads elsewhere.

    It may go up first and then down, through directories alone: so no link leads out by way of another one.
    """
    text = tree.link_text(path)
    leads_to = os.path.normpath(os.path.join(os.path.dirname(copy), text))
    try:
        is_inside = ".." not in text.lstrip("./").split("/") and leads_to != "." and target.has(leads_to)
    except OSError:
        return None
    return leads_to if is_inside else None


def copy(source: str, target: str) -> dict[str, Any]:
    """Copy a seeded directory to `target`, a task's own checkpoint directory. Do nothing if that was done before.

    Raises SeedError if it is not there whole: a task must never begin without what its peers were given.
    """
    above, name = os.path.split(source)
    with ExitStack() as opened:
        try:
            given = opened.enter_context(opened.enter_context(Tree(above)).below(name))
            is_whole = given.has(MARKER)
        except (FileNotFoundError, NotADirectoryError):
            is_whole = False
        if not is_whole:
            raise SeedError(
                "no-seed", f"{source}, which the generation was given, is not there whole on this host"
            )
        mine = opened.enter_context(places.opened(target))
        step = (given.read_object(MARKER) or {}).get("global_step")
        if mine.has(MARKER):
            return {"files": 0, "bytes": 0, "global_step": step}
        try:
            return {**_copy(given, mine), "global_step": step}
        except OSError as e:
            # It may hold half a checkpoint. The directory itself stays, since others made it.
            emptied(mine)
            if is_full(e):
                files = [os.path.join(folder, name) for folder, _, names in given.walk() for name in names]
                raise no_space(e, target, sum(size(given, path) for path in files)) from e
            raise


def _copy(given: Tree, mine: Tree) -> dict[str, Any]:
    total = 0
    files: list[str] = []
    links: list[str] = []
    for folder, _, names in given.walk():
        mine.make(folder)
        for name in names:
            path = os.path.join(folder, name)
            is_link = given.kind(path) == stat.S_IFLNK
            (links if is_link else files).append(path)
    for path in files:
        if path != MARKER:
            place(given, path, mine, path, link=is_linked(path, TENSORFLOW))
            total += mine.stat(path).st_size
    for link in links:
        copy_link(given, link, mine, link)
    given.copy(MARKER, mine, MARKER)  # last, because it says that the rest is complete
    return {"files": len(files) - 1, "bytes": total}


def place(tree: Tree, path: str, to: Tree, target: str, *, link: bool = False) -> None:
    """Copy a file with its times, or make a hard link where that is wanted and possible."""
    if link:
        try:
            to.remove(target)
            tree.link(path, to, target)
            return
        except FileNotFoundError:
            raise
        except OSError:
            pass  # the target is on another file system, or the file system has no links
    tree.copy(path, to, target)


def is_linked(path: str, kind: str) -> bool:
    """Return whether a hard link is as good as a copy.

    TensorFlow replaces data shards by rename, and Orbax writes a data file once, under a random name. TensorFlow's
    index and HDF5 files are rewritten in place, so through a link a left-over process would write into the new
    generation's file. Files of ours are always made anew, and renamed into place.
    """
    if is_ours(path):
        return True
    folder, name = os.path.split(path)
    if kind == ORBAX:
        return os.path.basename(folder) == "d" and len(name) == _DATA_FILE_LETTERS
    return kind == TENSORFLOW and ".data-" in name


def emptied(building: Tree) -> None:
    for name in building.names():
        building.remove(name)


def size(tree: Tree, path: str) -> int:
    try:
        return tree.stat(path).st_size
    except OSError:
        return 0

"""The working directory of a task on a host, in which its script starts. Runs on hosts.

runs/<run>/tasks/worker-0/work/       a copy of the pushed code, and what the script writes beside it
runs/<run>/tasks/worker-0/work.json   what was copied: the tree, the size and time of each file, and the boot's id
runs/<run>/tasks/worker-1/work.doubles   paths below `work` of files that the chief has too

All generations of a task share it, so a script finds what it has written before a restart. The tree itself is not the
working directory: a push removes trees, and two tasks of one host would write into each other's files.
"""

from __future__ import annotations

import os
import stat

from orchestrator.both import durable, process
from orchestrator.both.hostdir import task_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Stamps = dict[str, list[int]]
    """(size, time of the last change in ns) by path."""

_NOT_LEFT = ("__pycache__",)
"""Directories that Python itself writes."""


def work_dir(host_dir: str, run: str, task: str) -> str:
    """Return the working directory of a task, whether it exists or not."""
    return os.path.join(task_dir(host_dir, run, task), "work")


def prepare(host_dir: str, run: str, task: str, tree: str) -> str:
    """Put the code of `tree` into the task's working directory, if it is not there yet. Return the directory.

    What the script has written stays. Pushed files that the script has changed stay too, until other code is pushed.
    """
    directory = work_dir(host_dir, run, task)
    known = durable.read_object(_record(directory)) or {}
    pushed: Stamps = known.get("files") or {}
    if known.get("tree") == os.path.basename(tree) and os.path.isdir(directory):
        # Nothing of it is synced: after a boot, even what the script has not changed may be torn.
        boots = {known.get("boot"), process.boot_id()}
        again = [name for name, stamp in pushed.items() if _may_be_torn(f"{directory}/{name}", stamp, boots)]
    else:
        os.stat(tree)
        again = [path for path, _ in regular(tree, links=True)]
        for where, below, _ in os.walk(tree):  # scripts write into directories that are empty
            for path in below:
                if not os.path.islink(os.path.join(where, path)):
                    os.makedirs(os.path.join(directory, os.path.relpath(where, tree), path), exist_ok=True)
        # Remove the files of the code before, which the new code no longer has, unless the script has changed them
        new = set(again)
        for path, stamp in pushed.items():
            whole = os.path.join(directory, path)
            try:
                status = os.lstat(whole)
                if path not in new and [status.st_size, status.st_mtime_ns] == stamp:
                    os.unlink(whole)
            except OSError:
                continue
        pushed = {}
    if again or not known:
        for path in again:
            pushed[path] = _copy(os.path.join(tree, path), os.path.join(directory, path))
        os.makedirs(directory, mode=0o700, exist_ok=True)
        # Where a power cut loses it, the code is copied again.
        record = {"tree": os.path.basename(tree), "files": pushed, "boot": process.boot_id()}
        durable.write_json(_record(directory), record, durable=False)
    return directory


def _may_be_torn(path: str, stamp: list[int], boots: set[str | None]) -> bool:
    """Return whether a power cut may have left a part of a pushed file. A script may remove or replace it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_as_pushed = len(boots) > 1 and status.st_mtime_ns == stamp[1]
    return stamp[0] > 0 and stat.S_ISREG(status.st_mode) and (status.st_size == 0 or is_as_pushed)


def left(host_dir: str, run: str, task: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield (path, status) of each file that the script has written or changed; None for one that is not regular."""
    directory = work_dir(host_dir, run, task)
    pushed: Stamps = (durable.read_object(_record(directory)) or {}).get("files") or {}
    # Files that the chief has too need not be fetched from here: `transparent` lists those that Keras saves
    try:
        with open(f"{directory}.doubles", encoding="utf-8", errors="surrogateescape") as lines:
            doubles = set(lines.read().splitlines())
    except OSError:
        doubles = set()
    for path, status in regular(directory, others=True):
        if path in doubles or not doubles.isdisjoint(_above(path)):
            continue
        if status is None and path in pushed:
            continue  # a link of the code
        if status is None or pushed.get(path) != [status.st_size, status.st_mtime_ns]:
            yield path, status


def _above(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _record(directory: str) -> str:
    return f"{directory}.json"


def regular(
    directory: str, *, others: bool = False, links: bool = False
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield (path below the directory, status) of the regular files; with `others`, (path, None) of links and such.

    With `links`, yield links too, those to directories among them.
    """
    for where, below, names in os.walk(directory):
        if links:
            names += [name for name in below if os.path.islink(os.path.join(where, name))]
        below[:] = sorted(name for name in below if name not in _NOT_LEFT)
        for name in sorted(names):
            whole = os.path.join(where, name)
            try:
                status = os.lstat(whole)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) or (links and stat.S_ISLNK(status.st_mode)):
                yield os.path.relpath(whole, directory), status
            elif others:
                yield os.path.relpath(whole, directory), None


def _copy(source: str, target: str) -> list[int]:
    """Copy a file of the code, or a link. No file is linked to the tree: a script may change its files.

    Where the file system can, the copy takes no room until one of them is changed.
    """
    import shutil

    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    fresh = f"{target}.{os.getpid()}.tmp"
    durable.remove(fresh)
    is_cloned = False
    try:
        if not os.path.islink(source):
            flags = os.O_RDONLY | os.O_NOFOLLOW
            with open(os.open(source, flags), "rb") as old, open(fresh, "wb") as new:
                is_cloned = durable.clone(old.fileno(), new.fileno())
        if not is_cloned:
            shutil.copyfile(source, fresh, follow_symlinks=False)
        shutil.copymode(source, fresh, follow_symlinks=False)
        durable.place(fresh, target, durable=False)  # what a power cut tears is copied again
    except OSError:
        durable.remove(fresh)
        raise
    status = os.lstat(target)
    return [status.st_size, status.st_mtime_ns]

"""Power cuts: which states a disk may be in after one, at each moment of what is done below a directory.

A file's content is on the disk once that file was synced. Names are there in the order in which they were made, and all
of them once anything was synced, as in the journals of ext4 and XFS. What was not synced may be there, too, wholly or
in part. So each moment before a change gives five disks: the names of the last sync, and all names, with of each file
only what was synced; and all names with half of the rest, with zeros in its place, or with half of the rest of all
files but the newest: what says that the others are whole may be there before they are. SQLite syncs by itself and is
not seen here.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Content = bytes | str | None
"""Of a file its bytes, of a link its text, and None of a directory."""

_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
"""What Python's audit tells before it happens. Opening is told, too, and is looked at where a file may be changed."""

_watching: list[_Recorder] = []


@dataclass(frozen=True)
class Cut:
    """The power is cut at one moment."""

    done: int
    """How many steps were done, and so acknowledged."""
    before: str
    """The change that did not happen any more; `the end` after the last."""
    how: str
    """What of that which was not synced is there."""
    disk: Mapping[str, Content]

    def plug_in(self, directory: Path) -> Path:
        """Write the disk into a fresh directory, and return it."""
        where = directory / f"after-{len(os.listdir(directory)) if directory.is_dir() else 0}"
        where.mkdir(parents=True)
        for name, content in sorted(self.disk.items()):
            path = where / name
            if content is None:
                path.mkdir(mode=0o700, exist_ok=True)
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)
        return where


def cuts(root: Path, *steps: Callable[[], Any]) -> list[Cut]:
    """Do the steps below a directory that is on the disk, and return each cut that could have come meanwhile."""
    recorder = _Recorder(root)
    with recorder.watching():
        for step in steps:
            step()
            recorder.done += 1
        recorder.moment("the end")
    assert recorder.syncs, "nothing was synced, so nothing of this is a promise"
    return recorder.cuts()


class _Recorder:
    """What of a directory is on the disk, by inode. Each inode that was seen is held open, so none is used twice."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.done = 0
        self.syncs = 0
        self._names: dict[str, int | None] = {}
        self._contents: dict[int, bytes] = {}
        self._held: dict[int, int] = {}
        self._seen: dict[tuple[int, frozenset[tuple[str, Content]]], tuple[str, str]] = {}
        self._is_looking = False
        self._thread = threading.get_ident()
        self.sync_all()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See each sync and each change of names, until the end."""
        fsync, sync = os.fsync, os.sync

        def fsynced(fd: Any) -> None:
            self.moment("a sync")
            fsync(fd)
            self.synced(fd if isinstance(fd, int) else fd.fileno())

        def synced() -> None:
            self.syncs += 1
            self.sync_all()

        _hear_audit()
        os.fsync, os.sync = fsynced, synced
        _watching.append(self)
        try:
            yield
        finally:
            _watching.remove(self)
            os.fsync, os.sync = fsync, sync
            for handle in self._held.values():
                os.close(handle)

    def synced(self, handle: int) -> None:
        """Take what is behind an open file for being on the disk."""
        self.syncs += 1
        with self._looking():
            self._names = dict(self._walk(self.root))
            about = os.fstat(handle)
            if stat.S_ISREG(about.st_mode):
                self._contents[about.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def sync_all(self) -> None:
        """Take all that is there for being on the disk."""
        with self._looking():
            self._names = dict(self._walk(self.root))
        for ino in filter(None, self._names.values()):
            if isinstance(content := self._held_of(ino), bytes):
                self._contents[ino] = content

    def heard(self, event: str, args: Sequence[Any]) -> None:
        """Look at the disk before a change of names, or before a file is opened to be written."""
        if self._is_looking or (event == "open" and not _may_write(args)):
            return
        with suppress(FileNotFoundError):  # another thread removes what is looked at
            self.moment(f"{event} {args[0]}")

    def moment(self, what: str) -> None:
        """Note the states that the disk may be in now."""
        with self._looking():
            now = dict(self._walk(self.root))
        self._note(
            what,
            "the names of the last sync",
            self._disk(self._names, lambda ino, _: self._contents.get(ino, b"")),
        )
        self._note(what, "all names", self._disk(now, lambda ino, _: self._contents.get(ino, b"")))
        self._note(what, "half", self._disk(now, self._half))
        self._note(what, "zeros", self._disk(now, self._zeros))
        newest = max(filter(None, now.values()), key=self._changed_at, default=None)
        self._note(
            what,
            "half but for the newest",
            self._disk(now, lambda ino, held: held if ino == newest else self._half(ino, held)),
        )

    def cuts(self) -> list[Cut]:
        """Return each state once."""
        return [Cut(done, before, how, dict(disk)) for (done, disk), (before, how) in self._seen.items()]

    def _note(self, what: str, how: str, disk: dict[str, Content]) -> None:
        self._seen.setdefault((self.done, frozenset(disk.items())), (what, how))

    def _disk(
        self, tree: Mapping[str, int | None], content: Callable[[int, bytes], bytes]
    ) -> dict[str, Content]:
        found: dict[str, Content] = {}
        for name, ino in tree.items():
            held = None if ino is None else self._held_of(ino)
            if isinstance(held, bytes) and ino is not None:
                found[name] = content(ino, held)
            else:
                found[name] = held
        return found

    def _held_of(self, ino: int) -> Content:
        handle = self._held[ino]
        mode = os.fstat(handle).st_mode
        if stat.S_ISLNK(mode):
            return os.readlink("", dir_fd=handle)
        with self._looking():
            return Path(f"/proc/self/fd/{handle}").read_bytes() if stat.S_ISREG(mode) else b""

    def _changed_at(self, ino: int) -> int:
        return os.fstat(self._held[ino]).st_mtime_ns

    def _half(self, ino: int, now: bytes) -> bytes:
        synced = self._contents.get(ino, b"")
        return synced if now == synced else now[: max(len(synced), len(now) // 2)]

    def _zeros(self, ino: int, now: bytes) -> bytes:
        synced = self._contents.get(ino, b"")
        return synced if now == synced else synced[: len(now)].ljust(len(now), b"\0")

    def _walk(self, folder: str, below: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the name of all that is there now with its inode; None for a directory."""
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                ino = os.lstat(os.path.join(folder, name)).st_ino
                if ino not in self._held:
                    self._held[ino] = os.open(os.path.join(folder, name), os.O_PATH | os.O_NOFOLLOW)
                is_folder = stat.S_ISDIR(os.fstat(self._held[ino]).st_mode)
                yield below + name, None if is_folder else ino
                if is_folder:
                    yield from self._walk(f"/proc/self/fd/{self._held[ino]}", f"{below}{name}/")

    @contextmanager
    def _looking(self) -> Iterator[None]:
        before, self._is_looking = self._is_looking, True
        try:
            yield
        finally:
            self._is_looking = before


def _may_write(args: Sequence[Any]) -> bool:
    flags = args[2]
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))


_is_heard = False


def _hear_audit() -> None:
    """Add the hook, which Python never removes: with nobody watching it does nothing."""
    global _is_heard
    if not _is_heard:
        _is_heard = True
        sys.addaudithook(_audit)


def _audit(event: str, args: Sequence[Any]) -> None:
    if _watching and (event == "open" or event in _CHANGES):
        for recorder in _watching:
            recorder.heard(event, args)

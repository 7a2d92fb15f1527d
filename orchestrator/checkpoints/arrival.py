"""A snapshot that comes to a host, chunk by chunk: each is written to its place in `.orch/safe/<digest>.tmp/`.

Only a chunk that has its SHA-256 is written, so two transfers of one snapshot at the same time write the same bytes.
Nothing on the disk says which chunks are there: an agent remembers those that it received, and reads all others, as
after a broken connection or a power cut.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager, suppress

from orchestrator.both.hostdir import HostFault
from orchestrator.both.within import Tree
from orchestrator.checkpoints import places
from orchestrator.checkpoints.places import MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from orchestrator.protocol.orders.checkpoints import Manifest

TAKEN, WHOLE, DAMAGED = 0, 1, 2
"""The outcome of a part: it is kept, the chunk that ends with it is in its place, or that chunk was dropped."""

ABANDONED_S = 86400.0
"""An unfinished snapshot is removed once its transfer has not continued for this long."""

_WRITE_BYTES = 512 << 10
"""For more at once, file systems take large pieces of memory, which a virtual machine often has to ask its host for."""

_IN_THE_WAY = (errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.EMLINK)
"""The errors of a link, of what is no directory or no regular file, and of a file with a second name."""

Place = tuple[str, str, int, int]
"""(directory, file in it, offset, bytes) of a chunk."""


class Arrival:
    """The state of a snapshot that is being received for a run. The manifest has been checked."""

    def __init__(self, manifest: Manifest, building: str) -> None:
        self.manifest = manifest
        self.building = building
        self._token = os.urandom(8).hex()
        """Written into the directory that we make. A directory without it has replaced ours."""
        self._places: dict[str, Place] = {}
        """The place of each chunk; the first one if it occurs more than once."""
        for chunk, place in self._all_places():
            self._places.setdefault(chunk, place)
        self._whole: set[str] = set()

    def place(self, chunk: str) -> Place | None:
        """Return where a chunk belongs. None: the snapshot has no such chunk."""
        return self._places.get(chunk)

    def note_missing(self, chunks: Sequence[str]) -> None:
        """Record that exactly these chunks are missing."""
        self._whole = self._places.keys() - set(chunks)

    def note_written(self, chunk: str) -> None:
        """Record that a chunk has been written."""
        self._whole.add(chunk)

    def missing(self) -> list[str]:
        """Return the chunks that are not in place. Chunks of unknown state are read and compared."""
        known = self._whole if self._is_ours() else set()
        return [
            chunk for chunk, place in self._places.items() if chunk not in known and not _is_at(place, chunk)
        ]

    def prepare(self) -> None:
        """Make the directories. Chunks are written only where these are."""
        if self._is_ours():
            return
        with _tree(self.building) as tree:
            for name, _, _, _ in self.manifest["files"]:
                tree.make(os.path.dirname(os.path.join(self.building, name)))
            tree.write_json(os.path.join(self.building, MARKER), {"token": self._token}, mode=0o666)

    def complete(self) -> None:
        """Fill the other places of chunks that occur more than once, and give the files their sizes and times."""
        for chunk, place in self._all_places():
            if place != self._places[chunk]:
                _write(place, memoryview(_read(self._places[chunk])))
        with _tree(self.building) as tree:
            for name, size, mtime_ns, _ in self.manifest["files"]:
                path = os.path.join(self.building, name)
                handle = _opened(tree, self.building, name)
                os.ftruncate(handle, size)
                os.close(handle)
                tree.touch(path, (mtime_ns, mtime_ns))

    def _is_ours(self) -> bool:
        try:
            with _tree(self.building) as tree:
                return (places.marker_of(tree, self.building) or {}).get("token") == self._token
        except FileNotFoundError:
            return False

    def _all_places(self) -> Iterator[tuple[str, Place]]:
        whole = self.manifest["piece_bytes"]
        for name, size, _, made_of in self.manifest["files"]:
            for number, chunk in enumerate(made_of):
                yield chunk, (self.building, name, number * whole, min(whole, size - number * whole))


class Writer:
    """Receives parts of chunks, and writes a chunk once it is complete."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, str, int], _Chunk] = {}
        self._spare = memoryview(b"")
        """The memory of the last chunk that was written: new memory costs more than the copy."""

    def add(
        self,
        room: memoryview,
        length: int,
        place: Sequence[Any],
        needed: int,
        chunk: str,
        offset: int,
        last: bool,
    ) -> int:
        """Add a part to its chunk, and return the outcome: TAKEN, WHOLE or DAMAGED.

        Args:
            room: begins with the part.
            length: the bytes of the part.
            place: where the chunk belongs.
            needed: the bytes of the snapshot, for whoever must make room.
            chunk: the chunk's SHA-256.
            offset: the part's, in the chunk.
            last: whether the chunk ends with it.

        Raises:
            SeedError: `no-space`. The unfinished snapshot is removed, since others need the disk.
            HostFault: `offset`, where the part does not follow the one before, or the directory has gone.
        """
        directory, name, position, whole = place
        key = (directory, name, position)
        if offset == 0:
            spare, self._spare = self._spare, memoryview(b"")
            self._under_way[key] = _Chunk(spare if len(spare) >= whole else memoryview(bytearray(whole)))
        pending = self._under_way.get(key)
        if pending is None or pending.bytes != offset:
            raise HostFault("offset", f"a part at {offset} does not follow what is here", "begin again at 0")
        pending.add(room[:length])
        if not last and pending.bytes < whole:
            return TAKEN
        del self._under_way[key]
        try:
            if pending.bytes != whole or pending.sha256.hexdigest() != chunk:
                return DAMAGED
            self._write((directory, name, position, whole), pending.memory, needed)
        finally:
            self._spare = pending.memory
        return WHOLE

    def _write(self, place: Place, data: memoryview, needed: int) -> None:
        directory, _, _, length = place
        try:
            _write(place, data[:length])
        except FileNotFoundError as e:
            raise HostFault("offset", f"{directory} has gone", "begin again at 0") from e
        except OSError as e:
            if not places.is_full(e):
                raise
            refused = places.no_space(e, os.path.dirname(directory), needed)
            with suppress(OSError), _tree(directory) as tree:
                tree.remove(directory)
            raise refused from e


class _Chunk:
    """The received part of a chunk, in memory of at least the chunk's size."""

    def __init__(self, memory: memoryview) -> None:
        from hashlib import sha256

        self.memory = memory
        self.bytes = 0
        """The number of received bytes. If they exceed the memory, the chunk is damaged."""
        self.sha256 = sha256()

    def add(self, data: memoryview) -> None:
        begin, self.bytes = self.bytes, self.bytes + len(data)
        if self.bytes <= len(self.memory):
            self.memory[begin : self.bytes] = data
            self.sha256.update(data)


def remove_abandoned(tree: Tree) -> None:
    """Remove unfinished snapshots whose transfer was given up."""
    for name in tree.names(places.SAFE):
        path = f"{places.SAFE}/{name}"
        if name.endswith(".tmp") and time.time() - tree.stat(path).st_mtime > ABANDONED_S:
            with suppress(OSError):
                tree.remove(path)


@contextmanager
def _tree(building: str) -> Iterator[Tree]:
    """Open the checkpoint directory in which a snapshot is received."""
    with Tree(building.removesuffix(f"/{places.SAFE}/{os.path.basename(building)}")) as tree:
        yield tree


def _is_at(place: Place, chunk: str) -> bool:
    from hashlib import sha256

    try:
        data = _read(place)
    except OSError as e:
        if e.errno not in (errno.ENOENT, *_IN_THE_WAY):
            raise
        return False
    return len(data) == place[3] and sha256(data).hexdigest() == chunk


def _read(place: Place) -> bytes:
    directory, name, offset, length = place
    with _tree(directory) as tree, tree.reading(os.path.join(directory, name)) as file:
        file.seek(offset)
        return file.read(length)


def _write(place: Place, data: memoryview) -> None:
    directory, name, offset, _ = place
    with _tree(directory) as tree:
        handle = _opened(tree, directory, name)
    try:
        os.lseek(handle, offset, os.SEEK_SET)
        while data:
            data = data[os.write(handle, data[:_WRITE_BYTES]) :]
    finally:
        os.close(handle)


def _opened(tree: Tree, building: str, name: str) -> int:
    """Open a file to be written."""
    path = os.path.join(building, name)
    try:
        return tree.opened(path, os.O_WRONLY | os.O_CREAT)
    except OSError as e:
        if e.errno not in _IN_THE_WAY:
            raise
        problem = f"a link or a file is in its path; remove {building}, and it is sent again"
        raise OSError(e.errno, problem, path) from e

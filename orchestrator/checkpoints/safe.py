"""Snapshots of checkpoints, for the transfer between hosts that share no directory: `.orch/safe/<digest>/`.

A snapshot is a copy that no script touches, so sending it may take minutes while the training goes on. It holds a
checkpoint, and the newest of each other series that the script saves: of other fits, of other managers. Its name is
the digest of its content (each file as the SHA-256 of its chunks), so it is the same on every host. A transfer that
broke off continues with the next chunk (`arrival`).
"""

from __future__ import annotations

import contextlib
import json
import os

from orchestrator.both.within import Tree
from orchestrator.checkpoints import copying, discovery, places, seed
from orchestrator.checkpoints.arrival import Arrival, remove_abandoned
from orchestrator.checkpoints.places import SeedError
from orchestrator.checkpoints.torn import Torn
from orchestrator.checkpoints.units import Unit
from orchestrator.protocol.paths import RelativePath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from queue import SimpleQueue
    from typing import Any

    from orchestrator.checkpoints.discovery import Contents
    from orchestrator.checkpoints.places import Need
    from orchestrator.protocol.orders.checkpoints import Manifest, Received

    FileEntry = tuple[RelativePath, int, int, list[str]]

CHUNK_BYTES = 8 << 20
"""The size of a chunk. A transfer that breaks off loses at most this much."""

HASHERS_MAX = 4
"""How many chunks of a snapshot are hashed at once, each on a core of its own."""

_READ_BYTES = 1 << 20

KEPT = 2
"""How many snapshots stay on a host: the one that the run resumed from, and the newest verified since."""


def snapshot(root: str, directory: str, path: str | None) -> Manifest:
    """Copy one checkpoint of a generation, and what belongs to it, into a snapshot, and return its manifest.

    Args:
        root: the checkpoint directory.
        directory: the generation's directory.
        path: the path of the unit, which the manifest tells of. None: the newest that reads whole.

    Raises:
        SeedError: the checkpoint was removed or overwritten meanwhile.
    """
    making = f"{places.SAFE}/{os.path.basename(directory)}.tmp"
    with places.locked(root) as tree, places.room_for(tree, making) as need:
        building = need.tree
        contents = discovery.find(tree, directory)
        rank = max((unit.rank for unit in contents.units), default=None)
        marker = places.marker_of(tree, directory) or {}
        for unit in contents.units:
            if unit.path != path if path else unit.rank != rank:
                continue
            copying.emptied(building)
            need.bytes = unit.bytes
            try:
                copy = copying.copied(unit, directory, building)
                copies = [copy, *_beside(unit, contents, need)]
                copying.copy_others(tree, directory, contents.others, building, [])
                for link in contents.links:
                    copying.copy_linked(tree, link, building, os.path.relpath(link, directory))
                seed.complete(building, copies)
                with _meanwhile(building.sync), _meanwhile(copy.read):
                    files = _files(building)
            except Torn:
                continue
            manifest = _manifest(files, copy, generation_of(directory), marker.get("by"))
            _keep(tree, building, manifest)
            return manifest
    raise SeedError(
        "went-away",
        f"{path or directory} went away, or was written over, while it was copied",
        "it is tried again",
    )


def _beside(chosen: Unit, contents: Contents, need: Need) -> list[Unit]:
    """Copy the newest that reads whole of each other series, without which a script would come back in part only.

    The script may have saved on in some of them since it saved the chosen one, so what is no later comes first.
    """
    families, copies = {chosen.family}, []

    def is_later(unit: Unit) -> bool:
        is_own = not unit.is_given
        return is_own and unit.saved_at > chosen.saved_at and unit.global_step != chosen.global_step

    for unit in sorted(contents.units, key=is_later):
        if unit.family in families:
            continue
        try:
            unit.check_structure()
            need.bytes += unit.bytes
            copy = copying.copied(unit, contents.top, need.tree)
            copy.read()
        except Torn:
            copying.drop(unit, contents.top, need.tree)
        else:
            families.add(unit.family)
            copies.append(copy)
    return copies


def arrival(root: str, manifest: Manifest) -> Arrival:
    """Return what is known of a snapshot of which nothing has come yet. Raises ValueError as `check` does."""
    check(manifest)
    return Arrival(manifest, f"{directory_of(root, manifest['digest'])}.tmp")


def receive(root: str, coming: Arrival) -> Received:
    """Put a snapshot in place whose chunks are there. While chunks are missing, only name them."""
    manifest = coming.manifest
    target = directory_of(root, manifest["digest"])
    with places.locked(root) as tree:
        if places.marker_of(tree, target) is not None:
            tree.touch(target)
            return {"missing": []}
        missing = coming.missing()
        if missing:
            coming.prepare()
            return {"missing": missing}
        with places.room_for(tree, coming.building) as need:
            need.bytes = manifest["bytes"]
            coming.complete()
            _keep(tree, need.tree, manifest)
    return {"missing": []}


def check(manifest: Manifest) -> None:
    """Check that no file of a snapshot lies outside its directory. The manifest comes from another, untrusted host.

    Raises:
        ValueError: a name would leave the directory, a chunk is not named by a SHA-256, or sizes contradict each other.
    """
    whole = manifest["piece_bytes"]
    lengths: dict[str, int] = {}
    for name, size, _, chunks in manifest["files"]:
        if whole < 1 or len(chunks) != -(-size // whole):
            raise ValueError(f"{name!r} has {size} bytes, and {len(chunks)} chunks of {whole} bytes")
        RelativePath(name)
        for number, chunk in enumerate(chunks):
            _check_digest(chunk)
            length = min(whole, size - number * whole)
            if lengths.setdefault(chunk, length) != length:
                raise ValueError(f"the chunk {chunk} has {length} bytes, and {lengths[chunk]} bytes")


def directory_of(root: str, digest: str) -> str:
    """Return the directory of a snapshot, whether it exists or not.

    Raises:
        ValueError: `digest` is not a SHA-256.
    """
    _check_digest(digest)
    return os.path.join(root, places.SAFE, digest)


def _check_digest(digest: str) -> None:
    if len(digest) != 64 or not all(letter in "0123456789abcdef" for letter in digest):
        raise ValueError(f"not a SHA-256: {digest[:80]!r}")


class ChunkReader:
    """Reads parts of snapshots. The last part's file stays open: to find it anew took as long as to read a part."""

    def __init__(self) -> None:
        self._where: tuple[str, str, str] | None = None
        self._descriptor = -1

    def __call__(
        self, room: memoryview, root: str, digest: str, name: str, offset: int, bytes_max: int
    ) -> int:
        """Read at most `bytes_max` bytes of a snapshot's file, from `offset`, into `room`. Return how many there were.

        Raises:
            ValueError: `digest` is not a SHA-256.
            OSError: there is no such file in the snapshot, or its name leads out of it.
        """
        if self._where != (root, digest, name):
            self.close()
            with Tree(root) as tree, tree.below(directory_of(root, digest)) as snapshot:
                self._descriptor = snapshot.opened(name)
            self._where = root, digest, name
        return os.preadv(self._descriptor, [room[:bytes_max]], offset)

    def close(self) -> None:
        """Close the file of the last part."""
        if self._where is not None:
            os.close(self._descriptor)
            self._where = None


def generation_of(directory: str) -> int | None:
    digits = os.path.basename(directory).removeprefix(places.PREFIX)
    return int(digits) if digits.isdecimal() else None


def _manifest(
    files: list[FileEntry], unit: Unit, generation: int | None, by: dict[str, Any] | None
) -> Manifest:
    """Return the manifest of a snapshot. Its digest covers names and content, but not times and owners."""
    from hashlib import sha256

    content = json.dumps([(name, size, made_of) for name, size, _, made_of in files])
    return {
        "digest": sha256(content.encode()).hexdigest(),
        "files": files,
        "piece_bytes": CHUNK_BYTES,
        "bytes": sum(size for _, size, _, _ in files),
        "generation": generation,
        "global_step": unit.global_step,
        "saved_at": unit.saved_at,
        "by": by,
    }


def _files(tree: Tree) -> list[FileEntry]:
    """Return name, bytes, time and chunks of each file of a tree, sorted by name. Raises Torn as `_sum` does."""
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    rooms: SimpleQueue[memoryview] = SimpleQueue()
    count = min(HASHERS_MAX, os.cpu_count() or 1)
    for _ in range(count):
        # New memory for each reading costs more than the reading.
        rooms.put(memoryview(bytearray(_READ_BYTES)))
    with ThreadPoolExecutor(count) as hashers:
        entries = []
        for path in _paths(tree):
            about = tree.stat(path)
            sums = [
                hashers.submit(_sum, tree, path, offset, min(CHUNK_BYTES, about.st_size - offset), rooms)
                for offset in range(0, about.st_size, CHUNK_BYTES)
            ]
            entries.append((RelativePath(path), about.st_size, about.st_mtime_ns, sums))
        return sorted(
            (name, size, at, [summed.result() for summed in sums]) for name, size, at, sums in entries
        )


def _paths(tree: Tree) -> Iterator[str]:
    """Yield the path of each file. Raises SeedError for a name that cannot be transferred."""
    import re

    from orchestrator.protocol.limits import CONTROLS

    controls = re.compile(CONTROLS).search
    for folder, _, names in tree.walk():
        for name in names:
            path = os.path.join(folder, name)
            if controls(path):
                raise SeedError(
                    "bad-name",
                    f"{path!r} cannot be transferred: its name has control characters",
                    "let the script give it another name",
                )
            yield path


def _sum(tree: Tree, path: str, offset: int, length: int, rooms: SimpleQueue[memoryview]) -> str:
    """Return the SHA-256 of a chunk. Raises Torn if the file has become shorter."""
    from hashlib import sha256

    summed, room = sha256(), rooms.get()
    try:
        with tree.reading(path) as file:
            while length:
                count = os.preadv(file.fileno(), [room[:length]], offset)
                if not count:
                    raise Torn(f"{os.path.basename(path)} became shorter")
                summed.update(room[:count])
                length -= count
                offset += count
    finally:
        rooms.put(room)
    return summed.hexdigest()


@contextlib.contextmanager
def _meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do the work beside the body, and raise what it raises. A disk tells a refused sync only once."""
    import threading

    raised: list[Exception] = []

    def do() -> None:
        try:
            work()
        except Exception as e:
            raised.append(e)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if raised:
        raise raised[0]


def _keep(tree: Tree, building: Tree, manifest: Manifest) -> None:
    """Rename a finished snapshot into place, and remove the oldest ones."""
    target = directory_of(tree.path, manifest["digest"])
    if places.marker_of(tree, target) is None:
        about = {
            "generation": manifest["generation"],
            "global_step": manifest["global_step"],
            "saved_at": manifest["saved_at"],
            "by": manifest["by"],
        }
        seed.finish(tree, building, target, about)
    tree.touch(target)
    others = [f"{places.SAFE}/{name}" for name in tree.names(places.SAFE) if not name.endswith(".tmp")]
    others = [path for path in others if os.path.join(tree.path, path) != target]
    furthest = [path for _, path in places.safe(tree) if path != target][:1]
    for path in sorted(others, key=lambda path: tree.stat(path).st_mtime, reverse=True)[KEPT - 1 :]:
        if os.path.join(tree.path, path) not in furthest:  # which a clock that was wrong may call old
            places.remove(tree, path)
    remove_abandoned(tree)

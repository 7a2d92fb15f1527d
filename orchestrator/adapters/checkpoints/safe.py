"""Snapshots of checkpoints, for the transfer between hosts that share no directory: `.orch/safe/<digest>/`.

A snapshot is a copy that no script touches, so sending it may take minutes while the training goes on. Its name is
the digest of its content (each file as the SHA-256 of its chunks), so it is the same on every host. Chunks that a
host already has are not sent again, and a transfer that broke off continues with the next chunk.
"""

from __future__ import annotations

import json
import os
import shutil

from orchestrator.adapters.checkpoints import copying, discovery, places, seed, space
from orchestrator.adapters.checkpoints.places import SeedError
from orchestrator.adapters.checkpoints.torn import Torn
from orchestrator.adapters.checkpoints.units import Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.protocol.orders import Manifest, Received

CHUNK_BYTES = 8 << 20
"""The size of a chunk. A transfer that breaks off loses at most this much."""

ABANDONED_S = 86400.0
"""A chunk that is older than this belongs to a transfer that was given up."""

KEPT = 2
"""How many snapshots stay on a host: the one that the run resumed from, and the newest verified since."""


def snapshot(root: str, directory: str, path: str | None) -> Manifest:
    """Copy one checkpoint of a generation into a snapshot, and return its manifest.

    Args:
        root: the checkpoint directory.
        directory: the generation's directory.
        path: the path of the unit. None: the newest that reads whole.

    Raises:
        SeedError: the checkpoint was removed or overwritten meanwhile.
    """
    found = discovery.find(directory)
    rank = max((unit.rank for unit in found.units), default=None)
    chosen = [unit for unit in found.units if (unit.path == path if path else unit.rank == rank)]
    building = os.path.join(places.own_dir(root), "safe", f"{os.path.basename(directory)}.tmp")
    marker = places.marker_of(directory) or {}
    with places.locked(root), space.room_for(building) as need:
        for unit in chosen:
            copying.emptied(building)
            need.bytes = unit.bytes
            try:
                copy = copying.copied(unit, directory, building)
                copy.read()
            except Torn:
                continue
            copying.copy_others(directory, found.others, building, [])
            for link in found.links:
                copying.copy_link(link, directory, building)
            seed.complete(building)
            manifest = _manifest(building, copy, generation_of(directory), marker.get("by"))
            _keep(root, building, manifest)
            return manifest
    raise SeedError(
        "went-away",
        f"{path or directory} went away, or was written over, while it was copied",
        "it is tried again",
    )


def receive(root: str, manifest: Manifest, chunks: str) -> Received:
    """Assemble a snapshot from its chunks. While chunks are missing, only name them in `{"missing": […]}`."""
    target = directory_of(root, manifest["digest"])
    check(manifest)
    if places.marker_of(target) is not None:
        os.utime(target)
        return {"missing": []}
    there = set(places.names_in(chunks))
    needed = [chunk for _, _, _, made_of in manifest["files"] for chunk in made_of]
    missing = [chunk for chunk in dict.fromkeys(needed) if chunk not in there]
    if missing:
        return {"missing": missing}
    building = f"{target}.tmp"
    with places.locked(root), space.room_for(building) as need:
        need.bytes = manifest["bytes"]
        copying.emptied(building)
        for name, size, mtime_ns, made_of in manifest["files"]:
            parts = [os.path.join(chunks, chunk) for chunk in made_of]
            _assemble(os.path.join(building, name), size, mtime_ns, parts)
        _keep(root, building, manifest)
    _clear(chunks, set(needed))
    return {"missing": []}


def check(manifest: Manifest) -> None:
    """Check that no file of a snapshot lies outside its directory. The manifest comes from another, untrusted host.

    Raises:
        ValueError: a name would leave the directory, or a chunk is not named by a SHA-256.
    """
    for name, _, _, chunks in manifest["files"]:
        if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"a snapshot may not have a file named {name!r}")
        for chunk in chunks:
            _check_digest(chunk)


def chunks_dir(host_dir: str, boot_id: str) -> str:
    """Return where the chunks lie that come to this host, until they are assembled.

    They are not synced one by one, which would hold up the agent and write all bytes twice. So they count only until
    the host boots again: what a power cut has left of them may have a name and no content.
    """
    return os.path.join(host_dir, "checkpoints", f"blobs-{boot_id}")


def _clear(chunks: str, used: set[str]) -> None:
    """Remove the chunks that have been assembled, and those of transfers and boots that were given up."""
    import time

    for name in places.names_in(chunks):
        path = os.path.join(chunks, name)
        if name in used or time.time() - os.stat(path).st_mtime > ABANDONED_S:
            os.unlink(path)
    home = os.path.dirname(chunks)
    for name in places.names_in(home):
        path = os.path.join(home, name)
        # It is not removed at once, since hosts that share a home directory boot at different times.
        if path != chunks and time.time() - os.stat(path).st_mtime > ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def directory_of(root: str, digest: str) -> str:
    """Return the directory of a snapshot, whether it exists or not.

    Raises:
        ValueError: `digest` is not a SHA-256.
    """
    _check_digest(digest)
    return os.path.join(places.own_dir(root), "safe", digest)


def _check_digest(digest: str) -> None:
    if len(digest) != 64 or not all(letter in "0123456789abcdef" for letter in digest):
        raise ValueError(f"not a SHA-256: {digest[:80]!r}")


def read_chunk(room: memoryview, root: str, digest: str, name: str, offset: int, bytes_max: int) -> int:
    """Read at most `bytes_max` bytes of a snapshot's file, from `offset`, into `room`. Return how many there were.

    Raises:
        ValueError: the file lies outside the snapshot.
    """
    directory = directory_of(root, digest)
    path = os.path.realpath(os.path.join(directory, name))
    if os.path.commonpath([os.path.realpath(directory), path]) != os.path.realpath(directory):
        raise ValueError(f"{name!r} lies outside the snapshot")
    with open(path, "rb") as file:
        file.seek(offset)
        return file.readinto(room[:bytes_max])


def generation_of(directory: str) -> int | None:
    digits = os.path.basename(directory).removeprefix(places.PREFIX)
    return int(digits) if digits.isdecimal() else None


def _manifest(directory: str, unit: Unit, generation: int | None, by: dict[str, Any] | None) -> Manifest:
    """Return the manifest of a snapshot. Its digest covers names and content, but not times and owners."""
    import re
    from hashlib import sha256

    from orchestrator.protocol.limits import CONTROLS

    controls = re.compile(CONTROLS).search
    files = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            inside = os.path.relpath(path, directory)
            if controls(inside):
                raise SeedError(
                    "bad-name",
                    f"{inside!r} cannot be transferred: its name has control characters",
                    "let the script give it another name",
                )
            found = os.stat(path)
            files.append((inside, found.st_size, found.st_mtime_ns, _chunks(path)))
    files.sort()
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


def _chunks(path: str) -> list[str]:
    from hashlib import sha256

    made_of = []
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            made_of.append(sha256(chunk).hexdigest())
    return made_of


def _assemble(path: str, size: int, mtime_ns: int, chunks: list[str]) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        for chunk in chunks:
            with open(chunk, "rb") as source:
                shutil.copyfileobj(source, file)
    if os.path.getsize(path) != size:
        raise SeedError("damaged", f"{path} is not whole after its transfer", "it is tried again")
    os.utime(path, ns=(mtime_ns, mtime_ns))


def _keep(root: str, building: str, manifest: Manifest) -> None:
    """Rename a finished snapshot into place, and remove the oldest ones."""
    target = directory_of(root, manifest["digest"])
    if places.marker_of(target) is None:
        about = {
            "generation": manifest["generation"],
            "global_step": manifest["global_step"],
            "saved_at": manifest["saved_at"],
            "by": manifest["by"],
        }
        seed.finish(building, target, about)
    os.utime(target)
    home = os.path.dirname(target)
    there = [os.path.join(home, name) for name in places.names_in(home) if not name.endswith(".tmp")]
    for path in sorted(there, key=os.path.getmtime, reverse=True)[KEPT:]:
        places.remove(root, path)

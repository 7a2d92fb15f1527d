"""The head node's copies of checkpoints, for runs whose hosts share no directory. They survive the loss of a host.

`<state>/checkpoints/<name>-<hash of the directory>/` holds the chunks as `pieces/<sha256>`, the manifests of the
snapshots as `manifests/<digest>.json` (see `checkpoints/safe.py`), `place.json`, which names the host that has the
newest generation's directory, and `rolled_back.json`, which records the last rollback.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any, cast

from orchestrator.both import durable
from orchestrator.both.backup_file import is_ours
from orchestrator.both.newest import SAME_S, across, is_further, is_same
from orchestrator.core.saving import Restored
from orchestrator.protocol.orders.checkpoints import Manifest

_ASIDE = ".aside"

_ROLLED_BACK = "rolled_back.json"


class Shared:
    """What all objects of one store share."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        """Held by the one transfer that may write chunks; it may last for an hour."""
        self.change = threading.Lock()
        """Held for a moment by any thread that adds, removes or sets aside snapshots."""
        self.coming: Collection[str] = ()
        """The chunks of the snapshot that is being pulled, which no manifest names yet."""


class CheckpointStore:
    """The copies for one name of a run and one checkpoint directory.

    Only the thread that holds `shared.turn` pulls into it. Any thread may remove or set aside snapshots meanwhile.
    """

    def __init__(
        self, state_dir: str, name: str, directory: str, keep: int, shared: Shared | None = None
    ) -> None:
        self.root = root_of(state_dir, name, directory)
        self.shared = shared or Shared()
        self._chunks = os.path.join(self.root, "pieces")
        self._manifests = os.path.join(self.root, "manifests")
        self._keep = keep
        self._partial: dict[str, _PartialChunk] = {}
        """The partial chunks that were appended to."""

    # -- complete snapshots --------------------------------------------------------------------------------

    def newest(self) -> Manifest | None:
        """Return the manifest of the newest complete snapshot that was not rolled back."""
        return cast("Manifest | None", max(self._load(""), key=across, default=None))

    def place(self) -> str | None:
        """Return the host that has the newest generation's directory; None if unknown."""
        record = durable.known_object(self.root, "place.json")
        return str(record["host"]) if record else None

    def has(self, manifest: Manifest) -> bool:
        """Return whether that snapshot is complete here."""
        return os.path.exists(self._manifest_path(str(manifest["digest"])))

    def holds(self, global_step: int | None, saved_at: float) -> bool:
        """Return whether the checkpoint of that step and time (Unix) is here, in any generation."""
        known = {"global_step": global_step, "saved_at": saved_at}
        return any(is_same(each, known) or _written_at(each, saved_at) for each in self._load(""))

    def path(self, chunk: str) -> str:
        """Return the path of a chunk, whether it exists or not."""
        return os.path.join(self._chunks, chunk)

    def held_bytes(self, chunk: str) -> int | None:
        """Return how many bytes of a chunk have arrived. None: it is complete."""
        if os.path.exists(self.path(chunk)):
            return None
        try:
            return os.stat(self.path(chunk) + ".part").st_size
        except FileNotFoundError:
            return 0

    # -- arriving snapshots --------------------------------------------------------------------------------

    def append(self, chunk: str, data: bytes) -> None:
        """Append to a partial chunk, which stays on disk if the transfer breaks off. Call `close` at the end."""
        partial = self._partial.get(chunk)
        if partial is None:
            partial = self._partial[chunk] = _PartialChunk(self._part(chunk))
        try:
            partial.add(data)
        except OSError:  # a part of the data may be on disk, so the chunk must be summed again from there
            self._partial.pop(chunk).file.close()
            raise

    def close(self) -> None:
        """Close the files of partial chunks."""
        while self._partial:
            self._partial.popitem()[1].file.close()

    def _part(self, chunk: str) -> FileIO:
        """Open a partial chunk, to append to it."""
        path = self.path(chunk) + ".part"
        try:
            return FileIO(path, "ab")
        except FileNotFoundError:
            os.makedirs(self._chunks, mode=0o700, exist_ok=True)
            return FileIO(path, "ab")

    def finish(self, chunk: str) -> bool:
        """Complete a chunk, and return whether it matches its SHA-256. A chunk that does not is removed.

        Its sum was computed as it arrived, unless a part of it arrived earlier: then it is read again.
        """
        part = self.path(chunk) + ".part"
        partial = self._partial.pop(chunk, None)
        if partial is not None:
            partial.file.close()
        with open(part, "rb") as file:
            summed = partial.sum if partial and partial.sum else hashlib.file_digest(file, "sha256")
            whole = summed.hexdigest() == chunk
            if whole:
                os.fsync(file.fileno())
        if whole:
            # `add` syncs the directory for all chunks at once.
            durable.place(part, self.path(chunk), durable=False)
        else:
            os.unlink(part)
        return whole

    def add(self, manifest: Manifest, host: str) -> None:
        """Add a snapshot, all chunks of which are here, and remove the oldest snapshots beyond `keep`.

        Its pull may have lasted beyond a rollback to an older checkpoint. Then it is set aside like those before it.
        """
        durable.sync_directory(self._chunks)
        with self.shared.change:
            mark = durable.known_object(self.root, _ROLLED_BACK)
            kind = _ASIDE if mark is not None and _is_undone(manifest, mark) else ""
            self._write(self._manifest_path(str(manifest["digest"]), kind), {**manifest, "host": host})
            self._forget()

    def settle(self, host: str, generation: int) -> None:
        """Record that the newest generation's directory is on that host."""
        self._write(os.path.join(self.root, "place.json"), {"host": host, "generation": generation})

    def go_back(self, checkpoint: Mapping[str, Any] | None, generation: int) -> None:
        """Set aside the snapshots that are newer than that (all if None). They count towards a `keep` of their own.

        This also holds for those up to `generation`, the newest one there is, that arrive later.
        """
        with self.shared.change:
            to = checkpoint and {name: checkpoint[name] for name in ("generation", "global_step", "saved_at")}
            self._write(os.path.join(self.root, _ROLLED_BACK), {"generation": generation, "to": to})
            for manifest in self._load(""):
                if _is_newer(manifest, checkpoint):
                    self._set_aside(manifest)

    def begin(self, generation: int) -> None:
        """Forget the last rollback where generations are counted anew since then, as on hosts that were made anew."""
        with self.shared.change:
            mark = durable.known_object(self.root, _ROLLED_BACK)
            if mark is not None and generation <= mark["generation"]:
                os.unlink(os.path.join(self.root, _ROLLED_BACK))

    def pass_over(self, failed: Collection[Restored], from_step: int | None = None) -> None:
        """Set aside the snapshots of what a task could not restore, and those of ours from a step on."""
        with self.shared.change:
            for manifest in self._load(""):
                names = _written_at(manifest, manifest["saved_at"])
                times = [each.saved_time for each in failed if each.file in names]
                step = manifest["global_step"] if any(map(is_ours, names)) else None
                is_behind = step is not None and from_step is not None and step >= from_step
                if is_behind or any(abs(manifest["saved_at"] - saved_time) < SAME_S for saved_time in times):
                    self._set_aside(manifest)

    def _set_aside(self, manifest: Mapping[str, Any]) -> None:
        digest = manifest["digest"]
        durable.place(self._manifest_path(digest), self._manifest_path(digest, _ASIDE))

    # -- files ---------------------------------------------------------------------------------------------

    def _manifest_path(self, digest: str, kind: str = "") -> str:
        return os.path.join(self._manifests, f"{digest}{kind}.json")

    def _load(self, kind: str) -> list[dict[str, Any]]:
        manifests = []
        for name in names_in(self._manifests):
            stem = name.removesuffix(".json")
            if name != stem and stem.endswith(_ASIDE) == (kind == _ASIDE):
                manifest = durable.known_object(self._manifests, name)
                manifests += [manifest] if manifest else []
        return manifests

    def remove(self, generations: Collection[int]) -> None:
        """Remove the snapshots of generations that a person has removed."""
        with self.shared.change:
            for kind in ("", _ASIDE):
                for manifest in self._load(kind):
                    if manifest["generation"] in generations:
                        os.unlink(self._manifest_path(manifest["digest"], kind))
            self._forget()

    def make_room(self, manifest: Manifest) -> None:
        """Remove the chunks of incomplete snapshots, except those of this one, which is to be pulled."""
        with self.shared.change:
            self.shared.coming = [chunk for _, _, _, made_of in manifest["files"] for chunk in made_of]
            self._forget()

    def _forget(self) -> None:
        """Remove the manifests beyond `keep`, and the chunks that are neither coming nor in a manifest that stays.

        Snapshots that were set aside stay until a person removes them.
        """
        used = set(self.shared.coming)  # read first: a pull that ends meanwhile has its manifest
        manifests = sorted(self._load(""), key=across, reverse=True)
        for manifest in [*manifests[: self._keep], *self._load(_ASIDE)]:
            used.update(chunk for _, _, _, made_of in manifest["files"] for chunk in made_of)
        for manifest in manifests[self._keep :]:
            os.unlink(self._manifest_path(manifest["digest"]))
        for name in names_in(self._chunks):
            if name.removesuffix(".part") not in used:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path(name))

    def _write(self, path: str, value: Mapping[str, Any]) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        durable.write_json(path, value)


def _is_undone(manifest: Manifest, mark: Mapping[str, Any]) -> bool:
    """Return whether a rollback that was recorded earlier concerns a snapshot that arrives now."""
    return (manifest["generation"] or 0) <= mark["generation"] and _is_newer(manifest, mark["to"])


def _is_newer(manifest: Mapping[str, Any], checkpoint: Mapping[str, Any] | None) -> bool:
    """Return whether a rollback to that checkpoint sets a snapshot aside. None: it sets all aside."""
    if checkpoint is None:
        return True
    is_later = (manifest["generation"] or 0) > checkpoint["generation"]
    return not is_same(manifest, checkpoint) and (is_later or is_further(manifest, checkpoint))


def _written_at(manifest: Mapping[str, Any], saved_at: float) -> set[str]:
    """Return the names of the files of one of the checkpoints in a snapshot, which is known by its time."""
    return {name for name, _, time_ns, _ in manifest["files"] if abs(time_ns / 1e9 - saved_at) < SAME_S}


class _PartialChunk:
    """A partial chunk. Its file stays open, since opening it for each part took an eighth of a transfer's CPU time."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        self.sum: hashlib._Hash | None = None if file.tell() else hashlib.sha256()
        """The SHA-256 of the data so far; None if a part arrived earlier."""

    def add(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self.file.write(rest) :]
        if self.sum is not None:
            self.sum.update(data)


def root_of(state_dir: str, name: str, directory: str) -> str:
    """Return the directory of the copies for a run's name and its checkpoint directory."""
    known = hashlib.sha256(directory.encode()).hexdigest()[:12]
    return os.path.join(state_dir, "checkpoints", f"{name}-{known}")


@dataclass(frozen=True, slots=True)
class Holding:
    """A summary of one store."""

    root: str
    count: int
    """How many complete checkpoints it holds, including those that were rolled back."""
    global_step: int | None
    """The step of the newest checkpoint."""
    run: str | None
    """The run that saved the newest checkpoint; None if unknown."""


def holdings(state_dir: str) -> list[Holding]:
    """Return a summary of each store in the state directory. Raises OSError if one cannot be read."""
    above = os.path.join(state_dir, "checkpoints")
    stores = []
    for name in sorted(names_in(above)):
        manifests = os.path.join(above, name, "manifests")
        whole = [
            manifest
            for file in names_in(manifests)
            if file.endswith(".json") and (manifest := durable.known_object(manifests, file))
        ]
        newest = max(whole, key=across, default=None) or {}
        by = newest.get("by") or {}
        stores.append(
            Holding(os.path.join(above, name), len(whole), newest.get("global_step"), by.get("run"))
        )
    return stores


def names_in(directory: str) -> list[str]:
    """Return the names in a directory; none if it is missing. No other error looks like an empty directory."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []

"""The head node's copies of checkpoints, for runs whose hosts share no directory: no lost host takes them away.

`<state>/checkpoints/<name>-<hash of the directory>/` holds `pieces/<sha256>`, `manifests/<digest>.json` (what a
snapshot is made of, see the hosts' `safe`), and `place.json`: which host has the newest generation's directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.adapters.checkpoints.places import names_in, read_json
from orchestrator.adapters.head.disk import sync_directory

_ASIDE = ".aside"
_SAME_S = 1e-3
"""Times are kept as file systems keep them."""


class CheckpointStore:
    """Of one name and one directory. One writer at a time: the caller sees to that."""

    def __init__(self, state_dir: str, name: str, directory: str, keep: int) -> None:
        self.root = root_of(state_dir, name, directory)
        self._chunks = os.path.join(self.root, "pieces")
        self._manifests = os.path.join(self.root, "manifests")
        self._keep = keep

    # -- what is here --------------------------------------------------------------------------------------

    def newest(self) -> dict[str, Any] | None:
        """The manifest of the newest that is here whole, and was not gone back from."""
        return max(self._load(""), key=_age, default=None)

    def place(self) -> str | None:
        """The host that has the newest generation's directory; None where that is not known."""
        found = read_json(os.path.join(self.root, "place.json"))
        return str(found["host"]) if found else None

    def has(self, manifest: Mapping[str, Any]) -> bool:
        """Whether that snapshot is here whole."""
        return os.path.exists(self._manifest_path(str(manifest["digest"])))

    def holds(self, global_step: int | None, saved_at: float) -> bool:
        """Whether the checkpoint of that step and time (Unix) is here, in any generation."""
        return any(
            found["global_step"] == global_step and abs(found["saved_at"] - saved_at) < _SAME_S
            for found in self._load("")
        )

    def path(self, chunk: str) -> str:
        """Where a chunk is, or would be."""
        return os.path.join(self._chunks, chunk)

    def held_bytes(self, chunk: str) -> int | None:
        """How much of a chunk has come; None where it is whole."""
        if os.path.exists(self.path(chunk)):
            return None
        try:
            return os.stat(self.path(chunk) + ".part").st_size
        except FileNotFoundError:
            return 0

    # -- what comes ----------------------------------------------------------------------------------------

    def append(self, chunk: str, data: bytes) -> None:
        """More of a chunk. It stays where the transfer breaks off."""
        os.makedirs(self._chunks, mode=0o700, exist_ok=True)
        with open(self.path(chunk) + ".part", "ab") as file:
            file.write(data)

    def finish(self, chunk: str) -> bool:
        """All of it has come: whether it is what its name says. What is not is not kept."""
        part = self.path(chunk) + ".part"
        with open(part, "rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == chunk
            if whole:
                os.fsync(file.fileno())
        if whole:
            os.rename(part, self.path(chunk))
        else:
            os.unlink(part)
        return whole

    def add(self, manifest: Mapping[str, Any], host: str) -> None:
        """All its chunks are here. The oldest ones go, beyond `keep`."""
        sync_directory(self._chunks)
        self._write(self._manifest_path(str(manifest["digest"])), {**manifest, "host": host})
        self._forget()

    def settle(self, host: str, generation: int) -> None:
        """The newest generation's directory is on that host from now on."""
        self._write(os.path.join(self.root, "place.json"), {"host": host, "generation": generation})

    def go_back(self, saved_at: float | None) -> None:
        """What was saved later counts no more; with None, nothing does. It stays here for as long as others do."""
        for manifest in self._load(""):
            if saved_at is None or manifest["saved_at"] > saved_at + _SAME_S:
                path = self._manifest_path(manifest["digest"])
                os.rename(path, path.removesuffix(".json") + _ASIDE + ".json")

    # -- files ---------------------------------------------------------------------------------------------

    def _manifest_path(self, digest: str) -> str:
        return os.path.join(self._manifests, f"{digest}.json")

    def _load(self, kind: str) -> list[dict[str, Any]]:
        found = []
        for name in names_in(self._manifests):
            stem = name.removesuffix(".json")
            if name != stem and stem.endswith(_ASIDE) == (kind == _ASIDE):
                manifest = read_json(os.path.join(self._manifests, name))
                found += [manifest] if manifest else []
        return found

    def _forget(self) -> None:
        """Manifests beyond `keep`, of each kind; and the chunks that none is made of any more."""
        used: set[str] = set()
        for kind in ("", _ASIDE):
            manifests = sorted(self._load(kind), key=_age, reverse=True)
            for manifest in manifests[: self._keep]:
                used.update(chunk for _, _, _, made_of in manifest["files"] for chunk in made_of)
            for manifest in manifests[self._keep :]:
                os.unlink(os.path.join(self._manifests, f"{manifest['digest']}{kind}.json"))
        for name in names_in(self._chunks):
            if name.removesuffix(".part") not in used:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path(name))

    def _write(self, path: str, value: Mapping[str, Any]) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".new", path)
        sync_directory(os.path.dirname(path))


def root_of(state_dir: str, name: str, directory: str) -> str:
    """Where the copies for a run's name and its checkpoint directory are."""
    known = hashlib.sha256(directory.encode()).hexdigest()[:12]
    return os.path.join(state_dir, "checkpoints", f"{name}-{known}")


@dataclass(frozen=True, slots=True)
class Holding:
    """What one store holds, whoever it was made for."""

    root: str
    count: int
    """Of checkpoints that are here whole, those that were gone back from among them."""
    global_step: int | None
    """Of the newest."""
    run: str | None
    """The run that saved the newest; None where that is not known."""


def holdings(state_dir: str) -> list[Holding]:
    """All stores in that state directory. OSError."""
    above = os.path.join(state_dir, "checkpoints")
    found = []
    for name in sorted(names_in(above)):
        manifests = os.path.join(above, name, "manifests")
        whole = [
            manifest
            for file in names_in(manifests)
            if file.endswith(".json") and (manifest := read_json(os.path.join(manifests, file)))
        ]
        newest = max(whole, key=_age, default=None) or {}
        by = newest.get("by") or {}
        found.append(Holding(os.path.join(above, name), len(whole), newest.get("global_step"), by.get("run")))
    return found


def _age(manifest: Mapping[str, Any]) -> tuple[int, float]:
    return manifest.get("generation") or 0, manifest["saved_at"]

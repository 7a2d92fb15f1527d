"""Pushed code on a host: files by content, and trees made of them that never change once they are there.

blobs/<sha256>                       shared by all runs, so that only what changed travels
runs/<run>/code/<digest>/            one tree; made beside its place, then renamed into it
runs/<run>/code/<digest>.json        what it is made of
"""

from __future__ import annotations

import os

from orchestrator.adapters.host.hostdir import HostFault, run_dir, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    File = tuple[str, str, int, int]
    """path, sha256, mode, size in bytes"""

FINISHED_RUNS_MAX = 10
"""Of one name; the oldest runs' directories go first."""

_PUSH_S = 3600.0
"""A blob that no tree uses may belong to a push that is under way."""


def digest_of(files: Iterable[File]) -> str:
    """The name of the tree that is made of these: its content and nothing else decides it."""
    import json
    from hashlib import sha256

    canonical = sorted((path, content, mode) for path, content, mode, _ in files)
    return sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()


def check(files: Any) -> list[File]:
    """The manifest as it came. HostFault where it would leave its directory, or contradicts itself."""
    checked: list[File] = []
    directories: set[str] = set()
    seen: set[str] = set()
    for entry in files:
        path, content, mode, size = entry
        parts = path.split("/") if isinstance(path, str) else []
        if not parts or "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise HostFault("bad-path", f"a pushed file may not have the path {path!r}")
        _check_sha256(content)
        if path in seen:
            raise HostFault("bad-path", f"the path {path!r} comes twice in one push")
        seen.add(path)
        directories.update("/".join(parts[:n]) for n in range(1, len(parts)))
        checked.append((path, content, 0o755 if int(mode) & 0o100 else 0o644, int(size)))
    both = directories & seen
    if both:
        raise HostFault("bad-path", f"{min(both)!r} is a file and a directory in one push")
    return checked


def tree_dir(host_dir: str, run: str, digest: str) -> str:
    """Where the tree is, or would be."""
    _check_sha256(digest)
    return os.path.join(run_dir(host_dir, run), "code", digest)


def missing(host_dir: str, files: Iterable[File]) -> list[str]:
    """Which contents must still be pushed; each once."""
    blobs = _names(os.path.join(host_dir, "blobs"))
    return list(dict.fromkeys(content for _, content, _, _ in files if content not in blobs))


def build(host_dir: str, run: str, files: list[File]) -> None:
    """Makes the tree from blobs that are all there. Copies: a script may write into its own directory."""
    import shutil

    target = tree_dir(host_dir, run, digest_of(files))
    if os.path.isdir(target):
        return
    temporary = f"{target}.{os.getpid()}.tmp"
    try:
        os.makedirs(temporary, mode=0o700)
        for path, content, mode, size in files:
            file = os.path.join(temporary, path)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            shutil.copyfile(os.path.join(host_dir, "blobs", content), file)
            os.chmod(file, mode)
            if os.path.getsize(file) != size:
                raise HostFault("damaged", f"the pushed content of {path!r} is not whole", "push again")
        write_json(f"{target}.json", {"blobs": sorted({content for _, content, _, _ in files})})
        try:
            os.rename(temporary, target)
        except OSError:
            if not os.path.isdir(target):  # else another agent was faster, with the same content
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def keep_only(host_dir: str, run: str, digests: Iterable[str]) -> None:
    """Removes the run's other trees. The caller names those in use, and the newest."""
    import shutil

    directory = os.path.join(run_dir(host_dir, run), "code")
    kept = set(digests)
    for name in _names(directory):
        digest, _, kind = name.partition(".")
        path = os.path.join(directory, name)
        if digest in kept or (kind.endswith("tmp") and _age_s(path) < _PUSH_S):
            continue
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            _unlink(path)


def forget(host_dir: str, run: str) -> None:
    """Removes all that the host has of a run; the caller has seen that nothing of it lives."""
    import shutil

    directory = run_dir(host_dir, run)
    # Out of sight first: half a removed run must not look like a run.
    doomed = os.path.join(host_dir, "runs", f".{run}.{os.getpid()}.forgotten")
    try:
        os.rename(directory, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def remove_unused_blobs(host_dir: str) -> None:
    """Those that no tree of any run is made of."""
    import json

    used: set[str] = set()
    for run in _names(os.path.join(host_dir, "runs")):
        code = os.path.join(host_dir, "runs", run, "code")
        for name in _names(code):
            if name.endswith(".json"):
                try:
                    file = open(os.path.join(code, name))  # noqa: SIM115
                except FileNotFoundError:
                    continue  # another agent is removing that run, or tree, at this moment
                with file:
                    used.update(json.load(file)["blobs"])
    blobs = os.path.join(host_dir, "blobs")
    for name in _names(blobs) - used:
        path = os.path.join(blobs, name)
        if _age_s(path) > _PUSH_S:
            _unlink(path)


def run_names(host_dir: str) -> list[str]:
    """Every run that the host has a directory of."""
    return [name for name in _names(os.path.join(host_dir, "runs")) if not name.startswith(".")]


def oldest_runs(host_dir: str, run: str, max: int = FINISHED_RUNS_MAX) -> list[str]:
    """The older runs of the same name beyond the newest `max`; `run` is not among them."""
    name = _name_of(run)
    found = []
    for other in _names(os.path.join(host_dir, "runs")):
        if other != run and not other.startswith(".") and _name_of(other) == name:
            try:
                found.append((os.stat(run_dir(host_dir, other)).st_mtime, other))
            except FileNotFoundError:
                continue
    found.sort(reverse=True)
    return [other for _, other in found[max:]]


class Receiver:
    """Takes blobs that come in chunks. One agent's; a push that broke off begins again."""

    def __init__(self, host_dir: str) -> None:
        self._directory = os.path.join(host_dir, "blobs")
        self._open: dict[str, tuple[int, Any, int]] = {}
        """sha256: (descriptor, hash so far, bytes so far)"""

    def take(self, sha256: str, offset: int, data: bytes, last: bool) -> bool:
        """One chunk. HostFault where it does not follow the one before.

        False where the whole is not what its name says: the file has changed on the head meanwhile. It is
        not kept, and the next `code` order says so.
        """
        _check_sha256(sha256)
        path = os.path.join(self._directory, sha256)
        if os.path.exists(path):
            os.utime(path)  # so that it is not taken for one that nobody wants any more
            return True
        temporary = f"{path}.{os.getpid()}.tmp"
        if offset == 0:
            self._begin(sha256, temporary)
        entry = self._open.get(sha256)
        if entry is None or entry[2] != offset:
            raise HostFault("offset", f"a chunk at {offset} does not follow what is here", "begin again at 0")
        descriptor, so_far, size = entry
        so_far.update(data)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            self._drop(sha256, temporary)
            raise
        self._open[sha256] = (descriptor, so_far, size + len(data))
        if last:
            if so_far.hexdigest() != sha256:
                self._drop(sha256, temporary)
                return False
            os.fsync(descriptor)
            os.rename(temporary, path)
            os.close(descriptor)
            del self._open[sha256]
        return True

    def _begin(self, sha256: str, temporary: str) -> None:
        from hashlib import sha256 as new_hash

        if sha256 in self._open:
            self._drop(sha256, temporary)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._open[sha256] = (os.open(temporary, flags, 0o600), new_hash(), 0)

    def _drop(self, sha256: str, temporary: str) -> None:
        os.close(self._open.pop(sha256)[0])
        _unlink(temporary)


def _name_of(run: str) -> str:
    """`mnist-20261120-1` to `mnist`."""
    return run.rsplit("-", 2)[0]


def _check_sha256(text: Any) -> None:
    if not (isinstance(text, str) and len(text) == 64 and all(c in "0123456789abcdef" for c in text)):
        raise HostFault("bad-order", f"not a SHA-256: {str(text)[:80]!r}")


def _age_s(path: str) -> float:
    import time

    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _names(directory: str) -> set[str]:
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return

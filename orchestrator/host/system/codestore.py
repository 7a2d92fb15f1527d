"""Pushed code on a host: files by content, and trees that are built from them and never change afterwards.

blobs/<sha256>                       a file's content, shared by all runs, so that only changes are pushed
runs/<run>/code/<digest>/            a tree; it is built under another name and then renamed
runs/<run>/code/<digest>.json        the manifest of the tree
"""

from __future__ import annotations

import errno
import os
import stat

from orchestrator.both import durable
from orchestrator.both.hostdir import HostFault, run_dir
from orchestrator.both.tree_digest import DIRECTORY, LINK, digest_of, normalised
from orchestrator.protocol.paths import RelativePath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from orchestrator.both.tree_digest import File

FINISHED_RUNS_MAX = 10
"""How many ended runs of one name keep their directory; the oldest are removed first."""

_READ_BYTES = 1 << 20

_PUSH_S = 3600.0
"""How long an unused blob stays: it may belong to a push that is under way."""


def check(files: Any) -> list[File]:
    """Return the manifest with normalised modes.

    Raises:
        HostFault: a file would leave the directory, a path occurs twice, or is a file and a directory.
    """
    checked: list[File] = []
    directories: set[str] = set()
    seen: set[str] = set()
    for entry in files:
        name, content, mode, size = entry
        try:
            path = RelativePath(name)
        except ValueError as e:
            raise HostFault("bad-path", f"a file cannot be pushed: {e}") from None
        _check_sha256(content)
        if path in seen:
            raise HostFault("bad-path", f"the path {path!r} comes twice in one push")
        seen.add(path)
        directories.update("/".join(path.parts[:n]) for n in range(1, len(path.parts)))
        checked.append((path, content, normalised(int(mode)), int(size)))
    both = directories & seen
    if both:
        raise HostFault("bad-path", f"{min(both)!r} is a file and a directory in one push")
    return checked


def tree_dir(host_dir: str, run: str, digest: str) -> str:
    """Return the directory of a tree, whether it exists or not."""
    _check_sha256(digest)
    return os.path.join(run_dir(host_dir, run), "code", digest)


def missing(host_dir: str, files: Iterable[File]) -> list[str]:
    """Return the contents that must still be pushed, each once."""
    blobs = set(durable.names(os.path.join(host_dir, "blobs")))
    wanted = [content for _, content, mode, _ in files if mode != DIRECTORY]
    return list(dict.fromkeys(content for content in wanted if content not in blobs))


def build(host_dir: str, run: str, files: list[File]) -> list[str]:
    """Build the tree.

    Return the contents whose blobs were damaged; they are removed, and must be pushed before the tree can be built.
    """
    import shutil

    target = tree_dir(host_dir, run, digest_of(files))
    if os.path.isdir(target):
        return []
    temporary = f"{target}.{os.getpid()}.tmp"
    damaged = []
    shutil.rmtree(temporary, ignore_errors=True)  # of an agent with this pid, which a power cut has ended
    try:
        os.makedirs(temporary, mode=0o700)
        for entry in files:
            os.makedirs(os.path.dirname(os.path.join(temporary, entry[0])), exist_ok=True)
            if not _put(host_dir, temporary, entry):
                damaged.append(entry[1])
        if damaged:
            return list(dict.fromkeys(damaged))
        blobs = sorted({content for _, content, mode, _ in files if mode != DIRECTORY})
        durable.write_json(f"{target}.json", {"blobs": blobs, "files": files})
        durable.sync_tree(temporary)
        try:
            durable.place(temporary, target)
        except OSError:
            if not os.path.isdir(target):  # if it is there, another agent was faster, with the same content
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return []


def repair(host_dir: str, tree: str, files: list[File] | None = None) -> list[str]:
    """Fill the files of a tree that a power cut left empty. Return the contents whose blobs are missing for that.

    Args:
        files: the manifest; None: the one that was stored beside the tree.

    Raises:
        HostFault: the stored manifest is damaged.
    """
    if files is None:
        # A tree that an older agent built may have no manifest; then nothing is repaired
        path = f"{tree}.json"
        stored = durable.read_object(path)
        if stored is None and os.path.exists(path):
            raise HostFault("no-code", f"{path} is damaged on this host", "push the code again")
        files = [(path, content, mode, size) for path, content, mode, size in (stored or {}).get("files", ())]
    empty = [entry for entry in files if entry[3] and _may_be_cut_off(os.path.join(tree, entry[0]))]
    missing = [entry[1] for entry in empty if not _put(host_dir, tree, entry)]
    if empty:
        durable.sync_tree(tree)
    return list(dict.fromkeys(missing))


def dangling(tree: str, files: list[File]) -> list[str]:
    """Return the links of a tree that lead to what is not on this host."""
    links = [path for path, _, mode, _ in files if mode == LINK]
    return [path for path in links if not os.path.exists(os.path.join(tree, path))]


def _linked(blob: str, target: str) -> bool:
    """Make a link to a blob. Return False where the file system has none, or no more of this file."""
    try:
        os.link(blob, target)
    except OSError as e:
        if e.errno in (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV):
            return False
        raise
    return True


def _put(host_dir: str, tree: str, entry: File) -> bool:
    """Put a blob into a tree. Return False if there is no such blob, or a damaged one, which is removed.

    It is linked: nothing runs in a tree, and so nothing changes there. It is copied where another file of this content
    has other permissions, and where the file system makes no link.
    """
    import shutil
    from hashlib import sha256

    path, content, mode, _ = entry
    blob, target = os.path.join(host_dir, "blobs", content), os.path.join(tree, path)
    if mode == DIRECTORY:
        os.makedirs(target, exist_ok=True)
        return True
    temporary, digest, leads_to = f"{target}.{os.getpid()}.tmp", sha256(), b""
    try:
        source = open(blob, "rb")  # noqa: SIM115
    except FileNotFoundError:
        return False
    with source:
        while chunk := source.read(_READ_BYTES):
            digest.update(chunk)
            leads_to = chunk if mode == LINK else b""
        seen = os.fstat(source.fileno())
    if digest.hexdigest() != content:
        durable.remove(blob)
        return False
    durable.remove(temporary)
    if mode == LINK:
        os.symlink(leads_to, temporary)
    else:
        is_fit = seen.st_nlink == 1 or stat.S_IMODE(seen.st_mode) == mode
        if not (is_fit and _linked(blob, temporary)):
            shutil.copyfile(blob, temporary)
        os.chmod(temporary, mode)
    durable.place(temporary, target, durable=False)  # the whole tree is synced at once
    return True


def keep_only(host_dir: str, run: str, digests: Iterable[str]) -> None:
    """Remove the run's trees except `digests`. The caller names those in use, and the newest."""
    import shutil

    directory = os.path.join(run_dir(host_dir, run), "code")
    kept = set(digests)
    for name in durable.names(directory):
        digest, _, kind = name.partition(".")
        path = os.path.join(directory, name)
        if digest in kept or (kind.endswith("tmp") and _age_s(path) < _PUSH_S):
            continue
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            durable.remove(path)


def forget(host_dir: str, run: str) -> None:
    """Remove all files of a run from the host. The caller has made sure that no process of it lives."""
    import shutil

    directory = run_dir(host_dir, run)
    # Rename it first: a run that is only partly removed must not look like a run.
    doomed = os.path.join(host_dir, "runs", f".{run}.{os.getpid()}.forgotten")
    try:
        os.rename(directory, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed, ignore_errors=True)


def remove_unused_blobs(host_dir: str) -> None:
    """Remove the blobs that no tree of any run uses. Raises OSError where it is not known what one uses."""
    used: set[str] = set()
    for run in durable.names(os.path.join(host_dir, "runs")):
        code = os.path.join(host_dir, "runs", run, "code")
        for name in durable.names(code):
            if name.endswith(".json"):
                # None: another agent is removing that run or tree at this moment, or a power cut damaged it.
                used.update((durable.known_object(code, name) or {}).get("blobs", ()))
    blobs = os.path.join(host_dir, "blobs")
    for name in {*durable.names(blobs)} - used:
        path = os.path.join(blobs, name)
        if _age_s(path) > _PUSH_S:
            durable.remove(path)


def run_names(host_dir: str) -> list[str]:
    """Return every run that has a directory on the host."""
    return [name for name in durable.names(os.path.join(host_dir, "runs")) if not name.startswith(".")]


def oldest_runs(host_dir: str, run: str, max: int = FINISHED_RUNS_MAX) -> list[str]:
    """Return the older runs of the same name beyond the newest `max`. `run` itself is never among them."""
    name = _name_of(run)
    runs = []
    for other in durable.names(os.path.join(host_dir, "runs")):
        if other != run and not other.startswith(".") and _name_of(other) == name:
            try:
                runs.append((os.stat(run_dir(host_dir, other)).st_mtime, other))
            except FileNotFoundError:
                continue
    runs.sort(reverse=True)
    return [other for _, other in runs[max:]]


class Receiver:
    """Receives blobs in chunks into a directory, for one agent, whose runs may push the same content at once.

    The name of a blob is its content: so what one run has sent of it serves the others, whose chunks follow it.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: dict[str, tuple[int, Any, int]] = {}
        """(descriptor, hash so far, bytes so far) by SHA-256."""

    def receive(self, sha256: str, offset: int, data: bytes, last: bool) -> bool:
        """Receive one chunk.

        Return False if the complete blob does not match its SHA-256: the file has changed on the head meanwhile.
        The blob is dropped, and the answer of the next `code` order lists it as missing.

        Raises:
            HostFault: the chunk begins behind the end of what is here.
        """
        _check_sha256(sha256)
        path = os.path.join(self._directory, sha256)
        if os.path.exists(path):
            os.utime(path)  # so that `remove_unused_blobs` does not remove it before its tree is built
            return True
        temporary = f"{path}.{os.getpid()}.tmp"
        entry = self._open.get(sha256)
        # A part that was left for an hour may have been removed by `remove_unused_blobs`
        if offset == 0 and (entry is None or not os.path.exists(temporary)):
            from hashlib import sha256 as new_hash

            if entry is not None:
                self._drop(sha256, temporary)
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            entry = (os.open(temporary, flags, 0o600), new_hash(), 0)
            self._open[sha256] = entry
        if entry is None or offset > entry[2]:
            raise HostFault("offset", f"a chunk at {offset} does not follow what is here", "begin again at 0")
        descriptor, so_far, size = entry
        data = data[size - offset :]  # another run has sent what comes before
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
            durable.place(temporary, path, durable=False)  # a blob that is lost is pushed again
            os.close(descriptor)
            del self._open[sha256]
        return True

    def _drop(self, sha256: str, temporary: str) -> None:
        os.close(self._open.pop(sha256)[0])
        durable.remove(temporary)


def _name_of(run: str) -> str:
    """Return `mnist` for `mnist-20261120-1`."""
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


def _may_be_cut_off(path: str) -> bool:
    """Return whether a power cut may have left a pushed file empty. A script may remove or replace it."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return info.st_size == 0 and stat.S_ISREG(info.st_mode)

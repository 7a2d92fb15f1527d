"""Snapshots of working directories on the head node: what was submitted is what runs, whatever is edited meanwhile.

    code/blobs/<sha256>     a file's content, shared by all snapshots
    code/trees/<digest>/    a snapshot, made of links to blobs; <digest>.json is its manifest,
                            and <digest>.thin says that only short texts are left of it
    code/runs/<name>.json   the manifest of the snapshot that a run needs; while it is there, the snapshot is kept

`orch up` takes the snapshot, and the coordinator keeps it for the run. Hosts, spares, restarts, the queue and
`orch diff` read it. A blob is a copy, or shares its content with the file where the file system can do that until one
of them is written: never a hard link to a file that a person edits. Of a run that has ended, short texts are kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.both import durable
from orchestrator.both.tree_digest import DIRECTORY, LINK, digest_of
from orchestrator.core.errors import Refused
from orchestrator.core.plan import Plan
from orchestrator.core.words import listed
from orchestrator.head.code import codetree
from orchestrator.head.code.codetree import CodeFile, Survey
from orchestrator.head.code.push_rules import LeftOut
from orchestrator.head.node import disk
from orchestrator.protocol.paths import RelativePath

TEXT_BYTES_MAX = 256 << 10
"""The largest file of an ended run whose text is kept."""

TEXTS_BYTES_MAX = 8 << 20
"""How much text is kept of one ended run. Scripts are far below it."""

SUBMITTED = "submitted"
"""The name of the code of a Slurm job, which may wait for days or be queued again: it stays whole. No run has it."""

_LEFT_OUT_MAX = 1000
_NEW_S = 3600.0
"""How long a snapshot stays as it was taken, whether a run needs it or not: its `orch up` may be under way."""

_READS = 2
"""How often a file is read that changes meanwhile."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A working directory as it was."""

    digest: str
    directory: str
    """A copy, for reading only."""
    files: tuple[CodeFile, ...]
    links: Mapping[str, str]
    """Of each link, its target."""
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()
    """What is worth a word to the person who took it."""
    workdir: str = ""
    """Where it was taken."""

    def path_of(self, file: CodeFile) -> str:
        """Return where a file lies."""
        return os.path.join(self.directory, file.path)

    def content(self, file: CodeFile) -> bytes:
        """Return the content of a file, or the target of a link. Raises OSError."""
        if file.path in self.links:
            return self.links[file.path].encode()
        with open(self.path_of(file), "rb") as opened:
            return opened.read()


@dataclass(frozen=True, slots=True)
class Code:
    """A tree of code: its files by path, and their texts."""

    files: Mapping[str, tuple[str, int]]
    """By path, SHA-256 and mode."""
    text: Callable[[str], str | None]
    """Returns the text of a file; None if it is not kept: the file is long, or not text."""


class Snapshots:
    """The snapshots of one state directory. Commands take them; the coordinator keeps and removes them."""

    def __init__(self, state_dir: str) -> None:
        self.directory = os.path.join(state_dir, "code")
        self._blobs, self._trees, self._runs = (
            os.path.join(self.directory, name) for name in ("blobs", "trees", "runs")
        )

    def take(self, plan: Plan, seen: Survey | None = None) -> Snapshot:
        """Take a snapshot of a plan's working directory, of which `seen` was found before.

        Raises SpecError as `survey` and `Survey.check` do, and OrchestratorError where the disk refuses.
        """
        if seen is None:
            seen = codetree.survey(plan.workdir, plan.withheld)
            seen.check(plan.script, plan.push_bytes_max)
        with disk.explained(self.directory), self._locked(fcntl.LOCK_SH):
            files, changed, gone = codetree.take(seen, self._copy)
            if again := [
                entry for entry in seen.files if entry.path in gone and os.path.exists(entry.absolute)
            ]:
                # An editor replaces a file in two steps
                more, _, gone_again = codetree.take(Survey(seen.workdir, tuple(again), ()), self._copy)
                files, gone = (
                    sorted([*files, *more]),
                    [*set(gone) - {file.path for file in more}, *gone_again],
                )
            Survey(seen.workdir, (), (), gone=tuple(gone)).check(plan.script, plan.push_bytes_max)
            remarks = seen.sentences()
            if changed:
                remarks.append(
                    f"changed while it was read, and is taken as it was then: {listed(sorted(changed))}"
                )
            if gone:
                remarks.append(f"removed while the tree was read, and left out: {listed(sorted(set(gone)))}")
            digest, links, left_out = digest_of(files), dict(seen.links), seen.left_out[:_LEFT_OUT_MAX]
            snapshot = Snapshot(
                digest, self.place_of(digest), tuple(files), links, left_out, tuple(remarks), plan.workdir
            )
            self._build(snapshot, f"{snapshot.directory}.json")
        return snapshot

    def keep(self, name: str, digest: str) -> Snapshot:
        """Keep a snapshot for a run, and return it. Raises Refused if it was removed, or OrchestratorError."""
        with disk.explained(self.directory), self._locked(fcntl.LOCK_SH):
            snapshot = self._read(os.path.join(self._trees, f"{os.path.basename(digest)}.json"))
            if snapshot is None:
                raise Refused(f"the snapshot {digest[:12]} of the code is not there", hint="`orch up` again")
            os.makedirs(self._runs, mode=0o700, exist_ok=True)
            self._build(snapshot, self.record_of(name))
        return snapshot

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Let `tidy` remove nothing, while a command waits for longer than an hour between `take` and `keep`.

        That may be days, of pods, and what ends meanwhile stays until the next `tidy`. Nobody waits for this lock, and
        it ends with the process.
        """
        return self._locked(fcntl.LOCK_SH)

    def snapshot_of(self, name: str) -> Snapshot | None:
        """Return the snapshot of a run; None if there is none."""
        return self._read(self.record_of(name))

    def place_of(self, digest: str) -> str:
        """Return where the snapshot of this digest would be."""
        return os.path.join(self._trees, digest)

    def code_of(self, name: str) -> Code | None:
        """Return the code with which a run began; None if unknown."""
        snapshot = self.snapshot_of(name)
        return None if snapshot is None else code_in(snapshot.directory, snapshot.files)

    def names(self) -> list[str]:
        """Return the runs that have a snapshot."""
        return sorted(
            name.removesuffix(".json") for name in durable.names(self._runs) if name.endswith(".json")
        )

    def bytes(self) -> int:
        """Return how much the snapshots take on the disk."""
        return sum(
            os.lstat(os.path.join(self._blobs, name)).st_blocks * 512 for name in durable.names(self._blobs)
        )

    def record_of(self, name: str) -> str:
        """Return the file that keeps the snapshot of a run."""
        return os.path.join(self._runs, f"{name}.json")

    def forget(self, name: str) -> None:
        """Keep the snapshot of a run no more. `tidy` removes it. Raises OSError."""
        durable.remove(self.record_of(name))

    def tidy(self, active: Collection[str]) -> None:
        """Remove what no run needs, and of ended runs all but short texts. While a snapshot is taken, do nothing.

        Raises OSError where a record cannot be read now: its snapshot may be needed.

        Args:
            active: the runs that go on, or whose state is not known.
        """
        if not os.path.isdir(self.directory):
            return
        with contextlib.suppress(BlockingIOError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            needed, ended = set(), {}
            for name in self.names():
                snapshot = self._read(self.record_of(name), durable.known_object)
                if snapshot is not None:
                    ended[snapshot.digest] = snapshot
                    needed |= {snapshot.digest} if name in active or name == SUBMITTED else set()
            for name in durable.names(self._trees):
                digest = name.partition(".")[0]
                path = self.place_of(digest)
                if digest in needed or name != digest or _age_s(f"{path}.json") < _NEW_S:
                    continue
                if digest not in ended:
                    durable.remove(f"{path}.thin")
                    shutil.rmtree(path)
                    durable.remove(f"{path}.json")
                elif not os.path.exists(f"{path}.thin"):
                    _keep_texts(ended[digest])
                    # If a power cut loses it, the texts are only read once more.
                    durable.fill(f"{path}.thin", b"", durable=False)
            for name in durable.names(self._blobs):
                path = os.path.join(self._blobs, name)
                if os.lstat(path).st_nlink == 1:
                    os.unlink(path)

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        for directory in (self.directory, self._blobs, self._trees):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        with _flocked(self.directory, how):
            yield

    def _copy(self, entry: Any) -> tuple[CodeFile, bool]:
        """Copy a file to a blob, and return it as it was copied, and whether it changed meanwhile each time."""
        fresh = os.path.join(self._blobs, f".{os.getpid()}.{threading.get_ident()}.tmp")
        try:
            for _ in range(_READS):
                with open(
                    os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb+"
                ) as into:
                    file, is_changed = codetree.read_once(entry, into)
                if not is_changed:
                    break
            self._settle(fresh, file)
        finally:
            durable.remove(fresh)
        return file, is_changed

    def _settle(self, fresh: str, file: CodeFile) -> None:
        """Make a copy a blob, durably, unless that content is there."""
        path = os.path.join(self._blobs, file.sha256)
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_size == file.size:  # else a power cut has damaged it
                return
        handle = os.open(fresh, os.O_RDONLY | os.O_CLOEXEC)
        try:
            durable.sync(handle)
        finally:
            os.close(handle)
        durable.place(fresh, path, durable=False)

    def _build(self, snapshot: Snapshot, record: str) -> None:
        """Make the tree, or what is missing of it, and write the record. Two builders take turns. Raises OSError."""
        with _flocked(self._trees, fcntl.LOCK_EX):
            self._link(snapshot)
            names = ("digest", "files", "links", "left_out", "remarks", "workdir")
            durable.write_json(record, {name: getattr(snapshot, name) for name in names})

    def _link(self, snapshot: Snapshot) -> None:
        os.makedirs(snapshot.directory, mode=0o700, exist_ok=True)
        durable.remove(f"{snapshot.directory}.thin")
        for file in snapshot.files:
            path, blob = snapshot.path_of(file), os.path.join(self._blobs, file.sha256)
            if file.mode == DIRECTORY:
                os.makedirs(path, exist_ok=True)
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(path).st_size == file.size:
                    continue
                os.unlink(path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if file.mode == LINK:
                os.symlink(snapshot.links[file.path], path)
                continue
            try:
                os.link(blob, path)
            except OSError as e:
                if e.errno not in (errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EXDEV):
                    raise
                shutil.copyfile(blob, path)  # a file system without links, or one file with very many

    def _read(
        self, path: str, read: Callable[[str], dict[str, Any] | None] = durable.read_object
    ) -> Snapshot | None:
        stored = read(path) or {}
        try:
            return Snapshot(
                str(stored["digest"]),
                self.place_of(str(stored["digest"])),
                tuple(
                    CodeFile(RelativePath(str(name)), str(sha), int(mode), int(size))
                    for name, sha, mode, size in stored["files"]
                ),
                {str(name): str(target) for name, target in stored["links"].items()},
                tuple(LeftOut(str(name), why, str(rule)) for name, why, rule in stored["left_out"]),
                tuple(map(str, stored["remarks"])),
                str(stored["workdir"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


@contextlib.contextmanager
def _flocked(directory: str, how: int) -> Iterator[None]:
    """Hold the lock of a directory. Threads of one process exclude each other too."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


def code_in(directory: str, files: Sequence[CodeFile]) -> Code:
    """Return the code in a directory that has these files."""

    def text(name: str) -> str | None:
        return _text(os.path.join(directory, name))

    return Code({file.path: (file.sha256, file.mode) for file in files}, text)


def _age_s(path: str) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return _NEW_S


def _keep_texts(snapshot: Snapshot) -> None:
    """Remove the files of a snapshot that `orch diff` does not show line by line."""
    left = TEXTS_BYTES_MAX
    for file in snapshot.files:
        path = snapshot.path_of(file)
        if file.mode in (LINK, DIRECTORY) or not os.path.lexists(path):
            continue
        if file.size > min(TEXT_BYTES_MAX, left) or _text(path) is None:
            os.unlink(path)
        else:
            left -= file.size


def _text(path: str) -> str | None:
    """Return the text of a short file, or the target of a link; None where it is not text, or cannot be read."""
    try:
        if os.path.islink(path):
            return os.readlink(path)
        with open(path, "rb") as file:
            data = file.read(TEXT_BYTES_MAX + 1)
        return None if b"\0" in data or len(data) > TEXT_BYTES_MAX else data.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None

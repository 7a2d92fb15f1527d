"""Lists what is pushed of the working directory to the hosts: files, links and empty directories, with their SHA-256.

`push_rules` says which files are left out. `run.push_limit` of the cluster spec limits the size of all of them. A link
within the tree stays a link, as it is when the script runs here; one to an absolute path outside is kept, since the
hosts may have it. A directory of which nothing is pushed is there all the same: scripts write into such ones.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from orchestrator.both import durable
from orchestrator.both.tree_digest import DIRECTORY, EMPTY, LINK
from orchestrator.core.errors import SpecError
from orchestrator.core.plan import PUSH_BYTES_MAX
from orchestrator.core.words import counted, listed, size
from orchestrator.head.code.push_rules import GIT_FILE, ORCH_FILE, LeftOut, Rules, is_private_key
from orchestrator.protocol.paths import RelativePath

MANIFEST_BYTES_MAX = 3_500_000
"""Names and hashes must fit in one frame."""

_READ_BYTES = 1 << 20
_CHOOSERS = ("Pipfile", "mise.toml", "pyproject.toml", "runtime.txt")
"""Beside all whose name begins with a dot, such as .python-version and .tool-versions."""
_CHOOSERS_MAX = 16
_CHOOSER_BYTES_MAX = 16 << 10
_SHOWN = 5
_DIAGNOSTICS_SHOWN = 20
_ENTRY_BYTES = 100
"""The bytes that a file takes in the manifest, beside its name."""

__all__ = ["CodeFile", "Survey", "manifest", "survey", "take"]


class CodeFile(NamedTuple):
    """One file of the tree, link or directory of which nothing is pushed: as git has them, told by the mode."""

    path: RelativePath
    """In the working directory."""
    sha256: str
    mode: int
    size: int


class _TreeEntry(NamedTuple):
    path: str
    absolute: str
    stat: os.stat_result


@dataclass(frozen=True, slots=True)
class Survey:
    """The files that are pushed and those that are not, before any content is read."""

    workdir: str
    files: tuple[_TreeEntry, ...]
    left_out: tuple[LeftOut, ...]
    links: tuple[tuple[str, str], ...] = ()
    """Path and target of the links that stay links."""
    directories: tuple[str, ...] = ()
    """Those of which nothing is pushed."""
    gone: tuple[str, ...] = ()
    """What was removed while the tree was listed."""
    foreign: tuple[str, ...] = ()
    """The repositories of other users, which git was not asked about."""

    @property
    def total_bytes(self) -> int:
        """The size of all files that are pushed."""
        return sum(file.stat.st_size for file in self.files)

    def check(self, script: str, limit_bytes: int) -> None:
        """Raise SpecError if the script is left out, or the files are too many or too large."""
        for entry in self.left_out:
            path = entry.path
            if script == path or script.startswith(path if path.endswith("/") else f"{path}/"):
                raise SpecError(
                    f"run.script: {script} is not pushed to the hosts: {path}: {entry.reason}",
                    hint=f"write `!{path}` into {ORCH_FILE} to push it all the same",
                )
        if script in self.gone:
            raise SpecError(
                f"run.script: {script} was removed while the tree was read", hint="`orch up` again"
            )
        if self.total_bytes > limit_bytes:
            raise SpecError(
                f"workdir: {self.workdir} holds {size(self.total_bytes)} in {len(self.files)} files, and at "
                f"most {size(limit_bytes)} are pushed to the hosts; the largest: {self._largest()}",
                hint=f"name data and results in {ORCH_FILE}, and put data where the hosts can read it; "
                "or raise `push_limit` of `run`",
            )
        paths = [*(file.path for file in self.files), *(path for path, _ in self.links), *self.directories]
        if sum(len(path.encode()) + _ENTRY_BYTES for path in paths) > MANIFEST_BYTES_MAX:
            raise SpecError(
                f"workdir: {self.workdir} holds {len(paths)} files; about {MANIFEST_BYTES_MAX // 150} can "
                f"be pushed; the most: {self._fullest()}",
                hint=f"name what the run does not need in {ORCH_FILE}",
            )

    def sentences(self) -> list[str]:
        """Say how much is pushed, and which files are not although the script may need them."""
        files = counted(len(self.files), "file")
        lines = [f"pushes {files} ({size(self.total_bytes)}) of {self.workdir}"]
        secrets = [path for path, why, _ in self.left_out if why == "secret"]
        ignored = [path for path, why, _ in self.left_out if why == ".gitignore"]
        if secrets:
            secret_files = (
                "1 file that looks like a secret"
                if len(secrets) == 1
                else f"{len(secrets)} files that look like secrets"
            )
            lines.append(
                f"left out {secret_files}: {listed(secrets)}; name them in {ORCH_FILE} with ! to push them"
            )
        if named := [path for path, why, _ in self.left_out if why == "named"]:
            lines.append(f"never pushed, since secrets of the spec stand in them: {listed(named)}")
        if ignored:
            lines.append(
                f"left out what {GIT_FILE} names: {listed(ignored)}; name it in {ORCH_FILE} with ! to push it"
            )
        if nothing := [path for path, why, _ in self.left_out if why == "nothing"]:
            lines.append(f"left out links to nothing: {listed(nothing)}")
        if self.foreign:
            lines.append(
                f"repositories of other users: {listed(self.foreign)}: git was not asked what it tracks there, "
                "and their rules count only for a working directory of the same user"
            )
        return lines

    def _largest(self) -> str:
        sizes: Counter[str] = Counter()
        for file in self.files:
            sizes[_top(file.path)] += file.stat.st_size
        return ", ".join(f"{name} ({size(count)})" for name, count in sizes.most_common(_SHOWN))

    def _fullest(self) -> str:
        counts = Counter(_top(file.path) for file in self.files)
        return ", ".join(f"{name} ({count})" for name, count in counts.most_common(_SHOWN))


_Stamp = tuple[int, int, int, int]

_hashes: dict[str, tuple[_Stamp, str]] = {}
"""Absolute path to (what stat said, sha256): an unchanged tree is not read again."""

_keys: dict[str, tuple[_Stamp, bool]] = {}
"""As `_hashes`: whether the file is a private key."""


def survey(workdir: str, withheld: Collection[str] = ()) -> Survey:
    """List the files of a working directory that are pushed.

    Raises one SpecError for all that is wrong: relative symlinks that leave the tree, sockets and devices, and files
    that cannot be read. `withheld` are the files that hold secrets of the spec: they are never pushed.
    """
    root = os.path.realpath(workdir)
    if not os.path.isdir(root):
        raise SpecError(f"workdir: {workdir} is no directory", hint="workdir is relative to the cluster spec")
    walk = _Walk(root, withheld)
    walk.all()
    if walk.diagnostics:
        more = len(walk.diagnostics) - _DIAGNOSTICS_SHOWN
        lines = walk.diagnostics[:_DIAGNOSTICS_SHOWN] + ([f"workdir: and {more} more"] if more > 0 else [])
        raise SpecError("\n".join(lines), hint=f"name what the run does not need in {ORCH_FILE}")
    return Survey(
        workdir,
        tuple(sorted(walk.files)),
        tuple(walk.left_out),
        tuple(sorted(walk.links.items())),
        tuple(sorted(walk.bare)),
        tuple(walk.gone),
        tuple(sorted(walk.foreign)),
    )


def manifest(
    workdir: str, script: str = "", limit_bytes: int = PUSH_BYTES_MAX, withheld: Collection[str] = ()
) -> list[CodeFile]:
    """Return all that is pushed, sorted by path. Raises SpecError as `survey` and `Survey.check` do."""
    seen = survey(workdir, withheld)
    seen.check(script, limit_bytes)
    return take(seen, _known_or_read)[0]


Read = Callable[[_TreeEntry], tuple[CodeFile, bool]]
"""Reads one file, and says whether it changed meanwhile. Raises FileNotFoundError if it is gone, OSError."""


def take(seen: Survey, read: Read) -> tuple[list[CodeFile], list[str], list[str]]:
    """Read all files. Return what is pushed, the paths of files that changed meanwhile, and of those that are gone.

    Raises SpecError if a file cannot be read.
    """
    files = [CodeFile(RelativePath(path), EMPTY, DIRECTORY, 0) for path in seen.directories]
    for path, target in seen.links:
        text = target.encode()
        files.append(CodeFile(RelativePath(path), hashlib.sha256(text).hexdigest(), LINK, len(text)))
    changed, gone = [], list(seen.gone)
    for entry in seen.files:
        try:
            file, is_changed = read(entry)
        except FileNotFoundError:
            gone.append(entry.path)
            continue
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT) or e.filename not in (None, entry.absolute):
                raise  # the copy could not be written
            raise SpecError(
                f"workdir: cannot read {entry.path}: {e.strerror}",
                hint=f"make it readable, or name it in {ORCH_FILE}",
            ) from e
        files.append(file)
        if is_changed:
            changed.append(entry.path)
    return sorted(files), changed, gone


def read_once(entry: _TreeEntry, into: BinaryIO | None = None) -> tuple[CodeFile, bool]:
    """Read a file as long as it is now, into another one if that is given, and say whether it changed meanwhile.

    Args:
        entry: of the tree.
        into: gets the content, and is what is hashed if it shares the content of the first one.
    """
    digest, length = hashlib.sha256(), 0
    # A file may have become a named pipe, which would wait for its writer for ever
    with open(os.open(entry.absolute, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise FileNotFoundError(entry.absolute)
        is_clone = into is not None and durable.clone(file.fileno(), into.fileno())
        source: BinaryIO = into if is_clone and into is not None else file
        left = os.fstat(source.fileno()).st_size
        while chunk := source.read(min(_READ_BYTES, left)):
            digest.update(chunk)
            length, left = length + len(chunk), left - len(chunk)
            if into is not None and not is_clone:
                into.write(chunk)
        after = os.fstat(file.fileno())
    mode = 0o755 if before.st_mode & 0o100 else 0o644
    return CodeFile(RelativePath(entry.path), digest.hexdigest(), mode, length), _stamp(before) != _stamp(
        after
    )


def _known_or_read(entry: _TreeEntry) -> tuple[CodeFile, bool]:
    """Read a file unless it is as it was when it was last read."""
    known = _hashes.get(entry.absolute)
    if known is not None and known[0] == _stamp(entry.stat):
        mode = 0o755 if entry.stat.st_mode & 0o100 else 0o644
        return CodeFile(RelativePath(entry.path), known[1], mode, entry.stat.st_size), False
    file, is_changed = read_once(entry)
    if not is_changed:
        _hashes[entry.absolute] = (_stamp(entry.stat), file.sha256)
    return file, is_changed


def choosers(workdir: str, withheld: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return the pushed files by which version managers choose a Python, with their text. A link is followed."""
    root = os.path.realpath(workdir)
    walk = _Walk(root, withheld)
    for name in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        if (name[0] == "." or name in _CHOOSERS) and os.path.isfile(os.path.join(root, name)):
            walk.entry(name, os.path.join(root, name), (root,))
    chosen = []
    for entry in walk.files[:_CHOOSERS_MAX]:
        with contextlib.suppress(OSError, UnicodeDecodeError), open(entry.absolute, encoding="utf-8") as file:
            if entry.stat.st_size <= _CHOOSER_BYTES_MAX:
                chosen.append((entry.path, file.read(_CHOOSER_BYTES_MAX)))
    return chosen


class _Walk:
    """Goes through a directory, and then through what its links lead to that lies there and is not pushed itself."""

    def __init__(self, root: str, withheld: Collection[str]) -> None:
        self._root = root
        self._rules = Rules(root)
        self.foreign = self._rules.foreign
        self._withheld = {os.path.join(root, path) for path in withheld}
        self._pushed = {""}  # the paths of files and directories
        self._to_follow: list[tuple[_TreeEntry, str, tuple[str, ...]]] = []
        self.files: list[_TreeEntry] = []
        self.links: dict[str, str] = {}
        self.bare: set[str] = set()
        self.left_out: list[LeftOut] = []
        self.gone: list[str] = []
        self.diagnostics: list[str] = []

    def all(self) -> None:
        """List everything. A link is kept if its target is pushed by itself; what a rule leaves out there is copied."""
        self._directory("", self._root, (self._root,))
        while self._to_follow:
            links, self._to_follow = self._to_follow, []
            for entry, real, above in links:
                inside = os.path.relpath(real, self._root) if real != self._root else ""
                if inside in self._pushed:
                    self.links[entry.path] = os.path.relpath(
                        inside or ".", os.path.dirname(entry.path) or "."
                    )
                elif not stat.S_ISDIR(entry.stat.st_mode):
                    self._file(entry)
                elif real in above:
                    self.diagnostics.append(
                        f"workdir: the symlink {entry.path} leads back to a directory above it"
                    )
                else:
                    self._directory(entry.path, entry.absolute, (*above, real))
        self._pushed.update(self.links)
        for path in self._pushed:
            self.bare.discard(os.path.dirname(path))

    def _directory(self, path: str, absolute: str, above: tuple[str, ...]) -> None:
        """List a directory. `path` is its name in the tree; `above` the real paths on the way to it."""
        try:
            names = sorted(os.listdir(absolute))
        except FileNotFoundError:
            self.gone.append(path)
            return
        except OSError as e:
            self.diagnostics.append(f"workdir: cannot list {path or '.'}: {e.strerror}")
            return
        if path:
            self._pushed.add(path)
            self.bare.add(path)
        for name in names:
            self.entry(f"{path}/{name}" if path else name, os.path.join(absolute, name), above)

    def entry(self, path: str, absolute: str, above: tuple[str, ...]) -> None:
        """List what has this name, unless a rule leaves it out."""
        is_link = os.path.islink(absolute)
        try:
            status: os.stat_result | None = os.stat(absolute)
        except OSError as e:
            if not is_link:
                if isinstance(e, FileNotFoundError):
                    self.gone.append(path)
                elif not self._is_left_out(path, absolute, is_directory=False):
                    self.diagnostics.append(f"workdir: {path} cannot be read: {e.strerror}")
                return
            status = None
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        if self._is_left_out(path, absolute, is_directory=is_directory):
            return
        try:
            RelativePath(path)
        except ValueError as e:
            self.diagnostics.append(f"workdir: {e}")
            return
        real = os.path.realpath(absolute)
        if real in self._withheld:
            self.left_out.append(LeftOut(path, "named"))
        elif is_link and real != self._root and not real.startswith(self._root + os.sep):
            self._leaving(path, absolute, real)
        elif status is None:
            self.left_out.append(LeftOut(path, "nothing"))
        elif is_link:
            self._to_follow.append((_TreeEntry(path, absolute, status), real, above))
        elif is_directory:
            self._directory(path, absolute, (*above, real))
        elif stat.S_ISREG(status.st_mode):
            self._file(_TreeEntry(path, absolute, status))
        else:
            self.diagnostics.append(f"workdir: {path} is no ordinary file: a socket, pipe or device")

    def _leaving(self, path: str, absolute: str, real: str) -> None:
        """Keep a link out of the tree to an absolute path, by itself or by another link of the tree."""
        target = os.readlink(absolute)
        if not os.path.isabs(target):
            beside = os.path.normpath(os.path.join(os.path.dirname(absolute), target))
            if not beside.startswith(self._root + os.sep):
                self.diagnostics.append(f"workdir: the symlink {path} leaves the tree: it points to {target}")
                return
            target = real
        if _is_text(target):
            self.links[path] = target
        else:
            self.diagnostics.append(f"workdir: the target {target!r} of the symlink {path} is not UTF-8")

    def _file(self, entry: _TreeEntry) -> None:
        try:
            stamp = _stamp(entry.stat)
            known = _keys.get(entry.absolute)
            if known is None or known[0] != stamp:
                known = _keys[entry.absolute] = (stamp, is_private_key(entry.absolute, entry.stat.st_size))
            is_key = known[1]
        except FileNotFoundError:
            self.gone.append(entry.path)
            return
        except OSError as e:
            self.diagnostics.append(f"workdir: cannot read {entry.path}: {e.strerror}")
            return
        if is_key and not self._rules.is_asked_for(entry.path):
            self.left_out.append(LeftOut(entry.path, "secret"))
        else:
            self.files.append(entry)
            self._pushed.add(entry.path)

    def _is_left_out(self, path: str, absolute: str, *, is_directory: bool) -> bool:
        why = self._rules.why_not(path, absolute, is_directory=is_directory)
        if why is not None:
            self.left_out.append(why)
        return why is not None


def _top(path: str) -> str:
    """Return the entry of the working directory that a file belongs to."""
    name, slash, _ = path.partition("/")
    return name + slash


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

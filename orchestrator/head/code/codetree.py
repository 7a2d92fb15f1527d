"""Lists the files of the working directory that are pushed to the hosts, each with the SHA-256 of its content.

`push_rules` says which files are left out. `run.push_limit` of the cluster spec limits the size of all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from orchestrator.core.errors import SpecError
from orchestrator.core.plan import PUSH_BYTES_MAX
from orchestrator.core.words import counted, listed, size
from orchestrator.head.code.push_rules import GIT_FILE, ORCH_FILE, Rules, Why, is_private_key

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

__all__ = ["CodeFile", "Survey", "manifest", "survey"]


class CodeFile(NamedTuple):
    """One file of the tree."""

    path: str
    """Relative to the working directory, with `/`."""
    sha256: str
    mode: int
    size: int


class _Entry(NamedTuple):
    path: str
    absolute: str
    stat: os.stat_result


@dataclass(frozen=True, slots=True)
class Survey:
    """The files that are pushed and those that are not, before any content is read."""

    workdir: str
    files: tuple[_Entry, ...]
    left_out: tuple[tuple[str, Why], ...]
    """Entries that are not pushed, each with the reason. A directory ends with a slash."""

    @property
    def total_bytes(self) -> int:
        """The size of all files that are pushed."""
        return sum(file.stat.st_size for file in self.files)

    def check(self, script: str, limit_bytes: int) -> None:
        """Raise SpecError if the script is left out, or the files are too many or too large."""
        for path, why in self.left_out:
            if script == path or script.startswith(path if path.endswith("/") else f"{path}/"):
                raise SpecError(
                    f"run.script: {script} is not pushed to the hosts: {_REASONS[why]} {path}",
                    hint=f"write `!{path}` into {ORCH_FILE} to push it all the same",
                )
        if self.total_bytes > limit_bytes:
            raise SpecError(
                f"workdir: {self.workdir} holds {size(self.total_bytes)} in {len(self.files)} files, and at "
                f"most {size(limit_bytes)} are pushed to the hosts; the largest: {self._largest()}",
                hint=f"name data and results in {ORCH_FILE}, and put data where the hosts can read it; "
                "or raise `push_limit` of `run`",
            )
        if sum(len(file.path.encode()) + _ENTRY_BYTES for file in self.files) > MANIFEST_BYTES_MAX:
            raise SpecError(
                f"workdir: {self.workdir} holds {len(self.files)} files; about {MANIFEST_BYTES_MAX // 150} can "
                f"be pushed; the most: {self._fullest()}",
                hint=f"name what the run does not need in {ORCH_FILE}",
            )

    def sentences(self) -> list[str]:
        """Say how much is pushed, and which files are not although the script may need them."""
        files = counted(len(self.files), "file")
        lines = [f"pushes {files} ({size(self.total_bytes)}) of {self.workdir}"]
        secrets = [path for path, why in self.left_out if why == "secret"]
        ignored = [path for path, why in self.left_out if why == ".gitignore"]
        if secrets:
            secret_files = (
                "1 file that looks like a secret"
                if len(secrets) == 1
                else f"{len(secrets)} files that look like secrets"
            )
            lines.append(
                f"left out {secret_files}: {listed(secrets)}; name them in {ORCH_FILE} with ! to push them"
            )
        if named := [path for path, why in self.left_out if why == "named"]:
            lines.append(f"never pushed, since secrets of the spec stand in them: {listed(named)}")
        if ignored:
            lines.append(
                f"left out what {GIT_FILE} names: {listed(ignored)}; name it in {ORCH_FILE} with ! to push it"
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


_REASONS: dict[Why, str] = {
    "secret": "it looks like a secret:",
    "named": "secrets of the spec stand in",
    "cache": "it is of use on this machine only:",
    "orch": "orch wrote it:",
    ".gitignore": f"{GIT_FILE} names",
    ".orchignore": f"{ORCH_FILE} names",
}

_Stamp = tuple[int, int, int, int]

_hashes: dict[str, tuple[_Stamp, str]] = {}
"""Absolute path to (what stat said, sha256): an unchanged tree is not read again."""

_keys: dict[str, tuple[_Stamp, bool]] = {}
"""As `_hashes`: whether the file is a private key."""


def survey(workdir: str, withheld: Collection[str] = ()) -> Survey:
    """List the files of a working directory that are pushed. A symlink that stays in the tree counts as its target.

    Raises one SpecError for all that is wrong: symlinks that leave the tree or lead nowhere, sockets and devices, and
    files that cannot be read. `withheld` are the files that hold secrets of the spec: they are never pushed.
    """
    root = os.path.realpath(workdir)
    if not os.path.isdir(root):
        raise SpecError(f"workdir: {workdir} is no directory", hint="workdir is relative to the cluster spec")
    walk = _Walk(root, withheld)
    walk.directory("", root, (root,))
    if walk.diagnostics:
        more = len(walk.diagnostics) - _DIAGNOSTICS_SHOWN
        lines = walk.diagnostics[:_DIAGNOSTICS_SHOWN] + ([f"workdir: and {more} more"] if more > 0 else [])
        raise SpecError("\n".join(lines), hint=f"name what the run does not need in {ORCH_FILE}")
    return Survey(workdir, tuple(sorted(walk.files)), tuple(walk.left_out))


def manifest(
    workdir: str, script: str = "", limit_bytes: int = PUSH_BYTES_MAX, withheld: Collection[str] = ()
) -> list[CodeFile]:
    """Return every file to push, sorted by path. Raises SpecError as `survey` and `Survey.check` do."""
    seen = survey(workdir, withheld)
    seen.check(script, limit_bytes)
    files = []
    for entry in seen.files:
        try:
            files.append(_file(entry))
        except OSError as e:
            raise SpecError(
                f"workdir: cannot read {entry.path}: {e.strerror}",
                hint=f"make it readable, or name it in {ORCH_FILE}",
            ) from e
    return files


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
    """Goes through a directory; symlinks are followed within the root, and never around in a circle."""

    def __init__(self, root: str, withheld: Collection[str]) -> None:
        self._root = root
        self._rules = Rules(root)
        self._withheld = {os.path.join(root, path) for path in withheld}
        self.files: list[_Entry] = []
        self.left_out: list[tuple[str, Why]] = []
        self.diagnostics: list[str] = []

    def directory(self, path: str, absolute: str, above: tuple[str, ...]) -> None:
        """List a directory. `path` is its name in the tree; `above` the real paths on the way to it."""
        try:
            names = sorted(os.listdir(absolute))
        except OSError as e:
            self.diagnostics.append(f"workdir: cannot list {path or '.'}: {e.strerror}")
            return
        for name in names:
            self.entry(f"{path}/{name}" if path else name, os.path.join(absolute, name), above)

    def entry(self, path: str, absolute: str, above: tuple[str, ...]) -> None:
        """List what has this name, unless a rule leaves it out."""
        is_link = os.path.islink(absolute)
        try:
            status = os.stat(absolute)
        except OSError as e:
            if not self._is_left_out(path, absolute, is_directory=False):
                why = "is a symlink to nothing" if is_link else f"cannot be read: {e.strerror}"
                self.diagnostics.append(f"workdir: {path} {why}")
            return
        is_directory = stat.S_ISDIR(status.st_mode)
        if self._is_left_out(path, absolute, is_directory=is_directory):
            return
        if not _is_text(path):
            self.diagnostics.append(f"workdir: the name {path!r} is not UTF-8")
            return
        real = os.path.realpath(absolute)
        if real in self._withheld:
            self.left_out.append((path, "named"))
            return
        if is_link and real != self._root and not real.startswith(self._root + os.sep):
            target = os.readlink(absolute)
            self.diagnostics.append(f"workdir: the symlink {path} leaves the tree: it points to {target}")
        elif is_directory and real in above:
            self.diagnostics.append(f"workdir: the symlink {path} leads back to a directory above it")
        elif is_directory:
            self.directory(path, absolute, (*above, real))
        elif stat.S_ISREG(status.st_mode):
            self._file(_Entry(path, absolute, status))
        else:
            self.diagnostics.append(f"workdir: {path} is no ordinary file: a socket, pipe or device")

    def _file(self, entry: _Entry) -> None:
        try:
            stamp = _stamp(entry.stat)
            known = _keys.get(entry.absolute)
            if known is None or known[0] != stamp:
                known = _keys[entry.absolute] = (stamp, is_private_key(entry.absolute, entry.stat.st_size))
            is_key = known[1]
        except OSError as e:
            self.diagnostics.append(f"workdir: cannot read {entry.path}: {e.strerror}")
            return
        if is_key and not self._rules.is_asked_for(entry.path):
            self.left_out.append((entry.path, "secret"))
        else:
            self.files.append(entry)

    def _is_left_out(self, path: str, absolute: str, *, is_directory: bool) -> bool:
        why = self._rules.why_not(path, absolute, is_directory=is_directory)
        if why is not None:
            self.left_out.append((f"{path}/" if is_directory else path, why))
        return why is not None


def _top(path: str) -> str:
    """Return the entry of the working directory that a file belongs to."""
    name, slash, _ = path.partition("/")
    return name + slash


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


def _file(entry: _Entry) -> CodeFile:
    status = entry.stat
    stamp = _stamp(status)
    known = _hashes.get(entry.absolute)
    if known is None or known[0] != stamp:
        digest = hashlib.sha256()
        with open(entry.absolute, "rb") as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
        known = _hashes[entry.absolute] = (stamp, digest.hexdigest())
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    return CodeFile(entry.path, known[1], mode, status.st_size)


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

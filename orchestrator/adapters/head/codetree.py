"""What of the working directory is pushed to the hosts: its files by content, as the head sees them.

Left out: `.git`, `__pycache__`, and what `.orchignore` names. That file has one pattern a line, in the manner
of .gitignore, kept simple:

    *.log          no slash: any file or directory of that name, anywhere
    data/*.csv     a slash within: from the top; each component is matched by itself, `*` never matches a `/`
    /build         a leading slash: at the top only
    cache/         a trailing slash: directories only
    **/tmp         `**`: any number of directories
    !keep.log      takes back what an earlier line left out (not within a directory that is left out)
    # comment
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from orchestrator.adapters.host.codestore import digest_of
from orchestrator.core.errors import SpecError
from orchestrator.core.words import size

IGNORE_FILE = ".orchignore"
ALWAYS_LEFT_OUT = frozenset({".git", "__pycache__"})
TOTAL_BYTES_MAX = 2 << 30
MANIFEST_BYTES_MAX = 3_500_000
"""Names and hashes must fit in one frame."""

_READ_BYTES = 1 << 20
_LARGEST_SHOWN = 5
_DIAGNOSTICS_SHOWN = 20
_ENTRY_BYTES = 100
"""Of a file in the manifest, beside its name."""

__all__ = ["CodeFile", "digest_of", "manifest"]


class CodeFile(NamedTuple):
    """One file of the tree."""

    path: str
    """Relative to the working directory, with `/`."""
    sha256: str
    mode: int
    size: int


class _Found(NamedTuple):
    path: str
    absolute: str
    stat: os.stat_result


@dataclass(frozen=True, slots=True)
class _Pattern:
    parts: tuple[str, ...]
    directories_only: bool
    takes_back: bool

    def matches(self, parts: list[str], is_directory: bool) -> bool:
        return (is_directory or not self.directories_only) and _match(self.parts, tuple(parts))


_hashes: dict[str, tuple[tuple[int, int, int, int], str]] = {}
"""Absolute path to (what stat said, sha256): an unchanged tree is not read again."""


def manifest(workdir: str) -> list[CodeFile]:
    """Every file to push, sorted by path. Symlinks that stay in the tree are pushed as what they point to.

    SpecError, one for all that is wrong: symlinks that leave the tree or lead nowhere, sockets and devices,
    files that cannot be read, too many or too large.
    """
    root = os.path.realpath(workdir)
    if not os.path.isdir(root):
        raise SpecError(f"workdir: {workdir} is no directory", hint="workdir is relative to the cluster spec")
    walk = _Walk(root, _read_patterns(root))
    walk.directory("", root, (root,))
    if walk.diagnostics:
        more = len(walk.diagnostics) - _DIAGNOSTICS_SHOWN
        lines = walk.diagnostics[:_DIAGNOSTICS_SHOWN] + ([f"workdir: and {more} more"] if more > 0 else [])
        raise SpecError("\n".join(lines), hint=f"name what the run does not need in {IGNORE_FILE}")
    _check_size(workdir, walk.found)
    files = []
    for found in sorted(walk.found):
        try:
            files.append(_file(found))
        except OSError as e:
            raise SpecError(
                f"workdir: cannot read {found.path}: {e.strerror}",
                hint=f"make it readable, or name it in {IGNORE_FILE}",
            ) from e
    return files


class _Walk:
    """Goes through a directory; symlinks are followed within the root, and never around in a circle."""

    def __init__(self, root: str, patterns: list[_Pattern]) -> None:
        self._root = root
        self._patterns = patterns
        self.found: list[_Found] = []
        self.diagnostics: list[str] = []

    def directory(self, path: str, absolute: str, above: tuple[str, ...]) -> None:
        """`path` is its name in the tree; `above` the real paths on the way to it."""
        try:
            names = sorted(os.listdir(absolute))
        except OSError as e:
            self.diagnostics.append(f"workdir: cannot list {path or '.'}: {e.strerror}")
            return
        for name in names:
            if name not in ALWAYS_LEFT_OUT:
                self._entry(f"{path}/{name}" if path else name, os.path.join(absolute, name), above)

    def _entry(self, path: str, absolute: str, above: tuple[str, ...]) -> None:
        is_link = os.path.islink(absolute)
        try:
            status = os.stat(absolute)
        except OSError as e:
            if not self._left_out(path, is_directory=False):
                why = "is a symlink to nothing" if is_link else f"cannot be read: {e.strerror}"
                self.diagnostics.append(f"workdir: {path} {why}")
            return
        is_directory = stat.S_ISDIR(status.st_mode)
        if self._left_out(path, is_directory):
            return
        if not _is_text(path):
            self.diagnostics.append(f"workdir: the name {path!r} is not UTF-8")
            return
        real = os.path.realpath(absolute)
        if is_link and real != self._root and not real.startswith(self._root + os.sep):
            target = os.readlink(absolute)
            self.diagnostics.append(f"workdir: the symlink {path} leaves the tree: it points to {target}")
        elif is_directory and real in above:
            self.diagnostics.append(f"workdir: the symlink {path} leads back to a directory above it")
        elif is_directory:
            self.directory(path, absolute, (*above, real))
        elif stat.S_ISREG(status.st_mode):
            self.found.append(_Found(path, absolute, status))
        else:
            self.diagnostics.append(f"workdir: {path} is no ordinary file: a socket, pipe or device")

    def _left_out(self, path: str, is_directory: bool) -> bool:
        parts = path.split("/")
        out = False
        for pattern in self._patterns:
            if pattern.takes_back == out and pattern.matches(parts, is_directory):
                out = not pattern.takes_back
        return out


def _read_patterns(root: str) -> list[_Pattern]:
    try:
        with open(os.path.join(root, IGNORE_FILE), encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as e:
        raise SpecError(f"workdir: cannot read {IGNORE_FILE}: {e}", hint="it is a UTF-8 text") from e
    return [_parse(line.strip()) for line in lines if line.strip() and not line.strip().startswith("#")]


def _parse(line: str) -> _Pattern:
    takes_back = line.startswith("!")
    body = line[1:] if takes_back else line
    directories_only = body.endswith("/")
    body = body.rstrip("/")
    anchored = "/" in body
    parts = tuple(part for part in body.split("/") if part)
    return _Pattern(parts if anchored else ("**", *parts), directories_only, takes_back)


def _match(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _match(pattern[1:], parts) or (bool(parts) and _match(pattern, parts[1:]))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _match(pattern[1:], parts[1:])


def _check_size(workdir: str, found: list[_Found]) -> None:
    total = sum(file.stat.st_size for file in found)
    if total > TOTAL_BYTES_MAX:
        largest = sorted(found, key=lambda file: -file.stat.st_size)[:_LARGEST_SHOWN]
        shown = ", ".join(f"{file.path} ({size(file.stat.st_size)})" for file in largest)
        raise SpecError(
            f"workdir: {workdir} holds {size(total)}, more than the {size(TOTAL_BYTES_MAX)} that can be "
            f"pushed to the hosts; the largest: {shown}",
            hint=f"name data and results in {IGNORE_FILE}, and put data where the hosts can read it",
        )
    if sum(len(file.path.encode()) + _ENTRY_BYTES for file in found) > MANIFEST_BYTES_MAX:
        raise SpecError(
            f"workdir: {workdir} holds {len(found)} files; about {MANIFEST_BYTES_MAX // 150} can be pushed",
            hint=f"name what the run does not need in {IGNORE_FILE}",
        )


def _file(found: _Found) -> CodeFile:
    status = found.stat
    key = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)
    known = _hashes.get(found.absolute)
    if known is not None and known[0] == key:
        digest = known[1]
    else:
        digest = _hash(found.absolute)
        _hashes[found.absolute] = (key, digest)
    mode = 0o755 if status.st_mode & 0o100 else 0o644
    return CodeFile(found.path, digest, mode, status.st_size)


def _hash(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

"""Decides which files of a working directory are not pushed: secrets, caches, and what an ignore file names.

`.gitignore` and `.orchignore` are read as git reads .gitignore: a file that git tracks is pushed although a rule names
it, and a submodule has its own rules only. `.orchignore` lies at the top and takes precedence: `!name` in it pushes a
file that any other rule leaves out. A repository of another user of this machine counts only where that user owns the
working directory too, and git is never started on it.
"""

from __future__ import annotations

import os
import subprocess
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from pathspec import GitIgnoreSpec

from orchestrator.core.errors import SpecError

ORCH_FILE = ".orchignore"
GIT_FILE = ".gitignore"

Why = Literal["secret", "named", "cache", "orch", ".gitignore", ".orchignore", "nothing"]
"""Why an entry is left out. `nothing`: it is a link to nothing."""


_REASONS: dict[Why, str] = {
    "secret": "it looks like a secret",
    "named": "secrets of the spec stand in it",
    "cache": "it is of use on the head node only",
    "orch": "orch wrote it",
    "nothing": "it is a link to nothing",
}


class LeftOut(NamedTuple):
    """An entry that is not pushed. A directory ends with a slash."""

    path: str
    why: Why
    rule: str = ""
    """The file and line of the rule, such as `.gitignore:12`; empty where no line of a file says it."""

    @property
    def reason(self) -> str:
        """Return why, to follow a colon."""
        return f"the rule {self.rule} leaves it out" if self.rule else _REASONS[self.why]


SECRETS = (
    *(".env", ".env.*", ".envrc"),
    *(".aws", ".azure", ".boto", ".s3cfg", ".kube", ".vault-token", "credentials*", "kaggle.json"),
    *(".ssh", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "*.ppk"),
    *("*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", ".gnupg"),
    *(".netrc", "_netrc", ".git-credentials", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd"),
)
"""Names of files and directories, in lower case, that hold secrets."""

_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")

CACHES = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    | {".cache", ".ipynb_checkpoints", ".tox", ".nox", ".eggs", "node_modules", ".DS_Store"}
)
"""Names of files and directories that are of no use on a host."""

_MARKS = ("pyvenv.cfg", "conda-meta", "coordinator.lock", "coordinator.sock")
"""A directory with one of these files is a virtual environment or orch's own state: of use on this machine only."""

OUTPUTS_MARK = "# What runs have left: fetched by orch, and not pushed again."
"""The first line of `.gitignore` in a directory of fetched files."""

REPORT_MARK = '<meta name="generator" content="orch report">'
"""The beginning of a file that `orch report` writes."""

_BEGINNING_BYTES = 2048
_KEY_BYTES_MAX = 1 << 20
_LINE_BYTES = 200


_GIT_S = 20.0
_GIT = ("git", "-c", "core.fsmonitor=false")
_NO_FETCH = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
"""So git runs no program that the configuration of a repository names: no monitor, and no fetch of what is missing."""


class Rules:
    """The rules for one working directory. Directories are asked about before what lies in them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._asked = _read(os.path.join(root, ORCH_FILE), ORCH_FILE)
        self.foreign: set[str] = set()
        """The repositories of other users that were met."""
        top = _top(root)
        self._top = top if self._is_of_us(top, root) else ""
        self._above = _above(root, self._top)
        self._within: dict[str, _Patterns | None] = {}  # by directory
        self._repositories: dict[str, bool] = {}  # by directory
        self._tracked: dict[str, frozenset[str]] = {}  # by repository
        self._entered: dict[str, str] = {}  # directories of which only tracked files are pushed: their rule

    def why_not(self, path: str, absolute: str, *, is_directory: bool) -> LeftOut | None:
        """Return why an entry is left out; None if it is pushed.

        Args:
            path: Its name in the tree, with `/`. Nothing above it is left out.
            absolute: Where it lies.
            is_directory: Whether it is one, or a link to one.
        """
        shown = f"{path}/" if is_directory else path
        asked = _matched(self._asked, path, is_directory)
        if asked is not None:
            return LeftOut(shown, ".orchignore", asked[1]) if asked[0] else None
        name = os.path.basename(path)
        if _is_secret_name(name) or any(map(_is_secret_name, self._target(absolute))):
            return LeftOut(shown, "secret")
        if name in CACHES or (is_directory and _is_of_this_machine(absolute)):
            return LeftOut(shown, "cache")
        if _is_of_orch(absolute, is_directory=is_directory):
            return LeftOut(shown, "orch")
        repository = self._repository(os.path.dirname(path))
        rule = self._entered.get(os.path.dirname(path)) or self._git_ignores(path, is_directory, repository)
        if not rule:
            return None
        if path not in self._tracked_in(repository):
            return LeftOut(shown, ".gitignore", rule)
        if is_directory and not self._is_repository(path):
            self._entered[path] = rule
        return None

    def is_asked_for(self, path: str) -> bool:
        """Return whether `.orchignore` says that a file is to be pushed."""
        asked = _matched(self._asked, path, is_directory=False)
        return asked is not None and not asked[0]

    def _git_ignores(self, path: str, is_directory: bool, repository: str) -> str:
        """Return the rule that leaves an entry out: that of the nearest .gitignore that matches; empty for none.

        Those above its repository do not count.
        """
        parts = path.split("/")
        top = repository.count("/") + 1 if repository else 0
        for depth in range(len(parts) - 1, top - 1, -1):
            directory = "/".join(parts[:depth])
            if directory not in self._within:
                file = os.path.join(self._root, directory, GIT_FILE)
                self._within[directory] = _read(file, os.path.join(directory, GIT_FILE))
            verdict = _matched(self._within[directory], "/".join(parts[depth:]), is_directory)
            if verdict is not None:
                return verdict[1] if verdict[0] else ""
        for down, patterns in [] if repository else self._above:
            verdict = _matched(patterns, f"{down}/{path}", is_directory)
            if verdict is not None:
                return verdict[1] if verdict[0] else ""
        return ""

    def _is_repository(self, directory: str) -> bool:
        if directory not in self._repositories:
            here = os.path.join(self._root, directory)
            self._repositories[directory] = bool(directory) and self._is_of_us(here, self._root)
        return self._repositories[directory]

    def _is_of_us(self, directory: str, *owned: str) -> bool:
        """Return whether there is a repository that is ours or root's, or belongs to an owner of `owned`."""
        git = os.path.join(directory, ".git")
        try:
            owners = {os.stat(directory).st_uid, os.lstat(git).st_uid, os.stat(git).st_uid}
            ours = {0, os.geteuid(), *(os.stat(path).st_uid for path in owned)}
        except OSError:
            return False  # there is none
        if owners <= ours:
            return True
        self.foreign.add(directory)
        return False

    def _repository(self, directory: str) -> str:
        """Return the nearest directory, from here up to the top of the tree, that is a repository of its own."""
        while directory and not self._is_repository(directory):
            directory = os.path.dirname(directory)
        return directory

    def _tracked_in(self, repository: str) -> frozenset[str]:
        """Return the paths that git tracks, and the directories above them; none without git or a repository."""
        if repository not in self._tracked:
            here = os.path.join(self._root, repository)
            top = here if repository else self._top
            git = (*_GIT, f"--git-dir={top}/.git", f"--work-tree={top}", "ls-files", "-z", "--cached")
            environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
            try:
                listed = self._is_of_us(top) and subprocess.run(
                    git, cwd=here, env=environ | _NO_FETCH, capture_output=True, timeout=_GIT_S, check=True
                )
            except (OSError, subprocess.SubprocessError):
                listed = False
            names = os.fsdecode(listed.stdout).split("\0") if listed else []
            paths = {os.path.join(repository, name) for name in names if name}
            for path in list(paths):
                while (path := os.path.dirname(path)) and path not in paths:
                    paths.add(path)
            self._tracked[repository] = frozenset(paths)
        return self._tracked[repository]

    def _target(self, absolute: str) -> list[str]:
        """Return the names in the path of the target of a link within the tree; none where it is no such link."""
        if not os.path.islink(absolute):
            return []
        real = os.path.realpath(absolute)
        inside = real.startswith(self._root + os.sep)
        return real[len(self._root) + 1 :].split(os.sep) if inside else []


def is_private_key(absolute: str, size: int) -> bool:
    """Return whether a file begins as a private key does. Raises OSError if it cannot be read."""
    if not 0 < size <= _KEY_BYTES_MAX:
        return False
    with open(absolute, "rb") as file:
        line = file.read(_LINE_BYTES).lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0].strip()
    is_pem = line.startswith(b"-----BEGIN ") and b"PRIVATE KEY" in line
    return is_pem or line.startswith((b"PuTTY-User-Key-File-", b"AGE-SECRET-KEY-"))


def _is_secret_name(name: str) -> bool:
    name = name.lower()
    if name in _HARMLESS or name.endswith(".pub"):
        return False
    return any(fnmatchcase(name, pattern) for pattern in SECRETS)


def _is_of_this_machine(directory: str) -> bool:
    if any(os.path.exists(os.path.join(directory, mark)) for mark in _MARKS):
        return True
    try:  # what an agent keeps, where a host of the run is this machine, and its home is pushed
        names = os.listdir(directory)
    except OSError:
        return False  # the walk says why it cannot be listed
    return "bundle" in names and any(name.startswith("machine.") for name in names)


def _is_of_orch(absolute: str, *, is_directory: bool) -> bool:
    """Return whether orch itself wrote the entry: fetched files, or a report. A run has no use for either."""
    if not is_directory and not absolute.endswith(".html"):
        return False
    mark = OUTPUTS_MARK if is_directory else REPORT_MARK
    try:
        with open(os.path.join(absolute, GIT_FILE) if is_directory else absolute, "rb") as file:
            return mark.encode() in file.read(_BEGINNING_BYTES)
    except OSError:
        return False


class _Patterns(NamedTuple):
    """The patterns of one file."""

    shown: str
    lines: list[int]
    """Of each pattern, its line."""
    spec: GitIgnoreSpec


def _matched(patterns: _Patterns | None, path: str, is_directory: bool) -> tuple[bool, str] | None:
    """Return what the last pattern that matches says: whether to leave the entry out, and the rule's file and line."""
    if patterns is None:
        return None
    found = patterns.spec.check_file(f"{path}/" if is_directory else path)
    if found.include is None or found.index is None:
        return None
    return found.include, f"{patterns.shown}:{patterns.lines[found.index]}"


def _top(directory: str) -> str:
    """Return the nearest directory, from here upwards, that is a repository of git; empty if none is."""
    while not os.path.exists(os.path.join(directory, ".git")):
        directory, below = os.path.dirname(directory), directory
        if directory == below:
            return ""
    return directory


def _above(root: str, top: str) -> list[tuple[str, _Patterns | None]]:
    """Return the .gitignore files above the tree and up to the top of its repository, the nearest first.

    Each comes with the path that leads from its directory down to the tree.
    """
    files, here = [], root
    while top and here != top:
        here = os.path.dirname(here)
        file = os.path.join(here, GIT_FILE)
        files.append((os.path.relpath(root, here), _read(file, file)))
    return files


def _read(path: str, shown: str) -> _Patterns | None:
    """Return the patterns of a file; None if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [(number, line) for number, line in enumerate(file.read().splitlines(), 1) if line]
        spec = GitIgnoreSpec.from_lines(line for _, line in lines)
        return _Patterns(shown, [number for number, _ in lines], spec)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as e:  # not UTF-8, or a pattern that is none
        raise SpecError(
            f"workdir: cannot read {shown}: {e}", hint="it is a UTF-8 text in git's format"
        ) from e

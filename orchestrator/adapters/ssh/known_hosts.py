"""known_hosts files, read line by line: one odd line costs that line, never the file.

Hashed names, `[host]:port`, wildcards, negation and @revoked are honoured. @cert-authority lines are kept
apart: host certificates are not checked, so such a line trusts nobody here. A file of the user's is only
read; `append` is for the project's own.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class HostKey:
    """A host's public key, as it stands in a known_hosts line."""

    type: str
    blob: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.blob).decode()

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen shows it: `SHA256:…`."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"

    @staticmethod
    def parse(type: str, text: str) -> HostKey:
        """From the two words of a line. ValueError where they are no key."""
        try:
            blob = base64.b64decode(text, validate=True)
            (length,) = struct.unpack_from(">I", blob)
        except (binascii.Error, struct.error) as error:
            raise ValueError("the key is not base64") from error
        if blob[4 : 4 + length] != type.encode():
            raise ValueError(f"the key is not of type {type}")
        return HostKey(type, blob)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that names hosts and a key."""

    names: str
    key: HostKey
    marker: str
    """`@revoked`, `@cert-authority`, or empty."""
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def matches(self, name: str) -> bool:
        """Whether the line speaks of `name`, which is as `known_name` makes it."""
        if self.names.startswith("|1|"):
            return _matches_hashed(self.names, name)
        found = False
        for pattern in self.names.lower().split(","):
            negated = pattern.startswith("!")
            if _matches_pattern(pattern.removeprefix("!"), name):
                if negated:
                    return False
                found = True
        return found


def _matches_pattern(pattern: str, name: str) -> bool:
    # Only * and ? are special in known_hosts; fnmatch would read [host]:port as a set of characters.
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def _matches_hashed(names: str, name: str) -> bool:
    try:
        _, _, salt, digest = names.split("|")
        wanted = base64.b64decode(digest, validate=True)
        made = hmac.new(base64.b64decode(salt, validate=True), name.encode(), "sha1").digest()
    except ValueError:
        return False
    return hmac.compare_digest(made, wanted)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the files say of one key of one host."""

    verdict: Literal["known", "unknown", "changed", "revoked"]
    entry: Entry | None = None
    """The line that decided, where one did."""
    authority: Entry | None = None
    """A @cert-authority line for the host, which we cannot follow."""


class KnownHosts:
    """All lines of some known_hosts files, and what was wrong with the others."""

    def __init__(self, entries: Iterable[Entry] = (), warnings: Iterable[str] = ()) -> None:
        self._entries = tuple(entries)
        self.warnings = tuple(warnings)

    @staticmethod
    def read(paths: Iterable[Path]) -> KnownHosts:
        """Read all files. A missing one is empty; one that cannot be read is a warning."""
        entries: list[Entry] = []
        warnings: list[str] = []
        for path in paths:
            try:
                text = path.read_bytes().decode("utf-8", "replace")
            except FileNotFoundError:
                continue
            except OSError as error:
                warnings.append(f"{path}: {error.strerror}; its keys are not known")
                continue
            for number, line in enumerate(text.splitlines(), 1):
                try:
                    entry = _parse_line(line, path, number)
                except ValueError as error:
                    warnings.append(f"{path}:{number}: skipped: {error}")
                    continue
                if entry is not None:
                    entries.append(entry)
        return KnownHosts(entries, warnings)

    def judge(self, name: str, key: HostKey) -> Judgement:
        """Whether `key` is the key of `name`. A revoked key is refused even where it also stands as good."""
        entries = self._of(name)
        authority = next((e for e in entries if e.marker == "@cert-authority"), None)
        for entry in entries:
            if entry.marker == "@revoked" and entry.key == key:
                return Judgement("revoked", entry)
        plain = [entry for entry in entries if not entry.marker]
        for entry in plain:
            if entry.key == key:
                return Judgement("known", entry)
        if plain:
            # The line of the same type is the one that changed; another type is the next best to show.
            return Judgement("changed", next((e for e in plain if e.key.type == key.type), plain[0]))
        return Judgement("unknown", authority=authority)

    def types(self, name: str) -> tuple[str, ...]:
        """Key types under which `name` is known, so that the host can be asked for one of them."""
        return tuple(dict.fromkeys(entry.key.type for entry in self._of(name) if not entry.marker))

    def _of(self, name: str) -> list[Entry]:
        name = name.lower()
        found = [entry for entry in self._entries if entry.matches(name)]
        if not any(not entry.marker for entry in found) and name.startswith("["):
            # ssh does so too: a host that is known without a port is known on all of them.
            bare = name[1:].partition("]")[0]
            found += [entry for entry in self._entries if entry.matches(bare)]
        return found


def _parse_line(line: str, path: Path, number: int) -> Entry | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker not in ("", "@revoked", "@cert-authority"):
        raise ValueError(f"unknown marker {marker}")
    if len(words) < 3:
        raise ValueError("not: names, key type, key")
    return Entry(words[0], HostKey.parse(words[1], words[2]), marker, path, number)


def known_name(address: str, port: int) -> str:
    """How known_hosts writes a host: `address`, or `[address]:port` where the port is not 22."""
    return address.lower() if port == SSH_PORT else f"[{address.lower()}]:{port}"


def append(path: Path, host: str, port: int, key: HostKey) -> bool:
    """Add a key to the project's own file, whole or not at all. False where it already stands there.

    The file is 0600 in a 0700 directory; two writers at once lose nothing. OSError where it cannot be
    written, ValueError where `host` is no plain name.
    """
    name = known_name(host, port)
    if not host or any(c.isspace() or c in ",*?!|#@" for c in name):
        raise ValueError(f"not a host's name: {name!r}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if any(entry.key == key and entry.matches(name) for entry in KnownHosts.read([path])._entries):
            return False
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old and not old.endswith("\n"):
            old += "\n"
        _replace(path, f"{old}{name} {key.type} {key.base64}\n")
        os.fsync(directory)
    finally:
        os.close(directory)
    return True


def _replace(path: Path, text: str) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=".known_hosts-", dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

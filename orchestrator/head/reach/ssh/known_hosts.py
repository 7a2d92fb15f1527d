"""known_hosts files, read line by line: a malformed line is skipped with a warning.

Hashed names, `[host]:port`, wildcards, negation and @revoked are supported. @cert-authority lines are kept apart, since
they are about host certificates. The user's files are only read; `append` and `replace` are for the project's own.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from orchestrator.both import durable

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
        """The fingerprint as ssh-keygen shows it: `SHA256:…`."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"

    @staticmethod
    def parse(type: str, text: str) -> HostKey:
        """Parse the two words of a line. Raises ValueError if they are not a key."""
        try:
            blob = base64.b64decode(text, validate=True)
            (length,) = struct.unpack_from(">I", blob)
        except (binascii.Error, struct.error) as error:
            raise ValueError("the key is not base64") from error
        if blob[4 : 4 + length] != type.encode():
            raise ValueError(f"the key is not of type {type}")
        return HostKey(type, blob)


@dataclass(frozen=True, slots=True)
class KnownHostsLine:
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

    @property
    def plain_names(self) -> list[str] | None:
        """Return the names in the line; None if it has hashes or patterns, which only `matches` can compare."""
        if any(special in self.names for special in "|*?!"):
            return None
        return self.names.lower().split(",")

    def matches(self, name: str) -> bool:
        """Return whether the line is about `name`, which is in the form of `known_name`."""
        if self.names.startswith("|1|"):
            return _matches_hashed(self.names, name)
        is_named = False
        for pattern in self.names.lower().split(","):
            negated = pattern.startswith("!")
            if fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
                if negated:
                    return False
                is_named = True
        return is_named


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
    """The verdict of the files on one key of one host."""

    verdict: Literal["known", "unknown", "changed", "revoked"]
    entry: KnownHostsLine | None = None
    """The line that decided, where one did."""
    against: tuple[KnownHostsLine, ...] = ()
    """Every line that has another key, where the key has changed."""
    authority: KnownHostsLine | None = None
    """A @cert-authority line for the host, where the key is unknown."""


State = Literal["known", "new", "changed", "revoked", "not needed"]
"""The state of a key that a host shows. `not needed`: the host also shows another key that is known."""


class KnownHosts:
    """The lines of some known_hosts files, and warnings about those that were skipped."""

    def __init__(self, entries: Iterable[KnownHostsLine] = (), warnings: Iterable[str] = ()) -> None:
        self.warnings = tuple(warnings)
        self._plain: dict[str, list[tuple[int, KnownHostsLine]]] = {}
        """By name, the lines that have it as a plain name, each with its place. An index, since there may be many."""
        self._others: list[tuple[int, KnownHostsLine]] = []
        """The lines with patterns or hashes, each with its place."""
        self._cached: dict[str, list[KnownHostsLine]] = {}
        """By name, the lines that match it: a cache, since comparing hashes is slow."""
        for place, entry in enumerate(entries):
            names = entry.plain_names
            if names is None:
                self._others.append((place, entry))
            for name in dict.fromkeys(names or ()):
                self._plain.setdefault(name, []).append((place, entry))

    @staticmethod
    def read(paths: Iterable[Path], revoked: Iterable[Path] = ()) -> KnownHosts:
        """Read all files. A missing one is empty; one that cannot be read is a warning.

        The files of `revoked` list keys that are refused for every host. Raises RevokedUnreadable.
        """
        entries: list[KnownHostsLine] = [entry for path in revoked for entry in _read_revoked(path)]
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

    def authorities(self, name: str) -> list[KnownHostsLine]:
        """Return the lines whose key may sign certificates for `name`."""
        entries, bare = self._of(name)
        return [entry for entry in (*entries, *bare) if entry.marker == "@cert-authority"]

    def judge(self, name: str, key: HostKey) -> Judgement:
        """Return the judgement of `key` as the key of `name`. A revoked key is revoked even if another line has it.

        All files count. Where one has the key and another has a different key of the same type, the key has changed:
        ssh reads some of these files and not the project's own, which must not overrule them.
        """
        entries, bare = self._of(name)
        for entry in (*entries, *bare):
            if entry.marker == "@revoked" and entry.key == key:
                return Judgement("revoked", entry)
        plain = [entry for entry in entries if not entry.marker]
        # The lines of each file that has keys of this type, but not this key
        of_type = [entry for entry in plain if entry.key.type == key.type]
        agreeing = {entry.path for entry in of_type if entry.key == key}
        against = tuple(entry for entry in of_type if entry.path not in agreeing)
        if against:
            return Judgement("changed", against[0], against)
        # As with ssh, an entry without a port holds for all ports of the host. Another key on another port is not a
        # changed key: it may be that of another sshd.
        for entry in plain or [entry for entry in bare if not entry.marker]:
            if entry.key == key:
                return Judgement("known", entry)
        if plain:
            return Judgement("changed", plain[0], tuple(plain))
        return Judgement("unknown", authority=next(iter(self.authorities(name)), None))

    def states(
        self, name: str, keys: Iterable[HostKey], certified: Collection[HostKey] = ()
    ) -> list[tuple[State, Judgement]]:
        """Return the state of each of the keys that one host shows at once. An authority vouches for `certified`."""
        judged = [(key, Judgement("known") if key in certified else self.judge(name, key)) for key in keys]
        is_known = any(judgement.verdict == "known" for _, judgement in judged)
        states: list[tuple[State, Judgement]] = []
        for key, judgement in judged:
            state: State = "new" if judgement.verdict == "unknown" else judgement.verdict
            same_type = judgement.entry is not None and judgement.entry.key.type == key.type
            if is_known and state in ("new", "changed") and not same_type:
                state = "not needed"
            states.append((state, judgement))
        return states

    def types(self, name: str) -> tuple[str, ...]:
        """Return the key types under which `name` is known, so that the host can be asked for one of them."""
        entries, bare = self._of(name)
        plain = [entry for entry in entries if not entry.marker]
        return tuple(dict.fromkeys(entry.key.type for entry in plain or bare if not entry.marker))

    def _of(self, name: str) -> tuple[list[KnownHostsLine], list[KnownHostsLine]]:
        """Return the lines of `name`, and those of the same host without a port."""
        name = name.lower()
        without_port = name[1:].partition("]")[0] if name.startswith("[") else None
        return self._named(name), [] if without_port is None else self._named(without_port)

    def _named(self, name: str) -> list[KnownHostsLine]:
        """Return the lines of exactly that name, in their order."""
        if name not in self._cached:
            by_pattern = [(place, entry) for place, entry in self._others if entry.matches(name)]
            lines = sorted([*self._plain.get(name, []), *by_pattern], key=lambda line: line[0])
            self._cached[name] = [entry for _, entry in lines]
        return self._cached[name]


class RevokedUnreadable(Exception):
    """A file that RevokedHostKeys names cannot be read. Then ssh refuses all keys, and so does orch."""


def _read_revoked(path: Path) -> Iterator[KnownHostsLine]:
    """Read a list of public keys, one a line, as lines that revoke each of them for every host."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RevokedUnreadable(f"{path}: {error.strerror}") from error
    if data.startswith(b"SSHKRL\n\0"):
        raise RevokedUnreadable(
            f"{path} is a key revocation list in OpenSSH's binary form, which orch does not read: list the "
            "public keys as text, one a line"
        )
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            yield KnownHostsLine("*", HostKey.parse(words[0], words[1]), "@revoked", path, number)
        except (IndexError, ValueError) as error:
            raise RevokedUnreadable(f"{path}:{number}: not: key type, key") from error


def _parse_line(line: str, path: Path, number: int) -> KnownHostsLine | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker not in ("", "@revoked", "@cert-authority"):
        raise ValueError(f"unknown marker {marker}")
    if len(words) < 3:
        raise ValueError("not: names, key type, key")
    return KnownHostsLine(words[0], HostKey.parse(words[1], words[2]), marker, path, number)


def known_name(address: str, port: int) -> str:
    """Return the name of a host in known_hosts: `address`, or `[address]:port` where the port is not 22."""
    return address.lower() if port == SSH_PORT else f"[{address.lower()}]:{port}"


def append(path: Path, host: str, port: int, key: HostKey) -> bool:
    """Add a key to the project's own file, whole or not at all. Return False if the file has it already.

    The file is 0600 in a 0700 directory, and safe from concurrent writers. Raises OSError if it cannot be written,
    ValueError if `host` is not a plain name.
    """
    name = _plain_name(host, port)
    with _locked(path):
        lines = _lines(path)
        if any(entry is not None and entry.key == key and entry.matches(name) for _, entry in lines):
            return False
        _write(path, [*(text for text, _ in lines), _line(name, key)])
    return True


def replace(path: Path, host: str, port: int, keys: Sequence[HostKey]) -> int:
    """Make `keys` the only ones of this host in the project's own file. Return how many of them are new there.

    Lines about other hosts stay, and so do those with a marker. OSError as `append`; ValueError if a pattern matches
    the host, since that line may be about others too.
    """
    name = _plain_name(host, port)
    kept: list[str] = []
    kept_keys: list[HostKey] = []
    with _locked(path):
        for text, entry in _lines(path):
            if entry is None or entry.marker or not entry.matches(name):
                kept.append(text)
            elif entry.key in keys:
                kept.append(text)
                kept_keys.append(entry.key)
            else:
                kept += _without(text, entry, name)
        new = [key for key in dict.fromkeys(keys) if key not in kept_keys]
        _write(path, [*kept, *(_line(name, key) for key in new)])
    return len(new)


def _without(text: str, entry: KnownHostsLine, name: str) -> list[str]:
    """Return the line without this host; no line where it named no other."""
    names = entry.names.split(",")
    if entry.names.startswith("|1|") or [other.lower() for other in names] == [name]:
        return []
    others = [other for other in names if other.lower() != name]
    if len(others) == len(names):
        raise ValueError(f"{entry.where} names the host by a pattern: {entry.names}")
    return [text.replace(entry.names, ",".join(others), 1)]


def _plain_name(host: str, port: int) -> str:
    name = known_name(host, port)
    if not host or any(c.isspace() or c in ",*?!|#@" for c in name):
        raise ValueError(f"not a host's name: {name!r}")
    return name


def _line(name: str, key: HostKey) -> str:
    return f"{name} {key.type} {key.base64}"


def _lines(path: Path) -> list[tuple[str, KnownHostsLine | None]]:
    """Return the lines of the project's own file, each with its entry; None for a line without one."""
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [(text, _entry(text, path, number)) for number, text in enumerate(texts, 1)]


def _entry(text: str, path: Path, number: int) -> KnownHostsLine | None:
    try:
        return _parse_line(text, path, number)
    except ValueError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file's directory against other writers, and make it where it is missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(path: Path, lines: Sequence[str]) -> None:
    """Write the file, whole or not at all."""
    durable.write(str(path), "".join(f"{line}\n" for line in lines).encode())

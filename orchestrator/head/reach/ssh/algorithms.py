"""Chooses the algorithms of a connection: those that ssh_config allows, of those that the library has."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import paramiko

CERTIFICATE = "-cert-v01@openssh.com"
"""The suffix in the name of an algorithm for certificates."""

KEYWORDS = {
    "kexalgorithms": "KexAlgorithms",
    "ciphers": "Ciphers",
    "macs": "MACs",
    "hostkeyalgorithms": "HostKeyAlgorithms",
    "pubkeyacceptedalgorithms": "PubkeyAcceptedAlgorithms",
    "casignaturealgorithms": "CASignatureAlgorithms",
}
"""The keywords of ssh_config, as paramiko returns them and as people write them."""

_ALIASES = {"curve25519-sha256@libssh.org": "curve25519-sha256"}
"""The library's name of an algorithm, and its usual name."""

_WEAK = ("*-cbc", "hmac-md5*", "*-96")
"""Algorithms that the library offers, and ssh only if ssh_config names them."""

_CA_SIGNATURES = ("ssh-ed25519", "ecdsa-sha2-*", "rsa-sha2-*", "sk-*")


@dataclass(frozen=True, slots=True)
class Algorithms:
    """The algorithms that a connection offers, the best first."""

    kex: tuple[str, ...]
    ciphers: tuple[str, ...]
    macs: tuple[str, ...]
    host_keys: tuple[str, ...]
    pubkeys: tuple[str, ...]


def algorithms(settings: Mapping[str, str]) -> Algorithms:
    """Return the algorithms that these settings of ssh_config allow. ValueError where one allows none that we have."""
    library: Any = paramiko.Transport  # paramiko has no public interface for these lists
    keys = library._preferred_keys
    # Authenticated ciphers first: with the others, paramiko checks each packet's MAC byte by byte, in Python.
    ciphers = sorted(_strong(library._preferred_ciphers), key=lambda name: "-gcm@" not in name)
    return Algorithms(
        kex=_left(
            settings, "kexalgorithms", sorted(library._preferred_kex, key=_kex_rank), library._kex_info
        ),
        ciphers=_left(settings, "ciphers", ciphers, library._cipher_info),
        macs=_left(settings, "macs", _strong(library._preferred_macs), library._mac_info),
        host_keys=_left(
            settings, "hostkeyalgorithms", (*keys, *(name + CERTIFICATE for name in keys)), library._key_info
        ),
        pubkeys=tuple(library._preferred_pubkeys),
    )


def for_host(allowed: Algorithms, *, types: Collection[str], certified: bool) -> Algorithms:
    """Return the same with host keys of `types` first, and with certificates only if `certified`."""
    names = [name for name in allowed.host_keys if certified or not name.endswith(CERTIFICATE)]
    names.sort(key=lambda name: (not name.endswith(CERTIFICATE), key_type(name) not in types))
    return replace(allowed, host_keys=tuple(names))


def permits(settings: Mapping[str, str], keyword: str, name: str) -> bool:
    """Return whether a list of ssh_config allows `name`. The library need not know that algorithm."""
    sign, patterns = _parsed(settings.get(keyword, ""))
    if not patterns or sign in ("+", "^"):
        return keyword != "casignaturealgorithms" or _matches(name, [*_CA_SIGNATURES, *patterns])
    if sign == "-":
        return not _matches(name, patterns) and permits({}, keyword, name)
    return _matches(name, patterns)


def key_type(algorithm: str) -> str:
    """Return the type of key that an algorithm of host keys shows."""
    plain = algorithm.removesuffix(CERTIFICATE)
    return "ssh-rsa" if plain.startswith("rsa-sha2-") else plain


class Transport(paramiko.Transport):
    """A connection that offers `algorithms` and nothing else."""

    def __init__(self, sock: Any, offered: Algorithms) -> None:
        super().__init__(sock)
        self.algorithms = offered
        self._close_socket = self.packetizer.close
        self.packetizer.close = self._close_quietly  # type: ignore[method-assign]

    def _close_quietly(self) -> None:
        """Close what the channel of a bastion that has gone cannot: the thread would end before it wakes who waits."""
        with contextlib.suppress(EOFError, OSError):
            self._close_socket()

    @property
    def preferred_kex(self) -> tuple[str, ...]:
        return self.algorithms.kex

    @property
    def preferred_ciphers(self) -> tuple[str, ...]:
        return self.algorithms.ciphers

    @property
    def preferred_macs(self) -> tuple[str, ...]:
        return self.algorithms.macs

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.algorithms.host_keys

    @property
    def preferred_pubkeys(self) -> tuple[str, ...]:
        return self.algorithms.pubkeys

    def _parse_debug(self, m: paramiko.Message) -> None:
        """Ignore sshd's debug messages: they are of no use here, and paramiko decodes them slowly."""


def _left(
    settings: Mapping[str, str], keyword: str, default: Sequence[str], known: Collection[str]
) -> tuple[str, ...]:
    """Return the algorithms that ssh_config allows for a keyword, in its order."""
    sign, patterns = _parsed(settings.get(keyword, ""))
    if not patterns:
        return tuple(default)
    asked = [name for pattern in patterns for name in known if _matches(name, [pattern])]
    match sign:
        case "+":
            chosen = [*default, *asked]
        case "^":
            chosen = [*asked, *default]
        case "-":
            chosen = [name for name in default if name not in asked]
        case _:
            chosen = asked
    if not chosen:
        raise ValueError(
            f"ssh_config has `{KEYWORDS[keyword]} {settings[keyword]}` for it, but orch's SSH library has "
            f"none of these: it has {', '.join(_ALIASES.get(name, name) for name in default)}"
        )
    return tuple(dict.fromkeys(chosen))


def _parsed(text: str) -> tuple[str, list[str]]:
    sign = text[:1] if text[:1] in ("+", "-", "^") else ""
    return sign, [word for word in text.removeprefix(sign).replace(" ", "").split(",") if word]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    names = (name, _ALIASES.get(name, name))
    return any(fnmatchcase(each, pattern) for pattern in patterns for each in names)


def _strong(names: Sequence[str]) -> list[str]:
    return [name for name in names if not _matches(name, _WEAK)]


def _kex_rank(name: str) -> int:
    """Return the rank of a key exchange: first those that resist quantum computers, then the cheapest.

    Diffie-Hellman groups cost nine times as much as everything else together.
    """
    if name.startswith(("mlkem", "sntrup")):
        return 0
    if name.startswith("curve25519"):
        return 1
    return 3 if name.startswith("diffie-hellman") else 2

"""Secrets: which environment variables are secret, and their values. No message here ever contains a value."""

from __future__ import annotations

import os
import re
import stat
from itertools import pairwise
from pathlib import Path

from orchestrator.core.errors import SpecError
from orchestrator.spec.forms import RecipientFile
from orchestrator.spec.models import ClusterSpec

SECRET_BYTES_MAX = 64 * 1024

_WORDS = frozenset(
    (
        *("SECRET", "SECRETS", "PASS", "PASSWORD", "PASSWD", "PASSPHRASE", "PW", "PWD"),
        *("TOKEN", "TOKENS", "APIKEY", "CREDENTIAL", "CREDENTIALS", "CRED", "CREDS", "BEARER", "AUTH"),
        *("AUTHORIZATION", "COOKIE", "COOKIES", "DSN", "WEBHOOK", "WEBHOOKS"),
    )
)
_ENDINGS = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "APIKEY", "CREDENTIALS", "PWD", "AUTH", "AUTHTOKEN")
_BEGINNINGS = ("PGPASS", "APIKEY", "WEBHOOK")
_PAIRS = frozenset(
    {("API", "KEY"), ("ACCESS", "KEY"), ("PRIVATE", "KEY"), ("SIGNING", "KEY"), ("ENCRYPTION", "KEY")}
)

_PLACES = frozenset({"PWD", "OLDPWD"})
"""The shell's own, which say where it is."""

_PASSWORD_IN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s:@]*:[^/?#\s@]+@")
"""`scheme://user:password@`: whatever follows, it opens something."""


def looks_secret(name: str, value: str = "") -> bool:
    """Return whether the value of an environment variable must never be shown: its name says so, or the value itself.

    >>> looks_secret("HF_TOKEN"), looks_secret("TOKENIZERS_PARALLELISM")
    (True, False)
    >>> looks_secret("DATABASE_URL", "postgres://me:pw@db/x"), looks_secret("DATABASE_URL", "postgres://db/x")
    (True, False)
    """
    whole = name.upper()
    words = whole.split("_")
    if has_password(value):
        return True
    if whole in _PLACES:
        return False
    return (
        not _WORDS.isdisjoint(words)
        or not _PAIRS.isdisjoint(pairwise(words))
        or any(word.endswith(_ENDINGS) or word.startswith(_BEGINNINGS) for word in words)
    )


def has_password(text: str) -> bool:
    """Return whether a URL with a password stands in a text."""
    return _PASSWORD_IN_URL.search(text) is not None


def secret_names(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the names of the variables whose values are kept apart from the plan."""
    return tuple(
        sorted(
            {*spec.run.secrets, *(name for name, value in spec.run.env.items() if looks_secret(name, value))}
        )
    )


def secret_values(spec: ClusterSpec, base_dir: Path = Path()) -> dict[str, str]:
    """Return the values by name: those of `env` that look secret, and the contents of the files of `secrets`.

    Raises:
        SpecError: a file cannot be read; it has changed since `load_spec` checked it.
    """
    values = {name: value for name, value in spec.run.env.items() if looks_secret(name, value)}
    for name, written in spec.run.secrets.items():
        try:
            values[name] = read_secret(written, base_dir)
        except ValueError as error:
            raise SpecError(f"run.secrets.{name}: {error}") from None
    return values


def secret_files(spec: ClusterSpec, base_dir: Path, file: Path | None) -> tuple[str, ...]:
    """Return the files that hold secrets of the run, absolute: none of them is ever pushed, wherever it lies.

    These are the files that `secrets` and `notify` name, and the spec itself if it contains a secret.
    """
    named = [*spec.run.secrets.values()]
    inline = any(looks_secret(name, value) for name, value in spec.run.env.items())
    if spec.run.notify is not None:
        named += [to.path for to in spec.run.notify.to if isinstance(to, RecipientFile)]
        inline = inline or any(not isinstance(to, RecipientFile) for to in spec.run.notify.to)
    files = {os.path.realpath(base_dir / os.path.expanduser(path)) for path in named}
    if inline and file is not None:
        files.add(os.path.realpath(file))
    return tuple(sorted(files))


def read_secret(written: str, base_dir: Path) -> str:
    """Return the content of a secret's file, without its last newline.

    Raises:
        ValueError: the file cannot be used. The message leaves out the path, because a user who misunderstands
            `secrets` writes the secret itself there.
    """
    try:
        # O_NONBLOCK because a named pipe must be refused, and opening one would block
        fd = os.open(base_dir / os.path.expanduser(written), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "not a path"
        raise ValueError(f"must be a file on this machine with the value in it; {why}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(
                "must be a file on this machine with the value in it, and this is no regular file"
            )
        if status.st_uid != os.geteuid():
            raise ValueError("the file must be yours, and it is another user's")
        if status.st_mode & 0o077:
            raise ValueError(f"others may read the file (mode {status.st_mode & 0o777:04o}); chmod 600 it")
    except ValueError:
        os.close(fd)
        raise
    with open(fd, "rb") as file:
        content = file.read(SECRET_BYTES_MAX + 1)
        if len(content) > SECRET_BYTES_MAX:
            raise ValueError(f"the file has more than {SECRET_BYTES_MAX} bytes")
        try:
            text = content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise ValueError("the file is not UTF-8 text") from None
        if not text or "\0" in text:
            raise ValueError("the file is empty" if not text else "the file holds a NUL character")
        return text

"""Secrets: which environment variables are secret, and their values. No message here ever contains a value."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from orchestrator.core.errors import SpecError
from orchestrator.spec.models import ClusterSpec

SECRET_BYTES_MAX = 64 * 1024

_WORDS = (
    ("SECRET",),
    ("SECRETS",),
    ("PASSWORD",),
    ("PASSWD",),
    ("TOKEN",),
    ("APIKEY",),
    ("API", "KEY"),
    ("ACCESS", "KEY"),
    ("PRIVATE", "KEY"),
    ("CREDENTIAL",),
    ("CREDENTIALS",),
)


def looks_secret(name: str) -> bool:
    """Return whether the value of an environment variable of that name must never be shown.

    >>> looks_secret("HF_TOKEN"), looks_secret("TOKENIZERS_PARALLELISM")
    (True, False)
    """
    words = name.upper().split("_")
    return any(tuple(words[at : at + len(secret)]) == secret for secret in _WORDS for at in range(len(words)))


def secret_names(spec: ClusterSpec) -> tuple[str, ...]:
    """Return the names of the variables whose values are kept apart from the plan."""
    return tuple(sorted({*spec.run.secrets, *(name for name in spec.run.env if looks_secret(name))}))


def secret_values(spec: ClusterSpec, base_dir: Path = Path()) -> dict[str, str]:
    """Return the values by name: those of `env` that look secret, and the contents of the files of `secrets`.

    Raises:
        SpecError: a file cannot be read; it has changed since `load_spec` checked it.
    """
    values = {name: value for name, value in spec.run.env.items() if looks_secret(name)}
    for name, written in spec.run.secrets.items():
        try:
            values[name] = read_secret(written, base_dir)
        except ValueError as error:
            raise SpecError(f"run.secrets.{name}: {error}") from None
    return values


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
        _refuse(os.fstat(fd))
    except ValueError:
        os.close(fd)
        raise
    with open(fd, "rb") as file:
        return _text(file.read(SECRET_BYTES_MAX + 1))


def _refuse(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("must be a file on this machine with the value in it, and this is no regular file")
    if found.st_uid != os.geteuid():
        raise ValueError("the file must be yours, and it is another user's")
    if found.st_mode & 0o077:
        raise ValueError(f"others may read the file (mode {found.st_mode & 0o777:04o}); chmod 600 it")


def _text(content: bytes) -> str:
    if len(content) > SECRET_BYTES_MAX:
        raise ValueError(f"the file has more than {SECRET_BYTES_MAX} bytes")
    try:
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    if not text or "\0" in text:
        raise ValueError("the file is empty" if not text else "the file holds a NUL character")
    return text

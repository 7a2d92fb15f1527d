"""Secrets: which environment variables are secret, and their values. No message here ever contains a value."""

from __future__ import annotations

import os
import re
import stat
from itertools import pairwise
from pathlib import Path

from orchestrator.core.errors import SpecError
from orchestrator.spec.forms import RecipientFile
from orchestrator.spec.models import ClusterSpec, Notify
from orchestrator.spec.recipients import refusal

SECRET_BYTES_MAX = 64 * 1024

_WORDS = frozenset(
    (
        *("SECRET", "SECRETS", "PASS", "PASSWORD", "PASSWD", "PASSPHRASE", "PW", "PWD", "PAT", "JWT"),
        *("TOKEN", "TOKENS", "APIKEY", "CREDENTIAL", "CREDENTIALS", "CRED", "CREDS", "BEARER", "AUTH"),
        *("AUTHORIZATION", "COOKIE", "COOKIES", "NETRC", "DSN", "HOOK", "WEBHOOK", "WEBHOOKS", "OTP", "SAS"),
    )
)
_ENDINGS = (
    *("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "CREDENTIALS", "PWD", "ROOTPW", "AUTH", "TOKEN"),
    *("APIKEY", "ACCESSKEY", "SECRETKEY", "PRIVATEKEY", "ENCRYPTIONKEY"),
    *("SSHPASS", "DBPASS", "USERPASS", "ASKPASS"),
)
_BEGINNINGS = ("PGPASS", "APIKEY", "WEBHOOK")
_PAIRS = frozenset({("CONNECTION", "STRING"), ("KEY", "API")})

_PLACES = frozenset({"PWD", "OLDPWD"})
"""The shell's own, which say where it is."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of a name, however names are written: DB_PASS, dbPass, db-pass, DB_PASS_2."""

_OPENS = re.compile(
    r"[A-Za-z0-9+.-]://[^/?#\s:@]{0,256}:(?!\d{1,5}[/?#])[^\s@\"']{1,512}@"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"|(?<![\w-])(?:gh[oprsu]_|github_pat_|glpat-|hf_|sk-(?:[a-z]+\d*-)*|[sr]k_live_)(?=\w*\d)\w{16}"
    r"|(?<![\w-])(?:xox[a-z]-\d{8}|eyJ[\w-]{8,}\.eyJ[\w-]{8})"
    r"|(?<!\w)(?:AKIA|ASIA)[A-Z0-9]{16}(?!\w)"
    r"|://hooks\.slack\.com/|/api/webhooks/\d+/|\.webhook\.office\.com/"
    r"|(?i:\bauthorization\W{1,4}(?:basic|bearer|token)\s+\S|\bbearer\s+[\w.~+/-]{16,})"
)
"""What opens something by its form: a URL with a password, a private key, a service's token.

Nothing is tried at each letter of a long word to the word's end: a text of a megabyte is searched at once.
"""

_IN_ENV = re.compile(
    r"(?i)(?:password|passwd|pwd|passphrase|secret|token|accountkey|access[-_]?key|api[-_]?key|private[-_]?key)"
    r"[\"']?\s*[=:]\s*[\"']?[^\s\"';,&]"
    r"|https?://[^/?#\s:@]{1,512}@"
    r"|^[^/\s:@]+:[^/\s@]+@[\w.-]+(?::\d+)?/?$"
)
"""What may be one, and costs nothing to hide: a setting among others (`host=h password=x`, `AccountKey=x;`, JSON), the
user of an HTTP URL, who may be a token, and `user:password@host:port`, as proxies are named."""


def looks_secret(name: str, value: str = "") -> bool:
    """Return whether the value of an environment variable must never be shown: its name says so, or the value itself.

    >>> looks_secret("HF_TOKEN"), looks_secret("dbPassword"), looks_secret("TOKENIZERS_PARALLELISM")
    (True, True, False)
    >>> looks_secret("DATABASE_URL", "postgres://me:pw@db/x"), looks_secret("DATABASE_URL", "postgres://db/x")
    (True, False)
    """
    if is_secret(value) or _IN_ENV.search(value):
        return True
    if name.upper() in _PLACES:
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    return (
        not _WORDS.isdisjoint(words)
        or not _PAIRS.isdisjoint(pairwise(words))
        or (len(words) > 1 and "KEY" in words[1:])
        or any(word.endswith(_ENDINGS) or word.startswith(_BEGINNINGS) for word in words)
    )


def is_secret(text: str) -> bool:
    """Return whether something stands in a text that by its form is a password, a key or a token."""
    return _OPENS.search(text) is not None


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


def urls(notify: Notify, base_dir: Path) -> list[str]:
    """Return the recipients' URLs. Raises ValueError if a file has changed since it was checked."""
    return [read_secret(to.path, base_dir) if isinstance(to, RecipientFile) else to for to in notify.to]


def file_refusal(to: RecipientFile, base_dir: Path) -> str | None:
    """Return why the file of a recipient cannot be used; None if it can."""
    try:
        return refusal(read_secret(to.path, base_dir))
    except ValueError as error:
        return str(error)


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
        try:
            content = file.read(SECRET_BYTES_MAX + 1)
        except OSError as error:  # of the disk, or of a mount that broke
            raise ValueError(f"the file cannot be read: {error.strerror}") from None
        if len(content) > SECRET_BYTES_MAX:
            raise ValueError(f"the file has more than {SECRET_BYTES_MAX} bytes")
        try:
            text = content.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise ValueError("the file is not UTF-8 text") from None
        if not text or "\0" in text:
            raise ValueError("the file is empty" if not text else "the file holds a NUL character")
        return text

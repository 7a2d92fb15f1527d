"""Who may see the page of `orch ui`: its owner's browsers, those with an address that works once, and shares.

All is in one file of the user's: so a page that is started again knows the browsers that were there, and another
command gives or takes a way in while the page is served.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from orchestrator.both import durable, process
from orchestrator.core.errors import OrchestratorError, UsageError

FILE = "page-access.json"
TOKEN_LASTS_S = 600.0
TOKENS_MAX = 32
SHARES_MAX = 64
SHARE_LASTS_S = 7 * 86400.0

_SERVED = "served-"


class Share(NamedTuple):
    """A link that only reads, until its time is over or it is revoked."""

    id: str
    token: str
    note: str
    """Who it is for, in the words of who made it."""
    until: float = 0.0
    """The Unix time of its end."""


class Viewer(NamedTuple):
    """Whose browser it is, and the secret from which its cookie and its key come."""

    secret: str
    is_owner: bool

    def derived(self, what: str) -> str:
        """Return the cookie or the key of this viewer: who is sent one of them does not know the other."""
        return hmac.digest(self.secret.encode(), what.encode(), "sha256").hex()


class PageAccess:
    """The file, and what it says now. Each change is seen by all processes at once."""

    def __init__(
        self,
        state_dir: str,
        *,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock`: the Unix time, by which shares end, since they outlive a boot."""
        self._directory, self._now, self._clock = state_dir, now, clock
        self._path = os.path.join(state_dir, FILE)
        self._read_as: tuple[int, int] | None = None
        self._known: dict[str, Any] = {}

    def viewers(self) -> list[Viewer]:
        """Return all who may see the page now: the owner first, then the shares."""
        known = self._current()
        owner = [Viewer(known["owner"], True)] if known.get("owner") else []
        return [*owner, *(Viewer(share.token, False) for share in self.shares())]

    def shares(self) -> list[Share]:
        """Return the shares that still let somebody in, the oldest first."""
        known = [Share(*row) for row in self._current().get("shares") or ()]
        return [share for share in known if self._clock() < share.until]

    def new_token(self) -> str:
        """Return a token that lets one browser of the owner in, once and soon."""
        with self._changing() as known:
            token = secrets.token_urlsafe(32)
            known["owner"] = known.get("owner") or secrets.token_urlsafe(32)
            tokens = {old: until for old, until in _tokens(known) if until > self._now()}
            newest = list({**tokens, token: self._now() + TOKEN_LASTS_S}.items())[-TOKENS_MAX:]
            known["tokens"], known["boot"] = dict(newest), process.boot_id()
        return token

    def redeem(self, token: str) -> Viewer | None:
        """Return who comes with this token: of one that works once it was the last time. None: it lets nobody in."""
        for share in self.shares():
            if same(token, share.token):
                return Viewer(share.token, False)
        with self._changing() as known:
            tokens = dict(_tokens(known))
            found = next((each for each in tokens if same(token, each)), "")
            until = tokens.pop(found, 0.0)
            known["tokens"] = tokens
        return Viewer(str(known["owner"]), True) if self._now() < until else None

    def share(self, note: str, lasts_s: float = SHARE_LASTS_S) -> Share:
        """Make a link that only reads, for so long. Raises UsageError if there are too many."""
        with self._changing() as known:
            shares = self.shares()
            if len(shares) >= SHARES_MAX:
                raise UsageError(
                    f"there are {SHARES_MAX} shares, and no more are allowed",
                    hint="`orch ui share --list` shows them, and `--revoke ID` takes one back",
                )
            made = Share(secrets.token_hex(4), secrets.token_urlsafe(32), note, self._clock() + lasts_s)
            known["shares"] = [*shares, made]
        return made

    def revoke(self, share_id: str) -> Share:
        """Take a share back, from all who have opened it too. Raises UsageError if there is none with this id."""
        with self._changing() as known:
            found = {share.id: share for share in self.shares()}
            if share_id not in found:
                raise UsageError(f"there is no share {share_id!r}", hint="`orch ui share --list` shows all")
            known["shares"] = [share for share in found.values() if share.id != share_id]
        return found[share_id]

    def revoke_all(self) -> None:
        """Shut out all browsers, the owner's too: the next address that is made draws new secrets."""
        with self._changing() as known:
            known.clear()

    def _current(self) -> dict[str, Any]:
        try:
            seen = os.stat(self._path)
        except OSError:
            self._read_as, self._known = None, {}
            return {}
        read_as = seen.st_ino, seen.st_mtime_ns
        if read_as != self._read_as:  # each change is a new file
            self._read_as, self._known = read_as, durable.read_object(self._path) or {}
        return self._known

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Give what is known, and keep it as it was changed, unless another process changes it at the same time."""
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as e:
            raise OrchestratorError(f"{self._path} cannot be written: {e.strerror}") from e
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read_as = None
            known = dict(self._current())
            before = dict(known)
            yield known
            if known != before:
                durable.write_json(self._path, known)
        except OSError as e:
            raise OrchestratorError(f"{self._path} cannot be written: {e.strerror}") from e
        finally:
            os.close(lock)


def _tokens(known: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the tokens that work once, and until when, by a clock that begins anew with each boot."""
    return list((known.get("tokens") or {}).items()) if known.get("boot") == process.boot_id() else []


def same(given: str, wanted: str) -> bool:
    """Return whether a secret is the wanted one, in a time that does not tell how much of it is."""
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


@contextlib.contextmanager
def served(runtime_dir: str, port: int, address: str) -> Iterator[None]:
    """Let other commands know under which address a page is served, for as long as its process lives."""
    path = os.path.join(runtime_dir, f"{_SERVED}{port}")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the kernel frees it, however this process ends
        os.truncate(handle, 0)
        os.write(handle, address.encode())
        yield
        os.unlink(path)
    finally:
        os.close(handle)


def served_at(runtime_dir: str) -> list[str]:
    """Return the addresses of the pages that are served now."""
    addresses = []
    for name in sorted(os.listdir(runtime_dir)) if os.path.isdir(runtime_dir) else ():
        if name.startswith(_SERVED):
            with open(os.path.join(runtime_dir, name), encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    addresses.append(file.read())
    return addresses

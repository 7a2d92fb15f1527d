"""The user's own `notify:`, a file for all of their runs. It is read and checked each time that it is needed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.errors import SpecError
from orchestrator.spec.diagnostics import render
from orchestrator.spec.load import check_own
from orchestrator.spec.secrets import urls


@dataclass(frozen=True, slots=True)
class OwnNotify:
    """The recipients of messages about all runs."""

    on: tuple[str, ...] = ()
    to: tuple[str, ...] = field(default=(), repr=False)
    """URLs."""
    lines: int = 0


def load_own(path: str) -> OwnNotify:
    """Return the recipients in the file; none where there is no file.

    Raises:
        SpecError: it cannot be used; one line per diagnostic.
    """
    if not path or not os.path.lexists(path):
        return OwnNotify()
    try:
        status = os.stat(path)
    except OSError as e:
        raise SpecError(f"{path}:1:1: file: cannot be read: {e.strerror}") from e
    if status.st_uid != os.geteuid() or (stat.S_ISREG(status.st_mode) and status.st_mode & 0o077):
        raise SpecError(
            f"{path}:1:1: file: others may read or own it, and it holds the addresses of recipients",
            hint=f"chown it to you, and chmod 600 {path}",
        )
    base_dir = Path(path).absolute().parent
    notify, diagnostics = check_own(path, base_dir)
    if notify is None:
        raise SpecError(render(path, diagnostics))
    try:
        return OwnNotify(notify.on, tuple(urls(notify, base_dir)), notify.lines)
    except ValueError as e:
        raise SpecError(f"{path}:1:1: to: {e}") from e

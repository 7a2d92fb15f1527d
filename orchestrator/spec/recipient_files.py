"""The URLs of `notify:`, in the spec or in the user's own file, where some stand in further files."""

from __future__ import annotations

from pathlib import Path

from orchestrator.spec.forms import RecipientFile
from orchestrator.spec.models import Notify
from orchestrator.spec.recipients import refusal
from orchestrator.spec.secrets import read_secret


def urls(notify: Notify, base_dir: Path) -> list[str]:
    """Return the recipients' URLs. Raises ValueError if a file has changed since it was checked."""
    return [read_secret(to.path, base_dir) if isinstance(to, RecipientFile) else to for to in notify.to]


def file_refusal(to: RecipientFile, base_dir: Path) -> str | None:
    """Return why the file of a recipient cannot be used; None if it can."""
    try:
        return refusal(read_secret(to.path, base_dir))
    except ValueError as error:
        return str(error)

"""The tags and the note that people give a run: a file beside its logs, which goes with them. No decision reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from orchestrator.both import durable
from orchestrator.core.errors import UsageError

FILE = "marks.json"
NONE = {"tags": [], "note": ""}
TAGS_MAX = 32
NOTE_CHARS_MAX = 1000

_TAG = re.compile(r"[\w.:+-]{1,40}")


def read(run_dir: str) -> dict[str, Any]:
    """Return `tags`, sorted, and `note`."""
    kept = durable.read_object(run_dir, FILE) or {}
    tags = [tag for tag in kept.get("tags") or () if isinstance(tag, str) and _TAG.fullmatch(tag)]
    return {"tags": tags, "note": str(kept.get("note") or "")[:NOTE_CHARS_MAX]}


def change(
    run_dir: str, *, add: Iterable[str] = (), remove: Iterable[str] = (), note: str | None = None
) -> dict[str, Any]:
    """Change them, and return what `read` does then. Raises UsageError, and nothing is changed; OSError."""
    known = read(run_dir)
    for tag in add:
        if not _TAG.fullmatch(tag):
            raise UsageError(f"{tag!r} is no tag", hint="letters, digits and . : + - _, at most 40")
    tags = sorted({*known["tags"], *add} - set(remove))
    if len(tags) > TAGS_MAX:
        raise UsageError(
            f"a run has at most {TAGS_MAX} tags, and this would be {len(tags)}", hint="remove others"
        )
    if note is not None and len(note) > NOTE_CHARS_MAX:
        raise UsageError(
            f"the note has {len(note):,} characters, more than {NOTE_CHARS_MAX:,}",
            hint="put the rest into a file",
        )
    made = {"tags": tags, "note": known["note"] if note is None else note}
    os.makedirs(run_dir, mode=0o700, exist_ok=True)  # of a run that waits there is none yet
    durable.write_json(os.path.join(run_dir, FILE), made)
    return made

"""The name of a pushed tree of code: head and host compute it alike."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    File = tuple[str, str, int, int]
    """(path, sha256, mode, size in bytes)"""


def digest_of(files: Iterable[File]) -> str:
    """Return the name of the tree that is built from `files`. Only paths, contents and modes decide it."""
    import json
    from hashlib import sha256

    canonical = sorted((path, content, mode) for path, content, mode, _ in files)
    return sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()

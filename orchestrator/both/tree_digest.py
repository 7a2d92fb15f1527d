"""The name of a pushed tree of code: head and host compute it alike."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    File = tuple[str, str, int, int]
    """(path, sha256, mode, size in bytes)"""

LINK = 0o120777
"""The mode of a symbolic link. Its content is its target, as git keeps it."""

DIRECTORY = 0o40755
"""The mode of a directory that may be empty. It has no content."""

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
"""The SHA-256 of nothing."""


def normalised(mode: int) -> int:
    """Return the mode that counts: that of a link, a directory, a program, or another file."""
    for kind in (LINK, DIRECTORY):
        if mode & 0o170000 == kind & 0o170000:
            return kind
    return 0o755 if mode & 0o100 else 0o644


def digest_of(files: Iterable[File]) -> str:
    """Return the name of the tree that is built from `files`. Only paths, contents and modes decide it."""
    import json
    from hashlib import sha256

    canonical = sorted((path, content, mode) for path, content, mode, _ in files)
    return sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()

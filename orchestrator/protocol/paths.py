"""Paths that another machine, a spec or a request names: below a directory that we know, and nowhere else."""

from __future__ import annotations

from orchestrator.protocol.limits import PART_BYTES_MAX, PATH_CHARS_MAX


class RelativePath(str):
    """A path below some directory. To make one is to check it, so whoever has one may join it to that directory.

    No part of it is empty, `.` or `..`, so it does not begin with `/`, and what is matched against a pattern is what is
    opened. It has no NUL and no half of a surrogate pair. Tabs and newlines may be in it, as in names of files.
    """

    __slots__ = ()

    def __new__(cls, text: object) -> RelativePath:
        """Check a text. Raises ValueError, of which str() says what is wrong with it."""
        why = _why_not(text)
        if why is not None:
            raise ValueError(f"{repr(text)[:80]} is no path below a directory: {why}")
        return super().__new__(cls, text)

    @property
    def parts(self) -> list[str]:
        """Return the names of the directories and of the file."""
        return self.split("/")


def _why_not(text: object) -> str | None:
    if not isinstance(text, str):
        return "it is no text"
    if len(text) > PATH_CHARS_MAX:
        return f"it has {len(text)} characters"
    if text.startswith("/"):
        return "it begins with /"
    if "\0" in text:
        return "it has a NUL"
    for part in text.split("/"):
        if part in ("", ".", ".."):
            return f"one of its parts is {part!r}"
        try:
            length = len(part.encode())
        except UnicodeEncodeError:
            return "it is not UTF-8"
        if length > PART_BYTES_MAX:
            return f"one of its parts has {length} bytes"
    return None


def lies_in(path: str, directory: str) -> bool:
    """Return whether a path is an absolute directory or lies below it, by its text alone."""
    top = directory.rstrip("/")
    if not directory.startswith("/") or not f"{path}/".startswith(f"{top}/"):
        return False
    try:
        return path.rstrip("/") == top or bool(RelativePath(path[len(top) + 1 :]))
    except ValueError:
        return False

"""The differences between two trees of code, file by file and line by line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Literal

from orchestrator.core.words import counted, listed

Files = Mapping[str, tuple[str, int]]
"""By path: an id of the content, and the mode."""

Text = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that differs."""

    path: str
    change: Literal["added", "removed", "changed", "mode"]
    added: int | None = None
    removed: int | None = None
    """Numbers of lines; None if a text is unknown."""
    lines: tuple[str, ...] = ()
    """The unified diff, without line ends."""

    @property
    def sentence(self) -> str:
        """Return a sentence such as `train.py: 12 lines`, with the larger number of added or removed lines."""
        if self.change == "mode":
            return f"{self.path}: its mode"
        if self.added is None or self.removed is None:
            return f"{self.path}: {self.change}"
        if self.change != "changed":
            return f"{self.path}: {self.change}, {counted(max(self.added, self.removed), 'line')}"
        return f"{self.path}: {counted(max(self.added, self.removed), 'line')}"


def changes(old: Files, old_text: Text, new: Files, new_text: Text) -> list[FileChange]:
    """Return the files that differ, by path."""
    return [
        _change(path, old.get(path), old_text, new.get(path), new_text)
        for path in sorted({**old, **new})
        if old.get(path) != new.get(path)
    ]


def sentence(changes: Sequence[FileChange]) -> str:
    """Return the changes in one sentence."""
    return listed([change.sentence for change in changes])


def _change(
    path: str, old: tuple[str, int] | None, old_text: Text, new: tuple[str, int] | None, new_text: Text
) -> FileChange:
    if old is not None and new is not None and old[0] == new[0]:
        return FileChange(path, "mode")
    before = old_text(path) if old is not None else ""
    after = new_text(path) if new is not None else ""
    what: Literal["added", "removed", "changed"] = (
        "added" if old is None else "removed" if new is None else "changed"
    )
    if before is None or after is None:
        return FileChange(path, what)
    was, is_ = (f"a/{path}" if old else "/dev/null"), (f"b/{path}" if new else "/dev/null")
    lines = tuple(unified_diff(before.splitlines(), after.splitlines(), was, is_, lineterm=""))
    body = lines[2:]
    return FileChange(
        path, what, sum(line[0] == "+" for line in body), sum(line[0] == "-" for line in body), lines
    )

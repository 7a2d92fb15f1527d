"""The one meaning of "newest": the order of checkpoints, for the head, the hosts and the tasks.

A later generation comes first, then what a generation saved itself before what it was given, then the higher step. The
time of a file decides last, where no step is known: a clock may have been ahead or behind on any host.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MARKER = ".orch-seed.json"
"""In a generation's directory: what it was given, and whose it is."""

SAME_S = 1e-3
"""Two checkpoints whose times differ by less are the same: a copy keeps the time only as exactly as file systems do."""


def across(about: Mapping[str, Any]) -> tuple[int, int, float]:
    """Return the sort key of a checkpoint among those of all generations, from what is recorded of it."""
    step = about.get("global_step")
    return about.get("generation") or 0, -1 if step is None else step, about.get("saved_at") or 0.0


def is_same(about: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether both are the same checkpoint, perhaps in copies."""
    return (
        about.get("global_step") == other.get("global_step")
        and abs(about["saved_at"] - other["saved_at"]) < SAME_S
    )


def is_further(about: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the first is further than the other, which is of the same generation or a later one."""
    step, others = about.get("global_step"), other.get("global_step")
    if step is not None and others is not None:
        return bool(step > others)
    return bool(about["saved_at"] > other["saved_at"] + SAME_S)


class InGeneration:
    """The order of the checkpoints in one generation's directory."""

    def __init__(self, marker: Mapping[str, Any] | None, made_at: float | None) -> None:
        """Remember what its marker says that it was given, and when that was written; None: it has none."""
        self._made_at = made_at
        self._given: dict[tuple[str, int], tuple[int, float]] | None = None
        """Place and time of each checkpoint that it was given, by name and size; None: an older version made it."""
        try:
            given = enumerate((marker or {})["given"])
            self._given = {(name, size): (place, float(at)) for place, (name, at, size) in given}
        except (KeyError, TypeError, ValueError):
            return

    def place(self, name: str, saved_at: float, size: int) -> int | None:
        """Return the place in the order of what it was given; None for what it saved itself."""
        if self._given is None:
            return 0 if self._made_at is not None and saved_at <= self._made_at else None
        place, at = self._given.get((name, size), (0, -1.0))
        return place if abs(at - saved_at) < SAME_S else None

    def key(
        self, name: str, step: float | None, saved_at: float, size: int, *, count: int | None = None
    ) -> tuple[bool, int, float, int, float]:
        """Return the sort key of a checkpoint; the newest has the highest.

        Args:
            name: its path within the directory.
            step: its global step; None if unknown.
            saved_at: the time of its newest file.
            size: the bytes of all its files.
            count: another number by which the script counts what it saves, such as an epoch.
        """
        place = self.place(name, saved_at, size)
        counted = -1 if count is None else count
        return place is None, -(place or 0), -1 if step is None else step, counted, saved_at

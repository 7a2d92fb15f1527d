"""What a new generation may resume from, in order: the generations before it, as far as nobody went back from them.

Going back is a durable mark, `.orch/aside.json`: every generation that was newer then is set aside, and of the one
that was chosen, and of those before it, what was saved later. Nothing is removed: going back to one that was set aside
brings it in again. A mark knows how far the generations had got when it was made, so that those made after it count.
"""

from __future__ import annotations

import os

from orchestrator.adapters.checkpoints import places, units

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Passed = list[tuple[str, str]]

_SAME_S = 1e-3
"""Copies have the times of what they are copied from, as far as file systems keep them."""


class Chapter:
    """One directory that may hold checkpoints: a generation's, a copy that is kept, or the root itself."""

    def __init__(
        self,
        root: str,
        source: str,
        generation: int | None,
        *,
        is_pin: bool = False,
        is_snapshot: bool = False,
    ) -> None:
        self.root = root
        self.source = source
        self.generation = generation
        """None: what lies in the root, from before all generations."""
        self.is_pin = is_pin
        self.is_snapshot = is_snapshot
        self.is_aside = False
        self.until: float | None = None
        """What was saved later is set aside: Unix time of the newest that counts."""

    def contents(self) -> tuple[list[units.Unit], list[str], Passed]:
        """Its units, newest first; its other files; and what was passed over, with why."""
        found, others, passed = units.find(self.source)
        if self.source != self.root:
            return found, others, passed

        def own(path: str) -> bool:
            first = os.path.relpath(path, self.root).partition(os.sep)[0]
            return not first.startswith(places.PREFIX) and first != places.OWN

        return (
            [unit for unit in found if own(unit.path)],
            [path for path in others if own(path)],
            [(path, why) for path, why in passed if own(path)],
        )

    def counts(self, unit: units.Unit) -> bool:
        """Whether a new generation may resume from it."""
        return not self.is_aside and (self.until is None or unit.saved_at <= self.until + _SAME_S)


def chapters(root: str) -> list[Chapter]:
    """All of them, newest first, those that are set aside too."""
    pins, snapshots = places.pinned(root), places.safe(root)
    there = set(places.generations(root))
    found: list[Chapter] = []
    for generation in sorted(there | {number for number, _ in pins + snapshots}, reverse=True):
        if generation in there:
            found.append(Chapter(root, places.directory_of(root, generation), generation))
        found += [Chapter(root, path, number, is_pin=True) for number, path in pins if number == generation]
        found += [
            Chapter(root, path, number, is_snapshot=True)
            for number, path in snapshots
            if number == generation
        ]
    found.append(Chapter(root, root, None))
    _set_aside(root, found)
    return found


def _set_aside(root: str, found: list[Chapter]) -> None:
    aside = _read(root)
    left_behind, until = False, None
    for chapter in found:
        name = str(chapter.generation)
        chapter.is_aside = left_behind or name in aside["generations"]
        cut = aside["cuts"].get(name, {}).get("saved_at")
        # For all before it too: what is set aside here was perhaps given to it by one of them.
        chapter.until = until = cut if until is None or (cut is not None and cut < until) else until
        if not chapter.is_aside and (places.marker_of(chapter.source) or {}).get("from_scratch"):
            left_behind = True  # what is older was left behind on purpose


def history(root: str) -> list[Chapter]:
    """What a new generation may resume from, newest first."""
    return [chapter for chapter in chapters(root) if not chapter.is_aside]


def went_back_from(root: str) -> set[int]:
    """The generations that a person went back from; they are never removed."""
    return {int(name) for name in _read(root)["generations"]}


def go_back(root: str, generation: int, saved_at: float) -> list[int]:
    """Set aside all that is newer; the generations concerned, newest first. The caller holds the lock."""
    there = places.generations(root)
    newest = max([generation, *there])
    before = _read(root)
    # A mark that was made after the chosen generation belongs to what is left now.
    kept = {
        kind: {
            name: mark
            for name, mark in before[kind].items()
            if int(name) < generation and mark["after"] < generation
        }
        for kind in ("generations", "cuts")
    }
    newer = [number for number in there if number > generation]
    kept["generations"].update({str(number): {"after": newest} for number in newer})
    kept["cuts"][str(generation)] = {"saved_at": saved_at, "after": newest}
    places.write_json(_path(root), kept)
    return newer


def _path(root: str) -> str:
    return os.path.join(places.own_dir(root), "aside.json")


def _read(root: str) -> dict[str, dict[str, Any]]:
    path = _path(root)
    found = places.read_json(path)
    if found is None and os.path.exists(path):
        raise places.SeedError(
            "aside-damaged",
            f"{path} cannot be read: which checkpoints were gone back from is not known",
            "remove it, and every generation counts again; or go back again: `orch ckpt rollback`",
        )
    found = found or {}
    return {"generations": found.get("generations") or {}, "cuts": found.get("cuts") or {}}

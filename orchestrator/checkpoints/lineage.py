"""The order in which a new generation may resume from earlier ones, without those that a person rolled back.

A rollback is a durable mark in `.orch/aside.json`. It sets aside every generation that was newer than the chosen one.
Of the chosen generation and those before it, it sets aside what was saved after the chosen checkpoint. Nothing is
removed: a rollback to a checkpoint that was set aside brings it back. A mark records the newest generation at its
time, so generations made afterwards count. A start from scratch sets aside all before it without a mark, until `rm`
removes that generation.
"""

from __future__ import annotations

from orchestrator.both.newest import is_further
from orchestrator.checkpoints import discovery, places
from orchestrator.checkpoints.discovery import Contents
from orchestrator.checkpoints.units import Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.both.within import Tree

FILE = f"{places.OWN}/aside.json"


class Origin:
    """A directory that may hold checkpoints: a generation's, a pinned copy's, a snapshot's, or the root itself."""

    def __init__(
        self,
        tree: Tree,
        source: str,
        generation: int | None,
        *,
        is_pin: bool = False,
        is_snapshot: bool = False,
    ) -> None:
        self.tree = tree
        self.source = source
        self.generation = generation
        """None for the root, whose checkpoints are older than all generations."""
        self.is_pin = is_pin
        self.is_snapshot = is_snapshot
        self.is_aside = False
        self.until: dict[str, Any] | None = None
        """Step and time of the newest checkpoint that counts; what is newer is set aside. None: all count."""

    @property
    def is_copy(self) -> bool:
        """Whether it is a copy of a checkpoint that a generation saved."""
        return self.is_pin or self.is_snapshot

    def contents(self) -> Contents:
        """Return its contents."""
        return discovery.find(self.tree, self.source, is_root=self.source == self.tree.path)

    def counts(self, unit: Unit) -> bool:
        """Return whether a new generation may resume from `unit`."""
        about = {"global_step": unit.global_step, "saved_at": unit.saved_at}
        return not self.is_aside and (self.until is None or not is_further(about, self.until))


def origins(tree: Tree) -> list[Origin]:
    """Return all origins, newest first, including those that are set aside."""
    pins, snapshots = places.pinned(tree), places.safe(tree)
    there = set(places.generations(tree))
    listed: list[Origin] = []
    for generation in sorted(there | {number for number, _ in pins + snapshots}, reverse=True):
        if generation in there:
            listed.append(Origin(tree, places.directory_of(tree.path, generation), generation))
        listed += [Origin(tree, path, number, is_pin=True) for number, path in pins if number == generation]
        listed += [
            Origin(tree, path, number, is_snapshot=True) for number, path in snapshots if number == generation
        ]
    listed.append(Origin(tree, tree.path, None))
    aside = _read(tree)
    begun, until = 0, None
    for origin in listed:
        name = _name(origin)
        origin.is_aside = (origin.generation or 0) < begun or name in aside["generations"]
        # The limit also holds for all earlier origins: what is set aside here may have been seeded from one of them.
        origin.until = until = aside["cuts"].get(name, until)
        if not origin.is_aside and _is_from_scratch(tree, origin.source):
            # It leaves everything older behind, on purpose, but not the copies of what it saved itself
            begun = origin.generation or 0
    return listed


def history(tree: Tree) -> list[Origin]:
    """Return the origins that a new generation may resume from, newest first."""
    return [origin for origin in origins(tree) if not origin.is_aside]


def set_aside(tree: Tree) -> list[Origin]:
    """Return the generations that are set aside, newest first: rolled back, or left behind by a start from scratch.

    They are kept until a person removes them.
    """
    return [
        origin
        for origin in origins(tree)
        if origin.is_aside and origin.generation is not None and not origin.is_copy
    ]


def keep_aside(tree: Tree, generation: int) -> None:
    """Mark what this generation left behind by its start from scratch, if it did: it is about to be removed.

    Otherwise all that is older would count again, and `keep` would remove it. The caller must hold the lock.
    """
    marks, directory = _read(tree), places.directory_of(tree.path, generation)
    if str(generation) in marks["generations"] or not _is_from_scratch(tree, directory):
        return
    for origin in origins(tree):
        if (origin.generation or 0) < generation:
            # As if it had been rolled back when this one began: who goes back to before that has it all again
            marks["generations"].setdefault(_name(origin), {"after": generation - 1})
    tree.write_json(FILE, marks, mode=0o666)


def roll_back(tree: Tree, generation: int, saved_at: float, step: int | None) -> list[int]:
    """Set aside all that is newer than the chosen checkpoint. The caller must hold the lock.

    Returns:
        the generations that are set aside, newest first.
    """
    # Also those of which only a pin or a snapshot is left
    there = {origin.generation or 0 for origin in origins(tree)}
    newest = max([generation, *there])
    before = _read(tree)
    # A mark that was made after the chosen generation belongs to the history that this rollback leaves behind.
    kept = {
        kind: {
            name: mark
            for name, mark in before[kind].items()
            if int(name) < generation and mark["after"] < generation
        }
        for kind in ("generations", "cuts")
    }
    newer = sorted((number for number in there if number > generation), reverse=True)
    kept["generations"].update({str(number): {"after": newest} for number in newer})
    kept["cuts"][str(generation)] = {"saved_at": saved_at, "global_step": step, "after": newest}
    tree.write_json(FILE, kept, mode=0o666)
    return newer


def _name(origin: Origin) -> str:
    """Return how a mark names the origin; the root is 0."""
    return str(origin.generation or 0)


def _is_from_scratch(tree: Tree, directory: str) -> bool:
    return bool((places.marker_of(tree, directory) or {}).get("from_scratch"))


def _read(tree: Tree) -> dict[str, dict[str, Any]]:
    marks = tree.read_object(FILE)
    if marks is None and tree.has(FILE):
        raise places.SeedError(
            "aside-damaged",
            f"{tree.path}/{FILE} cannot be read: which checkpoints a rollback has set aside is not known",
            "remove it, and every generation counts again; then `orch ckpt rollback` can set them aside again",
        )
    marks = marks or {}
    return {"generations": marks.get("generations") or {}, "cuts": marks.get("cuts") or {}}

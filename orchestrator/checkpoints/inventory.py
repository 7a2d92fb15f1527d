"""The commands of `orch ckpt`: list the checkpoints and verify them, pin one, roll back to one.

A person names a checkpoint by its global step (`120`), by its generation (`gen-5`: the newest of that generation that
reads whole), or as the list shows it (`gen-000005/ckpt-7`).
"""

from __future__ import annotations

import os

from orchestrator.both.newest import SAME_S, across
from orchestrator.both.within import Tree
from orchestrator.checkpoints import copying, lineage, places, seed
from orchestrator.checkpoints.lineage import Origin
from orchestrator.checkpoints.places import SeedError, room_for
from orchestrator.checkpoints.records import Records
from orchestrator.checkpoints.torn import Torn
from orchestrator.checkpoints.units import IS_CHECKPOINT, Unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PIN_ATTEMPTS = 5
"""How often another checkpoint is chosen because the training wrote over the chosen one meanwhile."""

WRITES_S = 10.0
"""A file that was not written for this long is not being written: buffers fill, and file systems show it, sooner."""

_NAMED_MAX = 12


class InventoryEntry:
    """A checkpoint, where it is, and what is known about it."""

    def __init__(self, origin: Origin, unit: Unit) -> None:
        self.origin = origin
        self.unit = unit
        self.whole: bool | None = None
        """None: the structure is right, but the contents have not been read yet; or nothing here can read them."""
        self.is_gone = False
        """Whether it was removed while it was looked at: a script keeps its newest few, and `keep` counts too."""
        self.why: str | None = None
        self.is_being_written = False
        """Whether it is not whole, and its files change, or did a moment ago."""
        self.verified_at: float | None = None
        self.pins: list[str] = []
        marker = places.marker_of(origin.tree, origin.source) or {}
        self.by: dict[str, Any] = marker.get("by") or {}
        self.is_given = not origin.is_copy and unit.is_given
        """Whether the generation was seeded with it: then it is a copy."""

    @property
    def counts(self) -> bool:
        return self.origin.counts(self.unit)

    @property
    def name(self) -> str:
        """The name that people type: the path within the checkpoint directory."""
        return os.path.relpath(self.unit.path, self.origin.tree.path)

    def inspect(self, records: Records, *, read: bool) -> None:
        """Find out whether it is whole: from its structure and the records; with `read`, by reading all of it."""
        record = None if read else records.find(self.unit)
        try:
            self.unit.read_step()
            if read:
                self.unit.read()
                records.add(self.unit, None)
                record = records.find(self.unit)
        except Torn as e:
            self.is_gone = self.unit.is_gone()
            self.whole, self.why = False, str(e)
            self.is_being_written = self._changes()
            if read and not self.is_gone:
                records.add(self.unit, self.why)
            return
        if record is not None:
            self.whole, self.why = record["why"] is None, record["why"]
            self.is_being_written = not self.whole and self._changes()
            self.verified_at = record["at"]
            self.unit.global_step = record["global_step"]

    def _changes(self) -> bool:
        """Return whether somebody is writing it. Copies of ours take their names once they are whole."""
        if self.origin.is_copy:
            return False
        age_s = self.unit.age_s(places.OWN)
        # A time far in the future shows no writer: a clock was set back, or the file was copied with its time.
        return (age_s is not None and -WRITES_S <= age_s < WRITES_S) or not self.unit.is_unchanged()

    def to_json(self) -> dict[str, Any]:
        unit = self.unit
        return {
            "generation": self.origin.generation,
            "name": self.name,
            "path": unit.path,
            "kind": unit.kind,
            "global_step": unit.global_step,
            "bytes": unit.bytes,
            "saved_at": unit.saved_at,
            "resumes": unit.rank == IS_CHECKPOINT,
            "whole": self.whole,
            "writing": self.is_being_written,
            "proof": unit.proof,
            "why": self.why,
            "verified_at": self.verified_at,
            "pinned": bool(self.pins),
            "set_aside": not self.counts,
            "by": self.by or None,
            "given": self.is_given,
        }


def listed(root: str, *, read: bool = False) -> dict[str, Any]:
    """Return the answer of `list`, newest generation first. With `read`, every checkpoint is read to its last byte."""
    try:
        tree = Tree(root)
    except FileNotFoundError:
        return {"dir": root, "checkpoints": []}
    with tree:
        return {"dir": root, "checkpoints": [entry.to_json() for entry in _entries(tree, read=read)]}


def _entries(tree: Tree, *, read: bool = False) -> list[InventoryEntry]:
    records = Records(tree)
    entries = [
        InventoryEntry(origin, unit) for origin in lineage.origins(tree) for unit in origin.contents().units
    ]
    for entry in entries:
        entry.inspect(records, read=read)
    records.save()
    # Merge each copy into its original. A copy has an entry of its own only where the original is gone or
    # changed.
    entries = [entry for entry in entries if not entry.is_gone]
    shown = [entry for entry in entries if not entry.origin.is_copy]
    for pin in (entry for entry in entries if entry.origin.is_copy):
        pin.pins = [pin.origin.source] if pin.origin.is_pin else []
        twin = next((entry for entry in shown if _is_copy(pin, entry)), None)
        if twin is not None:
            twin.pins += pin.pins
        else:
            place = [i for i, entry in enumerate(shown) if _is_older(entry, pin)]
            shown.insert(place[0] if place else len(shown), pin)
    return shown


def _is_copy(pin: InventoryEntry, entry: InventoryEntry) -> bool:
    return (
        pin.origin.generation == entry.origin.generation
        and os.path.relpath(pin.unit.path, pin.origin.source)
        == os.path.relpath(entry.unit.path, entry.origin.source)
        and abs(pin.unit.saved_at - entry.unit.saved_at) < SAME_S
    )


def _is_older(entry: InventoryEntry, pin: InventoryEntry) -> bool:
    if entry.origin.generation is None or pin.origin.generation is None:
        return entry.origin.generation is None
    return across(entry.to_json()) < across(pin.to_json())


def pin(root: str, what: str) -> dict[str, Any]:
    """Copy a checkpoint to where neither a script that keeps only its newest few nor `keep` removes it."""
    with places.locked(root) as tree:
        entry, directory, again = _pinned(tree, what)
    return {"checkpoint": entry.to_json() | {"pinned": True}, "path": directory, "already": again}


def unpin(root: str, what: str) -> dict[str, Any]:
    """Remove the copies that `pin` made of a checkpoint."""
    with places.locked(root) as tree:
        entries = [entry for entry in _entries(tree) if entry.pins]
        entry = _first(entries, what, "pinned checkpoint")
        for directory in entry.pins:
            places.remove(tree, directory)
    return {"checkpoint": entry.to_json() | {"pinned": False}}


SET_ASIDE = "set-aside"
"""The word by which `rm` removes all generations that are set aside."""


def rm(root: str, what: str) -> dict[str, Any]:
    """Remove a generation with all that it saved, or all that is set aside. Pinned copies stay.

    Raises:
        SeedError: there is no such generation, or it is what a restart would start from.
    """
    digits = what.removeprefix(places.PREFIX)
    with places.locked(root) as tree:
        entries = [entry for entry in _entries(tree) if not entry.origin.is_copy]
        newest = next((entry for entry in entries if entry.counts and entry.unit.rank == IS_CHECKPOINT), None)
        there = places.generations(tree)
        if what == SET_ASIDE:
            chosen = [origin.generation or 0 for origin in lineage.set_aside(tree)]
        elif digits != what and digits.isdecimal() and int(digits) in there:
            chosen = [int(digits)]
        else:
            raise SeedError(
                "no-such-checkpoint",
                f"there is no generation {what!r} in {root}",
                f"gen-N, or {SET_ASIDE}; there are: {', '.join(f'gen-{number}' for number in there) or 'none'}",
            )
        needed = {there[0]} if there else set()
        if newest is not None and newest.origin.generation is not None:
            needed.add(newest.origin.generation)
        if refused := sorted(needed & set(chosen)):
            raise SeedError(
                "needed",
                f"generation {refused[0]} is what the next start goes on from",
                "`orch ckpt rollback` chooses another checkpoint to start from; then this one can be removed",
            )
        count = sum(entry.unit.bytes for entry in entries if entry.origin.generation in chosen)
        for generation in chosen:
            lineage.keep_aside(tree, generation)
            places.remove(tree, places.directory_of(tree.path, generation))
    return {"removed": chosen, "bytes": count}


def rollback(root: str, what: str) -> dict[str, Any]:
    """Make the next generation start from that checkpoint: pin it, and set aside everything newer."""
    with places.locked(root) as tree:
        entry, _, _ = _pinned(tree, what, check=_check_can_be_target)
        generation = entry.origin.generation
        assert generation is not None
        newer = lineage.roll_back(tree, generation, entry.unit.saved_at, entry.unit.global_step)
    entry.pins = entry.pins or [entry.origin.source]
    return {"checkpoint": entry.to_json() | {"set_aside": False}, "set_aside": newer}


def _check_can_be_target(tree: Tree, entry: InventoryEntry) -> None:
    """Raise SeedError if the mark of a rollback could not identify the checkpoint."""
    if entry.origin.generation is None:
        raise SeedError(
            "no-generation",
            f"{entry.name} lies beside the generations and belongs to none of them, so no rollback can name it",
            "to resume from it, copy it into an empty directory, and give that to a new run as checkpoint directory",
        )
    # Without a step, the mark of a rollback identifies a checkpoint by its time, which `cp` without `-p` loses
    for other in _entries(tree):
        mine, unit = entry.unit, other.unit
        if (
            other.origin.generation == entry.origin.generation
            and unit.rank == IS_CHECKPOINT
            and None in (unit.global_step, mine.global_step)
            and other.name != entry.name
            and abs(unit.saved_at - mine.saved_at) < SAME_S
        ):
            raise SeedError(
                "same-time",
                f"{entry.name} and {other.name} were written in the same millisecond: which is newer is not known",
                "if they were copied without their times, `touch` the files of the newer of the two",
            )


def _pinned(
    tree: Tree, what: str, *, check: Callable[[Tree, InventoryEntry], None] | None = None
) -> tuple[InventoryEntry, str, bool]:
    """Choose a checkpoint and pin it. Return it, the directory of the copy, and whether that existed before.

    A training that goes on may overwrite the chosen checkpoint before it is copied. Then the choice is repeated: `what`
    may mean a newer one by now. `check` raises SeedError for a checkpoint that must not be chosen.
    """
    for last in (False,) * (PIN_ATTEMPTS - 1) + (True,):
        entry = _whole_one(tree, what)
        if check is not None:
            check(tree, entry)
        try:
            directory, again = _pin(tree, entry)
        except Torn as e:
            if last:
                raise _not_whole(entry, str(e)) from e
        else:
            return entry, directory, again
    raise AssertionError("the last attempt returns or raises")


def _pin(tree: Tree, entry: InventoryEntry) -> tuple[str, bool]:
    """Pin a checkpoint. Return the directory of the copy, and whether it existed before. Raises Torn."""
    if entry.pins:
        return entry.pins[0], True
    unit, generation = entry.unit, entry.origin.generation or 0
    step = f"step-{unit.global_step}" if unit.global_step is not None else "step-unknown"
    name = f"{places.PREFIX}{generation:06d}.{step}.{int(unit.saved_at)}"
    target = os.path.join(tree.path, places.PINNED, name)
    source, others = entry.origin.source, entry.origin.contents().others
    with room_for(tree, f"{target}.tmp") as need:
        building, need.bytes = need.tree, unit.bytes
        copying.emptied(building)
        copy = copying.copied_once(unit, source, building)
        copy.read()  # the copy must be read, not the original: the training may be writing that at this moment
        copying.copy_others(tree, source, [] if source == tree.path else others, building, [])
        answer = {"by": entry.by, "global_step": copy.global_step, "source": unit.path}
        seed.finish(tree, building, target, answer)
    return target, False


def _whole_one(tree: Tree, what: str) -> InventoryEntry:
    """Read the checkpoints that `what` may mean, and return the first that reads whole, or that nothing can read.

    Raises:
        SeedError: there is none by that name, or none of them reads whole.
    """
    records = Records(tree)
    meant = _meant(_entries(tree), what)
    for entry in meant:
        entry.inspect(records, read=True)
        if entry.whole is not False:
            records.save()
            return entry
    records.save()
    if meant:
        raise _not_whole(meant[0], meant[0].why or "it was not read")
    return _first([], what, "checkpoint", _entries(tree))


def _not_whole(entry: InventoryEntry, why: str) -> SeedError:
    return SeedError(
        "not-whole", f"{entry.name} does not read whole: {why}", "`orch ckpt verify` shows which do"
    )


def _first(
    entries: list[InventoryEntry], what: str, kind: str, known: list[InventoryEntry] | None = None
) -> InventoryEntry:
    for entry in _meant(entries, what):
        return entry
    steps = sorted({e.unit.global_step for e in known or entries if e.unit.global_step is not None})
    named = ", ".join(str(step) for step in steps[-_NAMED_MAX:])
    hint = f"steps that there are: {named}" if steps else f"there is no {kind} under this directory"
    if what.isdecimal():
        hint += f"; for generation {int(what)} write gen-{int(what)}"
    named_so = f"of step {what}" if what.isdecimal() else f"named {what}"
    raise SeedError("no-such-checkpoint", f"there is no {kind} {named_so}", hint)


def _meant(entries: list[InventoryEntry], what: str) -> list[InventoryEntry]:
    """Return the checkpoints that `what` may mean, the likeliest first: those set aside come last."""
    digits = what.removeprefix(places.PREFIX)
    if what.isdecimal():
        matches = [entry for entry in entries if entry.unit.global_step == int(what)]
    elif digits != what and digits.isdecimal():
        matches = [entry for entry in entries if entry.origin.generation == int(digits)]
    else:
        matches = [entry for entry in entries if what in (entry.name, entry.unit.path)]
    matches.sort(key=lambda entry: (-entry.unit.rank, not entry.counts))
    return matches

"""The results of reading checkpoints to their last byte: `.orch/verified.json`. They inform people and save work.

A record is valid as long as the files have the times and sizes that they had when they were read.
"""

from __future__ import annotations

import os
import time

from orchestrator.checkpoints.places import OWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.both.within import Tree
    from orchestrator.checkpoints.units import Unit

FILE = f"{OWN}/verified.json"


class Records:
    """The records of one checkpoint directory. They are read once, and `save` writes back what was added."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[str, Any] = tree.read_object(FILE) or {}
        self._fresh: dict[str, Any] = {}

    def find(self, unit: Unit) -> dict[str, Any] | None:
        """Return the record `{"at", "global_step", "why"}` of a unit; `why` is None if it read whole.

        Returns None if the unit was never read, or has changed since.
        """
        record = self._known.get(self._name(unit))
        return (
            record
            if record and record["saved_at"] == unit.saved_at and record["bytes"] == unit.bytes
            else None
        )

    def add(self, unit: Unit, why: str | None) -> None:
        """Record that `unit` has just been read. `why` says why it does not read whole; None: it does.

        A checkpoint that nothing can read has no record.
        """
        if not unit.is_verified:
            return
        record = {"at": time.time(), "global_step": unit.global_step, "why": why}
        record |= {"saved_at": unit.saved_at, "bytes": unit.bytes}
        self._fresh[self._name(unit)] = self._known[self._name(unit)] = record

    def save(self) -> None:
        """Write the records to disk. An error is ignored: a full disk must not keep a run from resuming."""
        if not self._fresh:
            return
        known = {**(self._tree.read_object(FILE) or {}), **self._fresh}
        try:
            there = {name: known[name] for name in known if self._is_there(name)}
            self._tree.write_json(FILE, there, mode=0o666)
        except OSError:
            return
        self._fresh = {}

    def _is_there(self, name: str) -> bool:
        return self._tree.has(name) or self._tree.has(f"{name}.index")

    def _name(self, unit: Unit) -> str:
        return os.path.relpath(unit.path, self._tree.path)

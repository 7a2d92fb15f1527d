"""The shared checkpoint directory of a run: the checkpoints, whole or torn, and the answers of `seed` and `verify`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.process import Process


@dataclass
class Saved:
    """A checkpoint. It is torn until its last byte is written, and may be torn again later."""

    step: int
    whole: bool = False
    nth: int = 0
    """Its number among all checkpoints in the order of saving, which differs from the order of their steps."""


class Share:
    """The checkpoints by generation, and the answers of `seed`, which a marker makes idempotent."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.generations: dict[int, list[Saved]] = {}
        self.ever_saved = False
        self._seeds: dict[int, dict[str, Any]] = {}
        self._by: dict[int, dict[str, Any]] = {}
        self._pins: dict[int, Saved] = {}
        """The pinned copy of the chosen checkpoint, by the generation that a person rolled back to."""
        self._aside: set[int] = set()
        self._cuts: dict[int, int] = {}
        """By generation: in it and those before it, only checkpoints up to this number count."""
        self._saves = itertools.count(1)

    def path(self, generation: int, step: int | None = None) -> str:
        """Return the path of a generation or a checkpoint, as the adapters name it."""
        directory = f"{self.root}/gen-{generation:06d}"
        return directory if step is None else f"{directory}/ckpt-{step}"

    def begins(self, chief: Process) -> tuple[int | None, bool]:
        """Return the step of the newest checkpoint that the chief can read, and whether all that it finds is whole."""
        found, _ = self.newest(chief.generation)
        given = self.generations.get(chief.generation, [])
        return found.step if found is not None else None, all(saved.whole for saved in given)

    def save(self, chief: Process, step: int) -> Callable[[bool], None]:
        """Begin to save a checkpoint, and return what ends that: whole, or torn. A script keeps the three newest."""
        saves = self.generations.setdefault(chief.generation, [])
        saved = Saved(step, nth=next(self._saves))
        saves.append(saved)
        self.ever_saved = True
        del saves[:-3]

        def end(whole: bool) -> None:
            saved.whole = whole

        return end

    def tear(self, chance: Random) -> None:
        """Tear one of the newest checkpoints."""
        saves = [saved for saves in self.generations.values() for saved in saves]
        if saves:
            chance.choice(saves[-3:]).whole = False

    def _of(self, generation: int) -> list[Saved]:
        """Return the checkpoints of a generation, oldest first."""
        pin = self._pins.get(generation)
        return ([pin] if pin is not None else []) + self.generations.get(generation, [])

    def find(self, path: str) -> Saved | None:
        """Return the checkpoint of that path if it exists and counts, preferring one that reads whole."""
        found = [
            saved
            for generation in self.generations | self._pins
            for saved in self._of(generation)
            if self.path(generation, saved.step) == path and self._counts(generation, saved)
        ]
        return next((saved for saved in found if saved.whole), found[0] if found else None)

    def _counts(self, generation: int, saved: Saved) -> bool:
        cut = min((nth for number, nth in self._cuts.items() if number >= generation), default=saved.nth)
        return generation not in self._aside and saved.nth <= cut

    def go_back(self, generation: int, saved: Saved) -> list[int]:
        """Mark everything newer as set aside, as `lineage.roll_back` does."""
        newer = [number for number in self.generations if number > generation]
        self._aside = {number for number in self._aside if number < generation} | set(newer)
        self._cuts = {number: nth for number, nth in self._cuts.items() if number < generation}
        self._cuts[generation] = saved.nth
        self._pins[generation] = replace(saved)
        return sorted(newer, reverse=True)

    def whole_ones(self) -> list[tuple[int, Saved]]:
        """Return the checkpoints that a person may roll back to, oldest generation first."""
        return [
            (generation, saved)
            for generation in sorted(self.generations)
            for saved in self.generations[generation]
            if saved.whole and self._counts(generation, saved)
        ]

    def newest(self, generation: int) -> tuple[Saved | None, list[dict[str, str]]]:
        """Return the newest checkpoint of a generation that reads whole, and the newer ones that were rejected."""
        return self._newest(generation, self.generations.get(generation, []))

    def _newest(self, generation: int, saves: list[Saved]) -> tuple[Saved | None, list[dict[str, str]]]:
        rejected: list[dict[str, str]] = []
        for saved in reversed(saves):
            if saved.whole:
                return saved, rejected
            rejected.append({"path": self.path(generation, saved.step), "why": "torn"})
        return None, rejected

    def seed(self, generation: int, *, keep: int, by: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a `seed` order: `ok`, or an error."""
        if generation in self._seeds:
            if by != self._by[generation]:
                return _error("taken", f"generation {generation} was begun for {self._by[generation]}")
            return {"ok": self._seeds[generation]}
        highest = max(self.generations, default=0)
        if highest >= generation:
            return _error("superseded", f"generation {highest} is there already")
        rejected: list[dict[str, str]] = []
        source, step, found = None, None, None
        for older in sorted(self.generations | self._pins, reverse=True):
            counting = [saved for saved in self._of(older) if self._counts(older, saved)]
            found, torn = self._newest(older, counting)
            rejected += torn
            if found is not None:
                source, step = self.path(older, found.step), found.step
                break
        if source is None and rejected:
            return _error("no-readable-checkpoint", f"none reads whole; the newest is {rejected[0]['path']}")
        self.generations[generation] = [] if found is None else [replace(found)]
        ok = {
            "global_step": step,
            "source": source,
            "path": self.path(generation),
            "rejected": rejected,
            "highest_generation": generation,
        }
        self._seeds[generation], self._by[generation] = ok, by
        for old in sorted(self.generations.keys() - self._aside, reverse=True)[max(1, keep) :]:
            if source is None or not source.startswith(self.path(old) + "/"):
                del self.generations[old]
        return {"ok": ok}

    def still_there(self, verified: dict[str, int]) -> tuple[dict[str, int], int | None]:
        """Return those of the verified checkpoints, steps by path, that exist, and the newest step that reads whole."""
        found = {path: self.find(path) for path in verified}
        whole = [saved.step for saved in found.values() if saved is not None and saved.whole]
        there = {path: step for path, step in verified.items() if found[path] is not None}
        return there, max(whole, default=None)

    def was_given(self, generation: int, step: int | None) -> bool:
        """Return whether a generation was seeded with that step; None is nothing."""
        return bool(self._seeds.get(generation, {}).get("global_step") == step)

    def verify(self, generation: int) -> dict[str, Any]:
        """Return the reply to a `verify` order."""
        found, rejected = self.newest(generation)
        told = None
        if found is not None:
            told = {"global_step": found.step, "path": self.path(generation, found.step), "saved_at": 1.0}
            told |= {"kind": "tensorflow", "bytes": 1 << 20, "verified": True}
        return {"ok": {"checkpoint": told, "rejected": rejected}}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": None}}

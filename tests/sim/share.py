"""The shared directory: a generation's checkpoints, whole or torn, and what `seed` and `verify` find there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any


@dataclass
class Saved:
    """One checkpoint. It is torn until its last byte is there, and may be torn later."""

    step: int
    whole: bool = False
    nth: int = 0
    """Of all that were ever saved: their order in time, which is not that of their steps."""


class Share:
    """By generation. What a real `seed` would answer, with the marker that makes it idempotent."""

    def __init__(self) -> None:
        self.generations: dict[int, list[Saved]] = {}
        self.ever_saved = False
        self._seeds: dict[int, dict[str, Any]] = {}
        self._pins: dict[int, Saved] = {}
        """Of each generation that somebody went back to, the copy of what was chosen."""
        self._aside: set[int] = set()
        self._cuts: dict[int, int] = {}
        """Of a generation, and of those before it, counts what was saved up to there."""
        self._saves = itertools.count(1)

    @staticmethod
    def path(generation: int, step: int | None = None) -> str:
        """As the adapters name it."""
        directory = f"/shared/sim/gen-{generation:06d}"
        return directory if step is None else f"{directory}/ckpt-{step}"

    def save(self, generation: int, step: int) -> Saved:
        """One more, of which nothing is there yet. The three newest of a generation are kept."""
        saves = self.generations.setdefault(generation, [])
        saves.append(Saved(step, nth=next(self._saves)))
        self.ever_saved = True
        del saves[:-3]
        return saves[-1]

    def _of(self, generation: int) -> list[Saved]:
        """What is there of a generation, oldest first."""
        pin = self._pins.get(generation)
        return ([pin] if pin is not None else []) + self.generations.get(generation, [])

    def find(self, path: str) -> Saved | None:
        """The checkpoint of that name, if it is there and counts; one that reads whole before one that does not."""
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
        """As `lineage.go_back`: the mark that all that is newer counts no more."""
        newer = [number for number in self.generations if number > generation]
        self._aside = {number for number in self._aside if number < generation} | set(newer)
        self._cuts = {number: nth for number, nth in self._cuts.items() if number < generation}
        self._cuts[generation] = saved.nth
        self._pins[generation] = replace(saved)
        return sorted(newer, reverse=True)

    def whole_ones(self) -> list[tuple[int, Saved]]:
        """What a person may go back to: of each generation, oldest first, what reads whole and counts."""
        return [
            (generation, saved)
            for generation in sorted(self.generations)
            for saved in self.generations[generation]
            if saved.whole and self._counts(generation, saved)
        ]

    def newest(self, generation: int) -> tuple[Saved | None, list[dict[str, str]]]:
        """The newest in its directory that reads whole, and what was passed over for it."""
        return self._newest(generation, self.generations.get(generation, []))

    def _newest(self, generation: int, saves: list[Saved]) -> tuple[Saved | None, list[dict[str, str]]]:
        rejected: list[dict[str, str]] = []
        for saved in reversed(saves):
            if saved.whole:
                return saved, rejected
            rejected.append({"path": self.path(generation, saved.step), "why": "torn"})
        return None, rejected

    def seed(self, generation: int, *, keep: int) -> dict[str, Any]:
        """The reply of the order: `ok`, or an error."""
        if generation in self._seeds:
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
        self._seeds[generation] = ok
        for old in sorted(self.generations.keys() - self._aside, reverse=True)[max(1, keep) :]:
            if source is None or not source.startswith(self.path(old) + "/"):
                del self.generations[old]
        return {"ok": ok}

    def given(self, generation: int) -> int | None:
        """What that generation was made from; None for nothing."""
        step: int | None = self._seeds.get(generation, {}).get("global_step")
        return step

    def verify(self, generation: int) -> dict[str, Any]:
        """The reply of the order."""
        found, rejected = self.newest(generation)
        told = None
        if found is not None:
            told = {"global_step": found.step, "path": self.path(generation, found.step), "saved_at": 1.0}
        return {"ok": {"checkpoint": told, "rejected": rejected}}


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": None}}

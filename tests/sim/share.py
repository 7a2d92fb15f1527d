"""The shared directory: a generation's checkpoints, whole or torn, and what `seed` and `verify` find there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Saved:
    """One checkpoint. It is torn until its last byte is there, and may be torn later."""

    step: int
    whole: bool = False


class Share:
    """By generation. What a real `seed` would answer, with the marker that makes it idempotent."""

    def __init__(self) -> None:
        self.generations: dict[int, list[Saved]] = {}
        self.ever_saved = False
        self._seeds: dict[int, dict[str, Any]] = {}

    @staticmethod
    def path(generation: int, step: int | None = None) -> str:
        """As the adapters name it."""
        directory = f"/shared/sim/gen-{generation:06d}"
        return directory if step is None else f"{directory}/ckpt-{step}"

    def find(self, path: str) -> Saved | None:
        """The checkpoint of that name, if it is there."""
        for generation, saves in self.generations.items():
            for saved in saves:
                if self.path(generation, saved.step) == path:
                    return saved
        return None

    def newest(self, generation: int) -> tuple[Saved | None, list[dict[str, str]]]:
        """The newest that reads whole, and what was passed over for it."""
        rejected: list[dict[str, str]] = []
        for saved in reversed(self.generations.get(generation, [])):
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
        source, step = None, None
        for older in sorted(self.generations, reverse=True):
            found, torn = self.newest(older)
            rejected += torn
            if found is not None:
                source, step = self.path(older, found.step), found.step
                break
        if source is None and rejected:
            return _error("no-readable-checkpoint", f"none reads whole; the newest is {rejected[0]['path']}")
        self.generations[generation] = [] if step is None else [Saved(step, whole=True)]
        ok = {
            "global_step": step,
            "source": source,
            "path": self.path(generation),
            "rejected": rejected,
            "highest_generation": generation,
        }
        self._seeds[generation] = ok
        for old in sorted(self.generations, reverse=True)[max(1, keep) :]:
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

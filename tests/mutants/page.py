"""docs/mutants.md: which share of the mistakes that were drawn the tests find, for each room."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from tests.mutants.drawing import PRODUCT, RISK, ROOT

PAGE = ROOT / "docs" / "mutants.md"
RESULTS = ROOT / "build" / "mutants" / "results.json"
"""What was found out about each room since the map was made."""


@dataclass
class Room:
    """What became of the mistakes of a room."""

    possible: int = 0
    seed: str = ""
    commit: str = ""
    not_run: int = 0
    """Drawn, but no unit test runs the line in its own process."""
    ends: Counter[str] = field(default_factory=Counter)
    survivors: list[str] = field(default_factory=list)

    @property
    def judged(self) -> int:
        return self.ends["found"] + self.ends["survives"]

    @property
    def score(self) -> float:
        return self.ends["found"] / self.judged if self.judged else 1.0

    def __str__(self) -> str:
        others = ", ".join(
            f"{n} {end}" for end, n in sorted(self.ends.items()) if end not in {"found", "survives"}
        )
        return (
            f"{self.ends['found']} of {self.judged} found ({self.score:.0%}); {others or 'none crashes'}; "
            f"{self.not_run} in lines that no unit test runs; {self.possible} possible"
        )


def kept(rooms: Mapping[str, Room]) -> dict[str, Room]:
    """Keep what was found out about these rooms, and return what is known of all that were hunted here."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known.update(
        {name: vars(room) for name, room in rooms.items() if (PRODUCT / name).is_dir() and "/" not in name}
    )
    RESULTS.write_text(json.dumps(known), encoding="utf-8")
    return {name: Room(**{**room, "ends": Counter(room["ends"])}) for name, room in known.items()}


def text(rooms: Mapping[str, Room], commit: str) -> str:
    """Return the page. Its commit is that since which lines count as changed."""
    day = datetime.now(timezone.utc).strftime("%-d %B %Y")
    judged = sum(room.judged for room in rooms.values())
    found = sum(room.ends["found"] for room in rooms.values())
    rows = "\n".join(
        f"| `{name}` | {room.possible:,} | {room.judged} | {room.ends['found']} | **{room.score:.0%}** "
        f"| {sum(room.ends.values()) - room.judged} | {room.not_run} | {room.seed} | `{room.commit[:8]}` |"
        for name, room in sorted(rooms.items())
    )
    survivors = "\n".join(f"- {survivor}" for name in sorted(rooms) for survivor in rooms[name].survivors)
    return f"""# Mistakes that the tests find

Written by `make mutants WRITE=1`, and not by hand: commit `{commit}`, {day}.

A mistake is one operator, branch, argument, default, call or constant of one function other than it is. It is drawn,
with lines that lose data or let somebody in {RISK:.0f} times as often. The unit tests that run its line must find it,
ten seconds of them at most: it is *found* where the assertion of a test fails. One that only raises or hangs would be
seen at its first run, so another is drawn in its place. *Run elsewhere* are those whose line no unit test runs in its
own process: tests with real hosts, real TensorFlow and other processes run them, and they are not judged here. Some
that survive change nothing that can be seen, and no test can find these.

**{found} of {judged} are found ({found / judged if judged else 1:.0%}).** A sample of ten or
thirty says little about one room alone. A room without a row was not hunted.

| Room | Possible | Judged | Found | Score | Raise or hang | Run elsewhere | Seed | Commit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}

Those that survived:

{survivors or "none"}
"""


def commit() -> str:
    """Return the commit of the page; the empty tree's name where there is no page."""
    found = re.search(r"commit `([0-9a-f]{40})`", PAGE.read_text(encoding="utf-8")) if PAGE.exists() else None
    return found[1] if found else "0" * 40

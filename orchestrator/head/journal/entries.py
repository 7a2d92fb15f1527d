"""The entries of the journal: each holds what is needed to replay its event.

Heartbeats that only move numbers have no entry, and a state also changes where a coordinator takes it up, or where
nothing could be decided for a while. So an entry holds how the state had changed since the entry before, and what was
decided. The first entry that a coordinator writes of a run holds the whole state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.core.events import EVENTS, Event
from orchestrator.core.in_words import InWords
from orchestrator.head.journal.values import adapter, checksum


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the journal, as far as it can be read."""

    seq: int
    time: str
    type: str
    event: Event | None
    """None if this program does not understand it."""
    changes: bytes | None
    """How the state had changed since the entry before."""
    outcome: Outcome | None
    """What was decided; None if the core did not decide, or an older orch wrote the entry."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided about an event."""

    decision: InWords | None = None
    raised: str | None = None
    """The bug in orch that stopped the decisions about the run."""

    def to_json(self) -> str:
        """Return it as the journal keeps it."""
        content = {"raised": self.raised} if self.decision is None else asdict(self.decision)
        return json.dumps(content, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Outcome:
        """Read what `to_json` has written."""
        content = json.loads(text)
        if "raised" in content:
            return Outcome(raised=content["raised"])
        return Outcome(InWords(content["phase"], tuple(content["orders"]), tuple(content["notes"])))


ROWS = "SELECT seq, time, run_id, type, event, changes, outcome, after, sum FROM journal WHERE run_id = ? ORDER BY seq"
"""What `entry_of` reads."""


def entry_of(row: Sequence[Any]) -> Entry:
    """Read a row of the journal. If its checksum is wrong, return an entry that says so, without an event."""
    seq, time, _, type_, event, packed, outcome, _, total = row
    if checksum(row[1:-1]) != total:
        return Entry(seq, time, f"{type_} (changed on the disk: its checksum is wrong)", None, None, None)
    try:
        known = adapter(EVENTS[type_]).validate_json(event)
    except (KeyError, ValueError):
        known = None
    return Entry(seq, time, type_, known, packed, Outcome.from_json(outcome) if outcome is not None else None)

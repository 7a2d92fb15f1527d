"""Plays the entries of a run through today's core, and compares what it decides with what was decided.

The state before each entry is that after the entry before, as today's core has it, with the changes that the entry
holds. So the first difference in a phase or an order is found exactly. What was recorded after it does not follow from
what today's core would have done: it is shown and not played, until an entry that holds the whole state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core import decide
from orchestrator.core.in_words import decided
from orchestrator.core.state.run import Run
from orchestrator.head.journal.changes import changed
from orchestrator.head.journal.entries import Entry, Outcome


@dataclass(frozen=True, slots=True)
class Played:
    """What became of one entry."""

    entry: Entry
    outcome: Outcome | None = None
    """Today's; None where it could not be played, and `why_not` says why."""
    why_not: str = ""

    @property
    def differs(self) -> bool:
        """Return whether today's core decides otherwise than was recorded."""
        now, then = self.outcome, self.entry.outcome
        return now is not None and then is not None and not _alike(now, then)


def _alike(now: Outcome, then: Outcome) -> bool:
    if now.decision is None or then.decision is None:
        return now.raised == then.raised
    return now.decision.is_like(then.decision)


def replay(entries: Iterable[Entry]) -> Iterator[Played]:
    """Play the entries of one run, in their order."""
    run: Run | None = None
    lost = "an older orch wrote it, which did not keep what its heartbeats changed"
    for entry in entries:
        try:
            before = changed(run, entry.changes)
        except ValueError as e:
            run, lost = None, f"its state cannot be read: {str(e).splitlines()[0]}"
            yield Played(entry, why_not=lost)
            continue
        if before is None:
            run = None
            yield Played(entry, why_not=lost)
        elif entry.event is None:
            run, lost = None, f"{entry.seq} could not be played"
            yield Played(entry, why_not=f"this orch does not understand this {entry.type}")
        elif entry.outcome is None:
            run = before
            yield Played(entry, why_not="the state was put here: rebuilt from its hosts, or ended by force")
        else:
            played, run = _play(entry, before)
            if run is None:
                lost = f"what today's core decides at {entry.seq} does not lead here"
            yield played


def _play(entry: Entry, before: Run) -> tuple[Played, Run | None]:
    """Return what was played, and the state after it; None where that is not the one which the next entry builds on."""
    assert entry.event is not None
    try:
        after, actions, _ = decide.step(before, entry.event)
    except Exception as e:
        after = before
        played = Played(entry, Outcome(raised=f"{type(e).__name__}: {e}"))
    else:
        played = Played(entry, Outcome(decided(before, after, actions)))
    now, then = played.outcome, entry.outcome
    assert now is not None and then is not None  # noqa: PT018
    if now.decision is None or then.decision is None:
        return played, after if now.raised == then.raised else None
    same = (now.decision.phase, now.decision.orders) == (then.decision.phase, then.decision.orders)
    return played, after if same else None

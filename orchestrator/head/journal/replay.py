"""Plays the entries of a run through today's core, and compares what it decides with what was decided.

The state before an entry is the state that today's core reached at the entry before, with the changes that the entry
holds. So the first difference in a phase or an order is found exactly. The entries after it do not follow from today's
decision: they are shown and not played, until an entry that holds the whole state.
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
    """The result of replaying one entry."""

    entry: Entry
    outcome: Outcome | None = None
    """What today's core decides; None if the entry could not be played, and `why_not` says why."""
    why_not: str = ""

    @property
    def differs(self) -> bool:
        """Return whether today's core decides otherwise than was recorded."""
        now, then = self.outcome, self.entry.outcome
        if now is None or then is None:
            return False
        if now.decision is None or then.decision is None:
            return now.raised != then.raised
        return not now.decision.is_like(then.decision)


def replay(entries: Iterable[Entry]) -> Iterator[Played]:
    """Play the entries of one run, in their order."""
    run: Run | None = None
    lost = "an older orch wrote it, which did not keep the changes by heartbeats"
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
            yield Played(
                entry, why_not="the core did not decide it: rebuilt from its hosts, or ended by force"
            )
        else:
            played, run = _play(entry, before)
            if run is None:
                lost = f"today's core decides otherwise at {entry.seq}, so it does not reach this state"
            yield played


def _play(entry: Entry, before: Run) -> tuple[Played, Run | None]:
    """Play an entry. Return the result, and the state after it; None if the next entry builds on another state."""
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

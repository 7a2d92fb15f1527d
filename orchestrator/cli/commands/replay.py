"""`orch replay`: replay a run's journal with this version's decisions, and show where they differ from the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_run
from orchestrator.cli.session import Paint, Session
from orchestrator.core.words import counted, plain

if TYPE_CHECKING:
    from orchestrator.head.journal.entries import Entry, Outcome
    from orchestrator.head.journal.replay import Played


def to_json(run_id: str, played: Played) -> dict[str, Any]:
    """Return one entry for `--json`."""
    entry = played.entry
    return {
        "run": run_id,
        "seq": entry.seq,
        "time": entry.time,
        "event": entry.type,
        "what": _what(entry),
        "decided": _outcome_json(played.outcome),
        "recorded": _outcome_json(entry.outcome),
        "differs": played.differs,
        "not_played": played.why_not or None,
    }


def _outcome_json(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    if outcome.decision is None:
        return {"raised": outcome.raised}
    decision = outcome.decision
    return {"phase": decision.phase, "orders": list(decision.orders), "notes": list(decision.notes)}


def shown(played: Played, paint: Paint) -> list[str]:
    """Return one entry for people: the event, and below it the decision.

    Where the decision differs from the record, both are shown as a diff: `-` is the record, `+` is this version.
    """
    entry = played.entry
    head = f"{entry.seq:>6}  {paint(entry.time[:19].replace('T', ' '), 'dim')}  {paint(_what(entry), 'bold')}"
    if played.outcome is None:
        recorded = [f"        {line}" for line in _lines(entry.outcome)]
        return [head, *recorded, f"        {paint(f'not played: {played.why_not}', 'yellow')}"]
    if not played.differs:
        return [head, *(f"        {line}" for line in _lines(played.outcome))]
    return [
        f"{head}  {paint('differs', 'red', 'bold')}",
        *(paint(f"      - {line}", "red") for line in _lines(entry.outcome)),
        *(paint(f"      + {line}", "green") for line in _lines(played.outcome)),
    ]


def _what(entry: Entry) -> str:
    from orchestrator.core.in_words import event_in_words

    return plain(event_in_words(entry.event) if entry.event is not None else entry.type)


def _lines(outcome: Outcome | None) -> list[str]:
    if outcome is None:
        return []
    if outcome.decision is None:
        return [plain(f"raised {outcome.raised}")]
    decision = outcome.decision
    return [plain(line) for line in (decision.phase, *decision.orders, *decision.notes)]


@orch_command(
    about_runs=True,
    examples=[
        ("orch replay mnist", "Show what was decided at each event of the newest run of that name"),
        ("orch replay mnist-20261120-093005 --to 812", "Stop after the entry 812 of the journal"),
        ("orch replay mnist --json", "Print one JSON object per line, each with what was recorded"),
    ],
)
@click.argument("name", metavar="RUN", shell_complete=complete_run)
@click.option("--to", type=int, metavar="SEQ", help="Stop after this entry of the journal.")
@json_option("Print JSON lines.")
def command(session: Session, name: str, to: int | None) -> None:
    """Replay the journal of RUN with the decisions of this version of orch, and show phases and orders per event.

    Where this version decides differently, both decisions are shown. RUN is an id, or a name, which means its newest
    run. The journal is only read, which is safe while a coordinator writes it. No host is contacted.
    """
    from orchestrator.head.journal.reading import read_entries
    from orchestrator.head.journal.replay import replay

    run_id, entries = read_entries(session.paths, name)
    played = differing = unplayed = 0
    for decision in replay(entry for entry in entries if to is None or entry.seq <= to):
        played += decision.outcome is not None
        differing += decision.differs
        unplayed += decision.outcome is None
        if session.wants_json:
            session.put_json(to_json(run_id, decision), indent=None)
        else:
            session.put("\n".join(shown(decision, session.paint)))
    summary = f"{run_id}: {counted(played, 'event')} played, {differing} decided differently than recorded"
    session.say(summary + (f"; {unplayed} not played" if unplayed else ""))

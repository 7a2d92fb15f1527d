"""`orch queue`: show the runs that wait for GPUs, for which ones, and when they are expected to begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.session import Session
from orchestrator.cli.show.tables import table
from orchestrator.core.words import duration, listed

_TITLES = ("RUN", "PRIORITY", "WAITED", "BEGINS", "LIMIT", "NEEDS", "GOES TO", "WAITS FOR")


def _row(turn: Mapping[str, Any]) -> list[str]:
    for_ = [f"{blocker['run_id']}: {listed(blocker['needs'])}" for blocker in turn["waits_for"]]
    for_ += [turn["others"]] if turn["others"] else []
    return [
        str(turn["run_id"]),
        str(turn["priority"]),
        duration(turn["waited_s"]),
        f"in {duration(turn['begins_in_s'])}" if turn["begins_in_s"] is not None else "not known",
        duration(turn["time_limit_s"]) if turn["time_limit_s"] is not None else "none",
        # A coordinator of an older orch says neither
        str(turn.get("needs") or "-"),
        ", ".join(dict.fromkeys(str(task["host"]) for task in turn.get("place") or ())) or "-",
        "; ".join(for_) or "nothing",
    ]


@orch_command(
    examples=[
        ("orch queue", "Show who waits, in their order"),
        ("orch queue --json", "The same as a document"),
    ],
)
@json_option()
def command(session: Session) -> None:
    """Show the runs that wait (`orch up --queue`) in their order: since when, for what, and until when at the latest.

    When a run begins is known only if the runs before it have a `time_limit`. `orch kill NAME` removes a run from the
    queue.
    """
    document = session.client().get("/v1/queue")
    rows = [list(_TITLES), *(_row(turn) for turn in document["queue"])]
    lines = table(rows, session.paint, styles={(0, column): ("dim",) for column in range(len(_TITLES))})
    session.answer(document, *(lines if document["queue"] else ()))
    if not document["queue"] and not session.wants_json:
        session.say("No run waits in the queue")

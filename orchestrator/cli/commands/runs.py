"""`orch runs`: all runs, newest first, with their outcome and what differed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Paint, Session
from orchestrator.cli.show import phase_colours, times
from orchestrator.cli.show.tables import fitting
from orchestrator.cli.show.terminal import printable
from orchestrator.client.choice import START_ONE
from orchestrator.client.run_list import Listed, chosen, listed, ordered
from orchestrator.core.differences import sentence
from orchestrator.core.words import counted

_METRICS_MAX = 4
_FOR_SCALE = "measured/"


@orch_command(
    about_runs=True,
    examples=[
        ("orch runs", "Show the newest runs"),
        ("orch runs mnist --sort=-val_accuracy", "Show the runs of one name, the best first"),
        ("orch runs mnist --where 'val_accuracy>0.9' --all", "Show which of them were good"),
        ("orch runs --tag baseline", "Show the runs that were given this tag"),
        ("orch runs --json", "Print everything, for scripts"),
    ],
)
@run_argument()
@click.option(
    "--sort",
    "key",
    default="-when",
    metavar="KEY",
    help="By when, step, restarts or a metric; -KEY: the largest first.",
)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Only runs of which this is so, such as 'val_loss<0.1'.",
)
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only runs with this tag (`orch tag`).")
@click.option("--all", "every", is_flag=True, help="Show more than the first 20.")
@json_option("Print a document with all of them.")
def command(
    session: Session,
    name: str | None,
    key: str,
    conditions: tuple[str, ...],
    tags: tuple[str, ...],
    every: bool,
) -> None:
    """Show the runs of this head node: when, how they ended, their last figures, and what differed.

    Without NAME: all runs. DIFFERS compares the spec and the code with the run before it of the same name; `orch diff`
    shows it in full. Works without a coordinator. Runs are kept until `orch rm` removes them.
    """
    rows = ordered(chosen(listed(session, name, tags), conditions), key)
    shown = rows if every else rows[:20]
    table = lines(shown, session.paint, session.width) if rows else []
    session.answer({"schema": 1, "runs": [row.document() for row in rows]}, *table)
    if session.wants_json:
        return
    if not rows:
        session.say("No run fulfils that" if conditions or tags else f"No runs to show; {START_ONE}")
    if len(shown) < len(rows):
        session.say(f"{counted(len(rows) - len(shown), 'more run')}; --all shows them")


def lines(rows: Sequence[Listed], paint: Paint, width: int | None) -> list[str]:
    """Return the table of the runs."""
    seen = Counter(name for row in rows for name in row.metrics if not name.startswith(_FOR_SCALE))
    metrics = sorted(seen, key=lambda name: (not name.startswith("val_"), -seen[name], name))[:_METRICS_MAX]
    heads = {name: printable(name).upper() for name in metrics}
    return fitting(
        ("RUN", "BEGAN", "PHASE", "STEP", "RESTARTS", *heads.values(), "TAGS", "DIFFERS"),
        [_row(row, heads) for row in rows],
        paint,
        width=width,
        right=frozenset({"STEP", "RESTARTS", *heads.values()}),
        always=frozenset({"RUN", "PHASE"}),
        drop=("RESTARTS", "BEGAN", "TAGS", *reversed(heads.values()), "DIFFERS", "STEP"),
        styles={(n, "PHASE"): phase_colours.style_of(row.phase) for n, row in enumerate(rows)},
    )


def _row(row: Listed, heads: dict[str, str]) -> dict[str, str]:
    changes = (["code"] if row.other_code else []) + ([sentence(row.differs)] if row.differs else [])
    figures = {head: f"{row.metrics[name]:.4g}" for name, head in heads.items() if name in row.metrics}
    return {
        "RUN": row.run_id,
        "BEGAN": times.event_time(row.created),
        "PHASE": row.phase,
        "STEP": "-" if row.step is None else str(row.step),
        "RESTARTS": str(row.restarts),
        **figures,
        "TAGS": ", ".join(row.tags) or "-",
        "DIFFERS": printable("; ".join(changes)) or "-",
    }

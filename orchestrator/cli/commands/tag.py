"""`orch tag`: give a run tags and a note, by which people find it again."""

from __future__ import annotations

import click

from orchestrator.cli.help import orch_command
from orchestrator.cli.run_choice import complete_run
from orchestrator.cli.session import Session


@orch_command(
    about_runs=True,
    examples=[
        ("orch tag mnist baseline paper", "Give the newest run of that name two tags"),
        ("orch tag mnist-20261120-093005 --remove baseline", "Take a tag away"),
        ("orch tag mnist --note 'with the new data'", "Write a note"),
    ],
)
@click.argument("name", shell_complete=complete_run)
@click.argument("tags", nargs=-1, metavar="[TAG...]")
@click.option("--remove", multiple=True, metavar="TAG", help="Take this tag away.")
@click.option("--note", metavar="TEXT", help="Replace the note; an empty text removes it.")
def command(
    session: Session, name: str, tags: tuple[str, ...], remove: tuple[str, ...], note: str | None
) -> None:
    """Give a run tags and a note, and show them. `orch runs` and the page's list find runs by them.

    Works without a coordinator, and for ended runs too. They are removed with the run, by `orch rm`.
    """
    from orchestrator.client.known_run import known_run
    from orchestrator.head.records import marks

    run_id = known_run(session.paths, name).run_id
    place = session.paths.run_dir(run_id)
    made = (
        marks.change(place, add=tags, remove=remove, note=note)
        if tags or remove or note is not None
        else marks.read(place)
    )
    session.put(f"{run_id}: {', '.join(made['tags']) or 'no tags'}")
    if made["note"]:
        session.put(made["note"])

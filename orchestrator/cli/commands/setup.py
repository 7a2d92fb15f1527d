"""`orch setup`: make the virtual environment of a cluster spec on its hosts."""

from __future__ import annotations

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.inventory_option import inventory_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import SpecError


@orch_command(
    acts=True,
    examples=[
        (
            "orch setup cluster.yaml",
            "Make the Python environment of `setup:` on all hosts, where it is not there",
        ),
        ("orch setup cluster.yaml --json", "The same for scripts"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@inventory_option
@json_option()
def command(session: Session, file: str) -> None:
    """Make the virtual environment of `setup:` in FILE on all of its hosts, at once; `orch up` does so too.

    An environment has a name by its content: the same requirements and Python are made once, and what is there is left
    as it is. A setup that was interrupted leaves nothing that is used; do it again. With `offline: true`, the head
    collects the wheels and pushes them.

    Exit code 4 if some hosts have it and others not, else 1 if it failed.
    """
    from orchestrator.client.setting_up import document, refuse, sentence, set_up
    from orchestrator.spec.load import located

    done = set_up(file, session)
    if done is None:
        raise SpecError(
            located(file, ("setup",), "is missing: what is to be set up"),
            hint="such as `setup: {requirements: requirements.txt}`",
        )
    made = [sentence(result) for result in done if result.problem is None]
    session.answer({"schema": 1, "hosts": [document(result) for result in done]}, *made)
    refuse(done, file)

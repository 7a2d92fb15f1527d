"""`orch report`: write everything about a run into one HTML file."""

from __future__ import annotations

import click

from orchestrator.both import durable
from orchestrator.cli.help import orch_command
from orchestrator.cli.run_choice import complete_run, run_argument
from orchestrator.cli.session import Session
from orchestrator.core.errors import OrchestratorError


@orch_command(
    about_runs=True,
    examples=[
        ("orch report mnist", "Write mnist-….html into this directory"),
        ("orch report mnist --html /tmp/mnist.html", "Into a file of your choice"),
        ("orch report mnist-20261120-1 mnist-20261121-1", "Two runs over each other"),
    ],
)
@run_argument()
@click.argument("other", required=False, metavar="[RUN2]", shell_complete=complete_run)
@click.option("--html", "path", type=click.Path(dir_okay=False), help="The file; else RUN.html, here.")
def command(session: Session, name: str | None, other: str | None, path: str | None) -> None:
    """Write plots, timeline, causes, events and plan of a run into one file that needs no network, for others to read.

    Without NAME: the newest run. Works without a coordinator. The file holds no values of secret variables and no logs,
    except the last lines of a task that failed. With RUN2 it begins with a comparison of both runs: plots, outcome, and
    the differences of spec, code and packages.
    """
    from orchestrator.page.report import report

    run_id, text = report(session.paths, name, other)
    target = path or f"{run_id}.html"
    try:
        durable.write(target, text.encode(), durable=False)
    except OSError as e:
        raise OrchestratorError(f"{target} cannot be written: {e.strerror}") from e
    session.put(target)

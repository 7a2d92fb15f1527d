"""`orch kill`: stop runs, and verify that no process is left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli import render
from orchestrator.cli.help import Command
from orchestrator.cli.options import DURATION
from orchestrator.cli.run_choice import find, only_active, run_argument, runs_of
from orchestrator.cli.session import Session
from orchestrator.client import killing
from orchestrator.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Request:
    """Which runs. Without a name: the only active one."""

    names: tuple[str, ...]
    all: bool
    force: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The ended runs. Those in `already` had ended before."""

    runs: tuple[dict[str, Any], ...]
    already: tuple[dict[str, Any], ...]


def run(request: Request, session: Session) -> Result:
    """Order the kills, and wait for the end of each run. Raises WaitTimedOut."""
    if _cancelled_before_it_began(session, request):
        return Result((), ())
    client = session.client()
    chosen = _chosen(request, runs_of(client))
    already = tuple(found for found in chosen if not render.is_active(found))
    deadline = session.now() + request.timeout_s
    active = [found for found in chosen if render.is_active(found)]
    for found in active:
        killing.order(client, found, force=request.force)
    try:
        ended = tuple(killing.wait_end(client, session, found, deadline) for found in active)
    except KeyboardInterrupt:
        session.say("\nDetached; the kill continues. `orch status` shows what it waits for")
        raise
    if _has_lent(session):
        from orchestrator.client.on_kubernetes import await_return

        await_return(session, [str(found["name"]) for found in chosen])
    return Result(ended, already)


def _has_lent(session: Session) -> bool:
    return os.path.isdir(os.path.join(session.paths.state_dir, "k8s"))


def _cancelled_before_it_began(session: Session, request: Request) -> bool:
    """Cancel what still waits for its nodes or pods, and say so. Return whether that was all."""
    if (request.names or request.all) and _has_lent(session):
        from orchestrator.client.on_kubernetes import give_back_waiting

        cancelled = give_back_waiting(session, request.names)
        if request.names and set(request.names) <= set(cancelled):
            return True
    if not os.path.exists(session.paths.job):
        return False
    from orchestrator.client.on_slurm import cancel_waiting

    return cancel_waiting(session)


def _chosen(request: Request, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if request.all and request.names:
        raise UsageError("give either NAMEs or --all, not both")
    if request.all:
        return [found for found in runs if render.is_active(found)]
    if not request.names:
        return [only_active(runs, "kill")]
    return [find(runs, name) for name in dict.fromkeys(request.names)]


@click.command(
    cls=Command,
    examples=[
        ("orch kill mnist", "Stop the run mnist"),
        ("orch kill --all --timeout 2m", "Stop all active runs, and wait at most two minutes"),
        ("orch kill mnist --force", "Kill its tasks at once, without a last checkpoint"),
    ],
)
@run_argument(nargs=-1)
@click.option("--all", "all_runs", is_flag=True, help="Stop every active run.")
@click.option(
    "--force",
    is_flag=True,
    help="Send SIGKILL at once: no grace, no last checkpoint. Also for a run that orch has stopped deciding on.",
)
@click.option(
    "--timeout", type=DURATION, default="10m", show_default=True, help="How long to wait for the end."
)
@click.option("--json", "as_json", is_flag=True, help="Print the ended runs with their proofs as a document.")
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], all_runs: bool, force: bool, timeout: float, as_json: bool
) -> int:
    """Stop runs: SIGTERM, a grace period, SIGKILL. Then check on every host that no process is left.

    Without NAME: the only active run. Exit code 0 when every host is checked, 4 when a host did not answer, 6 when a
    process could not be killed.
    """
    if force:
        session.warn("--force kills at once; steps since the last checkpoint are lost")
    result = run(Request(names, all_runs, force, timeout), session)
    for found in result.already:
        session.say(f"{render.title(found)} had already ended: {found.get('phase')}")
    if as_json:
        session.put_json({"schema": 1, "runs": [*result.already, *result.runs]})
    else:
        for found in result.runs:
            session.put(render.proof(found, session.paint))
    if all_runs and not result.runs and not as_json:
        session.say("No run is active")
    problem = killing.verdict(result.runs)
    if problem:
        raise problem
    return 0

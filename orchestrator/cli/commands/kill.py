"""`orch kill`: stop runs, and verify that no process is left."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.host_queries import confirm, is_interactive
from orchestrator.cli.options import DURATION
from orchestrator.cli.run_choice import run_argument
from orchestrator.cli.session import Paint, Session
from orchestrator.cli.show import render
from orchestrator.cli.show.phase_colours import phase
from orchestrator.cli.show.render import title
from orchestrator.client import killing
from orchestrator.client.choice import find, is_active, only_active, runs_of
from orchestrator.client.killing import left_text
from orchestrator.core.errors import CoordinatorUnreachable, OrchestratorError, Refused, UsageError
from orchestrator.core.words import proof_by
from orchestrator.head.api.client import Client


@dataclass(frozen=True, slots=True)
class KillRequest:
    """The runs to kill; without a name, the only active one."""

    names: tuple[str, ...]
    all_runs: bool
    force: bool
    timeout_s: float
    yes: bool
    """Whether not to ask if no name is given."""
    at_checkpoint: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The ended runs; `already`: those that had ended earlier; `problem`: why pods are not given back.

    `refused`: which of several runs could not be ordered to end.
    """

    runs: tuple[dict[str, Any], ...]
    already: tuple[dict[str, Any], ...]
    problem: OrchestratorError | None = None
    refused: OrchestratorError | None = None


def run(request: KillRequest, session: Session) -> Result:
    """Order the kills, and wait for the end of each run. Raises WaitTimedOut."""
    if request.all_runs and request.names:
        raise UsageError("give either NAMEs or --all, not both")
    waiting, problem = _give_back_waiting(session, request)
    if _cancelled_before_it_began(session):
        return Result((), (), problem)
    client = session.client()
    try:
        runs = _runs(session, client, request, waiting)
    except CoordinatorUnreachable:
        # Of a Slurm job that has ended by force nothing is left, and its nodes are not reached from here
        if os.path.exists(session.paths.job) or not any(map(is_active, _recorded(session) or ())):
            raise
        from orchestrator.client.starting import ensure_coordinator

        ensure_coordinator(session)
        runs = _runs(session, client, request, waiting)
    chosen = _chosen(request, runs, waiting, session)
    already = tuple(each_run for each_run in chosen if not is_active(each_run))
    deadline = session.now() + request.timeout_s
    active = [each_run for each_run in chosen if is_active(each_run)]
    kept = _kept_claims(session, chosen)
    ordered, refused = _order(session, client, request, active)
    try:
        ended = tuple(killing.wait_end(client, session, each_run, deadline) for each_run in ordered)
    except KeyboardInterrupt:
        session.say("\nDetached; the kill continues. `orch status` shows what it waits for")
        raise
    if _has_lent(session):
        from orchestrator.client.on_kubernetes import await_return

        problem = await_return(session, client, [*already, *ordered], deadline) or problem
        for sentence in kept:
            session.say(sentence)
    return Result(ended, already, problem, refused)


def _order(
    session: Session, client: Client, request: KillRequest, runs: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], OrchestratorError | None]:
    """Order the kills. Return the runs that end, and the error that names those that do not.

    Raises CoordinatorUnreachable, and the refusal of a run that is the only one.
    """
    ordered: list[dict[str, Any]] = []
    refused: dict[str, OrchestratorError] = {}
    for each_run in runs:
        try:
            killing.order(client, each_run, force=request.force, at_checkpoint=request.at_checkpoint)
            ordered.append(each_run)
        except OrchestratorError as e:
            if len(runs) == 1 or isinstance(e, CoordinatorUnreachable):
                raise
            refused[title(each_run)] = e
            # At once: the end of the others may take long, or be waited for in vain
            session.warn(f"{title(each_run)} is not being ended: {e}")
    if not refused:
        return ordered, None
    first = next(iter(refused.values()))
    error = Refused(f"not ended: {', '.join(refused)}", hint=first.hint)
    error.exit_code = first.exit_code
    return ordered, error


def _recorded(session: Session) -> list[dict[str, Any]] | None:
    """Return the runs that the journal has; None if it cannot be read."""
    from orchestrator.client import recorded

    known = recorded.status(session.paths, now=session.time())
    return None if known is None else known["runs"]


def _has_lent(session: Session) -> bool:
    return os.path.isdir(os.path.join(session.paths.state_dir, "k8s"))


def _kept_claims(session: Session, runs: list[dict[str, Any]]) -> list[str]:
    if not (runs and _has_lent(session)):
        return []
    from orchestrator.client.on_kubernetes import kept_claims

    return kept_claims(session, [str(run["name"]) for run in runs])


def _give_back_waiting(session: Session, request: KillRequest) -> tuple[list[str], OrchestratorError | None]:
    """Give back pods that have no run yet. Return their names, and the error if some could not be given back."""
    if not ((request.names or request.all_runs) and _has_lent(session)):
        return [], None
    from orchestrator.client.on_kubernetes import give_back_waiting

    return give_back_waiting(session, request.names)


def _cancelled_before_it_began(session: Session) -> bool:
    """Cancel a Slurm job that still waits for nodes, and report it. Return whether there was one."""
    if not os.path.exists(session.paths.job):
        return False
    from orchestrator.client.on_slurm import cancel_waiting

    return cancel_waiting(session)


def _runs(session: Session, client: Client, request: KillRequest, waiting: list[str]) -> list[dict[str, Any]]:
    """Return all runs. No coordinator is needed where only pods without a run were named.

    A run of that name may go on without its coordinator; the journal shows that.
    """
    try:
        return runs_of(client)
    except CoordinatorUnreachable:
        if not request.names or not set(request.names) <= set(waiting):
            raise
        known = _recorded(session)
        if known is None and os.path.exists(session.paths.journal):
            raise
        if any(is_active(run) and run["name"] in request.names for run in known or ()):
            raise
        return known or []


def _chosen(
    request: KillRequest, runs: list[dict[str, Any]], waiting: list[str], session: Session
) -> list[dict[str, Any]]:
    """Return the named runs. The name of waiting pods also means an active run of that name."""
    active = [run for run in runs if is_active(run)]
    if request.all_runs:
        return active
    if not request.names:
        run = only_active(runs, "kill")
        if not request.yes:
            # Ask whether the only active run is meant, which nobody has named
            if not is_interactive(session):
                raise Refused(
                    f"no NAME is given, and no terminal to ask on whether {run['run_id']} is meant; "
                    "nothing was stopped",
                    hint=f"`orch kill {run['name']}`, or add --yes",
                )
            if not confirm(session, f"Stop {render.title(run)}?"):
                raise Refused("not confirmed; nothing was stopped")
        return [run]
    done = set(waiting) - {run["name"] for run in active}
    return [find(runs, name) for name in dict.fromkeys(request.names) if name not in done]


@orch_command(
    acts=True,
    about_runs=True,
    examples=[
        ("orch kill mnist", "Stop the run mnist"),
        ("orch kill --all --timeout 2m", "Stop all active runs, and wait at most two minutes"),
        (
            "orch kill mnist --at-checkpoint",
            "Stop it saved: at its next step, or once its next checkpoint is verified",
        ),
        ("orch kill mnist --force", "Kill its tasks at once, without a last checkpoint"),
    ],
)
@run_argument(nargs=-1)
@click.option("--all", "all_runs", is_flag=True, help="Stop every active run.")
@click.option("--yes", is_flag=True, help="Without NAME: stop the only active run without asking.")
@click.option(
    "--force",
    is_flag=True,
    help="Send SIGKILL at once: no grace, no last checkpoint. Also for a run that orch has stopped deciding on.",
)
@click.option(
    "--at-checkpoint",
    is_flag=True,
    help="Stop it at its next step if all tasks can hand over their state; else once its next checkpoint is verified, "
    "or after 10 minutes without one.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default="10m",
    show_default=True,
    help="How long to wait for the end.",
)
@json_option("Print the ended runs with their proofs as a document.")
def command(session: Session, /, **options: Any) -> None:
    """Stop runs: SIGTERM, a grace period, SIGKILL. Then check on every host that no process is left.

    Without NAME: the only active run, once you confirm. Exit code 0 when every host is checked, 4 when a host did not
    answer, 6 when a process could not be killed, or when nobody confirmed. Where one of several runs cannot be ordered
    to end, the others are ended all the same.
    """
    request = KillRequest(**options)
    if request.force and request.at_checkpoint:
        raise UsageError("use only one of --force and --at-checkpoint")
    if request.force:
        session.warn("--force kills at once; steps since the last checkpoint are lost")
    result = run(request, session)
    for ended in result.already:
        session.say(f"{render.title(ended)} had already ended: {ended.get('phase')}")
    document = {"schema": 1, "runs": [*result.already, *result.runs]}
    session.answer(document, *(proof(ended, session.paint) for ended in result.runs))
    if request.all_runs and not (result.runs or result.refused or session.wants_json):
        session.say("No run is active")
    problem = result.refused or killing.verdict([*result.already, *result.runs]) or result.problem
    if problem:
        raise problem


Document = Mapping[str, Any]


def proof(run: Document, paint: Paint) -> str:
    """Return the result of a kill on each host, and what is left."""
    document = run.get("proof") or {}
    lines = [f"{title(run)}: {phase(run.get('phase'), paint)}"]
    for host, swept in (document.get("hosts") or {}).items():
        left, ports = swept.get("left") or [], swept.get("ports_busy") or []
        by = f" (checked by {swept['by']})" if swept.get("by") else ""
        if not left and not ports:
            lines.append(f"  {host}: no leftover processes, ports free{by}")
        lines += [f"  {host}: {paint('cannot be killed:', 'red')} {left_text(item)}" for item in left]
        if ports:
            lines.append(f"  {host}: {paint('ports busy:', 'red')} {', '.join(map(str, ports))}")
    for host, why in (document.get("gone") or {}).items():
        lines.append(f"  {host}: {paint('not checked', 'yellow')}, {why}")
    for host in document.get("unreachable") or []:
        lines.append(
            f"  {host}: {paint('unreachable', 'yellow')}, not checked; its tasks are killed once it answers"
        )
    hosts = (document.get("hosts") or {}).values()
    lines += [
        f"  {by}: {proof_by(by)}" for by in sorted({str(swept["by"]) for swept in hosts if swept.get("by")})
    ]
    return "\n".join(lines)

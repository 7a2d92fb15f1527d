"""`orch kill`: ends runs and proves that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from orchestrator.adapters.head.client import Client
from orchestrator.cli import render
from orchestrator.cli.options import DURATION
from orchestrator.cli.run_choice import find, only_active, run_argument, runs_of, status_of
from orchestrator.cli.session import Session
from orchestrator.core.errors import OrchestratorError, Refused, SomeHostsOnly, UsageError, WaitTimedOut

_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Request:
    """What to end. Without a name: the only active run."""

    names: tuple[str, ...]
    all: bool
    force: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """The runs as they were in the end. `already` had ended before."""

    runs: tuple[dict[str, Any], ...]
    already: tuple[dict[str, Any], ...]


def run(request: Request, session: Session) -> Result:
    """Order the kills, then follow each to its end. WaitTimedOut where that takes too long."""
    client = session.client()
    chosen = _chosen(request, runs_of(client))
    already = tuple(found for found in chosen if not render.is_active(found))
    deadline = session.now() + request.timeout_s
    active = [found for found in chosen if render.is_active(found)]
    for found in active:
        client.post(f"/v1/runs/{found['name']}/kill", {"force": request.force})
    try:
        ended = tuple(_wait_end(client, session, found, deadline) for found in active)
    except KeyboardInterrupt:
        session.say("\nthe kill goes on without you; `orch status` shows what it waits for")
        raise
    return Result(ended, already)


def _chosen(request: Request, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if request.all and request.names:
        raise UsageError("name the runs, or say --all; not both")
    if request.all:
        return [found for found in runs if render.is_active(found)]
    if not request.names:
        return [only_active(runs, "kill")]
    return [find(runs, name) for name in dict.fromkeys(request.names)]


def _wait_end(client: Client, session: Session, chosen: dict[str, Any], deadline: float) -> dict[str, Any]:
    said = ""
    while True:
        found = status_of(client, chosen)
        if not render.is_active(found):
            return found
        sentence = f"{render.title(found)}: {found.get('phase')}: {found.get('reason') or 'stopping'}"
        if sentence != said:
            session.say(sentence)
            said = sentence
        if session.now() >= deadline:
            raise WaitTimedOut(
                f"{render.title(found)} is still {found.get('phase')}: {found.get('reason')}",
                hint="the kill goes on; `orch status` shows what it waits for, `orch kill --force` does not wait",
            )
        session.pause(_LOOK_EVERY_S)


def verdict(runs: Sequence[dict[str, Any]]) -> OrchestratorError | None:
    """What stands against "nothing is left": processes that could not be killed, hosts that did not answer."""
    unkillable, unreachable = [], []
    for found in runs:
        proof = found.get("proof") or {}
        for host, seen in (proof.get("hosts") or {}).items():
            unkillable += [f"{host} {render.left_text(item)}" for item in seen.get("left") or []]
            ports = ", ".join(map(str, seen.get("ports_busy") or []))
            unkillable += [f"{host} has busy ports: {ports}"] if ports else []
        unreachable += list(proof.get("unreachable") or [])
    if unkillable:
        return Refused(
            f"could not be killed: {'; '.join(unkillable)}",
            hint="nothing new is started there; a process in D state waits for its disk or network file system",
        )
    if unreachable:
        hosts = ", ".join(dict.fromkeys(unreachable))
        return SomeHostsOnly(
            f"nothing is known of {hosts}: no answer",
            hint="the kill is done there as soon as the coordinator reaches them; `orch status` shows it",
        )
    return None


@click.command()
@run_argument(nargs=-1)
@click.option("--all", "all_runs", is_flag=True, help="Every active run.")
@click.option("--force", is_flag=True, help="KILL at once: no grace, no last checkpoint.")
@click.option(
    "--timeout", type=DURATION, default="10m", show_default=True, help="How long to wait for the proof."
)
@click.option("--json", "as_json", is_flag=True, help="The ended runs, with the proof, as a document.")
@click.pass_obj
def command(
    session: Session, names: tuple[str, ...], all_runs: bool, force: bool, timeout: float, as_json: bool
) -> int:
    """End runs: ask, wait the grace, kill; then look on every host that nothing is left.

    Without a NAME: the only active run. Exit 0 when it is proven, 4 when a host did not answer, 6 when
    something could not be killed.
    """
    if force:
        session.say("--force kills at once: progress since the last checkpoint is lost")
    result = run(Request(names, all_runs, force, timeout), session)
    for found in result.already:
        session.say(f"{render.title(found)} has ended before: {found.get('phase')}")
    if as_json:
        session.put_json({"schema": 1, "runs": [*result.already, *result.runs]})
    else:
        for found in result.runs:
            session.put(render.proof(found, session.paint))
    if all_runs and not result.runs and not as_json:
        session.say("no run is active; there is nothing to kill")
    problem = verdict(result.runs)
    if problem:
        raise problem
    return 0

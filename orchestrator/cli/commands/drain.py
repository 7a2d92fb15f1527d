"""`orch drain`: give a host no more tasks, of one run or of all, and move those that it has at the next checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.run_choice import complete_host, complete_run, run_and
from orchestrator.cli.session import Session
from orchestrator.cli.show.terminal import printable
from orchestrator.client.choice import find, hosts_of, is_active, runs_of
from orchestrator.core.errors import UsageError
from orchestrator.head.api.client import Client


def run(
    name: str | None, host: str, session: Session, *, verb: str = "drain", now: bool = False
) -> dict[str, Any]:
    """Drain or undrain the host, and return its new state. Without a name: for all runs, and those to come."""
    client: Client = session.client()
    more = {"now": True} if now else {}
    if not name:
        return client.post(f"/v1/hosts/{host}/{verb}", more)
    chosen = find(runs_of(client), name)
    return client.post(f"/v1/runs/{chosen['run_id']}/{verb}", {"host": host} | more)


def give_up(name: str | None, host: str, session: Session) -> list[dict[str, Any]]:
    """Declare the host gone for all runs that wait for it, or for a single run. Return the host's state for each."""
    client: Client = session.client()
    runs = runs_of(client)
    chosen = [find(runs, name)] if name else [run for run in runs if awaits(run, host)]
    if not chosen:
        raise UsageError(f"no run waits for {host}", hint="`orch status` shows hosts that do not answer")
    body = {"host": host, "gone": True}
    return [client.post(f"/v1/runs/{run['run_id']}/drain", body) for run in chosen]


def awaits(run: Mapping[str, Any], host: str) -> bool:
    """Return whether an active run has the host, or an ended run lacks its proof."""
    if is_active(run):
        return host in hosts_of(run)
    return host in ((run.get("proof") or {}).get("unreachable") or [])


def answer(host_document: dict[str, Any], *, now: bool) -> str:
    """Return the sentence for people."""
    if "runs" in host_document:
        return "\n".join(answer(run, now=now) for run in host_document["runs"])
    host, tasks = host_document.get("host"), ", ".join(map(str, host_document.get("tasks") or []))
    state = f"{host} is {host_document.get('state')} for {host_document.get('run_id')}"
    if host_document.get("state") != "drained":
        return state
    if not tasks:
        return f"{state}; it has no tasks"
    if now:
        return f"{state}; stopping {tasks}"
    when = "checkpoint" if host_document.get("checkpoints") else "restart"
    return f"{state}; {tasks} will move at the next {when}; --now does not wait for it"


old_name_option = click.option("--name", "old_name", hidden=True, shell_complete=complete_run)
"""How the run was named before NAME became the first argument."""


@orch_command(
    acts=True,
    about_runs=True,
    examples=[
        (
            "orch drain gpu-b",
            "Move all runs off gpu-b, each at its next checkpoint, and place none there any more",
        ),
        ("orch drain mnist gpu-b --now", "Move only the run mnist off it, at once"),
        ("orch drain gpu-b --gone", "Say that gpu-b does not come back: no run waits for it any more"),
    ],
)
@run_and("host", complete_host)
@old_name_option
@click.option("--now", is_flag=True, help="Do not wait for a checkpoint; steps since the last one are lost.")
@click.option(
    "--gone",
    is_flag=True,
    help="The host is gone for good: its tasks count as dead now, and nobody waits for its proof.",
)
@json_option("Print the host's state as a document.")
def command(
    session: Session, name: str | None, host: str, old_name: str | None, now: bool, gone: bool
) -> None:
    """Move runs off HOST: a spare takes their tasks, or they continue with fewer workers.

    The tasks move at the next verified checkpoint. Without NAME: all runs that have HOST, and no run is placed there
    until `orch undrain HOST`, also after a restart of the coordinator. Exit code 6, and nothing is changed, if no spare
    has room and replicas_min does not allow fewer workers.

    With --gone, for a host that does not answer: every run that has it, ended ones too, takes your word that nothing of
    the run lives there. Refused if the host answers. If it does come back, what is left on it is ended.
    """
    if gone:
        documents = give_up(name or old_name, host, session)
        gone_for = (f"{host} is {one.get('reason')}, for {one.get('run_id')}" for one in documents)
        session.answer({"schema": 1, "hosts": documents}, *map(printable, gone_for))
        return
    answered = run(name or old_name, host, session, now=now)
    session.answer(answered, *map(printable, answer(answered, now=now).splitlines()))
    if "runs" in answered and not session.wants_json:
        kept_out = f"{host} is drained: no run is placed there until `orch undrain {host}`"
        (session.say if answered["runs"] else session.put)(printable(kept_out))

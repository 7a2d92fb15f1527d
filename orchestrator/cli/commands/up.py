"""`orch up`: starts a run, or says that it runs already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import click

from orchestrator.adapters.head.client import Client
from orchestrator.cli import render
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session
from orchestrator.cli.watching import Watch
from orchestrator.core.errors import UsageError

Until = Literal["running", "end", "follow", "accepted"]


@dataclass(frozen=True, slots=True)
class Request:
    """Which file, and how long to stay."""

    file: str
    until: Until
    from_scratch: bool
    timeout_s: float | None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    """What the coordinator answered."""

    run_id: str
    name: str
    created: bool


def submit(request: Request, session: Session, client: Client) -> Submitted:
    """Load the file, make sure of a coordinator, hand the plan over."""
    from pydantic import TypeAdapter

    from orchestrator.cli.handover import say_other_version
    from orchestrator.cli.starting import ensure_coordinator
    from orchestrator.core.plan import Plan
    from orchestrator.spec.plan import load_plan

    plan, secrets = load_plan(request.file)
    coordinator, _ = ensure_coordinator(session)
    say_other_version(session, coordinator)
    answer = client.post(
        "/v1/runs",
        {
            "plan": TypeAdapter(Plan).dump_python(plan, mode="json"),
            "secrets": dict(secrets),
            "from_scratch": request.from_scratch,
        },
    )
    return Submitted(str(answer["run_id"]), plan.name, bool(answer.get("created")))


def run(request: Request, session: Session) -> dict[str, Any]:
    """The run as it was when the waiting ended: with `created`, and its status but for `accepted`."""
    client = session.client()
    submitted = submit(request, session, client)
    document = {"run_id": submitted.run_id, "name": submitted.name, "created": submitted.created}
    if not submitted.created:
        session.say(f"{submitted.run_id} runs already, with this very plan; nothing was changed")
    if not request.as_json:
        session.put(submitted.run_id)
    if request.until == "accepted":
        return document
    try:
        return {**document, **_stay(request, session, client, document)}
    except KeyboardInterrupt:
        session.say(come_back(submitted))
        # Following is only a look: who ends it has ended nothing. Who waits asked for an outcome, and
        # has none.
        if request.until == "follow":
            return document
        raise


def _stay(request: Request, session: Session, client: Client, document: dict[str, Any]) -> Mapping[str, Any]:
    if request.until == "follow":
        from orchestrator.cli.following import follow

        return follow(
            session,
            client,
            document,
            timeout_s=request.timeout_s,
            logs_on_stderr=request.as_json,
            attached=not document["created"],
        )

    def over(seen: Mapping[str, Any]) -> bool:
        return not render.is_active(seen) or (request.until == "running" and seen.get("phase") == "RUNNING")

    watch = Watch(
        session,
        client,
        document,
        until=over,
        say=session.say,
        timeout_s=request.timeout_s,
        progress=True,
        from_now=not document["created"],
    )
    while watch.look():
        pass
    return watch.run


def come_back(submitted: Submitted) -> str:
    """What to say to somebody who leaves."""
    name = submitted.name
    return (
        f"\n{submitted.run_id} goes on without you. To come back:\n"
        f"  orch logs -f {name}\n  orch status {name}\n  orch kill {name}"
    )


def exit_code(document: Mapping[str, Any]) -> int:
    """The run's own outcome, as far as it has one. A host's refusal (5: keys) is told from the script's failure."""
    if document.get("phase") not in ("FAILED", "KILLED"):
        return 0
    problem = document.get("problem") or {}
    return int(problem.get("exit_code") or 1)


@click.command()
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--wait", is_flag=True, help="Until the run ends; the exit code is its outcome.")
@click.option(
    "--follow", is_flag=True, help="As --wait, and show progress and logs. Ctrl-C leaves it running."
)
@click.option("--detach", is_flag=True, help="Until the coordinator has taken it.")
@click.option("--dry-run", is_flag=True, help="Show the plan; start nothing.")
@click.option("--from-scratch", is_flag=True, help="Ignore the checkpoints that are there.")
@click.option("--timeout", type=DURATION, help="Stop waiting then, with exit code 7. The run goes on.")
@click.option("--json", "as_json", is_flag=True, help="One document at the end, instead of the run's id.")
@click.pass_obj
def command(
    session: Session,
    file: str,
    wait: bool,
    follow: bool,
    detach: bool,
    dry_run: bool,
    from_scratch: bool,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Start the run that FILE describes, and wait until it trains. The same FILE again changes nothing."""
    if wait + follow + detach + dry_run > 1:
        raise UsageError("choose one of --wait, --follow, --detach and --dry-run")
    if dry_run:
        from orchestrator.cli.commands.plan import show

        return show(file, session, as_json=as_json)
    until: Until = "end" if wait else "follow" if follow else "accepted" if detach else "running"
    document = run(Request(file, until, from_scratch, timeout, as_json), session)
    if as_json:
        session.put_json(document)
    _say_outcome(document, session)
    _say_place(document, session, file)
    return exit_code(document)


def _say_place(document: Mapping[str, Any], session: Session, file: str) -> None:
    """Where in the file stands what a host could not do."""
    problem = document.get("problem") or {}
    if document.get("phase") == "FAILED" and problem.get("key"):
        from orchestrator.spec.load import located

        session.say(located(file, tuple(problem["key"].split(".")), "this is what the hosts refuse"))
        session.say(
            f"{session.paint_err('hint:', 'cyan')} change it there, or what it names on the hosts; "
            f"`orch validate --hosts {file}` asks them again, and starts nothing"
        )


def _say_outcome(document: Mapping[str, Any], session: Session) -> None:
    name = document.get("name")
    phase = document.get("phase")
    if phase is None:
        return
    if phase == "RUNNING":
        session.say(f"{document.get('run_id')} trains; `orch logs -f {name}` shows what it prints")
        return
    session.say(render.outcome(document, session.paint_err, width=session.width_err))
    if phase == "FAILED" and document.get("generation"):  # else nothing was started, and nothing printed
        session.say(f"{session.paint_err('hint:', 'cyan')} `orch logs {name}` shows all that it printed")

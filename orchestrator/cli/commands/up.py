"""`orch up`: start a run, or attach to it where it is already running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from orchestrator.adapters.head.client import Client
from orchestrator.cli import render
from orchestrator.cli.help import Command
from orchestrator.cli.options import DURATION
from orchestrator.cli.session import Session
from orchestrator.cli.watching import Watch
from orchestrator.core.errors import CoordinatorUnreachable, SpecError, UsageError

if TYPE_CHECKING:
    from orchestrator.adapters.head.codetree import Survey
    from orchestrator.core.plan import Plan

Until = Literal["running", "end", "follow", "accepted"]


@dataclass(frozen=True, slots=True)
class Request:
    """Which file, and how long to wait."""

    file: str
    until: Until
    from_scratch: bool
    timeout_s: float | None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    """The coordinator's answer."""

    run_id: str
    name: str
    created: bool


def submit(request: Request, session: Session, client: Client) -> Submitted:
    """Load the file, start a coordinator if none is running, and submit the plan."""
    from pydantic import TypeAdapter

    from orchestrator.cli.handover import say_other_version
    from orchestrator.cli.starting import ensure_coordinator
    from orchestrator.core.plan import Plan
    from orchestrator.spec.plan import load_plan

    plan, secrets = load_plan(request.file)
    seen = survey_code(request.file, plan, client)
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
    submitted = Submitted(str(answer["run_id"]), plan.name, bool(answer.get("created")))
    if submitted.created and seen is not None:
        for sentence in seen.sentences():
            session.say(sentence)
    return submitted


def survey_code(file: str, plan: Plan, client: Client) -> Survey | None:
    """Look what of the working directory will be pushed; None where an active run has its code already.

    Raises:
        SpecError: it cannot be pushed; each line says where in `file` the reason stands.
    """
    from orchestrator.adapters.head.codetree import survey
    from orchestrator.spec.load import located

    try:
        seen = survey(plan.workdir)
        seen.check(plan.script, plan.push_bytes_max)
    except SpecError as e:
        if _is_active(client, plan.name):
            return None
        lines = []
        for line in str(e).splitlines():
            key, _, words = line.partition(": ")
            lines.append(located(file, ("run", key.removeprefix("run.")), words))
        raise SpecError("\n".join(lines), hint=e.hint) from e
    return seen


def _is_active(client: Client, name: str) -> bool:
    try:
        runs = client.get("/v1/status").get("runs") or ()
    except CoordinatorUnreachable:
        return False
    return any(run.get("name") == name and render.is_active(run) for run in runs)


def run(request: Request, session: Session) -> dict[str, Any]:
    """Submit and wait. Return the run's last status with `created`; for `accepted` only its ids."""
    client = session.client()
    submitted = submit(request, session, client)
    document = {"run_id": submitted.run_id, "name": submitted.name, "created": submitted.created}
    if not submitted.created:
        session.say(f"{submitted.run_id} is already running with this plan; nothing has changed")
    if not request.as_json:
        session.put(submitted.run_id)
    if request.until == "accepted":
        return document
    try:
        return {**document, **_wait(request, session, client, document)}
    except KeyboardInterrupt:
        session.say(detached(submitted))
        # Following only shows the run: to end it is no failure. --wait asked for an outcome, and has none.
        if request.until == "follow":
            return document
        raise


def _wait(request: Request, session: Session, client: Client, document: dict[str, Any]) -> Mapping[str, Any]:
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


def detached(submitted: Submitted) -> str:
    """Return the message after Ctrl-C."""
    name = submitted.name
    return (
        f"\nDetached; {submitted.run_id} keeps running. Reattach:\n"
        f"  orch logs -f {name}\n  orch status {name}\n  orch kill {name}"
    )


def exit_code(document: Mapping[str, Any]) -> int:
    """Return the run's outcome. A failure with an exit code of its own (5: a host refused our keys) keeps it."""
    if document.get("phase") not in ("FAILED", "KILLED"):
        return 0
    problem = document.get("problem") or {}
    return int(problem.get("exit_code") or 1)


@click.command(
    cls=Command,
    examples=[
        ("orch up cluster.yaml --follow", "Start the run, and show its progress and logs; Ctrl-C detaches"),
        ("orch up cluster.yaml --wait --timeout 12h", "Wait for the outcome, for scripts"),
        ("orch up cluster.yaml --dry-run", "Show the plan only"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--wait", is_flag=True, help="Wait until the run ends; the exit code is its outcome.")
@click.option("--follow", is_flag=True, help="Like --wait, and show progress and logs. Ctrl-C detaches.")
@click.option("--detach", is_flag=True, help="Return once the coordinator has accepted the run.")
@click.option("--dry-run", is_flag=True, help="Show the plan; start nothing.")
@click.option("--from-scratch", is_flag=True, help="Ignore existing checkpoints, and start at step 0.")
@click.option("--timeout", type=DURATION, help="Stop waiting after this time, with exit code 7.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one document at the end instead of the run's id."
)
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
    """Start the run of FILE, and wait until it is training. Prints the run's id.

    A run that is already running with this plan is left as it is. A run that has ended resumes from its last verified
    checkpoint. `orch kill` stops it; the end of this command does not.
    """
    if wait + follow + detach + dry_run > 1:
        raise UsageError("use only one of --wait, --follow, --detach and --dry-run")
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
    """Print the line of the file that the hosts cannot satisfy."""
    problem = document.get("problem") or {}
    if document.get("phase") == "FAILED" and problem.get("key"):
        from orchestrator.spec.load import located

        session.say(located(file, tuple(problem["key"].split(".")), "the hosts cannot satisfy this"))
        session.hint(
            f"change it, or the hosts; `orch validate --hosts {file}` checks again without starting anything"
        )


def _say_outcome(document: Mapping[str, Any], session: Session) -> None:
    name = document.get("name")
    phase = document.get("phase")
    if phase is None:
        return
    if phase == "RUNNING":
        session.say(f"{document.get('run_id')} is training. Logs: orch logs -f {name}")
        return
    session.say(render.outcome(document, session.paint_err, width=session.width_err))
    if phase == "FAILED" and document.get("generation"):  # else no task was started
        session.hint(f"`orch logs {name}` shows its whole output")

"""`orch validate`: report every error of cluster specs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import Command
from orchestrator.cli.session import Session
from orchestrator.core.errors import SpecError

if TYPE_CHECKING:
    from orchestrator.core.plan import Plan
    from orchestrator.head.hosts.inspection import Found


@dataclass(frozen=True, slots=True)
class Request:
    """Which files, and whether to check their hosts too."""

    files: Sequence[str]
    hosts: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one file; `error` is None where it is valid."""

    file: str
    error: SpecError | None
    exit_code: int = 0
    spares: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What does not keep the run from starting, and will be missed after a failure."""


def run(request: Request, session: Session) -> list[Checked]:
    """Load and plan each file; with `hosts` check its hosts too."""
    from orchestrator.spec import own_paths
    from orchestrator.spec.plan import load_plan

    checked = []
    for file in request.files:
        try:
            plan, _ = load_plan(file)
            spares = tuple(host.name for host in plan.hosts if host.spare)
            found = _ask_hosts(file, plan, session) if request.hosts else Checked(file, None)
            warnings = tuple(own_paths.sentences(plan))
            checked.append(replace(found, spares=spares, warnings=warnings))
        except SpecError as e:
            checked.append(Checked(file, e, e.exit_code))
    return checked


def _ask_hosts(file: str, plan: Plan, session: Session) -> Checked:
    from orchestrator.cli.commands.trust import say_skipped
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.hosts.inspection import inspect
    from orchestrator.head.reach.ssh.transport import SshTransport

    session.say(f"{file}: checking {', '.join(host.name for host in plan.hosts)} …")
    ways = transports(session.paths)
    if isinstance(ssh := ways["ssh"], SshTransport):
        say_skipped(session, ssh, [host for host in plan.hosts if host.transport == "ssh"])
    found = inspect(plan, ways, bundle.load)
    if not found:
        return Checked(file, None)
    lines = [_line(file, plan, one) for one in found]
    hints = dict.fromkeys(one.problem.hint for one in found if one.problem.hint)
    error = SpecError("\n".join(lines), hint="; ".join(hints) or None)
    return Checked(file, error, max(one.problem.exit_code for one in found))


def _line(file: str, plan: Plan, found: Found) -> str:
    """Return the diagnostic at the key that it is about, else at the host."""
    from orchestrator.spec.load import located

    if found.problem.key is not None:
        return located(file, tuple(found.problem.key.split(".")), found.problem.message)
    numbers = {host.name: i for i, host in enumerate(plan.hosts)}
    loc = ("hosts",) if found.host is None else ("hosts", numbers[found.host])
    return located(file, loc, found.problem.message)


@click.command(
    cls=Command,
    examples=[
        ("orch validate cluster.yaml", "Check a spec without contacting its hosts"),
        (
            "orch validate cluster.yaml --hosts",
            "Check the hosts too: SSH, Python, TensorFlow, checkpoint directory",
        ),
        ("orch validate *.yaml --json", "Check several specs, for scripts"),
    ],
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--hosts", is_flag=True, help="Connect to the hosts, and check that they can train this.")
@click.option("--json", "as_json", is_flag=True, help="Print a document, for scripts.")
@click.pass_obj
def command(session: Session, files: tuple[str, ...], hosts: bool, as_json: bool) -> int:
    """Check cluster specs, and report every error with its line and column. Exit code 2 where there is one.

    With --hosts the hosts are checked too: that they answer, and that their Python, TensorFlow, Keras and checkpoint
    directory fit. Nothing is started. Exit code 4 where a host does not answer, 5 for keys.
    """
    checked = run(Request(files, hosts), session)
    if as_json:
        diagnostics = [
            {
                "file": c.file,
                "complaints": str(c.error).splitlines() if c.error else [],
                "spares": list(c.spares),
                "warnings": list(c.warnings),
            }
            for c in checked
        ]
        session.put_json({"files": diagnostics})
    else:
        for found in checked:
            for warning in found.warnings:
                session.say(f"{session.paint_err('warning:', 'yellow')} {warning}")
            if found.error is None:
                spares = f" (spare: {', '.join(found.spares)})" if found.spares else ""
                session.put(f"{found.file}: ok{spares}")
            else:
                session.say(str(found.error))
                session.hint(found.error.hint)
    return max(found.exit_code for found in checked)

"""`orch validate`: report every error of cluster specs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.inventory_option import inventory_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import SpecError

if TYPE_CHECKING:
    from orchestrator.core.plan import Plan
    from orchestrator.reporting.findings import Finding


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one file; `error` is None if it is valid."""

    file: str
    error: SpecError | None
    exit_code: int = 0
    spares: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Problems that do not prevent a start, but will matter after a failure."""


def run(session: Session, files: Sequence[str], *, hosts: bool) -> list[Checked]:
    """Load and plan each file; with `hosts` check its hosts too."""
    from orchestrator.spec import own_paths
    from orchestrator.spec.plan import load_plan

    checked = []
    for file in files:
        try:
            plan, _ = load_plan(file)
            spares = tuple(host.name for host in plan.hosts if host.spare)
            checked_file = _ask_hosts(file, plan, session) if hosts else Checked(file, None)
            warnings = tuple(own_paths.sentences(plan))
            checked.append(replace(checked_file, spares=spares, warnings=warnings))
        except SpecError as e:
            checked.append(Checked(file, e, e.exit_code))
    return checked


def _ask_hosts(file: str, plan: Plan, session: Session) -> Checked:
    from orchestrator.cli.commands.doctor import SLOW_S, examined

    examination = examined(file, plan, session, within_s=SLOW_S)
    for item in examination.findings:
        if item.level == "warning":
            session.warn(item.message)
    if not examination.errors:
        return Checked(file, None)
    lines = [_line(file, plan, item) for item in examination.errors]
    error = SpecError(
        "\n".join(lines), hint="; ".join(dict.fromkeys(item.hint for item in examination.errors))
    )
    return Checked(
        file, error, max(item.problem.exit_code if item.problem else 6 for item in examination.errors)
    )


def _line(file: str, plan: Plan, finding: Finding) -> str:
    """Return the diagnostic at the key that it is about, or else at the host."""
    from orchestrator.spec.load import located

    if finding.problem is not None and finding.problem.key is not None:
        return located(file, tuple(finding.problem.key.split(".")), finding.message)
    numbers = {host.name: i for i, host in enumerate(plan.hosts)}
    host = finding.host if finding.peer is None else finding.peer
    return located(file, ("hosts",) if host is None else ("hosts", numbers[host]), finding.message)


@orch_command(
    examples=[
        ("orch validate cluster.yaml", "Check a spec without contacting its hosts"),
        (
            "orch validate cluster.yaml --hosts",
            "Check the hosts too: SSH, names and ports, Python, checkpoint directory",
        ),
        ("orch validate *.yaml --json", "Check several specs, for scripts"),
    ],
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@inventory_option
@click.option("--hosts", is_flag=True, help="Connect to the hosts, and check that they can train this.")
@json_option()
def command(session: Session, files: tuple[str, ...], hosts: bool) -> int:
    """Check cluster specs, and report every error with its line and column. Exit code 2 if there is one.

    With --hosts the hosts are checked too, as `orch doctor` does: that they answer, reach each other, and that their
    Python, TensorFlow, Keras and checkpoint directory fit. Nothing is started. Exit code 4 if a host does not
    answer, 5 for keys, 6 if the hosts do not fit together.
    """
    checked = run(session, files, hosts=hosts)
    diagnostics = [
        {
            "file": c.file,
            "complaints": str(c.error).splitlines() if c.error else [],
            "spares": list(c.spares),
            "warnings": list(c.warnings),
        }
        for c in checked
    ]
    session.answer({"files": diagnostics})
    for item in () if session.wants_json else checked:
        for warning in item.warnings:
            session.say(f"{session.paint_err('warning:', 'yellow')} {warning}")
        if item.error is None:
            spares = f" (spare: {', '.join(item.spares)})" if item.spares else ""
            session.put(f"{item.file}: ok{spares}")
        else:
            session.say(str(item.error))
            session.hint(item.error.hint)
    return max(item.exit_code for item in checked)

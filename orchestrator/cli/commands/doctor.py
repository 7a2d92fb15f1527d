"""`orch doctor`: find what would keep a cluster spec from training on its hosts, and say the way out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import Command
from orchestrator.cli.session import Session
from orchestrator.core.errors import HostError
from orchestrator.core.words import counted

if TYPE_CHECKING:
    from orchestrator.core.plan import Plan
    from orchestrator.head.hosts.examination import Examined
    from orchestrator.head.reach.transport import Transport
    from orchestrator.reporting.findings import Finding, Level

SLOW_S = 30.0
"""The deadline of each step for `orch validate --hosts`, as that of a start: an sshd that is slow is not wrong."""

_COLOURS: Mapping[Level, str] = {"error": "red", "warning": "yellow", "fine": "green"}


def examined(
    file: str, plan: Plan, session: Session, *, within_s: float | None = None, imports: bool = False
) -> Examined:
    """Examine the hosts of a plan, and say on stderr how far it has come."""
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.hosts.examination import CHECK_S, examine

    session.say(f"{file}: checking {', '.join(host.name for host in plan.hosts)} …")
    return examine(
        plan,
        transports(session.paths),
        bundle.load,
        imports=imports,
        within_s=within_s or CHECK_S,
        told=session.say,
    )


def _show(session: Session, findings: Sequence[Finding]) -> None:
    width = max((len(one.id) for one in findings), default=0)
    for one in findings:
        level = session.paint(f"{one.level:7}", _COLOURS[one.level])
        session.put(f"{level}  {one.id:{width}}  {one.message}")
        if one.level != "fine":
            session.put(f"{'':7}  {one.row.why}")
            session.put(f"{'':7}  {session.paint('way out:', 'bold')} {one.hint}")


def _fix(session: Session, plan: Plan, findings: Sequence[Finding], ways: Mapping[str, Transport]) -> int:
    """Apply the fixes that are safe. Return how many were applied."""
    done = 0
    for one in findings:
        if one.id != "host.ends-at-logout" or one.host is None:
            continue
        host = plan.host(one.host)
        try:
            channel = ways[host.transport].open(host, "loginctl enable-linger")
            try:
                while channel.read(1 << 16):
                    pass
                said = channel.stderr_tail().strip()
            finally:
                channel.close()
        except HostError as e:
            said = e.message
        if said:
            session.warn(f"{one.host}: `loginctl enable-linger`: {said}")
        else:
            session.say(
                f"{one.host}: what runs there stays when the last session closes (loginctl enable-linger)"
            )
            done += 1
    return done


@click.command(
    cls=Command,
    examples=[
        ("orch doctor cluster.yaml", "Check everything between these hosts and their first step"),
        ("orch doctor cluster.yaml --json", "The same for scripts; exit code 1 where something is an error"),
        ("orch doctor cluster.yaml --fix", "Let hosts keep what runs when the last session closes"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@click.option("--fix", is_flag=True, help="Do what is safe: `loginctl enable-linger` for the SSH user.")
@click.option("--json", "as_json", is_flag=True, help="Print a document, for scripts.")
@click.pass_obj
def command(session: Session, file: str, fix: bool, as_json: bool) -> int:
    """Find what would keep the spec of FILE from training on its hosts, and say why it matters and the way out.

    All hosts are asked at once: SSH, the names and ports between each two of them, Python and its packages, GPUs,
    clocks, limits and disks. Nothing is started, and nothing is left there. No step waits
    longer than 10 s for a host, but for the import of TensorFlow: 30 s.

    The ids of the findings are stable: docs/findings.md describes each. Exit code 1 where one is an error.
    """
    from orchestrator.head.coordinator.main import transports
    from orchestrator.spec.plan import load_plan

    plan, _ = load_plan(file)
    result = examined(file, plan, session, imports=True)
    if as_json:
        session.put_json({"schema": 1, "findings": [one.document() for one in result.findings]})
    else:
        _show(session, result.findings)
        warnings = sum(one.level == "warning" for one in result.findings)
        session.say(
            f"{counted(len(plan.hosts), 'host')}: "
            f"{counted(len(result.errors), 'error')}, {counted(warnings, 'warning')}"
        )
    if fix and not _fix(session, plan, result.findings, transports(session.paths)):
        session.say("nothing of it can be fixed from here")
    return 1 if result.errors else 0

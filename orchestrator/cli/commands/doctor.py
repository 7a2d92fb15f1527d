"""`orch doctor`: find what would keep a cluster spec from training on its hosts, and name the remedies."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.both import process
from orchestrator.cli.help import json_option, orch_command
from orchestrator.cli.host_queries import asker, carried_out, confirm, is_interactive
from orchestrator.cli.options import inventory_option
from orchestrator.cli.session import Session
from orchestrator.core.errors import JournalError, OrchestratorError, Refused
from orchestrator.core.words import counted, listed

if TYPE_CHECKING:
    from orchestrator.cli.orphans import Item
    from orchestrator.core.plan import Plan
    from orchestrator.core.state.run import Run
    from orchestrator.head.hosts.examination import Examined
    from orchestrator.protocol.orders.driving import KnownRun
    from orchestrator.reporting.findings import Finding, Level

SLOW_S = 30.0
"""The deadline of each step for `orch validate --hosts`, as long as that of a start: a slow sshd is no error."""

FIX_S = 10.0
"""How long a command of --fix may take on a host."""

_COLOURS: Mapping[Level, str] = {"error": "red", "warning": "yellow", "fine": "green"}


def examined(
    file: str,
    plan: Plan,
    session: Session,
    *,
    within_s: float | None = None,
    imports: bool = False,
    bandwidth: bool = False,
) -> Examined:
    """Examine the hosts of a plan, and report progress on stderr."""
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.hosts.examination import CHECK_S, examine

    session.say(f"{file}: checking {', '.join(host.name for host in plan.hosts)} …")
    return examine(
        plan,
        transports(session.paths),
        bundle.load,
        imports=imports,
        bandwidth=bandwidth,
        active=_active(session, plan),
        within_s=within_s or CHECK_S,
        progress=session.say,
    )


def _active(session: Session, plan: Plan) -> Run | None:
    """Return the active run of this name that saves where the plan does, in a directory that its hosts share."""
    from orchestrator.head.journal.reading import read_runs

    with suppress(JournalError):  # `_orphans` tells it
        for run in (entry.run for entry in read_runs(session.paths.journal).kept):
            saves = run.plan.checkpoint
            if run.plan.name == plan.name and not run.phase.is_terminal and saves and saves.shared:
                same = plan.checkpoint is not None and plan.checkpoint.dir == saves.dir
                return run if same and run.share else None
    return None


def _show(session: Session, findings: Sequence[Finding]) -> None:
    """Print the findings. If several hosts have the same one, its reason and remedy are printed once."""
    width = max((len(item.id) for item in findings), default=0)
    groups = groupby(findings, lambda item: (item.id, item.level, item.why, item.hint))
    for (which, level, why, hint), alike in groups:
        for item in alike:
            session.put(f"{session.paint(f'{level:7}', _COLOURS[level])}  {which:{width}}  {item.message}")
        if level != "fine":
            session.put(f"{'':7}  {why}")
            session.put(f"{'':7}  {session.paint('way out:', 'bold')} {hint}")


def _agents(session: Session, plan: Plan) -> list[Finding]:
    """Return whether this command used your SSH agent while the coordinator has none."""
    from orchestrator.reporting.findings import finding

    yours = session.environ.get("SSH_AUTH_SOCK", "")
    if not _answers(yours) or all(host.transport != "ssh" for host in plan.hosts):
        return []
    try:
        pid = session.client().get("/v1/coordinator")["pid"]
        environ = process.environment(pid)
    except (OrchestratorError, KeyError):
        return []  # none runs: `orch up` starts one with this environment
    its = os.fsdecode(environ.get(b"SSH_AUTH_SOCK", b""))
    if not environ or _answers(its):
        return []
    what = f"asks {its}, where nothing answers" if its else "knows of none"
    return [finding("ssh.agent", f"your SSH agent is {yours}, and the coordinator (pid {pid}) {what}")]


def _answers(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(1.0)
            tried.connect(path)
    except OSError:
        return False
    return True


def _orphans(session: Session, plan: Plan, runs: Mapping[str, Sequence[KnownRun]]) -> list[Item]:
    """Return the orphans of runs that this head node began, that its journal lacks, and that nobody drives."""
    from orchestrator.cli.commands.gc import item_of
    from orchestrator.cli.orphans import known

    try:
        ours = known(session)
    except Refused as e:
        session.warn(str(e))
        return []
    left = [item_of(plan.host(name), run) for name, all_ in runs.items() for run in all_]
    return [
        item for item in left if item.run not in ours.run_ids and ours.owns(item) and item.state != "driven"
    ]


def _orphan_finding(item: Item) -> Finding:
    from orchestrator.reporting.findings import finding

    text = f"{item.host}: {item.run}, which this head node does not know any more, has left: {item.what}"
    return finding("host.orphans", text, item.host, level="warning" if item.pids else "fine")


_LINGER = "loginctl enable-linger"
_MAKE_DIRECTORY = "exec /bin/sh -c 'IFS= read -r d && exec mkdir -p -m 700 -- \"$d\"'"
"""The path comes on stdin, so that no text of a user is in a command."""


class _Fixes:
    """The actions of --fix. Each method returns how many things it has fixed."""

    def __init__(self, session: Session, plan: Plan, findings: Sequence[Finding]) -> None:
        self._session, self._plan, self._findings = session, plan, findings
        self._asks = not session.wants_json and is_interactive(session)

    def all(self, orphans: Sequence[Item]) -> int:
        """Fix everything, the keys first."""
        lingers = "what starts there from now on stays when the last session closes (loginctl enable-linger)"
        done = self._keys() + self._on_hosts("host.ends-at-logout", _LINGER, "", lingers, said=_LINGER)
        directory = self._plan.env.get("TMPDIR", "")
        made = f"made {directory}, for its user alone"
        return (
            done + self._on_hosts("storage.missing", _MAKE_DIRECTORY, directory, made) + self._remove(orphans)
        )

    def _keys(self) -> int:
        """Trust new keys after a confirmation. Changed keys need `orch trust --replace`."""
        unknown = [
            self._plan.host(item.host)
            for item in self._findings
            if item.host is not None and item.problem is not None and item.problem.code == "host-key-unknown"
        ]
        if not unknown or not self._asks:
            return 0
        from orchestrator.cli.commands.trust import TrustRequest, trust_rounds
        from orchestrator.head.reach.ssh.transport import SshTransport

        self._session.paths.ensure()
        transport = SshTransport(Path(self._session.paths.known_hosts))
        try:
            scanned, added = trust_rounds(self._session, transport, unknown, TrustRequest())
        except OrchestratorError as e:
            self._session.warn(str(e))
            self._session.hint(e.hint)
            return 0
        for error in (item.error or item.refusal(replace=False) for item in scanned):
            if error is not None:
                self._session.warn(str(error))
                self._session.hint(error.hint)
        return added

    def _on_hosts(self, id: str, command: str, stdin: str, did: str, *, said: str = "") -> int:
        """Run a fixed command on the hosts of a finding, if `said` is in its sentence: elsewhere it does not help."""
        found, done = [item for item in self._findings if item.id == id and said in item.message], 0
        for host in (self._plan.host(item.host) for item in found if item.host is not None):
            why = carried_out(self._session, host, command, f"{stdin}\n", within_s=FIX_S)
            if why:
                self._session.warn(f"{host.name}: `{command.split(' -c ')[0]}`: {why}")
            else:
                self._session.say(f"{host.name}: {did}")
                done += 1
        return done

    def _remove(self, orphans: Sequence[Item]) -> int:
        """Remove orphans after a confirmation."""
        from orchestrator.cli.commands.gc import remove
        from orchestrator.cli.orphans import known

        living = ", ".join(f"{pid} on {item.host}" for item in orphans for pid in item.pids)
        kills = f", and kill its processes (pid {living})" if living else ""
        question = f"Remove what {listed([item.run for item in orphans])} left{kills}?"
        if not orphans or not self._asks or not confirm(self._session, question):
            return 0
        problems = remove(self._session, asker(self._session), orphans, (), known(self._session))
        for item, why in problems.items():
            self._session.warn(f"{item.host}: {item.run} could not be removed: {why}")
        return len(orphans) - len(problems)


@orch_command(
    examples=[
        ("orch doctor cluster.yaml", "Check everything between these hosts and their first step"),
        ("orch doctor cluster.yaml --json", "The same for scripts; exit code 1 where something is an error"),
        (
            "orch doctor cluster.yaml --fix",
            "Trust new keys, make directories, remove orphans; asks before it does",
        ),
        ("orch doctor cluster.yaml --bandwidth", "Measure too how much the hosts send each other"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@inventory_option
@click.option(
    "--fix", is_flag=True, help="Fix what is safe to fix; ask before trusting keys or removing orphans."
)
@click.option(
    "--bandwidth",
    is_flag=True,
    help="Measure what each host sends each other, for 20 s or so, a minute at most.",
)
@json_option()
def command(session: Session, file: str, fix: bool, bandwidth: bool) -> int:
    """Find what would keep the spec of FILE from training on its hosts, why it matters, and what to do about it.

    All hosts are checked at once: SSH, names and ports between all pairs of hosts, Python and its packages, GPUs,
    clocks, limits and disks. No task is started; a missing checkpoint directory is created. Each step waits for a host
    for 10 s at most, and for the import of TensorFlow for 30 s. The bandwidth is not measured while a run uses one of
    the hosts.

    --fix trusts new keys, lets the SSH user's processes survive a logout (`loginctl enable-linger`), creates the TMPDIR
    of `env:`, and removes what unknown runs of this head node have left. It never touches a driver, a firewall or
    other people's processes.

    The ids of the findings are stable: docs/findings.md describes each. Exit code 1 if one is an error.
    """
    from orchestrator.reporting.findings import worst_first
    from orchestrator.spec.plan import load_plan

    plan, _ = load_plan(file)
    result = examined(file, plan, session, imports=True, bandwidth=bandwidth)
    orphans = _orphans(session, plan, result.runs)
    found = worst_first([*result.findings, *map(_orphan_finding, orphans), *_agents(session, plan)])
    if session.wants_json:
        session.put_json({"schema": 1, "findings": [item.document() for item in found]})
    else:
        _show(session, found)
        warnings = sum(item.level == "warning" for item in found)
        session.say(
            f"{counted(len(plan.hosts), 'host')}: "
            f"{counted(len(result.errors), 'error')}, {counted(warnings, 'warning')}"
        )
    if fix:
        done = _Fixes(session, plan, found).all(orphans)
        session.say(
            f"fixed; `orch doctor {file}` looks again" if done else "none of this can be fixed from here"
        )
    return 1 if result.errors else 0

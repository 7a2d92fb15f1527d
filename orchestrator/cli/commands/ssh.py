"""`orch ssh`: open a terminal on a host of a run, by orch's own route to it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.help import orch_command
from orchestrator.cli.run_choice import complete_place, complete_run
from orchestrator.cli.session import Session
from orchestrator.client.known_run import host_of, known_run, task_of
from orchestrator.core.errors import OrchestratorError, UsageError

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan
    from orchestrator.core.state.run import Run

_SHELL = "command -v bash >/dev/null && exec bash; exec sh"


def words(host: HostPlan, session: Session) -> list[str]:
    """Return the command line that opens a terminal on the host."""
    if host.transport == "ssh":
        from orchestrator.head.reach.ssh.words import ssh_words

        return ssh_words(host, Path(session.paths.known_hosts))
    if host.transport == "local":
        return [session.environ.get("SHELL") or "/bin/sh"]
    if host.transport == "k8s":
        from orchestrator.head.reach.kubernetes import lent
        from orchestrator.protocol import pod

        record = lent.read(session.paths.state_dir, host.allocation)
        if record is None:
            raise OrchestratorError(f"{host.name}: its pods were given back")
        at = [f"--container={pod.CONTAINER}", host.address or host.name]
        return record.cluster.words("exec", "--stdin", "--tty", *at, "--", "/bin/sh", "-c", _SHELL)
    job = host.allocation.partition(".")[0]
    raise UsageError(
        f"{host.name} is a node of Slurm job {job}, which srun reaches and ssh need not",
        hint=f"srun --jobid={job} --overlap --nodelist={host.address or host.name} --pty bash",
    )


def chosen(run: Run, asked: str | None) -> tuple[HostPlan, str]:
    """Return the host of this name, or of this task, with a description for people."""
    if asked is None:
        host = run.plan.host(run.task(run.chief).host)
        return host, f"{host.name}, which has {run.chief}"
    if ":" in asked:
        id_, host = task_of(run, asked)
        return host, f"{host.name}, which has {id_}"
    host = host_of(run, asked)
    return host, host.name


@orch_command(
    about_runs=True,
    examples=[
        ("orch ssh mnist gpu-b", "Open a terminal on a host of the run"),
        ("orch ssh mnist worker:3", "Open one on the host of that task"),
        ("orch ssh mnist gpu-b --print", "Show the command, as for scp or rsync -e"),
    ],
)
@click.argument("name", shell_complete=complete_run)
@click.argument("place", required=False, metavar="[HOST|TASK]", shell_complete=complete_place)
@click.option("--print", "shows", is_flag=True, help="Print the command line, and open nothing.")
def command(session: Session, name: str, place: str | None, shows: bool) -> int:
    """Open a terminal on a host of the run NAME: on HOST, on that of TASK, or else on that of the chief.

    The command becomes the ssh program, with the address, user, port, key, bastion and known_hosts of the cluster spec
    and of ~/.ssh/config. For this machine it is a shell, for a pod `kubectl exec`. `orch exec` runs one command on
    several hosts.
    """
    host, description = chosen(known_run(session.paths, name), place)
    line = words(host, session)
    if shows:
        session.put(shlex.join(line))
        return 0
    session.say(f"Opening a terminal on {description}")
    try:
        os.execvp(line[0], line)
    except OSError as e:
        raise OrchestratorError(f"cannot start {line[0]}: {e.strerror}", hint="is it installed here?") from e

"""`orch uninstall`: leave nothing of orch on a host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli.commands.gc import on_hosts
from orchestrator.cli.help import orch_command
from orchestrator.cli.host_queries import TIMEOUT_S, asker, carried_out, must_confirm, say_problems
from orchestrator.cli.session import Session
from orchestrator.core.errors import Refused, SomeHostsOnly
from orchestrator.core.plan import ENVIRONMENTS
from orchestrator.core.words import counted, listed, size

if TYPE_CHECKING:
    from orchestrator.core.plan import HostPlan

_REMOVE = (
    'exec /bin/sh -c \'IFS= read -r d && cd -- "$d" && [ -d bundle ] && [ -O . ] && '
    'find . -mindepth 1 -maxdepth 1 -name hosts -o -exec rm -rf -- "{}" + && cd / && '
    f'rm -rf -- "$HOME/{ENVIRONMENTS.removeprefix("~/")}" && '
    '{ rmdir -- "$d/hosts" "$d"; case "$d" in */hosts/*) rmdir -- "${d%/*}" "${d%/hosts/*}";; esac; } 2>/dev/null; '
    '[ ! -e "$d/bundle" ]\''
)
"""The directory comes on stdin. What other machines that share the home have below `hosts` stays, until it is their
turn."""


@orch_command(
    acts=True,
    examples=[
        (
            "orch uninstall --hosts cluster.yaml",
            "Remove all of orch from the hosts of a spec, after a question",
        ),
        ("orch uninstall --hosts gpu-a,gpu-b --yes", "From two hosts, by the names that `ssh` takes"),
    ],
)
@click.option(
    "--hosts",
    "wanted",
    multiple=True,
    required=True,
    metavar="FILE|HOST,…",
    help="A spec's hosts, or hosts by name.",
)
@click.option("--yes", is_flag=True, help="Remove without asking.")
def command(session: Session, wanted: tuple[str, ...], yes: bool) -> None:
    """Remove all that orch has put on hosts: code, logs, records and working directories of all runs, of all head
    nodes, and the environments of `setup:`. Checkpoints stay, and so does what this machine has of the runs.

    Nothing is removed anywhere while a run is alive on one of the hosts. Exit code 4 if a host did not answer.
    """
    ask = asker(session)
    runs, answers = on_hosts(ask, _hosts(wanted), lambda _run: True)
    failed = say_problems(session, answers)
    alive = [f"{run.run} on {run.host}" for run in runs if run.state != "dead"]
    if alive:
        raise Refused(
            f"not removed, for it is alive: {listed(alive)}",
            hint="`orch kill` ends a run of this head node; `orch gc --even-alive RUN` ends one that nobody knows",
        )
    places = {
        answer.place: (answer.host, answer.hello["host_dir"])
        for answer in answers
        if answer.hello is not None and answer.unheard is None
    }
    for (_, directory), (host, _) in zip(places, places.values(), strict=True):
        there = [run for run in runs if run.host == host.name]
        session.put(
            f"{host.name}: {directory}, {counted(len(there), 'run')}, {size(sum(run.bytes for run in there))}"
        )
    if places and not yes:
        must_confirm(
            session, f"Remove all of it from {counted(len(places), 'host')}?", otherwise="nothing was removed"
        )
    for host, directory in places.values():
        why = carried_out(session, host, _REMOVE, f"{directory}\n", within_s=TIMEOUT_S)
        if why:
            session.warn(f"{host.name}: {why}")
            failed.append(host.name)
        else:
            session.say(f"{host.name}: nothing of orch is left there")
    if failed:
        raise SomeHostsOnly(f"something may be left on {listed(failed)}", hint="repeat it once they answer")


def _hosts(wanted: Sequence[str]) -> list[HostPlan]:
    """Return the hosts of specs, and those that are named."""
    from orchestrator.cli.commands.init import host_of
    from orchestrator.spec.foreign.layout import distinct, machine_of
    from orchestrator.spec.plan import load_plan

    files = [each for each in wanted if os.path.isfile(each) or each.endswith((".yaml", ".yml"))]
    names = [name for each in wanted if each not in files for name in each.split(",") if name]
    named = [host_of(machine) for machine in distinct([machine_of(name) for name in names])]
    return [host for file in files for host in load_plan(file)[0].hosts] + named

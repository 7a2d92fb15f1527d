"""`orch init`: examine hosts, and write a commented cluster.yaml that is ready for `orch up`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.commands.import_ import put, put_text
from orchestrator.cli.help import orch_command
from orchestrator.cli.session import Session
from orchestrator.core.errors import UsageError
from orchestrator.core.words import counted, listed

if TYPE_CHECKING:
    from orchestrator.core.plan import Gpu, HostPlan
    from orchestrator.head.hosts.survey import Survey, Surveyed
    from orchestrator.spec.foreign.layout import Layout, Machine

_SSH_CONFIG = "~/.ssh/config"


@orch_command(
    acts=True,
    examples=[
        ("orch init gpu-a gpu-b", "Look at two hosts by the names that `ssh` takes, and write cluster.yaml"),
        ("orch init localhost", "Train on this machine"),
        (
            "orch init gpu-a gpu-b --script fit.py",
            "Also try the script: ten steps on one host, a kill, and whether it comes back",
        ),
        (
            "orch init ml@10.0.0.11 ml@10.0.0.12 --script fit.py --dir /mnt/nfs",
            "By address, with a directory",
        ),
    ],
)
@click.argument("hosts", nargs=-1, metavar="[USER@]HOST...")
@click.option(
    "--script",
    help="The training script, or a module such as pkg.train. Default: the only script here that calls fit, else "
    "train.py. One that is given is tried, too.",
)
@click.option("--no-try", is_flag=True, help="Do not try the script; nothing is started.")
@click.option(
    "--yes", is_flag=True, help="Change the script as the patch says that is shown, without asking."
)
@click.option("--name", help="The run's name. Default: that of this directory.", metavar="NAME")
@click.option("--dir", "directory", help="A directory that the hosts share. Default: orch searches for one.")
@click.option(
    "--output",
    default="cluster.yaml",
    type=click.Path(),
    help="The file, which must not exist. Default: cluster.yaml.",
)
@click.option(
    "--inventory",
    type=click.Path(),
    metavar="FILE",
    help="Write the hosts to this file, which must not exist, and name it in the spec: other specs can name it too.",
)
def command(
    session: Session,
    hosts: tuple[str, ...],
    script: str | None,
    no_try: bool,
    yes: bool,
    name: str | None,
    directory: str | None,
    output: str,
    inventory: str | None,
) -> int:
    """Examine HOSTs over SSH, and write a commented cluster.yaml for them.

    It finds the GPUs of each host and a Python with TensorFlow, and a directory that all hosts share: one host writes
    there, and the others read it. Without HOSTs, those of ~/.ssh/config are offered. Exit code 4 if a host could not
    be examined: the file lists it, with remarks on what to fill in.

    With --script, the script is read and tried as well: whether it trains as one on several hosts, which modules and
    data it needs and which hosts lack them, and what it writes; then it trains ten steps on one host, is killed, and
    is seen to go on or not. What must change in it is shown as a patch, and changed only if you agree. Exit code 1 if
    the script cannot train so. The trial is a run of its own, and is removed.
    """
    for file, option in ((output, "--output"), (inventory, "--inventory")):
        if file is not None and os.path.exists(file):
            raise UsageError(f"{file} exists already", hint=f"name another file with {option}")
    name = name or _run_name()
    from orchestrator.spec.foreign.layout import name_of
    from orchestrator.spec.forms import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN, name):
        hint = f"1 to 63 lower-case letters, digits and dashes, such as {name_of(name.replace('_', '-'))}"
        raise UsageError(f"{name!r} is no name for a run", hint=hint)
    chosen = _script(script)
    data = _data(chosen)
    survey, machines = _examine(session, hosts or _asked(session), name, directory, list(data))
    for result in survey.hosts:
        session.say(_sentence(result))
    layout = _layout(survey, machines, chosen, name, _schema(session))
    if inventory is not None:
        from orchestrator.spec.foreign.write import hosts_yaml

        put_text(session, hosts_yaml(layout), inventory)
        layout = replace(layout, inventory=os.path.relpath(inventory, os.path.dirname(output) or "."))
    put(session, layout, name, output)
    session.put(output)
    missing = [result for result in survey.hosts if result.why is not None]
    for hint in dict.fromkeys(result.hint for result in missing if result.hint):
        session.hint(hint)
    heard = [result for result in survey.hosts if result.why is None]
    tried = 0
    if script and not no_try and heard:
        from orchestrator.cli.script_trial import answer

        tried = answer(session, output, heard, data, yes=yes)
    return 4 if missing else tried


def _data(script: str) -> dict[str, str]:
    """Return the paths that the script reads, with their place; none where it is not here."""
    from orchestrator.both.script import module_file
    from orchestrator.spec.data_paths import data_paths

    try:
        return data_paths(script) if script.endswith(".py") else data_paths(module_file(".", script), ".")
    except OSError:
        return {}


def _asked(session: Session) -> list[str]:
    """Return the hosts of ~/.ssh/config that a person chooses."""
    from orchestrator.spec.foreign.inventory import names_of

    try:
        known = names_of(Path(_SSH_CONFIG).expanduser().read_text(encoding="utf-8", errors="replace"))
    except OSError:
        known = []
    hint = "name them: `orch init gpu-a gpu-b`; or `orch init localhost` for this machine"
    if not known or not os.isatty(0):
        raise UsageError("which hosts?", hint=f"{hint}; {_SSH_CONFIG} has {listed(known)}" if known else hint)
    session.prompt(f"{_SSH_CONFIG} has {' '.join(known)}\nWhich of them? [all] ")
    chosen = input().split()
    return chosen or known


def _examine(
    session: Session, hosts: Sequence[str], name: str, directory: str | None, paths: Sequence[str]
) -> tuple[Survey, tuple[Machine, ...]]:
    from orchestrator.head.code import bundle
    from orchestrator.head.coordinator.main import transports
    from orchestrator.head.hosts import survey
    from orchestrator.spec.foreign.layout import distinct, machine_of

    machines = distinct([machine_of(host) for host in hosts])
    session.say(f"examining {listed([machine.name for machine in machines])} …")
    result = survey.survey(
        [host_of(machine) for machine in machines],
        transports(session.paths),
        bundle.load,
        name=name,
        pythons=(
            *([sys.executable] if any(host_of(machine).transport == "local" for machine in machines) else []),
            *survey.PYTHONS,
        ),
        directories=[directory] if directory else survey.SHARED,
        paths=paths,
    )
    return result, machines


def host_of(machine: Machine) -> HostPlan:
    """Return the host, as `ssh` would take its name."""
    from orchestrator.core.plan import HostPlan
    from orchestrator.spec.foreign.layout import LOCAL

    address = machine.address or machine.name
    if address in LOCAL:
        return HostPlan(machine.name, transport="local")
    return HostPlan(machine.name, address=address, user=machine.user, port=machine.port)


def _sentence(result: Surveyed) -> str:
    if result.why is not None:
        return f"  {result.host.name}: not examined: {result.why.removeprefix(f'{result.host.name}: ')}"
    gpus = f"{counted(len(result.gpus), 'GPU')}{f' ({result.gpu_name})' if result.gpu_name else ''}"
    if result.gpus != tuple(range(len(result.gpus))):
        gpus += f", {listed([str(gpu) for gpu in result.gpus])}, by CUDA_VISIBLE_DEVICES of its login shell"
    python = (
        f"TensorFlow {result.tensorflow} in {result.python}"
        if result.python
        else "no Python with TensorFlow was found"
    )
    return f"  {result.host.name}: {gpus}; {python}"


def _layout(survey: Survey, machines: Sequence[Machine], script: str, name: str, schema: str) -> Layout:
    from orchestrator.spec.foreign.layout import Layout, Training

    heard = [result for result in survey.hosts if result.why is None]
    remarks = [
        f"{result.host.name} was not examined: fill in its `gpus` and `python`"
        for result in survey.hosts
        if result.why is not None
    ]
    without = [result.host.name for result in heard if result.python is None]
    if without:
        remarks.append(
            f"no Python with TensorFlow was found on {listed(without)}: `python` is to be filled in, or "
            "`setup:` has one made (docs/setup.md)"
        )
    pythons = {result.python for result in heard if result.python}
    common = pythons.pop() if len(pythons) == 1 else None
    gpus = min((len(result.gpus) for result in heard), default=0)
    by_name = {result.host.name: result for result in survey.hosts}
    hosts = tuple(
        replace(
            machine,
            gpus=_count_or_list(by_name[machine.name].gpus),
            python=by_name[machine.name].python if common is None else None,
            data_address=_data_address(by_name[machine.name]) if len(machines) > 1 else None,
        )
        for machine in machines
    )
    strategy = "multi_worker_mirrored" if len(hosts) > 1 else "mirrored" if gpus > 1 else "single"
    checkpoint, shared = survey.shared, True
    if checkpoint is None and heard:
        # Without one, each host saves in the home directory of its user.
        checkpoint, shared = f"{heard[0].home}/orch/{name}", len(hosts) == 1
        if survey.tried:
            remarks.append(
                f"{listed(survey.tried)} is there on all hosts, and not writable, not one directory, or what would be "
                f"{name} in it belongs to others, or is open to them"
            )
    return Layout(
        "what the hosts have",
        hosts,
        strategy,
        {"worker": len(hosts)},
        Training(script, python=common),
        gpus_each=gpus or None,
        remarks=tuple(remarks),
        checkpoint=checkpoint,
        shared=shared,
        command="orch init",
        schema=schema,
    )


def _data_address(result: Surveyed) -> str | None:
    """Return its address for the other hosts, where its name may be one of ~/.ssh/config here alone."""
    from orchestrator.head.hosts.judgement import is_loopback, is_name

    reached = result.reached_at
    is_needed = result.host.transport == "ssh" and is_name(result.host.peer_address)
    return reached if is_needed and reached is not None and not is_loopback(reached) else None


def _count_or_list(gpus: tuple[Gpu, ...]) -> int | tuple[Gpu, ...] | None:
    """Return the first GPUs as their number, as most hosts have them; None if there are none."""
    return (len(gpus) if gpus == tuple(range(len(gpus))) else gpus) or None


def _run_name() -> str:
    from orchestrator.spec.foreign.layout import name_of

    return name_of(os.path.basename(os.getcwd()).replace(".", "-")) or "training"


def _script(given: str | None) -> str:
    """Return the given script, or the only one here that calls fit, or train.py. In a package, return its module."""
    from orchestrator.spec.own_paths import as_module

    files = [*Path().glob("*.py"), *Path().glob("*/*.py")]
    calls = [str(path) for path in files if not given and ".fit(" in path.read_text(errors="replace")]
    script = given or (calls[0] if len(calls) == 1 else "train.py")
    module = as_module(script, ".")
    return module[1] if module is not None and not module[2] else script


def _schema(session: Session) -> str:
    """Write the schema where editors find it, and return the file."""
    from orchestrator.both import durable
    from orchestrator.spec.models import json_schema

    session.paths.ensure()
    path = os.path.join(session.paths.state_dir, "cluster.schema.json")
    durable.write(path, json.dumps(json_schema()).encode())
    return path

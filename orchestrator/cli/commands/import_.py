"""`orch import`: write a cluster spec from the configuration of another launcher."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.help import Group
from orchestrator.cli.session import Session
from orchestrator.core.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.spec.foreign.layout import Layout

_COMMAND = click.argument(
    "command_line", nargs=-1, type=click.UNPROCESSED, metavar="[python train.py ARGS...]"
)


@click.group(
    "import",
    cls=Group,
    examples=[
        (
            "orch import horovodrun -np 8 -H server1:4,server2:4 python train.py > cluster.yaml",
            "From the command that you start today",
        ),
        ("orch import tf-config '{\"cluster\": …}' python train.py", "From a TF_CONFIG written by hand"),
        ("orch import ssh-config gpu-a gpu-b", "From hosts of ~/.ssh/config"),
    ],
)
def command() -> None:
    """Print a commented cluster.yaml, made from the configuration of another launcher.

    Nothing is contacted and nothing is started. What could not be carried over is said in a comment.
    """


_BYTES_MAX = 512 << 10

_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def _source(name: str, **properties: Any) -> Callable[[Callable[..., Layout]], click.Command]:
    """Declare a source. What its function reads is written, by the options that all sources have."""

    def declare(read: Callable[..., Layout]) -> click.Command:
        @wraps(read)
        def write(session: Session, /, name: str, output: str | None, **given: Any) -> None:
            put(session, read(**given), name, output)

        written = click.option(
            "--output", type=click.Path(), help="Write this file, which must not exist, instead of stdout."
        )(write)
        named = click.option("--name", default="imported", help="The run's name.", metavar="NAME")(written)
        return command.subcommand(name, **{"context_settings": _PASSED_ON, **properties})(named)

    return declare


@_source(
    "horovodrun",
    examples=[
        ("orch import horovodrun -np 8 -H server1:4,server2:4 python train.py", "As you start it today"),
        ("orch import horovodrun -np 4 python train.py --lr 0.1", "Four ranks on this machine"),
    ],
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="ARGS... python train.py")
def horovodrun(words: tuple[str, ...]) -> Layout:
    """From the arguments of horovodrun."""
    from orchestrator.spec.foreign import mpi

    return mpi.horovodrun(words, _read)


@_source(
    "mpirun",
    examples=[
        (
            "orch import mpirun -np 8 -H server1:4,server2:4 -bind-to none python train.py",
            "As Horovod's texts have it",
        ),
        ("orch import mpirun --hostfile hosts.txt -x NCCL_DEBUG=INFO python train.py", "With a hostfile"),
    ],
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, required=True, metavar="ARGS... python train.py")
def mpirun(words: tuple[str, ...]) -> Layout:
    """From the arguments of mpirun, for Horovod."""
    from orchestrator.spec.foreign import mpi

    return mpi.mpirun(words, _read)


@_source(
    "hostfile",
    examples=[
        ("orch import hostfile --np 8 hosts.txt python train.py", "8 ranks on the hosts of an MPI hostfile"),
        ("orch import hostfile hosts.txt --output cluster.yaml", "The hosts alone, into a file"),
    ],
)
@click.option("--np", "ranks", type=click.IntRange(1, 1000), help="The number of ranks. Default: all slots.")
@click.argument("file", type=click.Path(), metavar="FILE")
@_COMMAND
def hostfile(file: str, command_line: tuple[str, ...], ranks: int | None) -> Layout:
    """From a hostfile of mpirun or horovodrun."""
    from orchestrator.spec.foreign import mpi

    return mpi.hostfile(_read(file), ranks, command_line)


@_source(
    "tf-config",
    examples=[
        ('orch import tf-config "$TF_CONFIG" python train.py', "From the variable"),
        ("orch import tf-config tf_config.json python train.py", "From a file"),
    ],
)
@click.argument("text", metavar="JSON|FILE")
@_COMMAND
def tf_config(text: str, command_line: tuple[str, ...]) -> Layout:
    """From a TF_CONFIG written by hand: JSON or a file."""
    from orchestrator.spec.foreign import tf_config

    given = text if text.lstrip().startswith("{") else _read(text)
    return tf_config.tf_config(given, command_line)


@_source(
    "ansible",
    examples=[
        ("orch import ansible inventory.ini --group gpus", "One group of an inventory"),
        ("orch import ansible hosts.yaml", "All hosts of an inventory in YAML"),
    ],
)
@click.option("--group", help="Only the hosts of this group.")
@click.argument("file", type=click.Path(), metavar="FILE")
@_COMMAND
def ansible(file: str, command_line: tuple[str, ...], group: str | None) -> Layout:
    """From an Ansible inventory, as INI or YAML."""
    from orchestrator.spec.foreign import ansible

    endings = ("", ".yml", ".yaml", ".json")

    def beside(kind: str, of: str) -> list[str]:
        files = (Path(file).expanduser().parent / kind / f"{of}{ending}" for ending in endings)
        first = next((path for path in files if "/" not in of and path.exists()), None)
        within = [] if first is None else sorted(first.rglob("*")) if first.is_dir() else [first]
        plain = [path for path in within if path.is_file() and path.suffix in endings and path.name[0] != "."]
        return [_read(str(path)) for path in plain]

    return ansible.ansible(_read(file), group, command_line, beside)


@_source(
    "ray",
    examples=[
        ("orch import ray cluster.yaml", "The machines of a Ray cluster with the provider `local`"),
        ("orch import ray ray.yaml python train.py --output orch.yaml", "With the command, into a file"),
    ],
)
@click.argument("file", type=click.Path(), metavar="FILE")
@_COMMAND
def ray(file: str, command_line: tuple[str, ...]) -> Layout:
    """From a Ray cluster file whose provider is `local`."""
    from orchestrator.spec.foreign import inventory

    return inventory.ray(_read(file), command_line)


@_source(
    "ssh-config",
    context_settings={},
    examples=[
        ("orch import ssh-config gpu-a gpu-b", "Two hosts of ~/.ssh/config"),
        ("orch import ssh-config --file lab.conf", "Every host of another file"),
    ],
)
@click.option("--file", "file", default="~/.ssh/config", show_default=True, help="The ssh_config to read.")
@click.argument("hosts", nargs=-1, metavar="[HOST...]")
def ssh_config(hosts: tuple[str, ...], file: str) -> Layout:
    """From the hosts of an ssh_config.

    Only their names are written: addresses, users, ports and keys are read there at each connection.
    """
    from orchestrator.spec.foreign import inventory

    return inventory.ssh_config(_read(file), hosts, ())


def _read(file: str) -> str:
    try:
        with Path(file).expanduser().open("rb") as source:
            data = source.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            raise UsageError(f"cannot read {file}: it has more than {_BYTES_MAX >> 10} kB")
        return data.decode()
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is no text"
        raise UsageError(f"cannot read {file}: {reason}") from e


def put(session: Session, layout: Layout, name: str, output: str | None) -> None:
    """Write the spec of a layout to a file that must not exist, or to stdout."""
    from orchestrator.spec.foreign.write import cluster_yaml
    from orchestrator.spec.load import check_form

    layout = replace(layout, transparent=_is_ordinary(layout, os.path.dirname(output or "")))
    text = cluster_yaml(layout, name)
    wrong = [f"{each.where}: {each.sentence}" for each in check_form(text)]
    if wrong:
        raise UsageError(f"{layout.origin} makes no cluster spec: {'; '.join(wrong)}")
    if output is None:
        session.put(text.rstrip("\n"))
    else:
        put_text(session, text, output)
        session.say(f"`orch doctor {output}` checks it and the hosts")


def put_text(session: Session, text: str, output: str) -> None:
    """Write a file that must not exist."""
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        reason = "it exists already" if isinstance(e, FileExistsError) else os.strerror(e.errno or 0)
        raise UsageError(f"cannot write {output}: {reason}", hint="name another file") from e
    session.say(f"wrote {output}")


def _is_ordinary(layout: Layout, folder: str) -> bool:
    """Return whether the script trains with `fit`, and could share it with nobody under this strategy."""
    from orchestrator.both.distribution import distribution
    from orchestrator.both.script import module_file
    from orchestrator.core.strategy import STRATEGIES

    if layout.training is None or not STRATEGIES[layout.strategy].transparent:
        return False
    script, root = layout.training.script, ""
    if not script.endswith(".py"):
        script, root = module_file(folder, script), folder or "."
    try:
        found = distribution(os.path.join(folder, script), root)
    except OSError:
        return False  # it is written later, or comes from elsewhere
    makes_none = not found.strategies or not STRATEGIES[layout.strategy].one_task
    return found.is_plain and found.fits and makes_none

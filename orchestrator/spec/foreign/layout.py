"""The layout that every launcher knows in some form: machines, and a command that runs on them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import yaml

from orchestrator.core.errors import UsageError
from orchestrator.core.plan import Gpu

DEPTH_MAX = 64
VALUES_MAX = 50_000
HOSTS_MAX = 2_000

_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _LOADER(_SAFE):  # type: ignore[misc]
    """Takes the texts that Ansible marks, as they are: those that are no templates, and those that are encrypted."""


for _tag in ("!unsafe", "!vault", "!vault-encrypted"):
    _LOADER.add_constructor(_tag, _LOADER.construct_scalar)

LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Machine:
    """One host."""

    name: str
    address: str | None = None
    """Where it differs from the name."""
    slots: int = 1
    user: str | None = None
    port: int | None = None
    gpus: int | tuple[Gpu, ...] | None = None
    """None: what was read does not say."""
    python: str | None = None
    identity_file: str | None = None
    proxy_jump: str | None = None
    data_address: str | None = None
    """Where its peers reach it, if that is another address than this machine's name for it."""


@dataclass(frozen=True, slots=True)
class Training:
    """The command that each task runs."""

    script: str
    """A file that ends with .py; else a module, as `python -m` takes it."""
    args: tuple[str, ...] = ()
    python: str | None = None
    """Only where a path was given: `python` on the head says nothing of the hosts'."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster, as the configuration of another launcher describes it."""

    origin: str
    """What it was read from, for the comment at the head of the spec."""
    machines: tuple[Machine, ...]
    strategy: str
    tasks: dict[str, int]
    """Replicas by task type."""
    training: Training | None = None
    gpus_each: int | None = None
    """GPUs of each task; None if what was read does not say."""
    remarks: tuple[str, ...] = ()
    """What could not be carried over, or must be looked at: sentences."""
    checkpoint: str | None = None
    """The checkpoint directory; None if it is to be filled in."""
    shared: bool = True
    """Whether all hosts see the checkpoint directory."""
    command: str = "orch import"
    schema: str | None = None
    """The file of the JSON Schema, for editors."""
    transparent: bool = False
    """Whether the script is an ordinary one, which knows of no strategy."""
    inventory: str = ""
    """The file of hosts that the spec names; empty: they stand in the spec."""


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")


def training_of(words: Sequence[str]) -> Training | None:
    """Return the script, its arguments, Python and environment in a command line; None for an empty one.

    Raises UsageError if it starts no Python script.
    """
    rest = list(words)
    env: dict[str, str] = {}
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        env[name] = value
    if not rest:
        return None
    python = rest.pop(0) if _PYTHON.fullmatch(rest[0]) else None
    while python and rest and rest[0] in ("-u", "-O", "-B"):
        rest.pop(0)
    is_module = python is not None and rest[:1] == ["-m"] and len(rest) > 1
    rest = rest[1:] if is_module else rest
    if not rest or not (is_module or rest[0].endswith(".py")):
        raise UsageError(
            f"this command starts no Python script: {shlex.join(words)}",
            hint="give it as `python train.py ARGS` or `python -m pkg.train ARGS`; orch starts no shell commands",
        )
    script, *args = rest
    return Training(script, tuple(args), python if python and "/" in python else None, env)


def machine_of(text: str, slots: int = 1) -> Machine:
    """Return the machine that `[user@]host` names."""
    user, _, host = text.rpartition("@")
    return Machine(name_of(host), host if name_of(host) != host else None, slots, user or None)


def name_of(host: str) -> str:
    """Return a valid name for a cluster spec: not an address, and only lower-case letters, digits and hyphens.

    >>> name_of("gpu-a.lab.example"), name_of("10.0.0.7"), name_of("fd00::7"), name_of("GPU_Box.lab")
    ('gpu-a', 'host-10-0-0-7', 'host-fd00--7', 'gpu-box')
    """
    if re.fullmatch(r"[0-9.]+", host) or ":" in host:
        return _plain("host-" + re.sub(r"[^0-9a-z]", "-", host.lower().strip("[]")))
    return _plain(host.split(".")[0]) or "host"


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:63].rstrip("-")


def distinct(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Merge lines of the same host: their slots add up. Different hosts get different names."""
    if len(machines) > HOSTS_MAX:
        raise UsageError(
            f"{len(machines)} hosts, and at most {HOSTS_MAX} may be", hint="name a group, or some hosts"
        )
    by_place: dict[str, Machine] = {}
    for machine in machines:
        known = by_place.get(machine.address or machine.name)
        slots = machine.slots + (known.slots if known else 0)
        by_place[machine.address or machine.name] = replace(machine, slots=slots)
    taken: set[str] = set()
    named = []
    for machine in by_place.values():
        name = next(name for name in _names_for(machine) if name not in taken)
        taken.add(name)
        address = machine.address or (machine.name if name != machine.name else None)
        named.append(replace(machine, name=name, address=address))
    return tuple(named)


def _names_for(machine: Machine) -> Iterator[str]:
    """Yield names for a machine: the short one, that of its whole address (gpu-a-office), and numbered ones."""
    yield machine.name
    yield _plain((machine.address or machine.name).replace(".", "-")) or "host"
    for number in count(2):
        yield f"{machine.name[:58]}-{number}"


def one_task_each(
    origin: str, machines: Sequence[Machine], words: Sequence[str], remarks: Sequence[str] = ()
) -> Layout:
    """Return a layout with one worker on each machine, for machines of which nothing else is known."""
    if not machines:
        raise UsageError(f"{origin} names no hosts")
    hosts = distinct(machines)
    note = "nothing says how many GPUs the hosts have: `gpus:` is to be filled in"
    return Layout(
        origin,
        tuple(replace(machine, slots=1) for machine in hosts),
        "multi_worker_mirrored",
        {"worker": len(hosts)},
        training_of(words),
        remarks=(*remarks, note),
    )


def yaml_mapping(text: str, what: str) -> dict[str, Any]:
    """Return the mapping that a file of YAML is. Raises UsageError."""
    try:
        _bound(text, what)
        document = yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError) as e:
        raise UsageError(f"{what} is no YAML: {' '.join(str(e).split())}") from e
    if not isinstance(document, dict):
        raise UsageError(f"{what} is no mapping")
    return document


def _bound(text: str, what: str) -> None:
    """Bound depth and size of a document before it is built, with all that its aliases stand for.

    Raises UsageError with the line.
    """
    values = 0
    open_: list[tuple[str | None, int]] = []
    sizes: dict[str | None, int] = {}
    for event in yaml.parse(text, _LOADER):
        line = f"line {event.start_mark.line + 1} of {what}" if event.start_mark else what
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor in [name for name, _ in open_]:
                raise UsageError(
                    f"{line}: *{anchor} is a part of itself", hint="write out what it stands for"
                )
            values += sizes.get(anchor, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((anchor, values))
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            sizes[name] = values - before + 1
        values += 1
        if len(open_) > DEPTH_MAX or values > VALUES_MAX:
            much = (
                f"nested more than {DEPTH_MAX} deep"
                if len(open_) > DEPTH_MAX
                else f"more than {VALUES_MAX} values"
            )
            raise UsageError(f"{line}: {much}", hint="import a file with only the hosts that are wanted")


def mapping(value: object, what: str) -> dict[Any, Any]:
    """Return a mapping, empty if nothing is given. Raises UsageError if it is something else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{what} is no mapping: {str(value)[:60]!r}")
    return value

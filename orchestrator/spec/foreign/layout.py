"""What every launcher knows in some form: machines, and a command that runs on them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.core.errors import UsageError

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
    gpus: int | None = None
    """None: what was read does not say."""


@dataclass(frozen=True, slots=True)
class Training:
    """The command that each task runs."""

    script: str
    args: tuple[str, ...] = ()
    python: str | None = None
    """Only where a path was given: `python` on the head says nothing of the hosts'."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster, as another launcher was told of it."""

    origin: str
    """What it was read from, for the comment at the head of the spec."""
    machines: tuple[Machine, ...]
    strategy: str
    tasks: dict[str, int]
    """Replicas by task type."""
    training: Training | None = None
    gpus_each: int | None = None
    """GPUs of each task; None where what was read does not say."""
    remarks: tuple[str, ...] = ()
    """What could not be carried over, or must be looked at: sentences."""


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")


def training_of(words: Sequence[str]) -> Training | None:
    """Return the script, its arguments, Python and environment in a command line; None for an empty one.

    Raises UsageError where it starts no Python script.
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
    if not rest or not rest[0].endswith(".py"):
        raise UsageError(
            f"this command starts no Python script: {shlex.join(words)}",
            hint="give it as `python train.py ARGS`; orch starts scripts, not modules or shell commands",
        )
    script, *args = rest
    return Training(script, tuple(args), python if python and "/" in python else None, env)


def machine_of(text: str, slots: int = 1) -> Machine:
    """Return the machine that `[user@]host` names."""
    user, _, host = text.rpartition("@")
    return Machine(name_of(host), host if name_of(host) != host else None, slots, user or None)


def name_of(host: str) -> str:
    """Return a name that a cluster spec takes: an address is no name.

    >>> name_of("gpu-a.lab.example"), name_of("10.0.0.7"), name_of("fd00::7")
    ('gpu-a', 'host-10-0-0-7', 'host-fd00--7')
    """
    if re.fullmatch(r"[0-9.]+", host) or ":" in host:
        return "host-" + re.sub(r"[^0-9A-Za-z]", "-", host.strip("[]"))
    return host.split(".")[0]


def distinct(machines: Sequence[Machine]) -> tuple[Machine, ...]:
    """Put lines of the same host together: their slots add up."""
    found: dict[str, Machine] = {}
    for machine in machines:
        known = found.get(machine.address or machine.name)
        slots = machine.slots + (known.slots if known else 0)
        found[machine.address or machine.name] = Machine(
            machine.name, machine.address, slots, machine.user, machine.port, machine.gpus
        )
    return tuple(found.values())

"""The arguments of `horovodrun` and `mpirun`, and hostfiles as Open MPI and Horovod read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.core.errors import UsageError
from orchestrator.spec.foreign.layout import Layout, Machine, distinct, machine_of, training_of

_TAKES_A_VALUE = frozenset(
    {"-i", "--ssh-identity-file", "--min-np", "--max-np", "--reset-limit", "--cooldown-range", "--log-level"}
    | {"--host-discovery-script", "--network-interfaces", "--nics", "--start-timeout", "--elastic-timeout"}
    | {"--output-filename", "--gloo-timeout-seconds", "--mpi-args", "--binding-args", "--config-file"}
    | {"--fusion-threshold-mb", "--cycle-time-ms", "--cache-capacity", "--timeline-filename"}
    | {"--num-nccl-streams"}
)
"""Options of horovodrun with a value, which have no counterpart here."""


def horovodrun(words: Sequence[str], read: Callable[[str], str]) -> Layout:
    """Return the layout of `horovodrun ARGS… python train.py …`, without the word `horovodrun`.

    Args:
        read: returns the text of a file, for `-hostfile`.
    """
    rest, ranks, port = list(words), None, None
    machines: tuple[Machine, ...] = ()
    dropped = []
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option, given, value = rest.pop(0).partition("=")
        if option in ("-np", "--num-proc", "-H", "--hosts", "-hostfile", "--hostfile", "-p", "--ssh-port"):
            value = value if given else _value(rest, option)
            if option in ("-np", "--num-proc"):
                ranks = _number(value, option)
            elif option in ("-p", "--ssh-port"):
                port = _number(value, option)
            else:
                machines = _hosts(value) if option in ("-H", "--hosts") else parse_hostfile(read(value))
        else:
            dropped.append(option)
            if option in _TAKES_A_VALUE and not given:
                _value(rest, option)
    rest = rest[1:] if rest[:1] == ["--"] else rest
    machines = machines or (Machine("here", "localhost", ranks or 1),)
    machines = tuple(replace(each, port=port or each.port) for each in machines)
    remarks = (f"left out, for orch has no counterpart: {', '.join(dropped)}",) if dropped else ()
    return _layout("horovodrun", machines, ranks, training_words=rest, remarks=remarks)


_HOSTS = frozenset({"-H", "-host", "--host"})
_FILES = frozenset({"-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile"})
_RANKS = frozenset({"-np", "--np", "-n", "--n", "-c"})
_MPI_VALUES = {
    **dict.fromkeys(("bind-to", "map-by", "rank-by", "wdir", "wd", "prefix", "output-filename", "path"), 1),
    **dict.fromkeys(
        ("N", "npernode", "pernode-count", "report-pid", "timeout", "rankfile", "personality"), 1
    ),
    **dict.fromkeys(("mca", "gmca", "pmca", "prtemca"), 2),
}
"""Options of mpirun without a counterpart here, and how many values they have; those that are not here have none."""


def mpirun(words: Sequence[str], read: Callable[[str], str]) -> Layout:
    """Return the layout of `mpirun ARGS… python train.py …` as Horovod's texts give it, without the word `mpirun`.

    Args:
        read: returns the text of a file, for `--hostfile`.
    """
    rest, ranks = list(words), None
    machines: tuple[Machine, ...] = ()
    dropped: list[str] = []
    passed: list[str] = []
    env: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        name = option.lstrip("-")
        if option in _RANKS:
            ranks = _number(_value(rest, option, "mpirun"), option)
        elif option in _HOSTS:
            machines = _hosts(_value(rest, option, "mpirun"))
        elif option in _FILES:
            machines = parse_hostfile(read(_value(rest, option, "mpirun")))
        elif option == "-x":
            key, given, value = _value(rest, option, "mpirun").partition("=")
            passed += [] if given else [key]
            env |= {key: value} if given else {}
        else:
            dropped.append(option)
            for _ in range(_MPI_VALUES.get(name, 0)):
                _value(rest, option, "mpirun")
    machines = machines or (Machine("here", "localhost", ranks or 1),)
    remarks = []
    if dropped:
        remarks.append(f"left out, for orch has no counterpart: {', '.join(dict.fromkeys(dropped))}")
    if passed:
        remarks.append(f"-x {' '.join(passed)} passes values of your shell on: write them under `env:`")
    assigned = [f"{key}={value}" for key, value in env.items()]
    return _layout("mpirun", machines, ranks, training_words=[*assigned, *rest], remarks=tuple(remarks))


def hostfile(text: str, ranks: int | None, words: Sequence[str]) -> Layout:
    """Return the layout of a hostfile and a command."""
    return _layout("a hostfile", parse_hostfile(text), ranks, training_words=words)


def _layout(
    origin: str,
    machines: tuple[Machine, ...],
    ranks: int | None,
    *,
    training_words: Sequence[str],
    remarks: tuple[str, ...] = (),
) -> Layout:
    room = sum(machine.slots for machine in machines)
    if ranks is not None and ranks > room:
        raise UsageError(
            f"{ranks} ranks do not fit: the hosts have {room} slots",
            hint="give each host its slots: `-H server1:4`",
        )
    note = "each rank has one GPU, as `hvd.local_rank()` is commonly used; `gpus: 0` trains on CPUs"
    return Layout(
        origin,
        tuple(replace(machine, gpus=machine.slots) for machine in machines),
        "horovod",
        {"worker": ranks or room},
        training_of(training_words),
        gpus_each=1,
        remarks=(*remarks, note),
    )


def parse_hostfile(text: str) -> tuple[Machine, ...]:
    """Return the hosts of `server1 slots=4`, `server1:4` or `server1` lines.

    >>> [(m.name, m.slots) for m in parse_hostfile("a slots=4 max_slots=8\\nb:2  # two\\n\\nc")]
    [('a', 4), ('b', 2), ('c', 1)]
    """
    machines = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, _, count = _split(words[0])
        given = next((word.partition("=")[2] for word in words[1:] if word.startswith("slots=")), count)
        machines.append(machine_of(name, _number(given or "1", f"line {number} of the hostfile")))
    if not machines:
        raise UsageError("the hostfile names no host", hint="one line a host, such as `server1 slots=4`")
    return distinct(machines)


def _split(word: str) -> tuple[str, str, str]:
    """Split `server1:4` and `[fd00::7]:4`; an address of IPv6 without brackets has no count.

    >>> _split("server1:4"), _split("[fd00::7]:4"), _split("fd00::7")
    (('server1', ':', '4'), ('fd00::7', ':', '4'), ('fd00::7', '', ''))
    """
    if word.startswith("["):
        name, _, count = word[1:].partition("]")
        return name, ":", count.lstrip(":")
    return word.partition(":") if word.count(":") == 1 else (word, "", "")


def _hosts(text: str) -> tuple[Machine, ...]:
    """Return the hosts of `server1:4,server2:4`."""
    return parse_hostfile("\n".join(text.split(",")))


def _value(rest: list[str], option: str, program: str = "horovodrun") -> str:
    if not rest:
        raise UsageError(f"{program}'s {option} has no value")
    return rest.pop(0)


def _number(text: str, where: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,4}", text):
        raise UsageError(f"{where}: {text!r} is no count")
    return int(text)

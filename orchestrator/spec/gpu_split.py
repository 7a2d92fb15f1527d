"""`gpus: split`: divides hosts with different numbers of GPUs into tasks with equal numbers.

The number of GPUs of a task divides the number of each host without a remainder, so that no GPU is idle. A host then
holds as many tasks as it has such parts, whatever its `slots` say; a host without GPUs holds none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import gcd

from orchestrator.core.launching.placement import COMPUTING_TYPES, NoPlacement
from orchestrator.core.plan import Ask, HostPlan
from orchestrator.core.words import counted


def split(
    hosts: Sequence[HostPlan], asks: Iterable[Ask]
) -> tuple[tuple[HostPlan, ...], tuple[Ask, ...], tuple[NoPlacement, ...]]:
    """Return the hosts with a slot for each part, the asks with numbers, and why a split is impossible.

    Without an ask that is split, everything is returned unchanged.

    >>> hosts, asks, _ = split([HostPlan("a", gpus=tuple(range(8))), HostPlan("b", gpus=(0, 1, 2, 3))],
    ...                        [Ask("worker", 1, split=True)])
    >>> [(host.name, host.slots) for host in hosts], [(ask.replicas, ask.gpus) for ask in asks]
    ([('a', 2), ('b', 1)], [(3, 4)])
    """
    hosts, asks = tuple(hosts), tuple(asks)
    divided = next((ask for ask in asks if ask.split and ask.type in COMPUTING_TYPES), None)
    if divided is None:
        return hosts, asks, ()
    counts = [len(host.gpus) for host in hosts if not host.spare and host.gpus]
    if not counts:
        text = "`gpus: split` divides the GPUs of the hosts, and no host has any"
        return hosts, asks, (NoPlacement("gpus", divided.type, text),)
    each = gcd(*counts)
    parts = sum(counts) // each
    others = sum(ask.replicas for ask in asks if ask.type in COMPUTING_TYPES and not ask.split)
    if parts <= others:
        text = (
            f"`gpus: split` makes {counted(parts, 'task')} of {counted(each, 'GPU')}, and with "
            f"{counted(others, 'chief')} no {divided.type} is left; leave the chief out"
        )
        return hosts, asks, (NoPlacement("gpus", divided.type, text),)
    roomy = tuple(_with_slots(host, max(host.slots, len(host.gpus) // each)) for host in hosts)
    return roomy, tuple(_numbered(ask, each, parts - others) for ask in asks), ()


def _with_slots(host: HostPlan, slots: int) -> HostPlan:
    return replace(
        host, slots=slots, tasks_max=None if host.tasks_max is None else max(host.tasks_max, slots)
    )


def _numbered(ask: Ask, each: int, replicas: int) -> Ask:
    if ask.type not in COMPUTING_TYPES:
        return ask
    return replace(ask, replicas=replicas if ask.split else ask.replicas, gpus=each, split=False)

"""Looks at the hosts of a pool before a run is placed there: what of them others hold, and which serve nobody now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from orchestrator.core.plan import Gpu, HostPlan
from orchestrator.core.pool import Machine, Seen, machine
from orchestrator.core.state.instants import Instant
from orchestrator.head.hosts.preparation import holder
from orchestrator.head.links.query import Answer, Asker
from orchestrator.protocol.orders.hosts import MACHINE, Hardware

LOOK_S = 8.0
"""How long all hosts together may take; a start waits for it."""


def look(
    asker: Asker, hosts: Sequence[HostPlan], is_own: Callable[[str], bool], until: Instant
) -> dict[Machine, Seen]:
    """Ask the hosts, all at once, and return what they say. It blocks.

    Args:
        asker: the ways to them.
        hosts: which ones.
        is_own: whether a run id is one of this head node's, which knows by itself what those hold.
        until: until when it is believed.
    """
    answers = asker.ask([(host, [MACHINE({})]) for host in hosts], timeout_s=LOOK_S)
    return {machine(answer.host): _seen(answer, is_own, until) for answer in answers}


def _seen(answer: Answer[Any], is_own: Callable[[str], bool], until: Instant) -> Seen:
    if answer.unheard is not None:
        return Seen(until, why=f"cannot be used now ({answer.unheard})")
    hardware: Hardware | None = answer.replies[0].ok
    if hardware is None:
        return Seen(until)
    names: Mapping[Gpu, str] = {gpu["index"]: gpu["uuid"] for gpu in hardware["gpus"] if "uuid" in gpu}
    held: dict[Gpu, str] = {}
    for gpu in hardware["gpus"]:
        strangers = [each for each in gpu["processes"] if each["run"] is None or not is_own(each["run"])]
        if strangers:
            who = strangers[0]
            user = f" of user {who['user']}" if who["user"] else ""
            held[gpu["index"]] = (who["run"] or f"pid {who['pid']}") + user
    for lease in hardware.get("leases", []):
        if lease["run"] is None or not is_own(lease["run"]):
            name, words = holder(lease)
            held[name] = words
    sizes = {gpu["index"]: gpu["memory_total_bytes"] for gpu in hardware["gpus"]}
    known: dict[Gpu, int] = {index: size for index, size in sizes.items() if size is not None}
    # A file may name GPUs by their UUIDs
    held |= {names[gpu]: who for gpu, who in held.items() if gpu in names}
    return Seen(
        until,
        held,
        gpu_bytes=known | {names[gpu]: size for gpu, size in known.items() if gpu in names},
        memory_bytes=inf if hardware["memory_total_bytes"] is None else hardware["memory_total_bytes"],
        free_bytes=inf if hardware["memory_free_bytes"] is None else hardware["memory_free_bytes"],
    )

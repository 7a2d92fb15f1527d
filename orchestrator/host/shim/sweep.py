"""Kills all processes that are left of a task or a run on this host, and names those that do not die.

It finds them by the marker in their environment, by recorded identity, and by control group where there is one.
"""

from __future__ import annotations

import os
import time
from signal import SIGKILL

from orchestrator.both import process
from orchestrator.host.system import cgroup, unkillable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from orchestrator.protocol.reports import Left

BOUND_S = 3.0
"""How long a sweep waits for processes to die before it names them."""

_AGAIN_S = 0.01


def kill(processes: Iterable[process.Identity]) -> list[process.Identity]:
    """Send SIGKILL to each process, by identity. Return those that were still alive."""
    living = []
    for who in processes:
        try:
            if process.signal(who, SIGKILL):
                living.append(who)
        except PermissionError:
            living.append(who)
    return living


def name_left(processes: Iterable[process.Identity]) -> list[Left]:
    """Return the processes that still live, each with the reason."""
    left: list[Left] = []
    for who in processes:
        why = unkillable.why(who)
        if why is not None:
            left.append({"pid": who.pid, "why": why})
    return left


def sweep(
    host_dir: str,
    run: str,
    generations: Container[int],
    *,
    task: str | None = None,
    groups: Iterable[cgroup.Cgroup] = (),
    known: Iterable[process.Identity] = (),
    bound_s: float = BOUND_S,
) -> list[Left]:
    """Kill every process of these generations of the run on this host. Return those that are left, with reasons.

    It waits at most `bound_s`; what is left then is remembered on the host. `known` are recorded identities, for
    processes whose environment cannot be read.
    """
    groups, known = list(groups), [*known, *unkillable.living_of_run(host_dir, run)]
    give_up_at = time.monotonic() + bound_s
    while True:
        for group in groups:
            group.kill()
        targets = set(process.marked(run, generations, host_dir=host_dir, task=task))
        targets.update(who for who in known if process.alive(who))
        for group in groups:
            targets.update(who for who in map(process.identity, group.pids()) if who is not None)
        targets.discard(process.identity(os.getpid()) or process.Identity("", 0, 0))
        if not kill(targets):
            break
        if time.monotonic() >= give_up_at:
            unkillable.remember(host_dir, run, targets)
            return name_left(targets)
        time.sleep(_AGAIN_S)
    for group in groups:
        group.remove()
    return []

"""Where a run goes on the hosts of its file: what is free there, by all runs of this head node and by what hosts say.

Pure functions. The places themselves are chosen by `launching.placement`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import cast

from orchestrator.core.launching.placement import NoPlacement, Occupied, against, place
from orchestrator.core.plan import SLOT, Gpu, HostPlan, Plan, TaskPlan, lease_in_words
from orchestrator.core.state.host import HostState, Link
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.run import Problem, Run
from orchestrator.core.strategy import STRATEGIES
from orchestrator.core.words import listed

TOLD_MAX = 8
"""How many hosts a sentence names; the documents have all."""

Machine = tuple[str, int | None]


def machine(host: HostPlan) -> Machine:
    """Return what a host is told by, whatever files call it."""
    return host.address or host.name, host.port


def same_hosts(plan: Plan) -> int:
    """Return what is the same of plans whose hosts are, with all that counts for a place."""
    return cast("Roster[str, HostPlan]", plan.hosts).once(_digest)


def _digest(hosts: Iterable[HostPlan]) -> int:
    return hash(tuple((host, host.tasks_max) for host in hosts))


def machine_in_words(host: HostPlan) -> str:
    """Return the same as a word, which a person may say for the name of the host."""
    return f"{host.address or host.name}{f':{host.port}' if host.port is not None else ''}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a host has said of itself, or why it has said nothing. It is believed for a while."""

    until: Instant
    leases: Mapping[Gpu, str] = field(default_factory=dict)
    """Its GPUs and slots that others hold, who are not runs of this head node, and who that is."""
    why: str = ""
    """Why it serves nobody now, as the end of a sentence that begins with its name."""
    gpu_bytes: Mapping[Gpu, int] = field(default_factory=dict)
    memory_bytes: float = inf
    """All of its memory."""
    free_bytes: float = inf
    """What of it is free."""


@dataclass(frozen=True, slots=True)
class Known:
    """What this head node knows of hosts besides its own runs."""

    seen: Mapping[Machine, Seen] = field(default_factory=dict)
    drained: Mapping[str, str] = field(default_factory=dict)
    """By machine, in words, or by the name where nobody knew it: why, as the end of a sentence about the host."""
    numbers: Mapping[tuple[str, Gpu], int] = field(default_factory=dict)
    """The number of each GPU, by its host's address and its UUID (`conflicts.gpu_numbers`)."""
    visited: Mapping[str, Collection[Machine]] = field(default_factory=dict)
    """By the name of runs: where those that have ended were."""

    def has_choice(self, plan: Plan) -> bool:
        """Return whether a place is to be chosen: others are possible, or the only one is not to be used."""
        return plan.has_choice or (bool(plan.needs) and any(map(self.why_drained, plan.hosts)))

    def why_drained(self, host: HostPlan) -> str:
        """Return why a host is drained for all runs, whatever the file calls it; empty if it is not."""
        return self.drained.get(machine_in_words(host)) or self.drained.get(host.name, "")

    def of(self, host: HostPlan, now: Instant) -> Seen | None:
        """Return what is known of a host now; None if nothing is. How much memory it and its GPUs have stays."""
        seen = self.seen.get(machine(host))
        if seen is None or now < seen.until:
            return seen
        if not seen.gpu_bytes and seen.memory_bytes == inf:
            return None
        return replace(seen, leases={}, why="", free_bytes=inf)

    def is_fresh(self, host: HostPlan, now: Instant) -> bool:
        """Return whether a host has been asked a short while ago."""
        seen = self.seen.get(machine(host))
        return seen is not None and now < seen.until

    def heard(self, host: HostPlan, problem: Problem, now: Instant, until: Instant) -> Known:
        """Return what is known once a host has turned a run away."""
        before = self.of(host, now)
        names = {*host.leases}
        leases = {lease: who for lease, who in problem.held if lease in names}
        # Where the file names GPUs in other words than the host does, it is not known which are meant
        seen = replace(
            before or Seen(until),
            until=until,
            leases={**(before.leases if before else {}), **leases},
            why="" if leases else f"serves no run now: {problem.message}",
        )
        return replace(self, seen={**self.seen, machine(host): seen})

    def unanswered(self, run: Run, now: Instant) -> Known:
        """Return what is known once a run has waited in vain for its hosts: others look elsewhere for as long again."""
        until, seen = now + run.plan.timing.start_after_s, dict(self.seen)
        for host in run.hosts:
            if host.facts is None and host.link is not Link.CONNECTED and not host.untouched:
                plan = run.submitted.host(host.name)
                before = self.of(plan, now) or Seen(until)
                seen[machine(plan)] = replace(before, until=until, why="does not answer")
        return replace(self, seen=seen)


NOTHING = Known()


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of a run: its tasks, the spares that it gets, and the reason against each other host."""

    tasks: tuple[TaskPlan, ...]
    spares: tuple[str, ...] = ()
    against: tuple[tuple[str, str], ...] = ()


class Held:
    """What runs hold of the hosts, by address. It is added to while it is decided who begins."""

    def __init__(self) -> None:
        self.leases: dict[str, Mapping[Gpu, str]] = {}
        self.tasks: dict[str, int] = {}
        self.memory: dict[str, int] = {}
        """How much memory of each host its runs have asked for."""
        self.out: dict[Machine, str] = {}
        """Machines on which nothing is placed, since a run finds them unfit."""

    def add(
        self,
        users: Mapping[str, Mapping[Gpu, str]],
        tasks: Iterable[str],
        memory: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Add who has which GPUs and slots, by address; the addresses of tasks; and the memory that they asked for."""
        for address, leases in users.items():
            before = self.leases.get(address)
            self.leases[address] = leases if before is None else {**leases, **before}
        for address in tasks:
            self.tasks[address] = self.tasks.get(address, 0) + 1
        for address, size in memory.items():
            self.memory[address] = self.memory.get(address, 0) + size

    def occupied(self, plan: Plan, known: Known, now: Instant) -> dict[str, Occupied]:
        """Return what is not free of a plan's hosts."""
        found: dict[str, Occupied] = {}
        visited = known.visited.get(plan.name, ())
        for host in plan.hosts:
            address, has_been = host.address, bool(visited) and machine(host) in visited
            ours, tasks = self.leases.get(address, _NOTHING), self.tasks.get(address, 0)
            seen = known.of(host, now) if known.seen else None
            why = (known.why_drained(host) if known.drained else "") or (
                self.out.get(machine(host), "") if self.out else ""
            )
            if seen is not None:
                ours, why = ({**seen.leases, **ours} if seen.leases else ours), why or seen.why
            elif not ours and not tasks and not why and not has_been:
                continue
            leases, slots = ours, _NO_SLOT
            if str in map(type, ours) or (known.numbers and str in map(type, host.gpus)):
                leases, slots = _told_apart(host, ours, known)
            if seen is None:
                found[host.name] = Occupied(leases, slots, tasks, why, has_been=has_been)
                continue
            memory = min(seen.free_bytes, seen.memory_bytes - self.memory.get(address, 0))
            found[host.name] = Occupied(leases, slots, tasks, why, seen.gpu_bytes, memory, has_been)
        return found


_NOTHING: Mapping[Gpu, str] = MappingProxyType({})
_NO_SLOT: Mapping[int, str] = MappingProxyType({})


def _told_apart(
    host: HostPlan, held: Mapping[Gpu, str], known: Known
) -> tuple[Mapping[Gpu, str], Mapping[int, str]]:
    """Return who has the GPUs of a host, and who its slots."""
    leases = dict(held)
    for gpu in host.gpus if known.numbers else ():  # another file may name it in the other way
        if (number := known.numbers.get((host.address, gpu))) in leases:
            leases.setdefault(gpu, leases[number])
    words = [lease for lease in leases if isinstance(lease, str) and _is_slot(lease)]
    return leases, {int(lease[len(SLOT) :]): leases.pop(lease) for lease in words}


def _is_slot(lease: str) -> bool:
    return lease.startswith(SLOT) and lease[len(SLOT) :].isdecimal()


_UNFIT = {
    HostState.LOST: "is lost",
    HostState.QUARANTINED: "is quarantined",
    HostState.STUCK: "is stuck",
    HostState.LEAVING: "is being taken away",
}


def unfit(runs: Iterable[Run]) -> dict[Machine, str]:
    """Return the machines that a run of this head node finds unfit or cannot reach, and why."""
    found: dict[Machine, str] = {}
    for run in runs:
        if run.phase.is_terminal or run.has_no_process:
            continue
        for host in run.hosts:
            why = _UNFIT.get(host.state)
            if why is not None:
                why += f" ({host.state_why})" if host.state_why else ""
            elif host.link is Link.UNREACHABLE:
                why = f"is unreachable{f' ({host.problem})' if host.problem else ''}"
            if why is not None:
                found[machine(run.plan.host(host.name))] = f"{why} for {run.run_id}"
    return found


def find(
    plan: Plan, held: Held, known: Known, now: Instant, *, tells: bool = True
) -> Placed | tuple[NoPlacement, ...]:
    """Return the best place for a plan among what is free, with why not elsewhere (`tells`); or why there is none."""
    occupied = held.occupied(plan, known, now)
    tasks, problems = place(
        plan.hosts, plan.needs, equal_gpus=STRATEGIES[plan.strategy].equal_gpus, occupied=occupied
    )
    if not tasks:
        return problems
    used = {task.host for task in tasks}
    spares = tuple(
        host.name
        for host in plan.hosts
        if host.spare and not (state := occupied.get(host.name, Occupied())).why
        if not any(lease in state.gpus for lease in host.gpus) and not state.slots
    )
    is_particular = any(ask.is_particular for ask in plan.needs)
    reasons = {
        host.name: against(host, plan.needs, there)
        for host in plan.hosts
        if tells and host.name not in used and (there := occupied.get(host.name)) is not None
        if is_particular or there.gpus or there.slots or there.why
    }
    return Placed(tasks, spares, tuple((name, why) for name, why in reasons.items() if why))


def in_vain(plan: Plan, held: Held, known: Known, now: Instant) -> dict[str, str]:
    """Return the reason against each host of a plan that has no place: who has what it needs."""
    occupied = held.occupied(plan, known, now)
    found = {
        host.name: against(host, plan.needs, occupied.get(host.name, Occupied()))
        for host in plan.hosts
        if not host.spare
    }
    return {name: why or f"{name} is free, and is not enough" for name, why in found.items()}


def sentence(reasons: Iterable[tuple[str, str]]) -> str:
    """Return the reasons against hosts in one sentence, of the first few of them."""
    words = [why for _, why in reasons]
    more = [f"{len(words) - TOLD_MAX} more hosts"] if len(words) > TOLD_MAX else []
    return "; ".join([*words[:TOLD_MAX], *more])


def where(tasks: Iterable[TaskPlan]) -> str:
    """Return where tasks are, for people: `gpu-a (GPU 0, GPU 1), gpu-b`."""
    by_host: dict[str, list[str]] = {}
    for task in tasks:
        by_host.setdefault(task.host, []).extend(map(lease_in_words, task.leases))
    return listed([f"{host} ({', '.join(leases)})" if leases else host for host, leases in by_host.items()])


def placed(plan: Plan, place: Placed) -> Plan:
    """Return the plan with this place. A spare that another run holds is none of this run's."""
    others = [host.name for host in plan.hosts if host.spare and host.name not in place.spares]
    hosts = plan.hosts
    if others:
        hosts = tuple(replace(host, spare=False) if host.name in others else host for host in hosts)
    return replace(plan, hosts=hosts, tasks=place.tasks)

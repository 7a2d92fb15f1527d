"""Chooses the host and the GPUs of each task. Pure: the same input gives the same places.

Rules:
- A host holds as many tasks as it has slots; a spare host holds none.
- Tasks spread: the next one goes where the fewest are. Then the tasks of a type are numbered in the order of
  the hosts, so that neighbours in a ring of workers share a machine where they can.
- A task's GPUs come from its host's list, in order, and no two tasks share one. A task that names no number gets an
  equal share of what its host has left (chief, worker), or none at all (ps, evaluator).
- The tasks that ask for the most GPUs are placed first, each where the fewest are left over. For tasks that ask alike
  this finds a place whenever there is one; for a mix it is a good guess, and what finds no room is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

from orchestrator.core.plan import TASK_TYPES, HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.words import counted, listed

COMPUTING_TYPES = ("chief", "worker")
"""Task types that share their host's GPUs when the spec names no number, and that must be equal when mirrored."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for some tasks of one type. `gpus` is the count for each task; None leaves it to the rules above."""

    type: str
    replicas: int
    gpus: int | None = None
    split: bool = False
    """As many tasks, with as many GPUs each, as use all GPUs; `gpu_split` finds both numbers before it is placed."""

    @property
    def shares(self) -> bool:
        """Return whether its tasks take an equal share of the GPUs that are left on their host."""
        return self.gpus is None and self.type in COMPUTING_TYPES

    @property
    def needs(self) -> int:
        """Return how many GPUs each of its tasks needs at least."""
        return self.gpus or 0


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """Why there is no placement. `kind` is slots, gpus or unequal; `task_type` is who has the problem."""

    kind: str
    task_type: str
    message: str


@dataclass(slots=True)
class _Capacity:
    """What is left of one host while tasks are placed on it."""

    index: int
    host: HostPlan
    free_gpus: int
    taken: list[str] = field(default_factory=list)


def place(
    hosts: Sequence[HostPlan], asks: Iterable[Ask], *, equal_gpus: bool
) -> tuple[tuple[TaskPlan, ...], tuple[NoPlacement, ...]]:
    """Return the tasks with their places, in the order of their ids; or no task, and every problem found."""
    wanted = {ask.type: ask for ask in sorted(asks, key=lambda ask: TASK_TYPES.index(ask.type))}
    capacities = [_Capacity(i, host, len(host.gpus)) for i, host in enumerate(hosts) if not host.spare]
    problems = [*_too_many(capacities, wanted), *_too_hungry(capacities, wanted)]
    if not problems:
        problems = _fill(capacities, wanted)
    if problems:
        return (), tuple(problems)
    tasks = _hand_out(capacities, wanted)
    unequal = _unequal(tasks, wanted) if equal_gpus else []
    return ((), tuple(unequal)) if unequal else (tasks, ())


def assigned(plan: Plan, replacements: Mapping[str, str | None]) -> tuple[TaskPlan, ...]:
    """Return the plan's tasks with their present hosts, in the order of their ids.

    A stand-in takes all the tasks of the host that it replaces, with the GPUs at the same places of its own list.
    Where nobody does, the rest of their type is numbered anew from 0: TensorFlow knows no gaps.
    """
    numbered = dict.fromkeys(TASK_TYPES, 0)
    tasks = []
    for task in sorted(plan.tasks, key=lambda task: task.id):
        name = replacements.get(task.host, task.host)
        if name is None:
            continue
        own, used = plan.host(task.host).gpus, plan.host(name).gpus
        gpus = task.gpus if name == task.host else tuple(used[own.index(gpu)] for gpu in task.gpus)
        tasks.append(TaskPlan(TaskId(task.id.type, numbered[task.id.type]), name, gpus, task.slot))
        numbered[task.id.type] += 1
    return tuple(tasks)


def has_room(plan: Plan, capacity: str, host: str) -> bool:
    """Return whether a host could take all the tasks that the plan gives to another."""
    tasks, other = [task for task in plan.tasks if task.host == capacity], plan.host(host)
    own = plan.host(capacity).gpus
    gpus = max((own.index(gpu) + 1 for task in tasks for gpu in task.gpus), default=0)
    return capacity == host or (other.slots >= len(tasks) and len(other.gpus) >= gpus)


def _too_many(capacities: Sequence[_Capacity], wanted: dict[str, Ask]) -> list[NoPlacement]:
    tasks = sum(ask.replicas for ask in wanted.values())
    slots = sum(capacity.host.slots for capacity in capacities)
    if tasks <= slots:
        return []
    most = max(wanted.values(), key=lambda ask: ask.replicas)
    have = listed([f"{capacity.host.name} {capacity.host.slots}" for capacity in capacities])
    return [
        NoPlacement(
            "slots",
            most.type,
            f"{counted(tasks, 'task')} for {counted(slots, 'slot')} ({have or 'every host is a spare'}); "
            "a host holds one task unless its `slots` says more, and a spare holds none",
        )
    ]


def _too_hungry(capacities: Sequence[_Capacity], wanted: dict[str, Ask]) -> list[NoPlacement]:
    """Return a problem where a task asks for more GPUs than any host has."""
    most = max(capacities, key=lambda capacity: capacity.free_gpus, default=None)
    if most is None:
        return []
    return [
        NoPlacement(
            "gpus",
            ask.type,
            f"each {ask.type} wants {counted(ask.needs, 'GPU')}, and no host has that many "
            f"(the most is {most.free_gpus}, on {most.host.name})",
        )
        for ask in wanted.values()
        if ask.needs > most.free_gpus
    ]


def _fill(capacities: Sequence[_Capacity], wanted: dict[str, Ask]) -> list[NoPlacement]:
    """Choose a host for each task: those with the most GPUs first, then those that share, then those without GPUs."""
    problems = []
    for ask in sorted(wanted.values(), key=lambda ask: (-ask.needs, not ask.shares)):
        for number in range(ask.replicas):
            capacity = _best_capacity(capacities, ask)
            if capacity is None:
                problems.append(_no_room(capacities, ask, number))
                break
            capacity.taken.append(ask.type)
            capacity.free_gpus -= ask.needs
    return problems


def _best_capacity(capacities: Sequence[_Capacity], ask: Ask) -> _Capacity | None:
    fitting = (s for s in capacities if len(s.taken) < s.host.slots and s.free_gpus >= ask.needs)
    if ask.shares:
        return min(fitting, key=lambda s: (len(s.taken), s.free_gpus == 0, s.index), default=None)
    return min(fitting, key=lambda s: (len(s.taken), s.free_gpus - ask.needs, s.index), default=None)


def _no_room(capacities: Sequence[_Capacity], ask: Ask, placed: int) -> NoPlacement:
    left = [
        f"{capacity.host.name} has {counted(capacity.host.slots - len(capacity.taken), 'slot')} and "
        f"{counted(capacity.free_gpus, 'GPU')} left"
        for capacity in capacities
        if len(capacity.taken) < capacity.host.slots
    ]
    return NoPlacement(
        "gpus",
        ask.type,
        f"only {placed} of {counted(ask.replicas, ask.type)} with {counted(ask.needs, 'GPU')} each find room: "
        f"{listed(left) or 'no slot is left'}",
    )


def _hand_out(capacities: Sequence[_Capacity], wanted: dict[str, Ask]) -> tuple[TaskPlan, ...]:
    """Assign numbers to the tasks in the order of the hosts, and GPUs to each."""
    numbered: dict[str, int] = dict.fromkeys(wanted, 0)
    tasks: list[TaskPlan] = []
    for capacity in capacities:
        sharing = sum(wanted[type_].shares for type_ in capacity.taken)
        share = capacity.free_gpus // sharing if sharing else 0
        first = 0
        for slot, type_ in enumerate(sorted(capacity.taken, key=TASK_TYPES.index)):
            count = share if wanted[type_].shares else wanted[type_].needs
            gpus = capacity.host.gpus[first : first + count]
            tasks.append(TaskPlan(TaskId(type_, numbered[type_]), capacity.host.name, gpus, slot))
            numbered[type_] += 1
            first += count
    return tuple(sorted(tasks, key=lambda task: task.id))


def _split_instead(tasks: Sequence[TaskPlan], wanted: Mapping[str, Ask]) -> str:
    """Return a change of the spec by which no GPU would be idle; empty if the spec sets the GPUs of a task.

    >>> sizes = {"a": 8, "b": 4}
    >>> tasks = [TaskPlan(TaskId("worker", n), host, tuple(range(sizes[host]))) for n, host in enumerate(sizes)]
    >>> _split_instead(tasks, {"worker": Ask("worker", 2)})
    '`gpus: split` without `replicas` for 3 tasks of 4 GPUs (no GPU is idle), or '
    """
    if "worker" not in wanted or not all(wanted[task.id.type].shares for task in tasks):
        return ""
    counts: dict[str, int] = {}
    for task in tasks:
        counts[task.host] = counts.get(task.host, 0) + len(task.gpus)
    each = gcd(*counts.values())
    parts = f"{counted(sum(counts.values()) // each, 'task')} of {counted(each, 'GPU')}"
    return f"`gpus: split` without `replicas` for {parts} (no GPU is idle), or "


def _unequal(tasks: Sequence[TaskPlan], wanted: Mapping[str, Ask]) -> list[NoPlacement]:
    mirrored = [task for task in tasks if task.id.type in COMPUTING_TYPES]
    if len({len(task.gpus) for task in mirrored}) <= 1:
        return []
    least = min(mirrored, key=lambda task: len(task.gpus))
    most = max(mirrored, key=lambda task: len(task.gpus))
    way_out = (
        f"write {_split_instead(mirrored, wanted)}`gpus: {len(least.gpus)}` for every task"
        if least.gpus
        else f"take {least.host} out, or give it GPUs"
    )
    return [
        NoPlacement(
            "unequal",
            most.id.type,
            f"mirrored tasks need equal GPU counts: {most.id} on {most.host} would have {len(most.gpus)}, and "
            f"{least.id} on {least.host} {len(least.gpus)}; {way_out}",
        )
    ]

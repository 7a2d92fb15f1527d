"""Chooses the host and the GPUs of each task. Pure: the same input gives the same places.

Rules:
- A host holds as many tasks as it has slots; a spare host holds none. What others hold of a host is not given away.
- A type of task goes only to the hosts that it names, that have its labels, and on which as many GPUs have its memory.
- Tasks spread: the next one goes where the fewest of them are, and there where the fewest GPUs are left over. With
  `together` they take as few hosts as possible; with `together: false` a host holds one of them at most. Then the
  tasks of a type are numbered in the order of the hosts, so that neighbours in a ring share a machine where they can.
- A task's GPUs come from its host's list, in order, and no two tasks share one. A task that names no number gets an
  equal share of what its host has left (chief, worker), or none at all (ps, evaluator). For a share, a host must have
  all of its GPUs: half of a host that others use is not what was asked for.
- The tasks that ask for the most GPUs are placed first. For tasks that ask alike this finds a place whenever there is
  one; where it finds none for a mix on a few hosts, all ways are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import gcd, inf
from types import MappingProxyType

from orchestrator.core.plan import TASK_TYPES, Ask, Gpu, HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.words import counted, listed, size

COMPUTING_TYPES = ("chief", "worker")
"""Task types that share their host's GPUs when the spec names no number, and that must be equal when mirrored."""

_SEARCHED_HOSTS_MAX, _SEARCH_STEPS_MAX = 32, 20_000
"""Up to how many hosts all ways are tried, and how many steps that may take."""


@dataclass(frozen=True, slots=True)
class NoPlacement:
    """Why there is no placement. `kind` is slots, gpus, unequal or hosts; `task_type` is who has the problem."""

    kind: str
    task_type: str
    message: str


@dataclass(frozen=True, slots=True)
class Occupied:
    """What others have of a host, each with who that is, and what is known of it."""

    gpus: Mapping[Gpu, str] = field(default_factory=dict)
    slots: Mapping[int, str] = field(default_factory=dict)
    """By number, of a host whose slots count over all runs."""
    tasks: int = 0
    """How many tasks of other runs of this head node are there."""
    why: str = ""
    """Why it gets no task at all; empty if it may."""
    gpu_bytes: Mapping[Gpu, int] = field(default_factory=dict)
    """The memory of GPUs, as the driver says. A GPU of which it says nothing may have any."""
    memory_bytes: float = inf
    """The memory that is free, as the kernel says, without what runs that have begun asked for."""
    has_been: bool = False
    """Whether an earlier run of the same name was there: its code, environment and data may still be."""


_FREE: Mapping[str, Occupied] = MappingProxyType({})
_ALL_OF_IT = Occupied()


class _Room:
    """What is left of one host while tasks are placed on it."""

    __slots__ = (
        "_bytes",
        "_claims",
        "free",
        "host",
        "index",
        "is_new",
        "is_whole",
        "memory_left",
        "others",
        "slots",
        "taken",
        "unfit",
    )

    def __init__(self, index: int, host: HostPlan, occupied: Occupied) -> None:
        self.index = index
        self.host = host
        self.free: Sequence[Gpu] = host.gpus
        if occupied.gpus:
            self.free = [gpu for gpu in host.gpus if gpu not in occupied.gpus]
        self.is_whole = len(self.free) == len(host.gpus)
        self.slots = host.slots
        if host.tasks_max is not None and occupied.slots:
            self.slots = min(host.slots, len(_free_slots(host, occupied)))
        self.others = occupied.tasks
        self.is_new = not occupied.has_been
        self.taken: list[Ask] = []
        self._bytes = occupied.gpu_bytes
        self.memory_left = occupied.memory_bytes
        self._claims = 0

    @property
    def gpus_left(self) -> int:
        """Return how many GPUs no task has claimed."""
        return len(self.free) - self._claims

    def fits(self, ask: Ask) -> bool:
        """Return whether one more task of this request has room."""
        if len(self.taken) >= self.slots or self.gpus_left < ask.needs:
            return False
        if ask.shares and not self.is_whole:
            return False
        if ask.together is False and ask in self.taken:
            return False
        return not (ask.is_particular and not self._suits(ask))

    def _suits(self, ask: Ask) -> bool:
        if (ask.on and self.host.name not in ask.on) or not set(ask.labels) <= set(self.host.labels):
            return False
        if ask.memory_bytes is not None and ask.memory_bytes > self.memory_left:
            return False
        return ask.gpu_bytes is None or self._has_memory([*self.taken, ask])

    def _has_memory(self, asks: Sequence[Ask]) -> bool:
        """Return whether the GPUs suffice, where some tasks ask for memory: those can take only a part of them."""
        wanted = {ask.gpu_bytes for ask in asks if ask.gpu_bytes is not None}
        return all(
            sum(ask.needs for ask in asks if (ask.gpu_bytes or 0) >= least)
            <= sum(self.bytes_of(gpu) >= least for gpu in self.free)
            for least in wanted
        )

    def bytes_of(self, gpu: Gpu) -> float:
        """Return the memory of a GPU, as far as known."""
        return self._bytes.get(gpu, float("inf"))

    def take(self, ask: Ask) -> None:
        """Place one task here."""
        self.taken.append(ask)
        self._claims += ask.needs
        self.memory_left -= ask.memory_bytes or 0

    def give_back(self) -> None:
        """Undo the last `take`."""
        ask = self.taken.pop()
        self._claims -= ask.needs
        self.memory_left += ask.memory_bytes or 0

    def rank(self, ask: Ask) -> tuple[int, int, int, bool, int]:
        """Return the order in which hosts are chosen for the next task; the lowest is first."""
        left = self.gpus_left
        # Of hosts with equally many GPUs left over, the one of many small tasks: that of a few large ones is soon whole
        others = -self.others if ask.needs else self.others
        return (
            len(self.taken),
            left == 0 if ask.shares else left - ask.needs,
            others,
            self.is_new,
            self.index,
        )

    def holds(self, ask: Ask, most: int) -> int:
        """Return how many tasks of this request it could take, up to `most`."""
        if not ask.asks_host and ask.together is not False:
            room = self.slots - len(self.taken) if self.fits(ask) else 0
            return min(most, room, self.gpus_left // ask.needs if ask.needs else room)
        count = 0
        while count < most and self.fits(ask):
            self.take(ask)
            count += 1
        for _ in range(count):
            self.give_back()
        return count


def place(
    hosts: Sequence[HostPlan],
    asks: Iterable[Ask],
    *,
    equal_gpus: bool,
    occupied: Mapping[str, Occupied] = _FREE,
) -> tuple[tuple[TaskPlan, ...], tuple[NoPlacement, ...]]:
    """Return the tasks with their places, in the order of their ids; or no task, and every problem found.

    Args:
        hosts: all that may be used.
        asks: what is asked for, one for each type.
        equal_gpus: whether chief and workers must have equally many GPUs.
        occupied: what others have, by the name of the host; nothing of a host that it lacks.
    """
    wanted = {ask.type: ask for ask in sorted(asks, key=lambda ask: TASK_TYPES.index(ask.type))}
    rooms = [
        _Room(i, host, there)
        for i, host in enumerate(hosts)
        if not host.spare and not (there := occupied.get(host.name, _ALL_OF_IT)).why
    ]
    problems = _too_many(rooms, wanted) or _too_hungry(rooms, wanted)
    problems = problems or _fill(rooms, wanted)
    if problems:
        return (), tuple(problems)
    tasks = _hand_out(rooms, wanted, occupied)
    unequal = _unequal(tasks, wanted) if equal_gpus else []
    if not unequal:
        return tasks, ()
    for count in sorted({len(host.gpus) for host in hosts}, reverse=True) if occupied else ():
        alike = [host for host in hosts if len(host.gpus) == count]
        if len(alike) < len(hosts):
            tasks, _ = place(alike, wanted.values(), equal_gpus=True, occupied=occupied)
            if tasks:
                return tasks, ()
    return (), tuple(unequal)


def against(host: HostPlan, asks: Iterable[Ask], occupied: Occupied) -> str:
    """Return why a host that holds none of the tasks could take none of them; empty if it could."""
    name = host.name
    if host.spare:
        return f"{name} is a spare"
    if occupied.why:
        return f"{name} {occupied.why}"
    room = _Room(0, host, occupied)
    asks = tuple(asks)
    if any(room.fits(ask) for ask in asks):
        return ""
    if all(ask.on and host.name not in ask.on for ask in asks):
        return f"{name} is not among the hosts of `on:`"
    if all(not set(ask.labels) <= set(host.labels) for ask in asks):
        return f"{name} lacks the labels of `on:`"
    holders = [
        f"GPU {gpu} of {name} is held by {occupied.gpus[gpu]}" for gpu in host.gpus if gpu in occupied.gpus
    ]
    if room.slots <= 0:
        holders = [
            f"slot {number} of {name} is held by {who}" for number, who in sorted(occupied.slots.items())
        ]
    if all((ask.memory_bytes or 0) > room.memory_left for ask in asks):
        holders.append(f"{name} has {size(max(0.0, room.memory_left))} of memory left")
    return "; ".join(holders) or f"{name} has {counted(len(host.gpus), 'GPU')} that could serve"


def assigned(plan: Plan, replacements: Mapping[str, str | None]) -> tuple[TaskPlan, ...]:
    """Return the plan's tasks with their present hosts, in the order of their ids.

    A stand-in takes all the tasks of the host that it replaces. The first of its GPUs is that task's which has the
    first GPU there that any task has, and so on.
    Where nobody does, the rest of their type is numbered anew from 0: TensorFlow knows no gaps.
    """
    numbered = dict.fromkeys(TASK_TYPES, 0)
    tasks = []
    for task in sorted(plan.tasks, key=lambda task: task.id):
        name = replacements.get(task.host, task.host)
        if name is None:
            continue
        gpus, slot = task.gpus, task.host_slot
        if name != task.host:
            there, own = plan.host(name), used_gpus(plan, task.host)
            gpus = tuple(there.gpus[own.index(gpu)] for gpu in task.gpus)
            slot = there.host_slots[task.slot] if there.host_slots else None
        tasks.append(TaskPlan(TaskId(task.id.type, numbered[task.id.type]), name, gpus, task.slot, slot))
        numbered[task.id.type] += 1
    return tuple(tasks)


def has_room(plan: Plan, capacity: str, host: str) -> bool:
    """Return whether a host could take all the tasks that the plan gives to another."""
    tasks, other = [task for task in plan.tasks if task.host == capacity], plan.host(host)
    is_large = other.slots >= len(tasks) and len(other.gpus) >= len(used_gpus(plan, capacity))
    return capacity == host or is_large


def used_gpus(plan: Plan, host: str) -> list[Gpu]:
    """Return the GPUs of a host that its tasks of this plan have, in the order of its list."""
    used = {gpu for task in plan.tasks if task.host == host for gpu in task.gpus}
    return [gpu for gpu in plan.host(host).gpus if gpu in used]


def _free_slots(host: HostPlan, occupied: Occupied) -> list[int]:
    return [number for number in range(host.tasks_max or 0) if number not in occupied.slots]


def _too_many(rooms: Sequence[_Room], wanted: Mapping[str, Ask]) -> list[NoPlacement]:
    tasks = sum(ask.replicas for ask in wanted.values())
    slots = sum(room.slots for room in rooms)
    if tasks <= slots:
        return []
    most = max(wanted.values(), key=lambda ask: ask.replicas)
    have = listed([f"{room.host.name} {room.slots}" for room in rooms])
    return [
        NoPlacement(
            "slots",
            most.type,
            f"{counted(tasks, 'task')} for {counted(slots, 'slot')} ({have or 'every host is a spare'}); "
            "a host holds one task unless its `slots` says more, and a spare holds none",
        )
    ]


def _too_hungry(rooms: Sequence[_Room], wanted: Mapping[str, Ask]) -> list[NoPlacement]:
    """Return a problem where a task asks for more GPUs than any host has, or no host suits it."""
    most = max(rooms, key=lambda room: len(room.free), default=None)
    if most is None:
        return []
    hungry = [
        NoPlacement(
            "gpus",
            ask.type,
            f"each {ask.type} wants {counted(ask.needs, 'GPU')}, and no host has that many "
            f"(the most is {len(most.free)}, on {most.host.name})",
        )
        for ask in wanted.values()
        if ask.needs > len(most.free)
    ]
    lost = [
        NoPlacement("hosts", ask.type, f"no host suits the {ask.type}: {particular(ask)}")
        for ask in wanted.values()
        if ask.is_particular and ask.needs <= len(most.free) and not any(room.fits(ask) for room in rooms)
    ]
    return hungry + lost


def in_words(asks: Iterable[Ask]) -> str:
    """Return what is asked for, for people.

    >>> in_words([Ask("chief", 1), Ask("worker", 2, 4, labels=(("gpu", "a100"),))])
    '1 chief, 2 workers with 4 GPUs each (`on: {gpu: a100}`)'
    """
    words = []
    for ask in asks:
        gpus = f" with {counted(ask.needs, 'GPU')}" + " each" * (ask.replicas > 1) if ask.needs else ""
        words.append(
            counted(ask.replicas, ask.type) + gpus + (f" ({particular(ask)})" if ask.is_particular else "")
        )
    return listed(words)


def particular(ask: Ask) -> str:
    """Return what a request asks of its hosts besides GPUs and slots, in the words of the spec."""
    words = [f"`on: [{', '.join(ask.on)}]`"] if ask.on else []
    words += [f"`on: {{{', '.join(f'{key}: {value}' for key, value in ask.labels)}}}`"] if ask.labels else []
    words += [f"`gpu_memory` of {size(ask.gpu_bytes)}"] if ask.gpu_bytes is not None else []
    words += [f"`memory` of {size(ask.memory_bytes)}"] if ask.memory_bytes is not None else []
    return listed(words) or "`together: false`"


def _fill(rooms: Sequence[_Room], wanted: Mapping[str, Ask]) -> list[NoPlacement]:
    """Choose a host for each task: those with the most GPUs first, then those that share, then those without GPUs."""
    problems = []
    order = sorted(wanted.values(), key=lambda ask: (-ask.needs, not ask.shares))
    for ask in order:
        put = (_gather if ask.together else _spread)(rooms, ask)
        if put < ask.replicas:
            problems.append(_no_room(rooms, ask, put))
    if problems and len(order) > 1 and len(rooms) <= _SEARCHED_HOSTS_MAX:
        for room in rooms:
            while room.taken:
                room.give_back()
        if _search(rooms, order, [_SEARCH_STEPS_MAX]):
            return []
    return problems


def _spread(rooms: Sequence[_Room], ask: Ask) -> int:
    """Place the tasks of a request, each where the fewest are and the least is left over. Return how many have room."""
    waiting = [(room.rank(ask), room) for room in rooms if room.fits(ask)]
    heapify(waiting)
    for put in range(ask.replicas):
        if not waiting:
            return put
        _, room = heappop(waiting)
        room.take(ask)
        if room.fits(ask):
            heappush(waiting, (room.rank(ask), room))
    return ask.replicas


def _gather(rooms: Sequence[_Room], ask: Ask) -> int:
    """Place the tasks of a request on as few hosts as possible. Return how many have room."""
    left = ask.replicas
    able = [(-room.holds(ask, left), room.rank(ask), room) for room in rooms if room.fits(ask)]
    heapify(able)
    while left and able:
        enough = [(rank, room) for holds, rank, room in able if -holds >= left]
        _, room = min(enough) if enough else heappop(able)[1:]
        put = left if enough else room.holds(ask, left)
        for _ in range(put):
            room.take(ask)
        left -= put
    return ask.replicas - left


def _search(
    rooms: Sequence[_Room], asks: Sequence[Ask], steps: list[int], at: int = 0, left: int = -1
) -> bool:
    """Place all requests, whatever way there is. Return whether there is one that was found in so many steps."""
    if not asks:
        return True
    ask, left = asks[0], asks[0].replicas if left < 0 else left
    if left == 0:
        return _search(rooms, asks[1:], steps)
    steps[0] -= 1
    if at == len(rooms) or steps[0] < 0:
        return False
    room = rooms[at]
    most = room.holds(ask, left)
    for _ in range(most):
        room.take(ask)
    for count in range(most, -1, -1):
        if _search(rooms, asks, steps, at + 1, left - count):
            return True
        if count:
            room.give_back()
    return False


def _no_room(rooms: Sequence[_Room], ask: Ask, placed: int) -> NoPlacement:
    left = [
        f"{room.host.name} has {counted(room.slots - len(room.taken), 'slot')} and "
        f"{counted(room.gpus_left, 'GPU')} left"
        for room in rooms
        if len(room.taken) < room.slots
    ]
    suits = f" on hosts that suit them ({particular(ask)})" if ask.is_particular else ""
    return NoPlacement(
        "gpus",
        ask.type,
        f"only {placed} of {counted(ask.replicas, ask.type)} with {counted(ask.needs, 'GPU')} each find room{suits}: "
        f"{listed(left) or 'no slot is left'}",
    )


def _hand_out(
    rooms: Sequence[_Room], wanted: Mapping[str, Ask], occupied: Mapping[str, Occupied]
) -> tuple[TaskPlan, ...]:
    """Assign numbers to the tasks in the order of the hosts, and GPUs to each."""
    numbered: dict[str, int] = dict.fromkeys(wanted, 0)
    tasks: list[TaskPlan] = []
    for room in rooms:
        if not room.taken:
            continue
        sharing = sum(ask.shares for ask in room.taken)
        share = room.gpus_left // sharing if sharing else 0
        here = sorted(room.taken, key=lambda ask: TASK_TYPES.index(ask.type))
        given = _gpus_of(room, here, share)
        slots: Sequence[int | None] = [None] * len(here)
        if room.host.tasks_max is not None:
            slots = _free_slots(room.host, occupied.get(room.host.name, _ALL_OF_IT))
        for slot, ask in enumerate(here):
            task = TaskId(ask.type, numbered[ask.type])
            tasks.append(TaskPlan(task, room.host.name, given[slot], slot, slots[slot]))
            numbered[ask.type] += 1
    return tuple(sorted(tasks, key=lambda task: task.id))


def _gpus_of(room: _Room, asks: Sequence[Ask], share: int) -> list[tuple[Gpu, ...]]:
    """Return the GPUs of each task on a host: who asks for the most memory chooses first, and takes the smallest."""
    if all(ask.gpu_bytes is None for ask in asks):
        order, free = list(range(len(asks))), list(room.free)
    else:
        order = sorted(range(len(asks)), key=lambda number: -(asks[number].gpu_bytes or 0))
        free = sorted(room.free, key=room.bytes_of)
    given: list[tuple[Gpu, ...]] = [()] * len(asks)
    for number in order:
        ask = asks[number]
        count = share if ask.shares else ask.needs
        fitting = [gpu for gpu in free if room.bytes_of(gpu) >= ask.gpu_bytes] if ask.gpu_bytes else free
        given[number] = tuple(fitting[:count])
        free = [gpu for gpu in free if gpu not in given[number]]
    return given


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

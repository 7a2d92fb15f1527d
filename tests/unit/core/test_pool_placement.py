"""Placement on a pool of which others hold a part: brute force on small cases, what is asked for, and what it costs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product
from math import inf
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.launching.placement import Occupied, against, place
from orchestrator.core.plan import Ask, Gpu, HostPlan, TaskPlan


def host(name: str, gpus: int = 0, slots: int = 1, **more: Any) -> HostPlan:
    return HostPlan(name=name, gpus=tuple(range(gpus)), slots=slots, **more)


def held(*gpus: int, who: str = "x-1") -> Occupied:
    return Occupied(gpus=dict.fromkeys(gpus, who))


def hosts_of(tasks: Sequence[TaskPlan]) -> list[str]:
    return [task.host for task in tasks]


@st.composite
def pools(draw: st.DrawFn) -> tuple[tuple[HostPlan, ...], dict[str, Occupied]]:
    """Draw up to three hosts with up to three GPUs each, and what others have of them."""
    hosts, occupied = [], {}
    for i in range(draw(st.integers(1, 3))):
        gpus, slots = draw(st.integers(0, 3)), draw(st.integers(1, 3))
        counts = draw(st.booleans())
        labels = draw(st.sampled_from([(), (("gpu", "a"),), (("gpu", "b"),)]))
        hosts.append(
            HostPlan(
                f"h{i}",
                gpus=tuple(range(gpus)),
                slots=slots,
                tasks_max=slots if counts else None,
                labels=labels,
                spare=draw(st.sampled_from([False, False, False, True])),
            )
        )
        taken = draw(st.sets(st.integers(0, 2), max_size=2))
        filled = draw(st.sets(st.integers(0, slots - 1), max_size=slots)) if counts else set()
        occupied[f"h{i}"] = Occupied(
            gpus=dict.fromkeys([gpu for gpu in taken if gpu < gpus], "x-1"),
            slots=dict.fromkeys(filled, "x-1"),
            tasks=len(filled),
            why=draw(st.sampled_from(["", "", "", "drained"])),
            gpu_bytes={gpu: draw(st.sampled_from([16, 40])) for gpu in range(gpus)},
            memory_bytes=draw(st.sampled_from([inf, 100.0, 50.0])),
        )
    return tuple(hosts), occupied


@st.composite
def requests(draw: st.DrawFn) -> list[Ask]:
    types = draw(st.sets(st.sampled_from(["chief", "worker", "ps"]), min_size=1))
    return [
        Ask(
            type_,
            draw(st.integers(1, 3)),
            draw(st.integers(0, 2)),
            on=draw(st.sampled_from([(), (), ("h0",), ("h0", "h1")])),
            labels=draw(st.sampled_from([(), (), (("gpu", "a"),)])),
            gpu_bytes=draw(st.sampled_from([None, None, 40])),
            together=draw(st.sampled_from([None, True, False])),
            memory_bytes=draw(st.sampled_from([None, None, 40])),
        )
        for type_ in sorted(types)
    ]


def is_possible(hosts: Sequence[HostPlan], asks: Sequence[Ask], occupied: dict[str, Occupied]) -> bool:
    """Try every way to put so many tasks of each type on the hosts."""
    ways = [list(combinations_with_replacement(range(len(hosts)), ask.replicas)) for ask in asks]
    return any(
        all(fits(h, [ask for ask, way in zip(asks, chosen, strict=True) for at in way if at == i], occupied)
            for i, h in enumerate(hosts))
        for chosen in product(*ways)
    )  # fmt: skip


def fits(host: HostPlan, here: list[Ask], occupied: dict[str, Occupied]) -> bool:
    if not here:
        return True
    state = occupied[host.name]
    free = [gpu for gpu in host.gpus if gpu not in state.gpus]
    slots = host.slots if host.tasks_max is None else min(host.slots, host.tasks_max - len(state.slots))
    if host.spare or state.why or len(here) > slots or sum(ask.needs for ask in here) > len(free):
        return False
    if any(ask.on and host.name not in ask.on for ask in here):
        return False
    if any(not set(ask.labels) <= set(host.labels) for ask in here):
        return False
    if any(ask.together is False and here.count(ask) > 1 for ask in here):
        return False
    if sum(ask.memory_bytes or 0 for ask in here) > state.memory_bytes:
        return False
    large = sum(ask.needs for ask in here if ask.gpu_bytes)
    return large <= sum(state.gpu_bytes[gpu] >= 40 for gpu in free)


@settings(max_examples=200, deadline=None)
@given(pool=pools(), asks=requests())
def test_it_finds_a_place_wherever_a_brute_force_does_and_gives_nothing_away_twice(
    pool: tuple[tuple[HostPlan, ...], dict[str, Occupied]], asks: list[Ask]
) -> None:
    hosts, occupied = pool
    tasks, problems = place(hosts, asks, equal_gpus=False, occupied=occupied)
    assert bool(tasks) == is_possible(hosts, asks, occupied), problems
    assert bool(tasks) != bool(problems)
    by_name, wanted = {one.name: one for one in hosts}, {ask.type: ask for ask in asks}
    assert Counter(task.id.type for task in tasks) == (
        {ask.type: ask.replicas for ask in asks} if tasks else {}
    )
    for name in set(hosts_of(tasks)):
        here = [task for task in tasks if task.host == name]
        assert fits(by_name[name], [wanted[task.id.type] for task in here], occupied)
        leases: list[Gpu] = [each for task in here for each in task.leases]
        assert len(leases) == len(set(leases))
        assert not occupied[name].gpus.keys() & set(leases)
        assert all(f"slot-{number}" not in leases for number in occupied[name].slots)
        counts = by_name[name].tasks_max is not None
        assert all((task.host_slot is not None) == counts for task in here)
        for task in here:
            least = wanted[task.id.type].gpu_bytes or 0
            assert all(occupied[name].gpu_bytes[gpu] >= least for gpu in task.gpus if isinstance(gpu, int))


@settings(max_examples=100, deadline=None)
@given(pool=pools(), asks=requests(), equal=st.booleans())
def test_where_all_is_free_the_places_are_those_of_a_file_alone(
    pool: tuple[tuple[HostPlan, ...], dict[str, Occupied]], asks: list[Ask], equal: bool
) -> None:
    hosts, _ = pool
    alone = place(hosts, asks, equal_gpus=equal)
    assert place(hosts, asks, equal_gpus=equal, occupied={h.name: Occupied() for h in hosts})[0] == alone[0]


def test_a_second_run_goes_to_a_free_host_and_to_the_one_where_the_fewest_gpus_are_left_over() -> None:
    three = [host("a"), host("b"), host("c")]
    tasks, _ = place(three, [Ask("worker", 1)], equal_gpus=True, occupied={"a": Occupied(tasks=1)})
    assert hosts_of(tasks) == ["b"]
    four = [host("a", 4), host("b", 4), host("c", 2)]
    busy = {"a": held(0, 1, 3)}
    tasks, _ = place(four, [Ask("worker", 1, 1)], equal_gpus=True, occupied=busy)
    assert [(task.host, task.gpus) for task in tasks] == [("a", (2,))]
    tasks, _ = place(four, [Ask("worker", 1, 2)], equal_gpus=True, occupied=busy)
    assert hosts_of(tasks) == ["c"]


def test_a_share_is_of_a_whole_host_and_shares_are_equal() -> None:
    pool = [host("a", 4), host("b", 8), host("c", 4), host("d", 8)]
    tasks, _ = place(pool, [Ask("worker", 2)], equal_gpus=True, occupied={"c": held(1)})
    assert hosts_of(tasks) == ["b", "d"], "a alone of its kind is free, and half of c is no host"


def test_together_takes_few_hosts_and_one_a_host_takes_many() -> None:
    pool = [host("a", 2, 2), host("b", 4, 4), host("c", 8, 8)]
    assert hosts_of(place(pool, [Ask("worker", 4, 1, together=True)], equal_gpus=True)[0]) == ["b"] * 4
    assert hosts_of(place(pool, [Ask("worker", 3, 1, together=False)], equal_gpus=True)[0]) == ["a", "b", "c"]
    assert not place(pool, [Ask("worker", 4, 1, together=False)], equal_gpus=True)[0]


def test_who_asks_for_memory_takes_the_smallest_gpu_that_has_it() -> None:
    pool, known = [host("a", 3, 2)], {"a": Occupied(gpu_bytes={0: 80, 1: 16, 2: 40})}
    asks = [Ask("chief", 1, 1, gpu_bytes=40), Ask("worker", 1, 1)]
    tasks, _ = place(pool, asks, equal_gpus=True, occupied=known)
    assert [task.gpus for task in tasks] == [(2,), (1,)]


def reasons() -> Iterator[tuple[HostPlan, Ask, Occupied, str]]:
    need = Ask("worker", 1, 2)
    yield host("a", 2, spare=True), need, Occupied(), "a is a spare"
    yield host("a", 2), need, Occupied(why="is drained by ada"), "a is drained by ada"
    yield host("a", 2), need, held(1), "GPU 1 of a is held by x-1"
    yield host("a", 1), need, Occupied(), "a has 1 GPU that could serve"
    yield host("a", 2), need, Occupied(), ""
    yield host("a", 2), Ask("worker", 1, 1, on=("b",)), Occupied(), "a is not among the hosts of `on:`"
    small = Occupied(memory_bytes=3.0 * (1 << 30))
    yield host("a"), Ask("worker", 1, memory_bytes=4 << 30), small, "a has 3.0 GiB of memory left"
    yield host("a", tasks_max=1), Ask("worker", 1), Occupied(slots={0: "y-1"}), "slot 0 of a is held by y-1"


@pytest.mark.parametrize(("of", "need", "occupied", "why"), list(reasons()))
def test_the_reason_against_a_host_is_told(of: HostPlan, need: Ask, occupied: Occupied, why: str) -> None:
    assert against(of, [need], occupied) == why


def calls_of(hosts: int, replicas: int) -> int:
    """Return how many Python functions a placement calls, which is the same on every machine."""
    pool = [host(f"h{i}", 8, 8) for i in range(hosts)]
    busy = {f"h{i}": held(*range(i % 8)) for i in range(0, hosts, 2)}
    count = 0

    def called(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal count
        count += what == "call"

    sys.setprofile(called)
    try:
        tasks, _ = place(pool, [Ask("worker", replicas, 2)], equal_gpus=True, occupied=busy)
    finally:
        sys.setprofile(None)
    assert len(tasks) == replicas
    return count


def test_the_cost_grows_with_the_hosts_and_the_tasks_and_not_with_their_product() -> None:
    small, large = calls_of(100, 50), calls_of(1000, 500)
    assert large < 12 * small
    assert calls_of(1000, 16) < 30_000, "about 10 ms"

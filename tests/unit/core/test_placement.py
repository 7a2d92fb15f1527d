"""Placement: invariants over many clusters, and the cases that people meet."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.launching.placement import NoPlacement, place
from orchestrator.core.plan import Ask, Gpu, HostPlan, TaskId, TaskPlan


def host(name: str, gpus: int = 0, slots: int = 1, *, spare: bool = False) -> HostPlan:
    return HostPlan(name=name, gpus=tuple(range(gpus)), slots=slots, spare=spare)


def places(tasks: tuple[TaskPlan, ...]) -> dict[str, tuple[str, tuple[Gpu, ...], int]]:
    return {str(task.id): (task.host, task.gpus, task.slot) for task in tasks}


HOSTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 15), unique=True, max_size=8),
        st.integers(1, 4),
        st.sampled_from([0, 0, 0, 1]),
    ),
    max_size=6,
).map(
    lambda drawn: tuple(
        HostPlan(name=f"h{i}", gpus=tuple(gpus), slots=slots, spare=bool(spare))
        for i, (gpus, slots, spare) in enumerate(drawn)
    )
)
ASKS = st.dictionaries(
    st.sampled_from(["chief", "worker", "ps", "evaluator"]),
    st.tuples(st.integers(1, 6), st.none() | st.integers(0, 8)),
    min_size=1,
).map(lambda drawn: [Ask(type_, replicas, gpus) for type_, (replicas, gpus) in drawn.items()])


@settings(max_examples=400, deadline=None)
@given(hosts=HOSTS, asks=ASKS, equal_gpus=st.booleans())
def test_a_placement_keeps_every_promise_or_says_why_there_is_none(
    hosts: tuple[HostPlan, ...], asks: list[Ask], equal_gpus: bool
) -> None:
    tasks, problems = place(hosts, asks, equal_gpus=equal_gpus)
    assert bool(tasks) != bool(problems)
    assert (tasks, problems) == place(hosts, list(reversed(asks)), equal_gpus=equal_gpus)
    if problems:
        assert all(problem.task_type in {ask.type for ask in asks} for problem in problems)
        return
    assert [task.id for task in tasks] == sorted(
        TaskId(ask.type, i) for ask in asks for i in range(ask.replicas)
    )
    by_name = {h.name: h for h in hosts}
    for name, held in Counter(task.host for task in tasks).items():
        here = [task for task in tasks if task.host == name]
        assert not by_name[name].spare
        assert held <= by_name[name].slots
        assert [task.slot for task in here] == list(range(held))
        taken = [gpu for task in here for gpu in task.gpus]
        assert len(taken) == len(set(taken))
        assert taken == list(by_name[name].gpus[: len(taken)])
    for ask in asks:
        counts = [len(task.gpus) for task in tasks if task.id.type == ask.type]
        if ask.gpus is not None:
            assert set(counts) == {ask.gpus}
        elif ask.type in ("ps", "evaluator"):
            assert set(counts) == {0}
    if equal_gpus:
        assert len({len(t.gpus) for t in tasks if t.id.type in ("chief", "worker")}) <= 1


@settings(max_examples=300, deadline=None)
@given(hosts=HOSTS, replicas=st.integers(1, 12), gpus=st.integers(0, 4))
def test_tasks_that_ask_alike_find_a_place_whenever_there_is_one(
    hosts: tuple[HostPlan, ...], replicas: int, gpus: int
) -> None:
    room = sum(min(h.slots, len(h.gpus) // gpus if gpus else h.slots) for h in hosts if not h.spare)
    tasks, _ = place(hosts, [Ask("worker", replicas, gpus)], equal_gpus=True)
    assert len(tasks) == (replicas if replicas <= room else 0)


def test_each_worker_gets_a_host_and_all_its_gpus() -> None:
    tasks, _ = place([host("a", 4), host("b", 4)], [Ask("worker", 2)], equal_gpus=True)
    assert places(tasks) == {"worker:0": ("a", (0, 1, 2, 3), 0), "worker:1": ("b", (0, 1, 2, 3), 0)}


def test_workers_on_one_host_share_its_gpus_in_order() -> None:
    tasks, _ = place([HostPlan(name="a", gpus=(5, 1, 3), slots=2)], [Ask("worker", 2)], equal_gpus=True)
    assert places(tasks) == {"worker:0": ("a", (5,), 0), "worker:1": ("a", (1,), 1)}


def test_tasks_spread_and_neighbours_share_a_host() -> None:
    hosts = [host("a", 4, slots=2), host("b", 4, slots=2), host("c", 4, slots=2)]
    tasks, _ = place(hosts, [Ask("worker", 4, 2)], equal_gpus=True)
    assert [task.host for task in tasks] == ["a", "a", "b", "c"]


def test_a_ps_and_an_evaluator_take_no_gpu_from_the_workers() -> None:
    hosts = [host("a", 4, slots=2), host("b", 4), host("c", 0)]
    tasks, _ = place(hosts, [Ask("worker", 2), Ask("ps", 1), Ask("evaluator", 1)], equal_gpus=False)
    assert places(tasks) == {
        "worker:0": ("a", (0, 1, 2, 3), 0),
        "worker:1": ("b", (0, 1, 2, 3), 0),
        "ps:0": ("c", (), 0),
        "evaluator:0": ("a", (), 1),
    }


def test_the_hungriest_goes_first_to_where_least_is_left() -> None:
    hosts = [host("a", 6, slots=3), host("b", 4)]
    tasks, _ = place(hosts, [Ask("chief", 1, 4), Ask("worker", 3, 2)], equal_gpus=False)
    assert [(str(task.id), task.host) for task in tasks] == [
        ("chief:0", "b"),
        ("worker:0", "a"),
        ("worker:1", "a"),
        ("worker:2", "a"),
    ]


PROBLEMS = {
    "slots": (
        [host("a"), host("b", slots=2), host("c", spare=True)],
        [Ask("worker", 4)],
        NoPlacement(
            "slots",
            "worker",
            "4 tasks for 3 slots (a 1, b 2); a host holds one task unless its `slots` says more, "
            "and a spare holds none",
        ),
    ),
    "no hosts": (
        [],
        [Ask("worker", 1)],
        NoPlacement(
            "slots",
            "worker",
            "1 task for 0 slots (every host is a spare); a host holds one task unless its `slots` says more, "
            "and a spare holds none",
        ),
    ),
    "many hosts": (
        [host(f"h{i}") for i in range(8)],
        [Ask("worker", 9)],
        NoPlacement(
            "slots",
            "worker",
            "9 tasks for 8 slots (h0 1, h1 1, h2 1, h3 1, h4 1, h5 1, and 2 more); a host holds one task "
            "unless its `slots` says more, and a spare holds none",
        ),
    ),
    "gpus": (
        [host("a", 2), host("b", 4)],
        [Ask("worker", 1, 8)],
        NoPlacement(
            "gpus", "worker", "each worker wants 8 GPUs, and no host has that many (the most is 4, on b)"
        ),
    ),
    "gpus left": (
        [host("a", 4, slots=3)],
        [Ask("worker", 3, 2)],
        NoPlacement(
            "gpus", "worker", "only 2 of 3 workers with 2 GPUs each find room: a has 1 slot and 0 GPUs left"
        ),
    ),
    "unequal": (
        [host("a", 4), host("b", 2)],
        [Ask("worker", 2)],
        NoPlacement(
            "unequal",
            "worker",
            "mirrored tasks need equal GPU counts: worker:0 on a would have 4, and worker:1 on b 2; "
            "write `gpus: split` without `replicas` for 3 tasks of 2 GPUs (no GPU is idle), or `gpus: 2` for "
            "every task",
        ),
    ),
    "unequal by the spec's own numbers": (
        [host("a", 3), host("b", 2)],
        [Ask("chief", 1, 3), Ask("worker", 1)],
        NoPlacement(
            "unequal",
            "chief",
            "mirrored tasks need equal GPU counts: chief:0 on a would have 3, and worker:0 on b 2; "
            "write `gpus: 2` for every task",
        ),
    ),
    "unequal to none": (
        [host("a", 4), host("b")],
        [Ask("worker", 2)],
        NoPlacement(
            "unequal",
            "worker",
            "mirrored tasks need equal GPU counts: worker:0 on a would have 4, and worker:1 on b 0; "
            "take b out, or give it GPUs",
        ),
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_cannot_be_placed_is_said_with_the_way_out(case: str) -> None:
    hosts, asks, problem = PROBLEMS[case]
    assert place(hosts, asks, equal_gpus=True) == ((), (problem,))


def test_unequal_gpus_are_fine_where_nothing_is_mirrored() -> None:
    tasks, problems = place([host("a", 4), host("b", 2)], [Ask("worker", 2)], equal_gpus=False)
    assert problems == ()
    assert [len(task.gpus) for task in tasks] == [4, 2]


def test_a_thousand_hosts_are_placed() -> None:
    tasks, _ = place([host(f"h{i}", 8) for i in range(1000)], [Ask("worker", 1000)], equal_gpus=True)
    assert [task.host for task in tasks] == [f"h{i}" for i in range(1000)]

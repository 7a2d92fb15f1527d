"""`gpus: split`: invariants over many clusters, and the machine that has twice as many GPUs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.launching.placement import place
from orchestrator.core.plan import Ask, HostPlan
from orchestrator.spec.gpu_split import split


def host(name: str, gpus: int = 0, slots: int = 1, *, spare: bool = False) -> HostPlan:
    return HostPlan(name=name, gpus=tuple(range(gpus)), slots=slots, spare=spare)


WORKERS = Ask("worker", 1, split=True)


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(1, 3), st.booleans()), max_size=6), st.booleans())
def test_every_gpu_has_a_task_and_all_tasks_have_equally_many(
    drawn: list[tuple[int, int, bool]], chief: bool
) -> None:
    hosts = [host(f"h{i}", gpus, slots, spare=spare) for i, (gpus, slots, spare) in enumerate(drawn)]
    asks = [*([Ask("chief", 1)] if chief else []), WORKERS]
    cut, wanted, problems = split(hosts, asks)
    if problems:
        assert (cut, wanted) == (tuple(hosts), tuple(asks))
        return
    tasks, problems = place(cut, wanted, equal_gpus=True)
    assert problems == ()
    assert len({len(task.gpus) for task in tasks}) == 1
    used = {(task.host, gpu) for task in tasks for gpu in task.gpus}
    assert used == {(h.name, gpu) for h in hosts if not h.spare for gpu in h.gpus}


def test_a_machine_with_twice_the_gpus_has_two_tasks_and_a_spare_can_replace_it() -> None:
    hosts, asks, _ = split([host("a", 8), host("b", 4), host("c", 8, spare=True)], [WORKERS])
    tasks, _ = place(hosts, asks, equal_gpus=True)
    assert [(task.host, task.gpus) for task in tasks] == [
        ("a", (0, 1, 2, 3)),
        ("a", (4, 5, 6, 7)),
        ("b", (0, 1, 2, 3)),
    ]
    assert [h.slots for h in hosts] == [2, 1, 2]


def test_an_evaluator_and_a_host_without_gpus_are_left_as_they_are() -> None:
    hosts, asks, _ = split([host("a", 2), host("b", 4), host("c", slots=3)], [WORKERS, Ask("evaluator", 1)])
    tasks, _ = place(hosts, asks, equal_gpus=True)
    assert [(str(task.id), task.host, len(task.gpus)) for task in tasks] == [
        ("worker:0", "a", 2),
        ("worker:1", "b", 2),
        ("worker:2", "b", 2),
        ("evaluator:0", "c", 0),
    ]


def test_a_chief_takes_one_part_and_must_leave_one() -> None:
    hosts, asks, _ = split([host("a", 4), host("b", 2)], [Ask("chief", 1), WORKERS])
    assert [(ask.type, ask.replicas, ask.gpus) for ask in asks] == [("chief", 1, 2), ("worker", 2, 2)]
    assert [h.slots for h in hosts] == [2, 1]
    _, _, (problem,) = split([host("a", 4)], [Ask("chief", 1), WORKERS])
    assert "1 task of 4 GPUs, and with 1 chief no worker is left" in problem.message


def test_without_split_nothing_is_changed() -> None:
    hosts, asks = (host("a", 8), host("b", 4)), (Ask("worker", 2, 4),)
    assert split(hosts, asks) == (hosts, asks, ())

"""Who holds the tasks: what `assigned` and `next_assignment` promise, over many clusters and states of their hosts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.decide import step
from orchestrator.core.events import HostReported
from orchestrator.core.hosts.slots import fewer, is_better, next_assignment, why_not_drained
from orchestrator.core.launching.environment import port_candidates, ports_needed
from orchestrator.core.launching.placement import assigned, has_room, place
from orchestrator.core.plan import Ask, HostPlan, Plan, TaskId, Timing
from orchestrator.core.state.host import Facts, HostState, Link, Unkillable
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from tests.unit.core.phases import in_phase

FACTS = Facts(python="3.11.2", versions={"tensorflow": "2.21.0"}, code="c0de")


def plan_of(workers: int, spares: int = 0, *, gpus: int = 0, fewest: int | None = None) -> Plan:
    names = [f"h{i}" for i in range(workers)] + [f"s{i}" for i in range(spares)]
    hosts = tuple(
        HostPlan(name, data_address=f"10.0.0.{i}", gpus=tuple(range(gpus)), spare=name.startswith("s"))
        for i, name in enumerate(names)
    )
    tasks, problems = place(hosts, [Ask("worker", workers)], equal_gpus=True)
    assert not problems
    return Plan(
        name="t",
        strategy="multi_worker_mirrored",
        hosts=hosts,
        tasks=tasks,
        script="train.py",
        replicas_min={} if fewest is None else {"worker": fewest},
        timing=Timing(),
    )


def run_of(plan: Plan, **states: HostState) -> Run:
    """All are there and ready, but for those that are named."""
    run = new_run("t", plan, epoch=1, at=0.0)
    hosts = tuple(
        replace(
            host,
            link=Link.CONNECTED,
            facts=FACTS,
            state=states.get(host.name, HostState.OPEN),
        )
        for host in run.hosts
    )
    return in_phase(replace(run, hosts=hosts), Phase.BACKOFF)


@settings(deadline=None)
@given(workers=st.integers(1, 5), spares=st.integers(0, 3), gpus=st.integers(0, 3), data=st.data())
def test_wherever_the_tasks_are_they_are_dense_and_share_no_gpu(
    workers: int, spares: int, gpus: int, data: st.DataObject
) -> None:
    plan = plan_of(workers, spares, gpus=gpus)
    assignees = data.draw(st.permutations([host.name for host in plan.hosts]))
    replacements: dict[str, str | None] = dict(zip(plan.hosts_used, assignees, strict=False))
    for slot in data.draw(st.sets(st.sampled_from(plan.hosts_used), max_size=workers - 1)):
        replacements[slot] = None
    tasks = assigned(plan, replacements)
    assert [task.id.index for task in tasks] == list(range(len(tasks)))
    assert len(tasks) == sum(assignee is not None for assignee in replacements.values())
    held = Counter((task.host, gpu) for task in tasks for gpu in task.gpus)
    assert set(held.values()) <= {1}
    assert all(set(task.gpus) <= set(plan.host(task.host).gpus) for task in tasks)
    assert {len(task.gpus) for task in tasks} <= {gpus}


@settings(deadline=None)
@given(spare_ports=st.integers(0, 60), generation=st.integers(1, 1000), data=st.data())
def test_tasks_that_move_take_no_port_of_the_generation_before(
    spare_ports: int, generation: int, data: st.DataObject
) -> None:
    hosts = tuple(HostPlan(f"h{i}", data_address="10.0.0.1", slots=2, spare=i > 1) for i in range(3))
    tasks, _ = place(hosts, [Ask("worker", 3)], equal_gpus=True)
    plan = Plan(name="t", strategy="multi_worker_mirrored", hosts=hosts, tasks=tasks, script="train.py")
    plan = replace(plan, ports=(20000, 20000 + 4 * ports_needed(plan) + spare_ports))
    moves: list[dict[str, str | None]] = [{}, {"h0": "h2"}, {"h1": None}, {"h0": "h2", "h1": None}]
    places = st.sampled_from(moves)
    taken: list[int] = []
    for turn in (generation, generation + 1):
        now = replace(plan, tasks=assigned(plan, data.draw(places)))
        for task in now.tasks:
            taken += port_candidates(now, "t-1", turn, task.id)
    assert len(taken) == len(set(taken))


def test_a_spare_needs_the_gpus_and_slots_of_the_host_that_it_stands_in_for() -> None:
    hosts = (
        HostPlan("a", gpus=(0, 1, 5), slots=2),
        HostPlan("few-gpus", gpus=(0, 1), slots=2, spare=True),
        HostPlan("few-slots", gpus=(0, 1, 2, 3), spare=True),
        HostPlan("fits", gpus=(4, 5, 6), slots=2, spare=True),
    )
    tasks, _ = place(hosts, [Ask("worker", 1, 2), Ask("ps", 1, 1)], equal_gpus=False)
    plan = Plan(name="t", strategy="parameter_server", hosts=hosts, tasks=tasks, script="train.py")
    assert [has_room(plan, "a", host.name) for host in hosts] == [True, False, False, True]
    assert {str(t.id): t.gpus for t in assigned(plan, {"a": "fits"})} == {"worker:0": (4, 5), "ps:0": (6,)}


OPEN, LOST, DRAINED, QUARANTINED, STUCK = (
    HostState.OPEN,
    HostState.LOST,
    HostState.DRAINED,
    HostState.QUARANTINED,
    HostState.STUCK,
)


@pytest.mark.parametrize(
    ("run", "replacements", "waits_for", "against_advice"),
    [
        (run_of(plan_of(2, 1)), {}, (), ()),
        (run_of(plan_of(2, 1), h1=LOST), {"h1": "s0"}, (), ()),
        (run_of(plan_of(2, 1), h1=LOST, s0=LOST), {}, ("h1",), ()),
        (run_of(plan_of(2, 1), h0=LOST, h1=LOST), {"h0": "s0"}, ("h1",), ()),
        (run_of(plan_of(3, 1, fewest=2), h0=LOST, h1=LOST), {"h0": "s0", "h1": None}, (), ()),
        (run_of(plan_of(3, fewest=2), h0=LOST, h1=LOST), {}, ("h0", "h1"), ()),
        (run_of(plan_of(2), h1=QUARANTINED), {}, (), ("h1",)),
        (run_of(plan_of(2, 1), h1=QUARANTINED), {"h1": "s0"}, (), ()),
        (run_of(plan_of(3, fewest=2), h0=LOST, h1=QUARANTINED), {"h0": None}, (), ("h1",)),
        (run_of(plan_of(2), h1=DRAINED), {}, ("h1",), ()),
        (run_of(plan_of(2), h1=STUCK), {}, ("h1",), ()),
        (replace(run_of(plan_of(2, 1)), replacements={"h1": "s0"}), {"h1": "s0"}, (), ()),
        (replace(run_of(plan_of(2, 1), s0=LOST), replacements={"h1": "s0"}), {}, (), ()),
        (replace(run_of(plan_of(2, fewest=1)), replacements={"h1": None}), {}, (), ()),
    ],
)
def test_the_seats_of_the_next_generation(
    run: Run, replacements: dict[str, str | None], waits_for: tuple[str, ...], against_advice: tuple[str, ...]
) -> None:
    found = next_assignment(run)
    assert (dict(found.replacements), found.waits_for, found.against_advice) == (
        replacements,
        waits_for,
        against_advice,
    )


def test_who_is_only_silent_is_waited_for_although_a_spare_is_there() -> None:
    run = run_of(plan_of(2, 1))
    silent = run.with_host(replace(run.host("h1"), link=Link.UNREACHABLE))
    assert next_assignment(silent).waits_for == ("h1",)
    dropped = run.with_host(replace(run.host("h1"), problem="the connection broke"))
    assert next_assignment(dropped).waits_for == ("h1",)


def test_a_spare_with_other_software_or_another_checkpoint_directory_is_none() -> None:
    run = run_of(plan_of(2, 1), h1=LOST)
    other = replace(FACTS, versions={"tensorflow": "2.20.0"})
    assert next_assignment(run.with_host(replace(run.host("s0"), facts=other))).waits_for == ("h1",)
    refused = replace(run.host("h1"), state=OPEN, facts=None, retry_at=30.0)
    assert next_assignment(run.with_host(refused)).replacements == {"h1": "s0"}


def test_moving_is_worth_a_restart_only_for_more_tasks_or_a_drained_host() -> None:
    whole, small = run_of(plan_of(2, 1)), replace(run_of(plan_of(2, 1)), replacements={"h1": None})
    assert not is_better(whole, next_assignment(whole))
    assert is_better(small, next_assignment(small))
    drained = run_of(plan_of(2, 1), h1=DRAINED)
    assert is_better(drained, next_assignment(drained))
    nowhere = run_of(plan_of(2), h1=DRAINED)
    assert not is_better(nowhere, next_assignment(nowhere))
    suspect = run_of(plan_of(2, 1), h1=QUARANTINED)
    assert not is_better(suspect, next_assignment(suspect)), "it trains, so it is left alone"


@pytest.mark.parametrize("phase", TaskPhase)
def test_a_host_that_cannot_serve_the_run_is_left_only_where_a_task_waits_for_it(phase: TaskPhase) -> None:
    """A task that lives trains on there, and one that is done is not to begin anew elsewhere."""
    run = run_of(plan_of(2, 1))
    run = run.with_host(replace(run.host("h1"), facts=None, problem="no Python", retry_at=30.0))
    run = run.with_task(replace(run.task(TaskId("worker", 1)), phase=phase))
    found = next_assignment(run)
    assert (found.replacements, is_better(run, found)) == ({"h1": "s0"}, phase is TaskPhase.WAITING)


def test_a_drain_that_cannot_be_done_is_told_why() -> None:
    assert why_not_drained(run_of(plan_of(2, 1)), "h1") is None
    assert why_not_drained(run_of(plan_of(2, 1)), "s0") is None, "it holds nothing"
    for first, second in (("h0", "h1"), ("h1", "h0")):
        told = why_not_drained(run_of(plan_of(2, 1), **{first: DRAINED}), second)
        assert told is not None, "one spare has room for one of them"
        assert told.startswith(f"{second} cannot be drained")
    assert why_not_drained(run_of(plan_of(2)), "h1") == (
        "h1 cannot be drained: no other host that is ready has room for worker:1, and the spec, which has no "
        "`replicas_min`, does not allow to go on without"
    )
    assert why_not_drained(run_of(plan_of(3, fewest=2), h0=LOST), "h1") == (
        "h1 cannot be drained: no other host that is ready has room for worker:1, and `replicas_min` (2 workers) "
        "does not allow to go on without"
    )


def _shrinking(plan: Plan, way: str) -> Plan:
    return replace(plan, options=replace(plan.options, on_shrink=way))


def test_what_fewer_workers_mean_is_said() -> None:
    run = replace(run_of(plan_of(4, fewest=3)), replacements={"h1": None})
    assert fewer(run) == "3 of 4 workers: the global batch is 3/4 of what it was"
    assert fewer(run_of(plan_of(4, fewest=3))) == ""
    transparent = replace(run.plan, options=replace(run.plan.options, transparent=True))
    assert fewer(replace(run, plan=transparent)) == "3 of 4 workers: the global batch stays, in larger shares"
    told = "3 of 4 workers: the global batch and the learning rate are 3/4 of what they were"
    assert fewer(replace(run, plan=_shrinking(transparent, "scale_lr"))) == told
    held = "3 of 4 workers: the script is told that the global batch is held"
    assert fewer(replace(run, plan=_shrinking(run.plan, "hold_batch"))) == held


def test_a_host_that_is_stuck_no_more_has_against_it_what_it_had_before() -> None:
    run = run_of(plan_of(2), h0=DRAINED, h1=QUARANTINED)
    run = run.with_host(replace(run.host("h1"), faults=2))
    left = (Unkillable(7, "old-1", "pid 7 of old-1 cannot be killed"),)
    states = {}
    for at, found in ((1.0, left), (2.0, left), (3.0, ())):
        for name in ("h0", "h1"):
            run, _, _ = step(run, HostReported(at, name, (), unkillable=found))
        states[at] = (run.host("h0").state, run.host("h1").state)
    assert states == {1.0: (DRAINED, STUCK), 2.0: (DRAINED, STUCK), 3.0: (DRAINED, QUARANTINED)}
    assert run.host("h1").state_why == "it ended 2 generations in a row without progress"

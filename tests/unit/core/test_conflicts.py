"""Runs that would hurt each other: of two, the second is refused with the reason and the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.conflicts import (
    DRIVEN,
    driven,
    leased_gpus,
    refuse_rollback,
    refuse_scratch,
    refuse_start,
    runs_of_others,
)
from orchestrator.core.errors import Refused
from orchestrator.core.plan import CheckpointPlan, Gpu, HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.state.host import Facts
from orchestrator.core.state.owner import Driven, Owner
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

UUID = "GPU-11111111-1111-1111-1111-111111111111"


def a_run(name: str = "t-1", *, phase: Phase = Phase.RUNNING, checkpoint: bool = True) -> Run:
    return in_phase(new_run(name, make_plan(["a", "b"], checkpoint=checkpoint), epoch=4, at=0.0), phase)


def plan_on(*gpus: Gpu, name: str = "t", host: str = "a", spare: tuple[int, ...] = ()) -> Plan:
    """Return a plan with one task on these GPUs of a machine, and a spare host with other GPUs of it."""
    hosts = [HostPlan(host, address="10.0.0.1", gpus=(*gpus,))]
    hosts += [HostPlan("s", address="10.0.0.1", gpus=spare, spare=True)] if spare else []
    task = TaskPlan(TaskId("worker", 0), host, gpus)
    return replace(make_plan([host], checkpoint=False), name=name, hosts=tuple(hosts), tasks=(task,))


def active(plan: Plan) -> Run:
    return in_phase(new_run(f"{plan.name}-1", plan, epoch=1, at=0.0), Phase.RUNNING)


def test_two_active_runs_have_two_names() -> None:
    other = replace(make_plan(["c"], checkpoint=False), script="other.py")
    with pytest.raises(Refused, match="a run named t with another plan is active: t-1"):
        refuse_start(other, [a_run()])
    refuse_start(other, [a_run(phase=Phase.FAILED)])


def test_two_active_runs_have_two_checkpoint_directories() -> None:
    other = replace(make_plan(["c"], checkpoint=True), name="u")
    with pytest.raises(Refused, match="t-1 is active and saves into /shared/t too"):
        refuse_start(other, [a_run()])
    refuse_start(replace(other, checkpoint=CheckpointPlan("/shared/u")), [a_run()])
    refuse_start(replace(other, checkpoint=None), [a_run(checkpoint=False)])
    refuse_start(replace(other, checkpoint=CheckpointPlan("/shared/t", volume="lab/vision/u")), [a_run()])


@pytest.mark.parametrize(
    ("there", "wanted", "sentence"),
    [
        (plan_on(0, 1), plan_on(1, 2, name="u", host="b"), "GPU 1 of b is held by worker:0 of t-1"),
        (
            plan_on(0, spare=(3,)),
            plan_on(3, name="u"),
            "GPU 3 of a is a spare of t-1, which may come to need it",
        ),
        (plan_on(0, spare=(3,)), plan_on(1, name="u", spare=(3,)), "GPU 3 of s is a spare of t-1 already"),
        (plan_on(0, 1), plan_on(2, 3, name="u"), None),
    ],
)
def test_a_gpu_is_one_runs_by_the_address_of_its_host(
    there: Plan, wanted: Plan, sentence: str | None
) -> None:
    if sentence is None:
        refuse_start(wanted, [active(there)])
        return
    with pytest.raises(Refused, match=sentence) as caught:
        refuse_start(wanted, [active(there)])
    assert caught.value.hint == "`orch up --queue` waits for it; or `orch kill t` first, or choose other GPUs"


@pytest.mark.parametrize(("there", "wanted"), [(0, UUID), (UUID, 0)])
def test_a_gpu_is_one_by_its_number_and_by_its_uuid(there: Gpu, wanted: Gpu) -> None:
    """A host tells the UUIDs when it is prepared, of this run or of one before it."""
    holder = active(plan_on(there))
    (host,) = holder.hosts
    met = replace(holder, hosts=(replace(host, facts=Facts(gpus=(UUID, UUID.replace("1", "2")))),))
    ended = replace(in_phase(met, Phase.SUCCEEDED), run_id="before")
    for known in ([met], [ended, holder]):
        with pytest.raises(Refused, match=f"GPU {wanted} of b is held by worker:0 of t-1"):
            refuse_start(plan_on(wanted, name="u", host="b"), known)
        refuse_start(plan_on(UUID.replace("1", "2"), 1, name="u", host="b"), known)
        assert leased_gpus(holder, "a") == [there], "the lease is wanted by the name that the spec gives"


def test_a_gpu_of_a_task_that_was_left_out_is_still_its_runs() -> None:
    plan = plan_on(0)
    smaller = replace(active(plan), replacements={"a": None})
    with pytest.raises(Refused, match="GPU 0 of a is held by worker:0 of t-1"):
        refuse_start(plan_on(0, name="u"), [smaller])


def test_nobody_goes_back_under_a_gang_without_saying_so() -> None:
    run, ended = a_run(), a_run("t-0", phase=Phase.SUCCEEDED)
    with pytest.raises(Refused, match="t-1 is active"):
        refuse_rollback(run, [run, ended], restart=False)
    refuse_rollback(run, [run, ended], restart=True)
    refuse_rollback(ended, [ended], restart=False)
    with pytest.raises(Refused, match="t-1 is active and saves into /shared/t"):
        refuse_rollback(ended, [run, ended], restart=True)


def test_a_run_that_cannot_be_read_may_be_training_under_its_name() -> None:
    plan = make_plan(["c"], checkpoint=False)
    with pytest.raises(Refused, match="a run named t may be active, and cannot be read: t-0") as caught:
        refuse_start(plan, [], {"t": "t-0"})
    assert "orch recover" in str(caught.value.hint)
    refuse_start(replace(plan, name="u"), [], {"t": "t-0"})


# --- other owners -----------------------------------------------------------------------------------------

MINE, THEIRS = Owner("1", "head-1", "ml"), Owner("2", "head-2", "ana")

DRIVEN_THERE = Driven(
    "t-0", "t", THEIRS, "2026-11-20 09:30:00 UTC", "/shared/t", "its coordinator watches it now", "a"
)


def standing_in_the_way(*told: Driven, run_id: str | None = "t-1") -> list[str]:
    plan = make_plan(["a", "b"], checkpoint=True)
    return [one.run_id for one in runs_of_others(plan, run_id, MINE, told, lambda _: True)]


@pytest.mark.fault(62)
@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ({}, True),
        ({"owner": None}, True),  # an older orch began it, perhaps this one's, whose journal is lost
        ({"owner": MINE}, False),  # what the own journal knows is judged by it
        ({"evidence": ""}, False),  # it has ended
        ({"name": "u"}, True),  # into the same checkpoint directory
        ({"checkpoint_dir": None}, True),  # under the same name
        ({"name": "u", "checkpoint_dir": "/shared/u"}, False),
        ({"name": "u", "checkpoint_dir": None}, False),
        ({"run_id": "t-1"}, False),  # it itself, of which it is asked again after a reboot
    ],
)
def test_row_62_what_goes_on_under_the_name_or_in_the_directory_of_another_owner_is_refused(
    changes: dict[str, Any], is_refused: bool
) -> None:
    assert bool(standing_in_the_way(replace(DRIVEN_THERE, **changes))) is is_refused


def test_a_plan_without_checkpoints_shares_no_directory() -> None:
    plan = make_plan(["a"], checkpoint=False)
    told = [replace(DRIVEN_THERE, name="u", checkpoint_dir=None), replace(DRIVEN_THERE, name="v")]
    assert runs_of_others(plan, "t-1", MINE, told, lambda _: True) == []


@pytest.mark.fault(62)
def test_row_62_the_owner_is_named_with_what_it_does_and_the_way_out() -> None:
    plan = make_plan(["a", "b"], checkpoint=True)
    problem = driven(plan, [DRIVEN_THERE], MINE)
    assert problem is not None
    assert problem.message == (
        "a: t-0 is driven by ana@head-2 since 2026-11-20 09:30:00 UTC: its coordinator watches it now; "
        "it saves into /shared/t"
    )
    assert (problem.exit_code, problem.code) == (6, DRIVEN)
    hint = str(problem.hint)
    assert all(word in hint for word in ("`orch kill t` on head-2", "--take-over", "orch recover --hosts"))
    other = driven(plan, [replace(DRIVEN_THERE, name="u", run_id="u-0")], MINE)
    assert other is not None
    assert "give each run its own checkpoint directory" in str(other.hint)
    assert driven(plan, [], MINE) is None


@pytest.mark.fault(81)
@pytest.mark.parametrize("where", [{}, {"is_stamp": True}])
def test_row_81_what_hosts_tell_of_an_own_run_that_the_journal_lacks_is_evidence(
    where: dict[str, Any],
) -> None:
    plan = make_plan(["a", "b"], checkpoint=True)
    lost = replace(DRIVEN_THERE, owner=MINE, **where)
    assert runs_of_others(plan, "t-1", MINE, [lost], {"t-0", "t-1"}.__contains__) == []
    assert runs_of_others(plan, "t-1", MINE, [lost], {"t-1"}.__contains__) == [lost]
    problem = driven(plan, [lost], MINE)
    assert problem is not None
    assert problem.message.endswith("this head node began it, and its journal does not have it")
    assert "orch recover --hosts" in str(problem.hint)


def test_an_active_run_does_not_start_from_scratch_in_silence() -> None:
    refuse_scratch(a_run(), from_scratch=False)
    with pytest.raises(Refused, match="--from-scratch has changed nothing") as caught:
        refuse_scratch(a_run(), from_scratch=True)
    assert "`orch kill t` first" in str(caught.value.hint)
    refuse_scratch(replace(a_run(), from_scratch=True), from_scratch=True)  # said twice

"""Where a fault of a GPU is why a task ended, and where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.actions import Note
from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause, gpu_faults
from orchestrator.core.ends import Exit
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Facts, GpuFault
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.turn import Turn
from tests.unit.core.transcript import make_plan

WORKER = TaskId("worker", 0)
UUIDS = ("GPU-0", "GPU-1")
NAMED = pytest.mark.parametrize("gpus", [(0, 1), UUIDS])


def failed(fault: GpuFault | None, ended: Cause = Cause.SCRIPT, gpus: tuple[int | str, ...] = (0, 1)) -> Run:
    plan = make_plan(["a"], checkpoint=False)
    plan = replace(
        plan,
        hosts=tuple(replace(host, gpus=gpus) for host in plan.hosts),
        tasks=tuple(replace(task, gpus=gpus[1:]) for task in plan.tasks),
    )
    turn = Turn(new_run("t-1", plan, epoch=1, at=0.0), 1.0)
    faults = (fault,) if fault is not None else ()
    turn.set_host(turn.run.host("a"), facts=Facts(gpus=UUIDS), gpu_faults=faults)
    ended_at = Exit(cause=ended, code=1, at=1.0)
    turn.set_task(turn.run.task(WORKER), phase=TaskPhase.EXITED, exit=ended_at)
    return turn.run


def found(
    fault: GpuFault | None, ended: Cause = Cause.SCRIPT, gpus: tuple[int | str, ...] = (0, 1)
) -> tuple[str, str]:
    run = failed(fault, ended, gpus)
    first = cause.first_cause_of(run, run.task(WORKER))
    assert first is not None
    return first.means, first.advice


@NAMED
def test_a_gpu_of_the_task_that_is_gone_is_what_its_end_means(gpus: tuple[int | str, ...]) -> None:
    generation = failed(None).task(WORKER).generation
    means, advice = found(GpuFault(1, 79, generation), gpus=gpus)
    assert means == "GPU 1 of a: it has fallen off the bus (Xid 79)"
    assert advice.startswith("reboot a; ")
    means, _ = found(GpuFault(1, None, generation), gpus=gpus)
    assert means == "GPU 1 of a: it has disappeared from nvidia-smi"


@pytest.mark.parametrize(
    ("fault", "ended"),
    [
        (GpuFault(0, 79, 0), Cause.SCRIPT),  # of another GPU
        (GpuFault(1, 79, -1), Cause.SCRIPT),  # of an earlier generation
        (GpuFault(1, 31, 0), Cause.SCRIPT),  # the script may have done it
        (GpuFault(1, 9999, 0), Cause.SCRIPT),  # nobody here knows what it means
        (GpuFault(1, 79, 0), Cause.ORDERED),
    ],
)
@NAMED
def test_what_explains_nothing_is_not_blamed(
    fault: GpuFault, ended: Cause, gpus: tuple[int | str, ...]
) -> None:
    assert "GPU" not in found(fault, ended, gpus)[0]


class Reports:
    """A run whose host reports faults of its GPUs; the run may use the second."""

    def __init__(self, gpu: int | str) -> None:
        plan = make_plan(["a"], checkpoint=False)
        plan = replace(plan, hosts=tuple(replace(host, gpus=(gpu,)) for host in plan.hosts))
        self.turn = Turn(new_run("t-1", plan, epoch=1, at=0.0), 1.0)

    def prepared(self, facts: Facts | None) -> None:
        self.turn.set_host(self.turn.run.host("a"), facts=facts)

    def known_after(self, *reported: tuple[int, int | None]) -> list[int]:
        """Return of which GPUs the run knows faults after this report."""
        gpu_faults.heard(self.turn, self.turn.run.host("a"), reported)
        return [fault.index for fault in self.turn.run.host("a").gpu_faults]

    @property
    def notes(self) -> list[str]:
        return [action.message for action in self.turn.actions if isinstance(action, Note)]


@pytest.mark.parametrize("gpu", [1, UUIDS[1]])
def test_a_fault_of_a_gpu_of_the_run_is_noted_once_however_the_spec_names_it(gpu: int | str) -> None:
    host = Reports(gpu)
    host.prepared(Facts(gpus=UUIDS))
    assert host.known_after((0, 79), (1, 79)) == [1]
    host.prepared(None)
    assert host.known_after((0, 79), (1, 79)) == [1], "it is prepared anew, and the GPU is still the run's"
    host.prepared(Facts(gpus=UUIDS))
    assert host.known_after((0, 79), (1, 79)) == [1]
    assert host.notes == ["GPU 1 of a: it has fallen off the bus (Xid 79)"]
    host.prepared(None)
    assert host.known_after() == [], "an agent after a reboot reports it no more"


def test_a_fault_that_was_reported_before_the_uuids_were_known_is_heard_afterwards() -> None:
    host = Reports(UUIDS[1])
    assert host.known_after((0, 79), (1, 79)) == []
    host.prepared(Facts(gpus=UUIDS))
    assert host.known_after((0, 79), (1, 79)) == [1]
    assert host.notes == ["GPU 1 of a: it has fallen off the bus (Xid 79)"]


def test_every_number_has_its_sentence() -> None:
    for xid in gpu_faults.XIDS:
        assert gpu_faults.sentence("a", GpuFault(0, xid, 1)).endswith(f"(Xid {xid})")

"""Where a fault of a GPU is why a task ended, and where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import cause, gpu_faults
from orchestrator.core.ends import Exit
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import GpuFault
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from orchestrator.core.turn import Turn
from tests.unit.core.transcript import make_plan

WORKER = TaskId("worker", 0)


def failed(fault: GpuFault | None, ended: Cause = Cause.SCRIPT) -> Run:
    plan = make_plan(["a"], checkpoint=False)
    plan = replace(
        plan,
        hosts=tuple(replace(host, gpus=(0, 1)) for host in plan.hosts),
        tasks=tuple(replace(task, gpus=(1,)) for task in plan.tasks),
    )
    turn = Turn(new_run("t-1", plan, epoch=1, at=0.0), 1.0)
    turn.set_host(turn.run.host("a"), gpu_faults=(fault,) if fault is not None else ())
    ended_at = Exit(cause=ended, code=1, at=1.0)
    turn.set_task(turn.run.task(WORKER), phase=TaskPhase.EXITED, exit=ended_at)
    return turn.run


def found(fault: GpuFault | None, ended: Cause = Cause.SCRIPT) -> tuple[str, str]:
    run = failed(fault, ended)
    first = cause.first_cause_of(run, run.task(WORKER))
    assert first is not None
    return first.means, first.advice


def test_a_gpu_of_the_task_that_is_gone_is_what_its_end_means() -> None:
    generation = failed(None).task(WORKER).generation
    means, advice = found(GpuFault(1, 79, generation))
    assert means == "GPU 1 of a: it has fallen off the bus (Xid 79)"
    assert advice.startswith("reboot a; ")
    assert found(GpuFault(1, None, generation))[0] == "GPU 1 of a: it has disappeared from nvidia-smi"


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
def test_what_explains_nothing_is_not_blamed(fault: GpuFault, ended: Cause) -> None:
    assert "GPU" not in found(fault, ended)[0]


def test_every_number_has_its_sentence() -> None:
    for xid in gpu_faults.XIDS:
        assert gpu_faults.sentence("a", GpuFault(0, xid, 1)).endswith(f"(Xid {xid})")

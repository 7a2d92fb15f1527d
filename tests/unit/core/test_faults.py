"""What `orch chaos` may do to a run, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import faults
from orchestrator.core.errors import OrchestratorError, Refused, UsageError
from orchestrator.core.faults import KINDS, Fault, fault
from orchestrator.core.plan import TaskId
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import TaskPhase
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan


def training(*, chaos: bool = True) -> Run:
    """Two tasks on two hosts, in generation 3."""
    plan = replace(make_plan(["a", "b"], checkpoint=False), chaos=chaos)
    run = new_run("t-20260101-000000", plan, epoch=1, at=0.0)
    tasks = tuple(replace(task, phase=TaskPhase.RUNNING, generation=3) for task in run.tasks)
    hosts = tuple(replace(host, link=Link.CONNECTED) for host in run.hosts)
    return in_phase(replace(run, tasks=tasks, hosts=hosts), Phase.RUNNING)


def test_a_fault_of_a_task_names_its_host_and_generation() -> None:
    assert fault(training(), "kill", "worker:1", 5) == Fault("kill", "b", TaskId("worker", 1), 3, 5)


def test_a_fault_of_a_host_has_no_task() -> None:
    found = fault(training(), "cut", "a", 5)
    assert (found.task, found.target) == (None, "a")
    assert found.sentence.startswith("orch chaos: cut a for 5 s: ")


def test_only_a_run_that_is_marked_is_hurt() -> None:
    with pytest.raises(Refused) as refused:
        fault(training(chaos=False), "kill", "worker:0", 5)
    assert "chaos: allowed" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("kind", "target", "for_s", "sentence"),
    [
        ("burn", "a", 5, "no such fault"),
        ("kill", "worker:7", 5, "no task 'worker:7'"),
        ("kill", "a", 5, "no task 'a'"),
        ("cut", "worker:0", 5, "no host 'worker:0'"),
        ("cut", "a", 0, "more than 0"),
        ("cut", "a", faults.LASTS_MAX_S + 1, "at most"),
        ("cut", "a", float("nan"), "more than 0"),
    ],
)
def test_bad_input_is_named(kind: str, target: str, for_s: float, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        fault(training(), kind, target, for_s)


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_hurt_now_is_refused(kind: str) -> None:
    run = training()
    target = "worker:1" if KINDS[kind].of == "task" else "b"
    away = run.with_host(replace(run.host("b"), link=Link.UNREACHABLE))
    starting = in_phase(run, Phase.RENDEZVOUS)
    for unfit in (away, starting):
        with pytest.raises(OrchestratorError) as refused:
            fault(unfit, kind, target, 5)
        assert refused.value.exit_code == 6


def test_a_task_without_a_process_is_refused() -> None:
    run = training()
    ended = run.with_task(replace(run.task(TaskId("worker", 1)), phase=TaskPhase.EXITED))
    with pytest.raises(Refused, match="has no process now"):
        fault(ended, "kill", "worker:1", 5)

"""A run that cannot be decided about can still be ended, in whatever phase it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.abandon import abandoned
from orchestrator.core.actions import CloseHost, SweepHost
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.phase_states import Phase, Swept
from orchestrator.core.state.run import new_run
from orchestrator.core.state.task import TaskPhase
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0)


@pytest.mark.parametrize("phase", [Phase.RENDEZVOUS, Phase.RUNNING, Phase.STOPPING, Phase.BACKOFF])
def test_its_hosts_are_swept_and_their_proof_is_taken(phase: Phase) -> None:
    tasks = tuple(replace(task, phase=TaskPhase.RUNNING, generation=3, pid=7) for task in RUN.tasks)
    run = replace(in_phase(RUN, phase), tasks=tasks, generation=3, generation_last=4)
    run = replace(run, budget=Budget(without_progress=99), hosts=(replace(run.hosts[0]), run.hosts[1]))
    after, actions = abandoned(run, 9.0)
    assert [action for action in actions if isinstance(action, SweepHost)] == [
        SweepHost("a", 4),
        SweepHost("b", 4),
    ]
    assert (after.phase, after.proof) == (Phase.KILLED, {})
    after, actions, _ = decide.step(after, ev.HostSwept(10.0, "a", Swept(by="cgroup")))
    assert actions[-1] == CloseHost("a")
    after, actions, _ = decide.step(after, ev.HostUp(11.0, "b", "boot"))
    assert SweepHost("b", 4) in actions, "one that was away is swept when it is back"


def test_of_a_run_without_a_process_the_hosts_are_let_go() -> None:
    after, actions = abandoned(RUN, 9.0)
    assert (after.phase, after.proof) == (Phase.KILLED, None)
    assert [action for action in actions if isinstance(action, CloseHost)] == [CloseHost("a"), CloseHost("b")]

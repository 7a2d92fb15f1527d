"""A host that its engine takes away while no other has room for its tasks: events and status say so."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.decide import step
from orchestrator.core.events import DrainRequested, HostUp
from orchestrator.core.state.host import HostState
from orchestrator.core.state.instants import Instant
from orchestrator.reporting import describe
from tests.unit.core.test_first_cause import played

WITHOUT_A_SPARE = """hosts a b checkpoint=yes
> 0 submit
> 1 up a
> 1 up b
> 1 report a
> 1 report b
> 2 prepared a
> 2 prepared b
> 3 report a worker:0=ready
> 3 report b worker:1=ready
> 3 seeded nothing
> 5 report a worker:0=running,step=51
> 5 report b worker:1=running,step=51
"""
WHY = "its engine takes it away: it is being deleted from node n; its id is uid-1"


def test_it_is_an_event_and_in_the_status_until_another_has_its_place(tmp_path: Path) -> None:
    run = played(tmp_path, WITHOUT_A_SPARE)
    taken = DrainRequested(Instant(6.0), "b", why=WHY)
    run, actions, _ = step(run, taken)
    assert run.host("b").state is HostState.OPEN
    assert f"b leaves: {WHY}" in str(actions)
    assert "no other host that is ready has room for worker:1" in str(actions)
    assert "no other has room for its tasks" in describe.reason(run, now=Instant(7.0)).sentence
    assert not step(run, taken)[1], "it is said once"
    again = step(run, HostUp(Instant(8.0), "b", "boot-2"))[0]
    assert again.host("b").state_why == ""

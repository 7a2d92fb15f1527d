"""What hosts say of themselves when they come up."""

from __future__ import annotations

from orchestrator.core import decide
from orchestrator.core.actions import Note
from orchestrator.core.events import HostUp, Submitted
from orchestrator.core.model import Run, new_run
from tests.unit.core.transcript import make_plan

SENTENCE = "logind kills the processes of ml at logout"


def up(run: Run, warning: str | None) -> tuple[Run, list[str]]:
    run, actions = decide.step(run, HostUp(1.0, "a", "boot-1", warning))
    return run, [f"{a.kind}: {a.message}" for a in actions if isinstance(a, Note)]


def test_a_warning_of_a_host_is_said_once_and_again_when_it_changes() -> None:
    run = new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    run, _ = decide.step(run, Submitted(0.0))
    run, said = up(run, SENTENCE)
    assert said == [f"host-warning: a: {SENTENCE}"]
    run, said = up(run, SENTENCE)
    assert (said, run.host("a").warning) == ([], SENTENCE)
    run, said = up(run, None)
    assert (said, run.host("a").warning) == ([], None)
    assert up(run, SENTENCE)[1] != []

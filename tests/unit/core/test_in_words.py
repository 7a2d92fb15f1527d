"""What a turn decided, in words."""

from __future__ import annotations

from orchestrator.core import events as ev
from orchestrator.core.actions import Note, StopTask
from orchestrator.core.in_words import decided, event_in_words
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = in_phase(
    new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING
)
TASK, HOST = RUN.tasks[0], RUN.hosts[0]
REPORT = ev.HostReported(1.0, "a", ())


def test_a_decision_is_like_another_whatever_its_notes_say() -> None:
    after = in_phase(RUN, Phase.STOPPING)
    one = decided(RUN, after, [StopTask("a", TASK.id, 1, 10.0), Note(NoteKind.STOPPING, "because")])
    assert one.phase == "RUNNING -> STOPPING"
    assert one.orders == ("StopTask worker:0 gen 1 on a, grace 10 s",)
    assert one.notes == ("note stopping: because",)
    assert one.is_like(
        decided(RUN, after, [StopTask("a", TASK.id, 1, 10.0), Note(NoteKind.STOPPING, "for another")])
    )
    assert not one.is_like(
        decided(RUN, after, [StopTask("a", TASK.id, 1, 0.0), Note(NoteKind.STOPPING, "because")])
    )
    assert not one.is_like(decided(RUN, after, [StopTask("a", TASK.id, 1, 10.0)]))
    assert not one.is_like(
        decided(RUN, RUN, [StopTask("a", TASK.id, 1, 10.0), Note(NoteKind.STOPPING, "because")])
    )


def test_events_are_told_in_a_line() -> None:
    told = ev.TaskReport(TASK.id, 1, "running")
    assert event_in_words(ev.HostReported(1.0, "a", (told,))) == "HostReported host=a worker:0=running"
    assert event_in_words(ev.KillRequested(1.0, force=True)) == "KillRequested force=True at_checkpoint=False"
    assert len(event_in_words(ev.HostDown(1.0, "a", "x" * 10_000))) < 200

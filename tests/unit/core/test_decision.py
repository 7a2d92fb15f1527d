"""What a turn decided, and what of it the journal must have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import events as ev
from orchestrator.core.actions import Note, PrepareHost, StopTask, VerifyCheckpoint
from orchestrator.core.decision import decided, event_in_words, is_worth_keeping
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.checkpoint import Checkpoint
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress, TaskPhase
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

RUN = in_phase(
    new_run("t-20260101-000000", make_plan(["a"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING
)
TASK, HOST = RUN.tasks[0], RUN.hosts[0]
REPORT = ev.HostReported(1.0, "a", ())


@pytest.mark.parametrize(
    "after",
    [
        RUN.with_task(replace(TASK, phase=TaskPhase.RUNNING)),
        RUN.with_task(replace(TASK, pid=7)),
        RUN.with_task(replace(TASK, port=20000)),
        RUN.with_task(replace(TASK, first_step=0)),
        RUN.with_host(replace(HOST, link=Link.CONNECTED)),
        in_phase(RUN, Phase.STOPPING),
    ],
)
def test_what_a_heartbeat_teaches_is_kept(after: Run) -> None:
    assert is_worth_keeping(RUN, after, REPORT, [])


def test_a_heartbeat_that_only_moves_numbers_is_not() -> None:
    moved = RUN.with_task(replace(TASK, heard_at=5.0, progress=Progress(global_step=9)))
    moved = moved.with_host(replace(moved.hosts[0], heard_at=5.0, cpu_percent=7.0))
    assert not is_worth_keeping(RUN, moved, REPORT, [])
    assert is_worth_keeping(RUN, moved, REPORT, [Note(NoteKind.ADOPTED, "it goes on")])
    for event in (ev.KillRequested(1.0), ev.HostUp(1.0, "a", "boot")):
        assert is_worth_keeping(RUN, RUN, event, [])


def test_a_look_at_the_newest_checkpoint_that_finds_nothing_new_is_not() -> None:
    """It comes every ten seconds for as long as the run trains."""
    due, asked = in_phase(RUN, Phase.RUNNING, verify_at=1.0), in_phase(RUN, Phase.RUNNING)
    look = VerifyCheckpoint("a", 1)
    same = ev.CheckpointVerified(2.0, 1, 5, "ckpt-5")
    assert not is_worth_keeping(due, asked, ev.Ticked(1.0), [look])
    assert not is_worth_keeping(asked, due, same, [])
    newer = replace(due, checkpoint=Checkpoint(5, "ckpt-5", 1, 2.0))
    assert is_worth_keeping(asked, newer, same, [Note(NoteKind.CHECKPOINT, "it reads whole")])
    assert is_worth_keeping(due, in_phase(RUN, Phase.STOPPING), ev.Ticked(1.0), [])
    assert is_worth_keeping(due, asked, ev.Ticked(1.0), [look, PrepareHost("a")])
    silent = asked.with_host(replace(HOST, link=Link.UNREACHABLE))
    assert is_worth_keeping(due, silent, ev.Ticked(1.0), [look])


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
    assert event_in_words(ev.KillRequested(1.0, force=True)) == "KillRequested force=True"
    assert len(event_in_words(ev.HostDown(1.0, "a", "x" * 10_000))) < 200

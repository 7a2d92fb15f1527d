"""What is owed to a decision, and the table of a report's fields that it follows from."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from orchestrator.core import events as ev
from orchestrator.core import report_fields
from orchestrator.core.actions import Note, PrepareHost, VerifyCheckpoint
from orchestrator.core.decision import Weight, weigh
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
    assert Weight.JOURNAL is weigh(RUN, after, REPORT, [])


def test_a_heartbeat_that_only_moves_numbers_is_not() -> None:
    moved = RUN.with_task(replace(TASK, heard_at=5.0, progress=Progress(global_step=9)))
    moved = moved.with_host(replace(moved.hosts[0], heard_at=5.0, measured={"cpu_percent": 7.0}))
    assert Weight.JOURNAL is not weigh(RUN, moved, REPORT, [])
    assert Weight.JOURNAL is weigh(RUN, moved, REPORT, [Note(NoteKind.ADOPTED, "it goes on")])
    for event in (ev.KillRequested(1.0), ev.HostUp(1.0, "a", "boot")):
        assert Weight.JOURNAL is weigh(RUN, moved, event, [])
    assert Weight.NOTHING is weigh(RUN, RUN, ev.HostUp(1.0, "a", "boot"), [])


def test_a_look_at_the_newest_checkpoint_that_finds_nothing_new_is_not() -> None:
    """It comes every ten seconds for as long as the run trains."""
    due, asked = in_phase(RUN, Phase.RUNNING, verify_at=1.0), in_phase(RUN, Phase.RUNNING)
    look = VerifyCheckpoint("a", 1)
    same = ev.CheckpointVerified(2.0, 1, 5, "ckpt-5")
    assert Weight.JOURNAL is not weigh(due, asked, ev.Ticked(1.0), [look])
    assert Weight.JOURNAL is not weigh(asked, due, same, [])
    newer = replace(due, checkpoint=Checkpoint(5, "ckpt-5", 1, 2.0))
    assert Weight.JOURNAL is weigh(asked, newer, same, [Note(NoteKind.CHECKPOINT, "it reads whole")])
    assert Weight.JOURNAL is weigh(due, in_phase(RUN, Phase.STOPPING), ev.Ticked(1.0), [])
    assert Weight.JOURNAL is weigh(due, asked, ev.Ticked(1.0), [look, PrepareHost("a")])
    silent = asked.with_host(replace(HOST, link=Link.UNREACHABLE))
    assert Weight.JOURNAL is weigh(due, silent, ev.Ticked(1.0), [look])


def test_every_field_of_a_report_has_its_row() -> None:
    for type_, rows in ((ev.TaskReport, report_fields.OF_TASK), (ev.HostReported, report_fields.OF_HOST)):
        assert [row.name for row in rows] == [field.name for field in fields(type_)]
        assert not [row.name for row in rows if (row.wakes or row.kept) and row.belief is None]


def test_a_report_is_news_where_people_wait_for_what_differs() -> None:
    one = ev.TaskReport(TASK.id, 1, "running", progress=Progress(global_step=5, began_step=5))
    known = report_fields.news(ev.HostReported(1.0, "a", (one,)))
    later = replace(one, progress=Progress(global_step=6, began_step=5))
    ended = replace(one, phase="exited")
    silent = ev.HostReported(2.0, "a", (one,), measured={"cpu_percent": 3.0}, dir_silent_s=1.0)
    assert known == report_fields.news(ev.HostReported(2.0, "a", (one,), measured={"cpu_percent": 3.0}))
    renamed = replace(one, progress=replace(one.progress, measured={"rescue": "9 MB"}))
    others = (*(ev.HostReported(2.0, "a", (task,)) for task in (later, ended, renamed)), silent)
    for other in (*others, ev.HostReported(2.0, "a", (one,), measured={"psutil": "none"})):
        assert known != report_fields.news(other)

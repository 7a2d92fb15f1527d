"""What tasks say is noted, once each, up to a limit of the task and one of the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core import decide
from orchestrator.core.actions import Note
from orchestrator.core.events import HostReported, TaskReport
from orchestrator.core.notes import NoteKind
from orchestrator.core.phases.host_reports import RUN_CHARS_MAX, SAID_CHARS_MAX, SAID_MAX
from orchestrator.core.plan import TaskId
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

W0 = TaskId("worker", 0)
MUTED = "worker:0 sends more messages than are kept of a task: further ones are left out"


def say(run: Run, *sentences: str) -> tuple[Run, list[tuple[NoteKind, str]]]:
    """Return the run after a report with these sentences, and what is noted."""
    told = TaskReport(W0, 0, "running", pid=7, said=tuple(("said", one) for one in sentences))
    run, actions, _ = decide.step(run, HostReported(1.0, "a", (told,)))
    return run, [(one.kind, one.message) for one in actions if isinstance(one, Note)]


@pytest.fixture
def run() -> Run:
    return in_phase(new_run("t-1", make_plan(["a"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING)


def test_a_sentence_is_noted_once(run: Run) -> None:
    run, first = say(run, "one", "two")
    run, second = say(run, "one", "two", "three")
    assert first == [(NoteKind.SAID, "worker:0: one"), (NoteKind.SAID, "worker:0: two")]
    assert second == [(NoteKind.SAID, "worker:0: three")]


def test_what_cannot_be_rescued_is_a_hint_until_it_can_be_and_no_warning(run: Run) -> None:
    told = TaskReport(W0, 0, "running", pid=7, said=(("no-rescue", "a dead worker costs"),))
    run, _, _ = decide.step(run, HostReported(1.0, "a", (told, told)))
    assert (run.no_rescue, run.warnings) == ("a dead worker costs", ())
    run, _, _ = decide.step(run, HostReported(2.0, "a", (replace(told, progress=Progress(rescues=True)),)))
    assert not run.no_rescue


def test_that_there_are_too_many_metrics_is_noted_of_the_chief_whose_metrics_are_kept() -> None:
    two = in_phase(new_run("t-1", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING)
    noted = []
    for task, host in ((TaskId("worker", 1), "b"), (W0, "a")):
        told = TaskReport(task, 0, "running", pid=7, said=(("metrics-dropped", "1,200 metrics"),))
        for at in (1.0, 2.0):
            two, actions, _ = decide.step(two, HostReported(at, host, (told,)))
            noted += [(one.kind, one.message) for one in actions if isinstance(one, Note)]
    assert noted == [(NoteKind.METRICS_DROPPED, "worker:0: 1,200 metrics")]


def test_a_task_other_than_the_chief_makes_no_hint_of_the_run() -> None:
    two = in_phase(new_run("t-1", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0), Phase.RUNNING)
    told = TaskReport(TaskId("worker", 1), 0, "running", pid=7, said=(("no-rescue", "all is lost"),))
    two, actions, _ = decide.step(two, HostReported(1.0, "b", (told,)))
    assert "worker:1: all is lost" in [one.message for one in actions if isinstance(one, Note)]
    assert (two.no_rescue, two.warnings) == ("", ())


@pytest.mark.fault(57)
@pytest.mark.parametrize("chars", [10, 1000])
def test_a_task_that_says_too_much_is_muted_with_a_word(run: Run, chars: int) -> None:
    noted = []
    for number in range(300):
        run, some = say(run, *(f"{number} {one}".ljust(chars, "x") for one in range(5)))
        noted += some
    assert noted[-1] == (NoteKind.LIMIT_REACHED, MUTED)
    assert [kind for kind, _ in noted].count(NoteKind.LIMIT_REACHED) == 1
    said = run.task(W0).said
    assert len(said) <= SAID_MAX
    assert sum(map(len, said)) <= SAID_CHARS_MAX
    assert run.said_chars == sum(map(len, said))


@pytest.mark.fault(57)
def test_so_is_one_of_a_run_that_has_said_too_much(run: Run) -> None:
    run, noted = say(replace(run, said_chars=RUN_CHARS_MAX - 5), "1234", "56789")
    assert noted == [(NoteKind.SAID, "worker:0: 1234"), (NoteKind.LIMIT_REACHED, MUTED)]

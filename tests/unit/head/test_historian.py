"""The historian looks at the runs and keeps what they measure; whatever its disk does, nobody waits for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress, TaskPhase
from orchestrator.head.effects import historian
from orchestrator.head.effects.historian import Historian
from orchestrator.head.records import history
from tests.unit.core.phases import state_of
from tests.unit.core.transcript import make_plan


class Watched:
    """One run whose time passes when the test says so."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.at = 1000.0
        run = new_run("t-20260101-000000", make_plan(["a", "b"], checkpoint=True), epoch=1, at=900.0)
        self.run = replace(run, generation=1, phase_state=state_of(Phase.RUNNING, progress_at=0.0))
        self.historian = Historian(
            lambda: {self.run.run_id: self.run},
            lambda _: str(directory),
            now=lambda: self.at,
            clock=lambda: self.at,
        )

    def train(self, step: int, at_step: Mapping[str, int] | None = None, **metrics: float) -> None:
        self.at += 1
        for task in self.run.tasks:
            told = Progress(
                step,
                None,
                metrics,
                {"steps_per_s": 2.0, "cpu_percent": 50.0, "rss_bytes": 1 << 20},
                step_age_s=0.25,
                metric_steps=at_step or {},
            )
            self.run = self.run.with_task(
                replace(task, phase=TaskPhase.RUNNING, generation=1, heard_at=self.at, progress=told)
            )
        self.historian.sample()

    def end(self) -> None:
        self.run = _ended(self.run)
        self.historian.sample()

    @property
    def path(self) -> str:
        return os.path.join(self.directory, history.FILE)

    def points(self, task: str, name: str) -> int:
        found = history.read(self.path, [(task, name)], begin=None, end=None, buckets=4000)
        return sum(bucket.n for series in found for bucket in series.buckets)


def _ended(run: Run) -> Run:
    return replace(run, phase_state=state_of(Phase.SUCCEEDED))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_run_that_trains_leaves_its_curves(watched: Watched) -> None:
    for step in range(1, 31):
        watched.train(step, loss=1.0 / step)
    watched.end()
    assert watched.points("", "loss") == 30
    assert watched.points("", "steps_per_s") == 30
    assert watched.points("worker:0", "rss_bytes") == 3
    moved = history.moves(watched.path)[1]
    assert (moved.first_step, moved.last_step) == (1, 30)
    assert moved.first_at == pytest.approx(1000.75)


@pytest.mark.fault(117)
def test_a_loss_that_is_no_number_any_more_leaves_its_first_step(watched: Watched) -> None:
    watched.train(1, loss=1.0)
    watched.train(2)
    chief = watched.run.tasks[0]
    told = replace(chief.progress, global_step=3, nonfinite={"loss": (2, "nan")})
    watched.run = watched.run.with_task(replace(chief, heard_at=watched.at + 1, progress=told))
    watched.historian.sample()
    watched.end()
    (series,) = history.read(watched.path, [("", "loss")], begin=None, end=None, buckets=10)
    assert [(one.step, one.value) for one in series.nonfinite.values()] == [(2, "nan")]


def test_a_step_that_is_told_again_is_no_new_value_and_silence_is_a_gap(watched: Watched) -> None:
    watched.train(1, loss=1.0)
    watched.train(1, loss=1.0)
    watched.at += 60
    watched.historian.sample()
    watched.end()
    assert watched.points("", "loss") == 1
    assert watched.points("", "steps_per_s") == 2


def test_of_a_task_or_a_host_that_is_silent_the_last_numbers_are_no_new_ones(watched: Watched) -> None:
    watched.train(1)
    for host in watched.run.hosts:
        told = replace(host, heard_at=watched.at, measured={"cpu_percent": 7.5})
        watched.run = watched.run.with_host(told)
    looked_at = watched.at + historian.TASKS_EVERY_S
    while watched.at < looked_at:
        watched.train(2)
    assert watched.run.hosts[0].heard_at == looked_at - historian.TASKS_EVERY_S, "heard of just in time"
    watched.at += 60  # a host that is cut off still has what it told last
    watched.historian.sample()
    watched.end()
    assert watched.points("worker:1", "rss_bytes") == 2
    assert watched.points("host:b", "cpu_percent") == 1


def test_a_validation_is_one_value_however_often_it_is_told(watched: Watched) -> None:
    for step in range(6, 16):
        watched.train(step, {"acc": step // 5 * 5}, loss=1.0, acc=0.5)
    watched.end()
    assert (watched.points("", "loss"), watched.points("", "acc")) == (10, 3)
    (series,) = history.read(watched.path, [("", "acc")], begin=None, end=None, buckets=4000)
    assert [bucket.step_first for bucket in series.buckets] == [5, 10, 15], "at the step of which it is"


def test_the_last_steps_of_a_generation_are_kept_although_the_next_look_finds_another(
    watched: Watched,
) -> None:
    watched.train(1, loss=1.0)
    watched.train(2, loss=0.5)
    last = watched.run
    chief = last.task(last.chief)
    told = replace(chief.progress, global_step=9, metrics={"loss": 0.1})
    watched.historian.ended(last.with_task(replace(chief, progress=told, heard_at=watched.at + 0.5)))
    watched.run = replace(last, generation=2, phase_state=state_of(Phase.RENDEZVOUS))
    watched.historian.sample()
    watched.end()
    assert history.moves(watched.path)[1].last_step == 9
    assert watched.points("", "loss") == 3


def test_a_disk_that_refuses_ends_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "not there")
    watched.train(1, loss=1.0)
    watched.end()
    (tmp_path / "not there").mkdir()
    watched.run = replace(watched.run, phase_state=state_of(Phase.RUNNING, progress_at=0.0))
    watched.train(2, loss=0.5)
    watched.end()
    assert watched.points("", "loss") == 1


def test_runs_that_wait_take_no_history_and_no_file_descriptor(tmp_path: Path) -> None:
    first = new_run("t-1", make_plan(["a"], checkpoint=False), epoch=1, at=0.0)
    waiting = replace(first, phase_state=state_of(Phase.QUEUED))
    runs = {f"t-{number}": replace(waiting, run_id=f"t-{number}") for number in range(20)}
    for run_id in runs:
        (tmp_path / run_id).mkdir()
    watching = Historian(lambda: runs, lambda run_id: str(tmp_path / run_id))
    before = os.listdir("/proc/self/fd")
    watching.sample()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert list(tmp_path.rglob(f"{history.FILE}*")) == []


def test_a_run_that_returns_to_the_queue_goes_on_in_the_same_history(watched: Watched) -> None:
    watched.train(1, loss=1.0)
    trains = watched.run
    watched.run = replace(trains, phase_state=state_of(Phase.QUEUED))
    for _ in range(60):
        watched.at += 1
        watched.historian.sample()
        assert os.listdir(watched.directory) == [history.FILE], "what belongs to an open one is gone"
    assert watched.points("", "loss") == 1
    watched.run = replace(trains, generation=2)
    watched.train(2, loss=0.5)
    watched.end()
    assert watched.points("", "loss") == 2
    assert history.watches(watched.path) == [(1001.0, watched.at)], "a coordinator was there all the time"


def test_a_run_that_ends_in_the_queue_was_watched_up_to_its_end(watched: Watched) -> None:
    watched.train(1, loss=1.0)
    watched.run = replace(watched.run, phase_state=state_of(Phase.QUEUED))
    watched.historian.sample()
    watched.at += 60
    watched.end()
    assert os.listdir(watched.directory) == [history.FILE]
    assert history.watches(watched.path) == [(1001.0, watched.at)]
    assert watched.points("", "loss") == 1

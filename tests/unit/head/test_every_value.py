"""Every value that a script reports reaches the history, through runtime, shim and head, whatever is lost between."""

from __future__ import annotations

import math
import os
import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.both import stretches
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import new_run
from orchestrator.head.effects.historian import Historian
from orchestrator.head.links import edge
from orchestrator.head.records import history, run_series
from orchestrator.head.records.history import History
from orchestrator.host.shim.report import Progress as ShimProgress
from orchestrator.host.shim.report import blank_task
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.reports import HostSample
from orchestrator.task.link import Link
from orchestrator.task.progress import Progress
from tests.protocol_values import valid
from tests.unit.core.phases import state_of
from tests.unit.core.transcript import make_plan

RUN = "t-20260101-000000"


class Socket(Link):
    """The runtime's end of its socket, whose reader is at times too slow."""

    def __init__(self) -> None:
        super().__init__(None)
        self.is_full = False
        self.sent: list[Any] = []

    @property
    def attached(self) -> bool:
        return True

    def send(self, message: Any, wait_s: float = 0.0) -> bool:
        assert wait_s == 0.0, "training waits for nobody"
        if not self.is_full:
            self.sent.append(message)
        return not self.is_full


class Way:
    """A task, its shim and the head, whose time passes as the test says."""

    def __init__(self, directory: Path, task: str = "worker:0") -> None:
        self.directory, self.at, self.task = directory, 1000.0, task
        self.socket = Socket()
        self.runtime = Progress(self.socket, interval_s=0.0)
        self.runtime._due_at = math.inf
        self.shim = ShimProgress(task)
        run = new_run(RUN, make_plan(["a", "b"], checkpoint=True), epoch=1, at=900.0)
        self.run = replace(run, generation=1, phase_state=state_of(Phase.RUNNING, progress_at=0.0))
        self.begin_head()

    def begin_head(self) -> None:
        self.historian = Historian(
            lambda: {RUN: self.run}, lambda _: str(self.directory), now=lambda: self.at, clock=lambda: self.at
        )

    def message(self) -> None:
        self.at += 0.25
        self.runtime.flush()
        self.runtime._due_at = math.inf
        for message in self.socket.sent:
            self.shim.heard(message, self.at)
        self.socket.sent.clear()

    def report(self, *, arrives: bool = True) -> None:
        task = blank_task({"task": self.task, "generation": 1})
        self.shim.put_into(task, self.at)
        self.shim.told()
        ((frame, _),) = Decoder().feed(encode({"report": {"host": valid(HostSample), "runs": {RUN: [task]}}}))
        if arrives:
            checked = edge.frame("a", frame, b"")
            assert "report" in checked
            self.historian.heard(RUN, "a", checked["report"]["runs"][RUN])
            self.historian.sample()

    def end(self) -> None:
        self.run = replace(self.run, phase_state=state_of(Phase.SUCCEEDED))
        self.historian.sample()

    def buckets(self, name: str = "loss", *, most: int = 100_000, **steps: int) -> list[history.Bucket]:
        path = os.path.join(self.directory, history.FILE)
        asked = {"first": None, "last": None, **steps}
        (found,) = history.read_by_step(path, [("", name)], buckets=most, **asked)
        return list(found.buckets)

    def lines(self, **query: str) -> list[dict[str, Any]]:
        asked = {"names": "loss", "x": "step", **query}
        found: list[dict[str, Any]] = run_series.series_document(str(self.directory), RUN, asked)["series"]
        return found


def losses(count: int) -> list[float]:
    """Return losses whose mean is 0.25, with a spike."""
    drawn = random.Random(7)
    made = [drawn.uniform(0.0, 0.5) for _ in range(count)]
    made[2000] = 50.0
    return made


def train(way: Way, values: Iterable[float], *, per_message: int = 22, lost: Iterable[int] = ()) -> None:
    """Report the values at steps from 1 on; the reports of these numbers do not arrive."""
    gone = set(lost)
    for step, value in enumerate(values, 1):
        way.runtime.report(step, {"loss": value})
        if step % per_message == 0:
            way.message()
        if step % (per_message * 8) == 0:
            way.report(arrives=step // (per_message * 8) not in gone)
    way.message()
    way.report()
    way.end()


def test_ninety_steps_a_second_are_kept_one_by_one_at_their_own_steps(tmp_path: Path) -> None:
    way, told = Way(tmp_path), losses(3616)
    train(way, told)
    kept = way.buckets()
    assert [(bucket.step_first, bucket.last) for bucket in kept] == list(enumerate(told, 1))
    (line,) = way.lines(from_step="1990", to_step="2010")
    assert dict(zip(line["x"], line["y"], strict=True)) == {
        step: told[step - 1] for step in range(1990, 2011)
    }
    (all_of_it,) = way.lines(buckets="100")
    assert (2001, 50.0) in zip(all_of_it["x"], all_of_it["y"], strict=True), "the spike, at its own step"
    assert all(told[x - 1] == y for x, y in zip(all_of_it["x"], all_of_it["y"], strict=True))
    mean = sum(mean * n for _, mean, n in all_of_it["means"]) / sum(n for *_, n in all_of_it["means"])
    assert mean == pytest.approx(sum(told) / len(told))
    (by_time,) = way.lines(x="time", buckets="4000")
    assert sum(n for *_, n in by_time["means"]) == len(told)


@pytest.mark.parametrize("lost", [range(3, 5), range(2, 18), range(1, 21)])
def test_reports_that_are_lost_cost_single_points_at_most_and_no_extreme(tmp_path: Path, lost: range) -> None:
    way, told = Way(tmp_path), losses(3616)
    train(way, told, lost=lost)
    kept = way.buckets()
    assert sum(bucket.n for bucket in kept) == len(told)
    assert max(bucket.max for bucket in kept) == 50.0
    mean = sum((bucket.mean or 0.0) * bucket.n for bucket in kept) / len(told)
    # Of a row of which a part was heard before, the rest counts with the mean of the whole.
    assert mean == pytest.approx(sum(told) / len(told), rel=0.01)


def test_another_coordinator_adds_nothing_twice(tmp_path: Path) -> None:
    way, told = Way(tmp_path), losses(3600)[:900]
    for step, value in enumerate(told, 1):
        way.runtime.report(step, {"loss": value})
        if step % 45 == 0:
            way.message()
            way.report()
            way.historian.sample(ending=True)
            way.begin_head()
    way.end()
    assert [(bucket.n, bucket.last) for bucket in way.buckets()] == [(1, value) for value in told]
    wide = way.buckets(most=10)
    assert sum(bucket.n for bucket in wide) == 900
    assert sum(bucket.sum or bucket.last for bucket in wide) == pytest.approx(sum(told))


def test_a_message_that_the_shim_does_not_take_is_told_with_the_next_one(tmp_path: Path) -> None:
    way = Way(tmp_path)
    values = [1.0, math.nan, 3.0, 4.0]
    for step, value in enumerate(values, 1):
        way.socket.is_full = step < 4
        way.runtime.report(step, {"loss": value})
        way.message()
    way.report()
    way.end()
    assert [bucket.last for bucket in way.buckets()] == [1.0, 3.0, 4.0]
    assert way.shim._nonfinite["loss"] == {"step": 2, "value": "nan"}


class EagerTensor:
    """A tensor of TensorFlow, as far as a report reads it: by its type's name and as a number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_a_tensor_that_is_nan_for_one_step_is_seen_and_the_others_are_kept(tmp_path: Path) -> None:
    way = Way(tmp_path)
    for step in range(1, 1001):
        way.runtime.report(step, {"loss": EagerTensor(math.inf if step == 500 else float(step))})
    way.message()
    way.report()
    way.end()
    assert sum(bucket.n for bucket in way.buckets()) == 999
    assert way.shim._nonfinite["loss"] == {"step": 500, "value": "inf"}


def test_two_hundred_metrics_share_the_room_of_a_report_and_keep_their_means(tmp_path: Path) -> None:
    way = Way(tmp_path)
    for step in range(1, 201):
        way.runtime.report(step, {f"m{i}": float(i * (step % 2)) for i in range(200)})
        if step % 5 == 0:
            way.message()
        if step % 20 == 0:
            way.report()
    way.end()
    for i in (0, 7, 199):
        kept = way.buckets(f"m{i}")
        assert sum(bucket.n for bucket in kept) == 200
        assert sum((bucket.mean or 0.0) * bucket.n for bucket in kept) / 200 == pytest.approx(i / 2)


def test_a_validation_stands_at_its_own_steps_and_other_tasks_than_the_chief_tell_nothing(
    tmp_path: Path,
) -> None:
    way = Way(tmp_path)
    for step in range(1, 101):
        way.runtime.report(step, {"loss": 1.0, **({"val_loss": 1.0 / step} if step % 25 == 0 else {})})
    way.message()
    way.report()
    way.end()
    assert [(bucket.step_first, bucket.last) for bucket in way.buckets("val_loss")] == [
        (step, 1.0 / step) for step in (25, 50, 75, 100)
    ]
    other = ShimProgress("worker:1")
    other.heard({"step": 1, "metrics": {"loss": 1.0}, "stretches": {"loss": [[1, 1.0]]}}, 1.0)
    task: Any = blank_task({"task": "worker:1", "generation": 1})
    other.put_into(task, 1.0)
    assert task["stretches"] == {}


def test_a_script_that_counts_its_steps_again_is_kept_too(tmp_path: Path) -> None:
    way = Way(tmp_path)
    for _ in range(2):
        for step in range(1, 51):
            way.runtime.report(step, {"loss": float(step)})
            way.message()
        way.report()
    way.end()
    kept = way.buckets()
    assert [(bucket.step_first, bucket.n) for bucket in kept] == [(step, 2) for step in range(1, 51)]


@pytest.mark.parametrize(
    "row",
    [
        "row", [], [1], [1, "2"], [1.5, 2.0], [-1, 2.0], [1, math.nan], [1, True], [1, 2, 3],
        [1, 2, 1e300, *[1.0] * 7], [1, 2, 0, *[1.0] * 7], [1, 2, 2, 1.0, 1.0, 1.0, -4, 1.0, 1, 1.0],
    ],
)  # fmt: skip
def test_what_any_program_writes_to_the_socket_is_no_row(row: Any) -> None:
    shim = ShimProgress("worker:0")
    shim.heard({"step": 5, "metrics": {"loss": 1.0}, "stretches": {"loss": [row, [5, 1.0]]}}, 1.0)
    task: Any = blank_task({"task": "worker:0", "generation": 1})
    shim.put_into(task, 1.0)
    assert task["stretches"]["loss"] == {"count": 1, "rows": [[5, 1.0]]}


def test_rows_that_a_host_invents_cost_no_history(tmp_path: Path) -> None:
    way = Way(tmp_path)
    way.historian.sample()
    huge: Any = {"count": 1 << 62, "rows": [[1.5, 2.0], [3, 4, 1e300, *[1.0] * 7], [7, 1.0]]}
    way.historian.heard(
        RUN, "a", [{"task": "worker:0", "generation": 1, "phase": "running", "stretches": {"loss": huge}}]
    )
    way.historian.heard(
        RUN, "a", [{"task": "ps:0", "generation": 1, "phase": "running", "stretches": {"loss": huge}}]
    )
    way.historian.heard(
        "other-1",
        "a",
        [{"task": "worker:0", "generation": 1, "phase": "running", "stretches": {"loss": huge}}],
    )
    way.historian.heard(
        RUN,
        "b",
        [
            {
                "task": "worker:0",
                "generation": 1,
                "phase": "running",
                "stretches": {"loss": huge | {"rows": [[9, 9.0]]}},
            }
        ],
    )
    way.historian.sample()
    assert not way.historian._heard, "of another task or run nothing is kept, and no host speaks for another"
    way.end()
    assert [(bucket.step_first, bucket.last) for bucket in way.buckets()] == [(7, 1.0)]


def test_a_history_of_the_version_before_is_read_and_gone_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / history.FILE)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE series (id INTEGER PRIMARY KEY, task TEXT, name TEXT, UNIQUE (task, name))")
        db.execute("INSERT INTO series VALUES (1, '', 'loss')")
        db.execute(
            "CREATE TABLE buckets (series, tier, begin, generation, step_first, step_last, first, min, max, last, n, "
            "PRIMARY KEY (series, tier, begin, generation)) WITHOUT ROWID"
        )
        db.execute("INSERT INTO buckets VALUES (1, 1, 1000, 1, 10, 14, 4.0, 1.0, 9.0, 2.0, 5)")
    query = {"names": "loss", "x": "step"}
    (before,) = run_series.series_document(str(tmp_path), RUN, query)["series"]
    assert (before["x"][0], before["x"][-1]) == (10, 14)
    assert before["y"] == [4.0, 9.0, 1.0, 2.0]
    assert "means" not in before, "nobody has written them down"
    made = History(path)
    made.add(1000.5, 1, 15, "", {"loss": 3.0})
    made.add(1003.0, 1, 16, "", {"loss": 5.0})
    made.flush(1004.0)
    made.close()
    (both,) = run_series.series_document(str(tmp_path), RUN, query)["series"]
    assert (both["x"][0], both["x"][-1]) == (10, 16), "the curve does not begin anew at the upgrade"
    (zoomed,) = history.read_by_step(path, [("", "loss")], first=16, last=20, buckets=9)
    assert [bucket.step_first for bucket in zoomed.buckets] == [16]
    (empty,) = history.read_by_step(path, [("", "loss")], first=500, last=600, buckets=9)
    assert empty.buckets == (), "a range without values is empty"
    (found,) = history.read(path, [("", "loss")], begin=None, end=None, buckets=9)
    assert [(bucket.n, bucket.last, bucket.mean) for bucket in found.buckets] == [
        (6, 3.0, None),
        (1, 5.0, 5.0),
    ]


def test_where_single_values_were_dropped_for_room_wider_buckets_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BYTES_MAX", 1 << 20)
    path = str(tmp_path / history.FILE)
    made, count = History(path), 20_000
    for step in range(count):
        made.add(step, 1, step, "", {"loss": 90.0 if step == 777 else 1.0})
        if step % 600 == 0:
            made.flush(step)
    made.close()
    assert os.stat(path).st_size <= 1 << 20
    (found,) = history.read_by_step(path, [("", "loss")], first=None, last=None, buckets=count)
    firsts = [bucket.step_first or 0 for bucket in found.buckets]
    assert firsts == sorted(firsts)
    assert firsts[0] == 0
    assert max(bucket.max for bucket in found.buckets) == 90.0
    assert sum(bucket.n for bucket in found.buckets) >= 0.97 * (count - 600)
    assert [bucket.n for bucket in found.buckets[-2000:]] == [1] * 2000, "those of the last hour are whole"


def test_a_trail_that_nobody_hears_stays_small_and_loses_nothing() -> None:
    trail = stretches.Trail()
    for step in range(100_000):
        trail.add([[step, float(step)]], step / 4, 1)
    content = trail.content()
    assert len(content["rows"]) <= 400
    assert sum(map(stretches.count, content["rows"])) == content["count"] == 100_000
    trail.told()
    for step in range(100_000, 130_000):
        trail.add([[step, float(step)]], step / 4, 1)
        trail.told()
    assert len(trail.content()["rows"]) <= 140


def test_of_equal_lows_and_highs_the_first_step_is_told() -> None:
    rows: list[stretches.Row] = [[1, 2.0], [2, 2.0]]
    assert stretches.joined(*rows) == [1, 2, 2, 4.0, 2.0, 2.0, 1, 2.0, 1, 2.0]

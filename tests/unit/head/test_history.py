"""The history of a run: what is kept, how it is thinned out, and that nothing but plots is lost with it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from pathlib import Path

import pytest

from orchestrator.head.links import edge, wire
from orchestrator.head.records import history, run_series
from orchestrator.head.records.history import History, names, read, read_by_step
from orchestrator.host.shim.report import Progress, blank_task
from orchestrator.protocol.channel import Decoder, encode
from orchestrator.protocol.limits import METRICS_MAX
from orchestrator.protocol.reports import HostSample
from orchestrator.reporting.goodput import Moved
from tests.protocol_values import valid


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / history.FILE)


def written(path: str, count: int, *, begin: int = 100_000) -> History:
    made = History(path)
    for i in range(count):
        made.add(begin + i, 1, i, "", {"loss": 1000 / (i + 1)})
    made.flush(begin + count)
    return made


def points(path: str, name: str = "loss", **query: str) -> list[tuple[float, float | None]]:
    found = run_series.series_document(os.path.dirname(path), "t", {"names": name, **query})
    return [each for line in found["series"] for each in zip(line["x"], line["y"], strict=True)]


def test_a_short_run_is_read_value_by_value(path: str) -> None:
    written(path, 50).close()
    assert points(path) == [(100_000 + i, 1000 / (i + 1)) for i in range(50)]
    assert points(path, x="step") == [(i, 1000 / (i + 1)) for i in range(50)]


@pytest.mark.fault(117)
def test_where_a_value_was_not_finite_first_is_told_beside_its_points_and_the_json_stays_json(
    path: str,
) -> None:
    made = written(path, 20)
    made.not_finite(100_020.0, 1, {"loss": (20, "nan"), "norm": (4, "inf")})
    made.flush(100_021)
    made.not_finite(100_030.0, 1, {"loss": (30, "inf")})
    made.close()
    again = History(path)  # another coordinator
    again.not_finite(100_040.0, 1, {"loss": (40, "nan")})
    again.not_finite(100_041.0, 2, {"loss": (21, "nan")})
    again.flush(100_042)
    again.close()
    query = {"names": "loss,norm", "x": "step"}
    found = run_series.series_document(os.path.dirname(path), "t", query)["series"]
    assert [(one["name"], one["generation"], one["nonfinite"], len(one["x"])) for one in found] == [
        ("loss", 1, [[20, "nan", 100_020.0]], 20),
        ("loss", 2, [[21, "nan", 100_041.0]], 0),
        ("norm", 1, [[4, "inf", 100_020.0]], 0),
    ]
    assert "NaN" not in json.dumps(found)


def test_a_history_of_before_has_no_such_table_and_is_read_all_the_same(path: str) -> None:
    written(path, 5).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE nonfinite")
    assert len(points(path)) == 5


@pytest.mark.fault(117)
def test_a_peak_of_one_second_survives_the_thinning_and_the_tiers(path: str) -> None:
    made = written(path, 3000)
    made.add(103_000, 1, 3000, "", {"loss": 77_777.0})
    for i in range(3001, 9000):
        made.add(100_000 + i, 1, i, "", {"loss": 0.5})
    made.flush(109_000)
    made._thinned_at = 0.0
    made.flush(109_000)  # the 1 s tier has lost its beginning
    coarse = points(path, buckets="10")
    assert len(coarse) <= 40
    assert 77_777.0 in [y for _, y in coarse]
    assert coarse[0][1] == 1000.0
    assert coarse[-1][1] == 0.5
    assert points(path, buckets="10") == coarse


def test_the_newest_are_in_the_finest_tier(path: str) -> None:
    made = written(path, 9000)
    made._thinned_at = 0.0
    made.flush(109_000)
    assert history.read(path, [("", "loss")], begin=108_000, end=None, buckets=4000)[0].tier_s == 1
    assert history.read(path, [("", "loss")], begin=None, end=None, buckets=4000)[0].tier_s == 10


def test_of_the_values_those_between_begin_and_end_are_read(path: str) -> None:
    written(path, 50).close()
    (series,) = read(path, [("", "loss")], begin=100_040, end=100_043, buckets=4000)
    assert [bucket.begin for bucket in series.buckets] == [100_040, 100_041, 100_042, 100_043]
    (series,) = read(path, [("", "loss")], begin=100_048, end=None, buckets=4000)
    assert [bucket.begin for bucket in series.buckets] == [100_048, 100_049]


def test_generations_are_lines_of_their_own_and_a_gap_breaks_a_line(path: str) -> None:
    made = History(path)
    for at, generation in (*((at, 1) for at in (*range(100, 110), *range(200, 210))), (215, 2), (220, 2)):
        made.add(at, generation, at, "", {"loss": 1.0})
    made.flush(300)
    found = run_series.series_document(os.path.dirname(path), "t", {"names": "loss"})["series"]
    assert [line["generation"] for line in found] == [1, 2]
    assert [x for x, y in zip(found[0]["x"], found[0]["y"], strict=True) if y is None] == [200]
    assert None not in found[1]["y"], "of two values, seldom told"


def test_the_steps_of_one_report_are_spread_over_the_time_since_the_report_before(path: str) -> None:
    made = History(path)
    made.follow(100_000, 1, "loss", 1, [[10, 0.5]])
    made.follow(100_100, 1, "loss", 4, [[10, 0.5], [15, 0.4], [18, 0.3], [20, 0.2]])
    made.flush(100_100)
    made.close()
    assert points(path) == [(100_000, 0.5), (100_050, 0.4), (100_080, 0.3), (100_100, 0.2)]


def test_another_process_goes_on_with_the_same_file(path: str) -> None:
    written(path, 10).close()
    again = History(path)
    again.add(100_010, 1, 10, "", {"loss": 3.0})
    again.add(100_010, 1, 10, "worker:0", {"cpu_percent": 50.0}, tiers=(10, 60))
    again.moved(1, Moved(5.0, 9.0, 1, 7))
    again.flush(100_011)
    again.close()
    assert len(points(path)) == 11
    assert names(path) == [("", "loss"), ("worker:0", "cpu_percent")]
    assert history.moves(path)[1].last_step == 7


def test_a_host_that_invents_names_cannot_make_it_grow(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SERIES_MAX", 20)
    made = History(path)
    for i in range(1000):
        made.add(1000 + i, 1, i, "", {f"metric {i}": 1.0})
    made.flush(2000)
    assert len(names(path)) <= 20


def test_tasks_leave_room_for_the_scripts_metrics_and_these_for_the_validation_which_comes_last(
    path: str,
) -> None:
    made = History(path)
    for i in range(5000):
        made.add(1000, 1, 1, f"worker:{i}", {"cpu_percent": 1.0})
    made.add(1000, 1, 1, "", {f"metric {i}": 1.0 for i in range(5000)})
    made.add(1001, 1, 2, "", {"val_loss": 1.0})
    made.flush(2000)
    kept = names(path)
    assert len(kept) <= history.SERIES_MAX
    assert ("", "val_loss") in kept
    assert sum(not task for task, _ in kept) > METRICS_MAX


def test_two_hundred_metrics_of_a_report_are_shown_and_kept(path: str) -> None:
    shim = Progress()
    told = {f"layer-{i}": float(i) for i in range(199)} | {"val_loss": 2.0}
    shim.heard({"step": 7, "metrics": told}, 1.0)
    task = blank_task({"task": "worker:0", "generation": 1})
    shim.put_into(task, 1.0)
    ((message, _),) = Decoder().feed(encode({"report": {"host": valid(HostSample), "runs": {"t": [task]}}}))
    report = edge.frame("a", message, b"")
    assert "report" in report
    (heard,) = report["report"]["runs"]["t"]
    metrics = wire.task_report(heard, at=0.0, unix_time=0.0).progress.metrics
    assert metrics == told
    made = History(path)
    made.add(1000, 1, 7, "", metrics)
    made.flush(1001)
    assert {name for _, name in names(path)} == told.keys()
    asked = {"names": ",".join(told), "x": "step"}
    first = run_series.series_document(os.path.dirname(path), "t", asked)
    assert (len(first["series"]), first["cut"]) == (run_series.SERIES_MAX, 200 - run_series.SERIES_MAX)


def test_the_file_has_a_limit_and_the_oldest_makes_room(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BYTES_MAX", 400 << 10)
    made = History(path)
    for minute in range(60):
        for second in range(60):
            at = 1_000_000 + minute * 60 + second
            made.add(at, 1, at, "", {f"m{i}": math.sin(at + i) for i in range(5)})
        made.flush(at)
    made.close()
    assert os.stat(path).st_size <= 400 << 10
    assert read(path, [("", "m0")], begin=at - 60, end=None, buckets=900)[0].buckets


def test_the_rows_of_generations_that_have_ended_make_room_too(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BYTES_MAX", 1 << 20)
    made = History(path)
    for minute in range(70):
        for value in range(300):
            at = 1_000_000 + minute * 60 + value / 5
            made.add(at, 1 + (minute >= 10), minute * 300 + value, "", {"loss": at, "accuracy": at})
        made.flush(at)
        assert made.failure is None, f"minute {minute}: {made.failure}"
    made.close()


def test_steps_that_take_the_room_cost_no_curve_by_time(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tasks and hosts use has buckets of time only."""
    monkeypatch.setattr(history, "BYTES_MAX", 400 << 10)
    made, begin = History(path), 1_000_020
    for minute in range(120):
        for value in range(300):
            at = begin + minute * 60 + value / 5
            made.add(at, 1, minute * 300 + value, "", {"loss": at}, tiers=(60,))
        made.add(at, 1, None, "worker:0", {"cpu_percent": 50.0}, tiers=(10, 60))
        made.flush(begin + (minute + 1) * 60)
        assert made.failure is None, f"minute {minute}: {made.failure}"
    made.close()
    assert os.stat(path).st_size <= 400 << 10
    wanted = [("", "loss"), ("worker:0", "cpu_percent")]
    loss, cpu = read(path, wanted, begin=None, end=None, buckets=900)
    assert [bucket.begin for bucket in loss.buckets] == [begin + 60 * minute for minute in range(120)]
    assert [bucket.begin for bucket in cpu.buckets] == [begin + 60 * minute + 50 for minute in range(120)]


def test_a_fine_tier_of_time_that_takes_the_room_costs_neither_coarse_ones_nor_steps(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BYTES_MAX", 400 << 10)
    made, begin = History(path), 1_000_020
    for minute in range(60):
        for value in range(6):
            for task in range(20):
                at = begin + minute * 60 + value * 10
                values = {"cpu_percent": math.sin(at + task)}
                made.add(at, 1, None, f"worker:{task}", values, tiers=(10, 60))
        made.add(at, 1, minute, "", {"loss": 1.0}, tiers=(60,))
        made.flush(begin + (minute + 1) * 60)
        assert made.failure is None, f"minute {minute}: {made.failure}"
    made.close()
    assert os.stat(path).st_size <= 400 << 10
    (cpu,) = read(path, [("worker:0", "cpu_percent")], begin=None, end=None, buckets=900)
    assert cpu.tier_s == 60, "those of 10 s made room"
    assert [bucket.begin for bucket in cpu.buckets] == [begin + 60 * minute for minute in range(60)]
    (loss,) = read_by_step(path, [("", "loss")], first=None, last=None, buckets=900)
    assert [(bucket.step_first, bucket.n) for bucket in loss.buckets] == [(minute, 1) for minute in range(60)]


def test_a_metric_may_have_any_name(path: str) -> None:
    made = History(path)
    strange = ("val/loss", "a,b", "100%", "worker:0/loss")
    made.add(5, 1, 1, "", dict.fromkeys(strange, 1.0))
    made.flush(5)
    for name in strange:
        assert points(path, run_series.named("", name)) == [(5, 1.0)]


def test_a_damaged_history_is_put_aside_and_a_new_one_begun(path: str) -> None:
    Path(path).write_bytes(b"this is no database" * 1000)
    assert names(path) == []
    assert points(path) == []
    made = History(path)
    made.add(5, 1, 1, "", {"loss": 1.0})
    made.flush(5)
    assert made.failure is not None
    made.flush(6)
    assert made.failure is None
    assert points(path) == [(5, 1.0)]
    assert os.path.exists(path + ".damaged")


def test_a_disk_that_refuses_loses_nothing_that_fits_into_memory(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    path = str(directory / history.FILE)
    made = History(path)
    made.add(5, 1, 1, "", {"loss": 1.0})
    made.flush(5)
    assert made.failure is not None
    directory.mkdir()
    made.flush(6)
    assert made.failure is None
    assert points(path) == [(5, 1.0)]


def test_a_file_of_others_is_not_read_as_one(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE series (id)")
    assert names(path) == []


def test_when_it_trained_saved_and_was_watched_is_kept_across_coordinators(path: str) -> None:
    for begin, saved_s in ((100.0, 2.0), (500.0, 3.0)):
        made = History(path)
        made.watched(begin)
        made.moved(1, Moved(begin, begin + 5, 1, 10, began_at=begin - 4, saved_s=saved_s))
        made.watched(begin + 10)
        made.flush(begin + 10)
        made.close()
    assert history.moves(path) == {1: Moved(100.0, 505.0, 1, 10, began_at=96.0, saved_s=3.0)}
    assert history.watches(path) == [(100.0, 110.0), (500.0, 510.0)]


def test_a_history_of_before_is_read_without_them(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE moves (generation INTEGER PRIMARY KEY, first_at, last_at, first_step, last_step)"
        )
        db.execute("INSERT INTO moves VALUES (1, 2.0, 3.0, 4, 5)")
    assert history.moves(path) == {1: Moved(2.0, 3.0, 4, 5)}
    assert history.watches(path) == []

"""Of many lines the middle, most of them, and who is apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.head.records import bands, history
from orchestrator.head.records.history import History


def test_a_band_takes_the_newest_value_of_each_stretch(tmp_path: Path) -> None:
    path = str(tmp_path / history.FILE)
    made = History(path)
    for at in range(0, 600, 10):
        for index in range(4):
            made.add(100_000 + at, 1, at, f"worker:{index}", {"cpu": float(at + index)}, tiers=(10, 60))
    made.flush(101_000)
    made.close()
    wanted = [(f"worker:{index}", "cpu") for index in range(4)]
    found = history.cells(path, wanted, begin=None, end=None, count=10)
    assert len(found) == 4
    assert list(found["worker:0", "cpu"].values())[-1] == 590.0
    told = bands.document(os.path.dirname(path), "t", {"of": "task", "name": "cpu", "buckets": "10"})
    assert (told["members"], told["low"][-1], told["high"][-1]) == (4, 590.0, 593.0)
    assert len(told["x"]) <= 12
    zoomed = {"of": "task", "name": "cpu", "from": "100100", "to": "100200", "buckets": "300"}
    assert bands.document(os.path.dirname(path), "t", zoomed)["x"] == list(range(100_100, 100_201, 10))
    assert bands.document(os.path.dirname(path), "t", {"of": "host", "name": "cpu"})["x"] == []
    with pytest.raises(ValueError, match="buckets"):
        bands.document(os.path.dirname(path), "t", {"buckets": "0"})


def test_who_is_far_below_the_others_is_shown_as_well_as_who_is_far_above() -> None:
    """A worker that waits for its data has the lowest load of all, and is the one that is looked for."""
    loads = [2.0, 90.0, 91.0, 92.0, 93.0, 94.0, 130.0]
    drawn = bands.band({(f"worker:{index}", "cpu"): {0: load} for index, load in enumerate(loads)})
    assert [line["task"] for line in drawn["outliers"][:2]] == ["worker:0", "worker:6"]

"""The measured part of docs/scaling.md: efficiencies are against one replica started the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scaling_page as page
from benchmarks.machine import Machine, heading

DOCUMENT = Path(__file__).parents[2] / "docs/scaling.md"


def rates() -> list[page.Rate]:
    mwms = "multi_worker_mirrored"
    return [
        page.Rate(mwms, "under orch", 1, 1000.0, 128.0),
        page.Rate(mwms, "under orch", 4, 1600.0, 320.0),
        page.Rate(mwms, "by hand", 1, 800.0, 160.0),
        page.Rate(mwms, "by hand", 2, 1200.0, 213.3),
    ]


def test_each_way_to_start_is_compared_with_its_own_single_replica() -> None:
    text = page.scaling(rates(), cores=4)
    assert "| multi_worker_mirrored | under orch | 4 | 1600 | 320.0 | 40 % |" in text
    assert "| multi_worker_mirrored | by hand | 2 | 1200 | 213.3 | 75 % |" in text
    assert "share them" not in text


def test_more_replicas_than_cores_are_said_to_be_so() -> None:
    text = page.scaling(rates(), cores=2)
    assert "| 4 on 2 cores | 1600 | 320.0 | 40 % (oversubscribed) |" in text
    assert "4 on 2 cores can at best do the work of 2, an efficiency of 50 %" in text


def test_what_communication_takes_of_a_step() -> None:
    text = page.dense(page.Dense(100.0, 400.0, ((2, 300.0, 0.5),)))
    assert "| 2, over loopback | 400 | 75 % | 0.50 |" in text
    assert "| 2, reckoned at 1 Gbit/s | 400 | 75 % | 0.50 |" in text


@pytest.mark.parametrize(("load", "warned"), [(0.2, False), (3.0, True)])
def test_a_busy_machine_is_said_to_be_one(load: float, warned: bool) -> None:
    text = heading(Machine("2026-01-01 00:00 UTC", "abc1234", "a processor", 2, load, "measure"))
    assert ("busy machine" in text) == warned


def test_only_what_stands_between_the_marks_is_exchanged() -> None:
    document = DOCUMENT.read_text()
    new = page.replaced(document, "figures")
    assert new.partition(page.BEGIN)[0] == document.partition(page.BEGIN)[0]
    assert new.partition(page.BEGIN)[2].partition(page.END)[0] == "\n\nfigures\n\n"
    assert page.replaced(new, "figures") == new
    with pytest.raises(ValueError, match="has no"):
        page.replaced("no marks", "figures")

"""The comparison with the peers: what a kill costs is found from the steps that were told, and the page says it."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from benchmarks.machine import Machine
from benchmarks.peers import goodput, page
from benchmarks.peers.goodput import Goodput, Times
from benchmarks.peers.steps import Step, read

AT = Machine("2026-01-01 00:00 UTC", "abc1234", "a processor", 2, 0.1, "python -m benchmarks.peers")

STEPS = [
    Step(1.0, 1, 10),
    Step(2.0, 2, 10),
    Step(2.01, 3, 10),  # it was under way when the kill came at 2.0
    Step(6.0, 2, 11),
    Step(7.0, 3, 11),
    Step(8.0, 4, 11),
]


def test_the_first_step_is_that_of_a_new_process() -> None:
    assert goodput.first_of_new(STEPS, killed_at_s=2.0) == 4.0


def test_lost_is_the_time_to_a_step_that_had_not_been_done_before() -> None:
    assert goodput.beyond(STEPS, killed_at_s=2.0) == 6.0


def test_what_does_not_come_back_lasts_for_ever() -> None:
    assert goodput.first_of_new(STEPS, killed_at_s=8.0) == inf
    assert goodput.beyond(STEPS, killed_at_s=8.0) == inf


def test_the_steps_are_read_as_they_were_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(goodput.__file__).parent / "workdir"))
    from telling import Teller  # type: ignore[import-not-found]

    assert read(tmp_path) == []
    teller = Teller(str(tmp_path), 0)
    teller.did(7)
    (step,) = read(tmp_path)
    assert step.number == 7
    assert (tmp_path / "pid.0").read_text() == str(step.pid)


TIMES = Times(window_s=600.0, every_s=60.0, patience_s=90.0)


def test_the_page_says_what_never_came_back() -> None:
    measured = {
        "orch, standby": Goodput(30.0, 0.95, (0.1, 0.2), (1.4, 1.6), (2.0, 2.4), frozen_s=12.0, cut_s=inf),
        "a loop": Goodput(31.0, 0.4, (3.0, inf), (9.0, inf), (20.0, inf)),
    }
    text = page.document(AT, measured, {}, ["Ray Train: not measured: no step"], TIMES, minutes=61.0)
    assert "| orch, standby | 95 % | 30.0 | 0.15 s (0.20 s) | 1.50 s (1.60 s) | 2.20 s (2.40 s) | 2 |" in text
    assert "not before the next kill" in text
    assert "| orch, standby | 0.15 s | 12.00 s | not in 90 s |" in text
    assert "not measured | not measured |" in text, "of the loop nothing was frozen or cut"
    assert "Ray Train: not measured" in text
    assert sorted(page.images(measured, {}, TIMES)) == ["peers-goodput.svg", "peers-lost.svg"]
    rarely = replace(TIMES, save_s=600.0)
    assert sorted(page.images(measured, {}, rarely)) == ["peers-rarely-goodput.svg", "peers-rarely-lost.svg"]
    text = page.document(AT, measured, {}, [], rarely, minutes=61.0)
    assert "](images/peers-rarely-goodput.svg)" in text
    assert "Until it is noticed" not in text, "nothing is frozen or cut off there"
    assert (
        "a save every 10 min, a kill every 60 s"
        in page.images(measured, {}, rarely)["peers-rarely-goodput.svg"]
    )


def test_the_parts_of_the_median_kill_add_up_to_what_it_lost() -> None:
    measured = {
        "orch, standby": Goodput(30.0, 0.95, (0.1, 0.3, 0.2), (1.4, 1.5, 1.6), (2.0, 2.25, 2.4)),
        "a loop": Goodput(31.0, 0.4, (inf, inf), (9.0, inf), (20.0, inf)),
        "what never came back": Goodput(31.0, 0.4, (inf,), (inf,), (inf,)),
    }
    plot = page.images(measured, {}, TIMES)["peers-lost.svg"]
    assert "what never came back" not in plot
    assert re.findall(r"<title>([^<]*): ([0-9.]+) s</title>", plot) == [
        ("until the other worker&#x27;s process has ended", "0.30"),
        ("from there to the first step", "1.20"),
        ("from there to the first step that is not done again", "0.75"),
        ("until the other worker&#x27;s process has ended", "9.00"),
        ("from there to the first step", "0.00"),
        ("from there to the first step that is not done again", "11.00"),
    ]
    assert ">2.2 s<" in plot, "the sum of the parts"
    assert "The second plot splits" in page.document(AT, measured, {}, [], TIMES, minutes=1.0)


def test_the_page_shows_starts_by_hosts_and_what_is_missing_among_them() -> None:
    started = {"orch up": {3: 1.5, 16: 4.0}, "Ansible": {3: 2.25}}
    text = page.document(AT, {}, started, [], TIMES, minutes=1.0)
    assert "| 16 | 4.0 s | not measured |" in text
    assert list(page.images({}, started, TIMES)) == ["peers-start.svg"]

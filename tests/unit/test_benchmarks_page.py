"""docs/benchmarks.md: what was missed stands at its head, and its plots are whole SVG."""

from __future__ import annotations

import sys
from math import inf
from types import ModuleType
from xml.etree import ElementTree

import pytest

from benchmarks import pace, page, plots
from benchmarks.__main__ import BENCHMARKS, measure
from benchmarks.figure import Figure, Point
from benchmarks.limits import LIMITS, Limit
from benchmarks.machine import Machine
from benchmarks.plots import Spread

AT = Machine("2026-01-01 00:00 UTC", "abc1234", "a processor", 2, 0.1, "make bench")
COST = "CPU for a host & heartbeat"
BACK = "kill -9 to the first new step"
SVG = "{http://www.w3.org/2000/svg}"

MEASURED = {
    "head": [
        Figure("at 16 hosts (SSH)", "ms", 0.8, (0.7, 0.6, 0.9), point=Point(COST, "SSH", 16)),
        Figure("at 96 hosts (SSH)", "ms", 0.8, (0.9, 1.1, 1.0), point=Point(COST, "SSH", 96)),
    ],
    "comeback": [
        Figure("by hand", "s", inf, (4.0, 4.2), point=Point(BACK, "by hand")),
        Figure("with a standby", "s", 1.8, (1.5,), point=Point(BACK, "orch, standby")),
    ],
}


def text(failures: list[str] | None = None) -> str:
    about = {name: f"How {name} is measured." for name in MEASURED}
    return page.document(AT, MEASURED, about, failures or [], minutes=12.3)


def test_what_was_missed_stands_at_the_head() -> None:
    head = text(["idle: NOT MEASURED: no sshd"]).partition("## head")[0]
    assert "commit abc1234" in head
    assert "It took 12 min." in head
    assert "**2 of 3 limits are kept.**" in head
    assert "- MISSED: at 96 hosts (SSH): 1.00 ms, limit 0.80 ms" in head
    assert "- idle: NOT MEASURED: no sshd" in head


def test_the_pace_of_the_machine_stands_before_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Figure("a claim", "s", inf, (1.0,))
    benchmark = ModuleType("benchmarks.one")
    benchmark.measure = lambda: [one]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.one", benchmark)
    monkeypatch.setitem(BENCHMARKS, "one", "one of them")
    measured, failures = measure(["one", "one"])
    assert (list(measured), measured["one"], failures) == (["pace", "one"], [one], [])
    (found,) = measured["pace"]
    assert len(found.samples) == 2
    assert all(sample > 0 for sample in found.samples)


def test_the_pace_names_when_the_machine_was_slowest() -> None:
    (found,) = pace.figures([("status", 6.0), ("head", 14.0), ("agent", 7.0)])
    assert (found.measured, found.note) == (7.0, "the most before `head`")
    assert "| (ms) | 6.00 | 7.00 | 14.00 | 3 |" in page.markdown([found])


def test_a_limit_counts_once_however_many_figures_it_judges_and_not_as_kept_where_one_misses_it() -> None:
    up, ends, gone = Limit("head: up", 30.0), Limit("recovery: ends", 150.0), Limit("overhead: wall", 2.0)
    measured = {
        "head": [Figure("at 16 hosts", "ms", up, (20.0,)), Figure("at 96 hosts", "ms", up, (40.0,))],
        "recovery": [
            Figure("until the peers have ended", "ms", ends, (20.0, 30.0)),
            Figure("the same, 99th percentile", "ms", Limit(ends.row, 2 * ends), (30.0,)),
        ],
    }
    about = dict.fromkeys(measured, "")
    rows = [up.row, ends.row, gone.row]
    head = page.document(AT, measured, about, ["overhead: NOT MEASURED: interrupted"], 1.0, rows)
    assert "**1 of 3 limits are kept.**" in head
    assert "- overhead: NOT MEASURED: interrupted" in head
    assert "- no figure for the limit: overhead: wall" in head


def test_each_benchmark_is_judged_by_a_row_and_each_row_judges_one() -> None:
    assert {row.partition(":")[0] for row in LIMITS} == {*BENCHMARKS, "gpu"}


@pytest.mark.parametrize(
    ("median", "error", "verdict"),
    [(1.9, 0.0, "ok"), (1.5, 0.5, "ok"), (1.9, 1.9, "NOT SHOWN"), (2.1, 0.0, "MISSED"), (2.1, 1.9, "MISSED")],
)
def test_a_limit_is_kept_with_the_whole_interval(median: float, error: float, verdict: str) -> None:
    figure = Figure("wall time", "%", 2.0, (median,), error=error)
    assert figure.verdict == verdict
    assert figure.is_kept == (verdict == "ok")


def test_what_was_not_shown_stands_at_the_head_with_its_interval() -> None:
    figure = Figure("wall time", "%", 2.0, (1.9,), error=1.9)
    head = page.document(AT, {"overhead": [figure]}, {"overhead": ""}, [], minutes=1.0)
    assert "- NOT SHOWN: wall time: 1.90 ± 1.90 %, limit 2.00 %" in head


def test_each_benchmark_has_its_way_and_its_table() -> None:
    assert "How comeback is measured." in text()
    assert "| with a standby | 1.80 s | 1.50 | 1.50 | 1.50 | 1 | ok |  |" in text()
    assert "| by hand | (s) | 4.00 | 4.10 | 4.20 | 2 |  |  |" in text()


def test_each_plot_is_a_whole_image_that_the_page_shows() -> None:
    images = page.images(MEASURED)
    assert sorted(images) == ["bench-cpu-for-a-host-heartbeat.svg", "bench-kill-9-to-the-first-new-step.svg"]
    for name, svg in images.items():
        assert f"](images/{name})" in text()
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "prefers-color-scheme:dark" in svg


def test_a_line_has_a_mark_for_each_number_of_hosts_and_its_limit() -> None:
    svg = page.images(MEASURED)["bench-cpu-for-a-host-heartbeat.svg"]
    assert svg.count("<circle") == 2
    assert "limit of 0.8 ms: SSH" in svg


def test_a_bar_has_the_median_beside_it() -> None:
    svg = page.images(MEASURED)["bench-kill-9-to-the-first-new-step.svg"]
    assert svg.count("<rect") == 2
    assert "4.10 s" in svg


def test_figures_with_parts_are_drawn_as_bars_of_those_parts_in_order() -> None:
    hand = Figure(
        "by hand", "s", inf, (5.0,), point=Point(BACK, "by hand"), parts={"start": 1.0, "import": 4.0}
    )
    warm = Figure("standby", "s", inf, (0.5,), point=Point(BACK, "standby"), parts={"start": 0.5})
    (svg,) = page.drawn([hand, warm]).values()
    bars = [
        bar for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None
    ]
    assert [bar.findtext(f"{SVG}title") for bar in bars] == [
        "start: 1.00 s",
        "import: 4.00 s",
        "start: 0.50 s",
        "import: 0.00 s",
    ]
    start, imported = (float(bar.get("x", "nan")) for bar in bars[:2])
    assert imported == pytest.approx(start + float(bars[0].get("width", "nan")), abs=0.2)
    assert float(bars[1].get("width", "nan")) == pytest.approx(
        4 * float(bars[0].get("width", "nan")), abs=0.5
    )


def test_a_plot_stands_between_the_words_of_its_benchmark_and_its_table() -> None:
    section = text().partition("## comeback")[2]
    about, plot, table = (section.index(part) for part in ("How comeback", "](images/", "| by hand |"))
    assert about < plot < table


def test_a_bar_below_zero_leads_to_the_left_of_zero() -> None:
    svg = plots.bars("shares", "%", {"less": Spread(-2, -3, -1), "more": Spread(4, 3, 5)})
    less, more = (
        {key: float(bar.get(key, "nan")) for key in ("x", "width")}
        for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect")
    )
    assert less["x"] + less["width"] == pytest.approx(more["x"], abs=0.2)
    assert more["width"] == pytest.approx(2 * less["width"], abs=0.2)


def test_numbers_of_hosts_that_lie_close_together_do_not_overlap() -> None:
    line = {float(hosts): Spread(1, 1, 1) for hosts in (16, 96, 256, 300, 1000)}
    svg = plots.lines("cost", "ms", "hosts", {"SSH": line}, {})
    assert [text for text in ("16", "96", "256", "300", "1,000") if f">{text}</text>" in svg] == [
        "16",
        "96",
        "300",
        "1,000",
    ]
    assert svg.count("<circle") == 5

"""What the page's functions make of numbers, runs, series and lines: without a coordinator, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.browsing import bare_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def js(browser: Any) -> Iterator[Any]:
    """The page's functions."""
    with bare_page(browser) as page:
        yield page


def say(js: Any, expression: str, *given: Any) -> Any:
    """Return what an expression over `a`, `b` … says, as JSON has it."""
    names = ", ".join("abcde"[: len(given)])
    return js.evaluate(
        f"([{names}]) => {{ const it = {expression}; return it === undefined ? null : it; }}", [*given]
    )


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("countText(null)", "\u2013"),
        ("countText(1234567.4)", "1,234,567"),
        ("numberText(0)", "0"),
        ("numberText(NaN)", "\u2013"),
        ("numberText(123456)", "123500"),
        ("numberText(1e6)", "1.00e+6"),
        ("numberText(-0.00012)", "-1.20e-4"),
        ("numberText(0.001)", "0.001"),
        ("durationText(null)", "\u2013"),
        ("durationText(-3)", "0.0 s"),
        ("durationText(9.94)", "9.9 s"),
        ("durationText(59.4)", "59 s"),
        ("durationText(59.6)", "1 min 0 s"),
        ("durationText(3599)", "59 min 59 s"),
        ("durationText(7384)", "2 h 3 min"),
        ("durationText(90000)", "1 d 1 h"),
        ("bytesText(1023)", "1023 B"),
        ("bytesText(1536)", "1.5 KiB"),
        ("bytesText(20 * 1024)", "20 KiB"),
        ("bytesText(3 * 2 ** 50)", "3072 TiB"),
        ("percentText(12.6)", "13%"),
        ("timeText(0)", "\u2013"),
        ("timeText(1760000000.7)", "08:53:20"),
        ("timeText(1760000000, {date: true})", "2025-10-09 08:53:20"),
        ("plainText('a\\u202eb\\x07')", "a\\u202eb\\u0007"),
        ("plainText('\\x1b[1;31mred\\x1b[0m')", "red"),
        ("plainText('a\\rb\\n\\tc')", "a␍b\n\tc"),
        ("seriesName({task: 'worker:0', name: 'a,b/c'})", "worker%3A0/a%2Cb%2Fc"),
        ("seriesName({task: '', name: 'loss'})", "loss"),
        ("linkTo(['r', 'a/b'], {q: 'x y', at: '', level: null})", "#/r/a%2Fb?q=x+y"),
        ("urlOf('/v1/stream', {run: null, after: 0})", "/v1/stream?after=0"),
        ("String(scaled('network_in_per_s', [2097152, null]))", "2,"),
        ("String(scaled('steps_per_s', [2097152]))", "2097152"),
        ("TITLES.disk_read_per_s", "disk read (MiB/s)"),
        ("measuredColumns('host').map((column) => column.name).join()", "CPU,memory"),
        ("goodputText(null)", "\u2013"),
        ("goodputText({value: 0.9876})", "98.8%"),
        ("goodputText({value: 0.9961})", "100%"),
        ("lostText({lost_gpu_hours: 0})", ""),
        ("lostText({lost_gpu_hours: 1.23456})", "1.235 GPU-h trained again"),
        ("rangesText(['worker:0', 'worker:1', 'worker:2', 'ps:0'])", "worker:0…2, ps:0"),
        ("rangesText(['worker:9', 'worker:11', 'worker:12'])", "worker:9, worker:11…12"),
        ("rangesText(['chief', 'worker:0'])", "chief, worker:0"),
        ("range(['loss 0.5 at 0xff', 'loss 0.25 at 0xfe'])", "loss 0.25…0.5 at 0x…"),
        ("range(['step 9 of 50', 'step 10 of 50'])", "step 9…10 of 50"),
        ("plainLines({a: 'yes', b: '', c: null, d: [], e: 'x: y', f: 'plain/path'}).join('|')",
         'a: "yes"|d: []|e: "x: y"|f: plain/path'),
        ("plainLines({hosts: [{name: 'a', gpus: [0, 1]}]}).join('|')", "hosts:|  - name: a|    gpus: [0, 1]"),
    ],
)  # fmt: skip
def test_numbers_names_and_documents_are_shown_as(js: Any, expression: str, text: str) -> None:
    assert say(js, expression) == text


def test_changes_of_the_state_are_taken_in(js: Any) -> None:
    before = {"runs": {"a": {"step": 1, "loss": 2}, "b": {"step": 5}}, "list": [1]}
    change = {"runs": {"-": ["b"], "a": {"step": 2}, "c": {"step": 0}}, "list": [2, 3], "away": None}
    after = {"runs": {"a": {"step": 2, "loss": 2}, "c": {"step": 0}}, "list": [2, 3], "away": None}
    assert say(js, "applyChanges(a, b)", before, change) == after
    evil = """applyChanges({}, JSON.parse('{"__proto__": {"bad": 1}}')).bad ?? 'clean'"""
    assert say(js, evil) == "clean"
    assert say(js, "applyChanges({a: [1]}, {a: {b: 1}})") == {"a": {"b": 1}}


def words(js: Any, run: dict[str, Any], listed: int | None = None, *, away: int | None = None) -> Any:
    """Return the sentence and the progress of a run; `away`: since when the coordinator does not answer."""
    now = f"page.state.away_since = {json.dumps(away)}"
    return say(
        js, f"({now}, [runSentence(a, b), progressParts(a).map((each) => each.textContent)])", run, listed
    )


RUN = {"phase": "RUNNING", "reason_begins_with": "global_step", "reason": "step 60", "global_step": 60,
       "steps_total": 90, "steps_per_s": 12.3456, "training_epoch": 1, "training_epochs": 3, "eta_s": 30.0}  # fmt: skip


def test_a_run_is_said_with_its_pace_and_what_a_failure_would_cost(js: Any) -> None:
    sentence, progress = words(js, {**RUN, "checkpoint": {"global_step": 40}}, 50)
    assert sentence.startswith("It trains at 12.3 steps/s and should end at ")
    assert sentence.endswith(
        ". Verified is step 40: after a failure it resumes from there or later."
        " Step 50 is written, and not verified yet."
    )
    assert progress == ["", "60 / 90 (66%)", "epoch 2/3", "ETA 30 s"]
    sentence, _ = words(js, {**RUN, "steps_per_s": None, "eta_s": None, "saving": {"saved_step": 40}})
    assert sentence == (
        "It trains. No checkpoint is verified yet: after a failure it may start again."
        " Step 40 is written, and not verified yet."
    )
    assert "written" not in words(js, {**RUN, "checkpoint": {"global_step": 50}}, 50)[0]
    assert words(js, {**RUN, "reason_rest": "worker:1 is slow"})[0] == "worker:1 is slow"
    assert words(js, {**RUN, "phase": "BACKOFF", "reason": "waits 3 s"})[0] == "waits 3 s"
    assert words(js, {"phase": "RUNNING", "reason": "", "global_step": 7, "steps_total": None})[1] == [
        "step 7"
    ]


def test_nothing_counts_on_while_nobody_tells_anything_new(js: Any) -> None:
    since = 1760000000
    sentence, progress = words(js, {**RUN, "started_at": since - 100, "ended_at": None}, away=since)
    assert sentence == "This was known at 2025-10-09 08:53:20; whether it is still so is not known."
    assert progress == ["", "60 / 90 (66%)", "epoch 2/3", "1 min 40 s so far"]
    assert (
        words(js, {**RUN, "phase": "FAILED", "reason": "worker:0 ended"}, away=since)[0] == "worker:0 ended"
    )
    ages = f"(page.state.away_since = {since}, [{since - 3}, {since - 1000}].map(ago))"
    assert say(js, ages) == ["3 s ago", "16 min 40 s ago"]


def test_what_is_wrong_stands_first(js: Any) -> None:
    tasks = [
        {"task": f"worker:{i}", "phase": "RUNNING", "steps_per_s": pace}
        for i, pace in enumerate([10.0, 7.6, 7.5, 10.0, None])
    ]
    assert say(js, "[...slowTasks(a)]", tasks) == [["worker:2", 25]]
    assert say(js, "[...slowTasks(a.slice(0, 2))]", tasks) == []
    tasks[4]["phase"] = "LOST"
    slow = "(one) => one.task === 'worker:3'"
    order = f"worstFirst(a, b, (one) => [one.task], {slow}).map((one) => one.task.slice(-1)).join('')"
    assert say(js, order, tasks, "") == "43012"
    assert say(js, order, tasks, " WORKER:2 ") == "2"
    assert say(js, "a.map(isInTrouble)", [
        {"phase": "EXITED", "cause": "finished"}, {"phase": "EXITED", "cause": "oom"}, {"state": "quarantined"},
        {"state": "ready", "problem": "full"}, {"state": "unmounted"}, {"phase": "RUNNING"},
    ]) == [False, True, True, True, True, False]  # fmt: skip
    odd = {
        "nonfinite": {
            "loss": {"value": "nan", "global_step": 1200},
            "mae": {"value": "inf", "global_step": 3},
        }
    }
    assert say(js, "nonfiniteWords(a)", odd) == "✕ loss is nan since step 1,200, mae is inf since step 3"


def test_a_table_sorts_both_ways_and_back_with_what_is_unknown_last(js: Any) -> None:
    sorts = """() => {
      const columns = [{name: "task", by: (one) => one.task}, {name: "pace", num: true, by: (one) => one.pace}];
      const table = new Table(columns, "Tasks", () => "", () => {});
      const items = [{task: "w:10", pace: 2}, {task: "w:9", pace: null}, {task: "w:1", pace: 10}];
      const seen = [];
      for (const column of [1, 1, 1, 0, 1]) {
        table.sortBy(columns[column]);
        const ways = table.heads.map((head) => head.getAttribute("aria-sort") || "").join("");
        seen.push(`${table.sorted(items).map((one) => one.task).join(" ")} ${ways}`.trim());
      }
      return seen;
    }"""
    assert js.evaluate(sorts) == [
        "w:1 w:10 w:9 descending",
        "w:10 w:1 w:9 ascending",
        "w:10 w:9 w:1",
        "w:1 w:9 w:10 ascending",
        "w:1 w:10 w:9 descending",
    ]


SHOWN = """([lines, kept, more]) => {
  const plot = new Plot(more.name || "loss", {axis: more.axis ?? "step"});
  Object.assign(plot, more.set || {});
  plot.show(lines, kept, null);
  const shown = plot.lines.map(({x, y, lost, isBehind}) => ({x, y, lost: Boolean(lost), behind: Boolean(isBehind)}));
  return {shown, value: plot.value.textContent, words: plot.words.textContent, odd: plot.odd.map((one) => one.x)};
}"""


def line(x: list[float], y: list[float | None], generation: int = 1, **more: Any) -> dict[str, Any]:
    return {"task": "", "name": "loss", "generation": generation, "x": x, "y": y, **more}


def test_steps_that_were_trained_again_are_a_line_of_their_own(js: Any) -> None:
    lines = [line([1, 2, 3, 4], [8, 7, 6, 5]), line([3, 4, 5], [6, 5, None], 2), line([], [], 3)]
    got = js.evaluate(SHOWN, [lines, {"1": 2}, {}])
    assert [(each["x"], each["lost"]) for each in got["shown"]] == [
        ([1, 2], False),
        ([2, 3, 4], True),
        ([3, 4, 5], False),
    ]
    assert got["value"] == ""  # of the newest line, which has no point
    got = js.evaluate(SHOWN, [lines[:2], {"1": 2}, {"axis": "time"}])
    assert [each["x"] for each in got["shown"]] == [[1, 2, 3, 4], [3, 4, 5]]
    assert got["value"] == "5"


def test_a_smoothed_line_leaves_what_was_reported_behind_it(js: Any) -> None:
    got = js.evaluate(SHOWN, [[line([1, 2, 3, 4], [4, None, 8, 8])], {}, {"set": {"smooth": 0.75}}])
    behind, smooth = got["shown"]
    assert (behind["y"], behind["behind"], smooth["behind"]) == ([4, None, 8, 8], True, False)
    assert smooth["y"] == [4, None, pytest.approx((0.75 * 4 + 8) / 1.75), pytest.approx(7.027, rel=1e-3)]
    # Of buckets with many values, the mean of all of them counts, not what is drawn of each.
    of_buckets = {**line([1, 2, 3, 4], [4, 50, 0, 0.5]), "means": [[4, 0.25, 900], [8, 0.25, 900]]}
    got = js.evaluate(SHOWN, [[of_buckets], {}, {"set": {"smooth": 0.75}}])
    assert (got["shown"][1]["x"], got["shown"][1]["y"]) == ([4, 8], [0.25, 0.25])
    assert say(js, "clipped([{y: a}])", [*range(1, 100), None, 1e9]) == [2 - 97 / 20, 99 + 97 / 20]
    memory = js.evaluate(
        SHOWN, [[line([1], [2**31], name="rss_bytes")], {}, {"name": "rss_bytes", "axis": "time"}]
    )
    assert memory["shown"][0]["y"] == [2]


def test_an_axis_has_places_and_leads_back_from_them(js: Any) -> None:
    for axis, native, place in (
        ("step", 500, 500),
        ("epoch", 500, 2.5),
        ("time", 1060, 1060),
        ("relative", 1060, 60),
    ):
        made = f"((one) => [one.place(a), one.back(one.place(a)), one.place(null)])(scaleOf('{axis}', 200, 1000))"
        assert say(js, made, native) == [place, native, None]
    run = {"steps_total": 600, "training_epochs": 3}
    assert say(js, "[epochSteps(a), epochSteps({steps_total: 600}), epochSteps(undefined)]", run) == [
        200,
        None,
        None,
    ]


def test_the_mean_of_runs_goes_straight_between_their_points_and_none_is_longer_than_it_is(js: Any) -> None:
    lines = [{"x": [0, 10], "y": [0, 10]}, {"x": [5, 20], "y": [9, 3]}, {"x": [], "y": []}]
    assert say(js, "meanLine(a)", lines) == {"x": [0, 5, 10, 20], "y": [0, 7, 8.5, 3]}
    assert say(js, "meanLine([{x: [1, 2, 3], y: [4, null, 8]}]).y") == [4, 8]
    assert len({say(js, "hueOf(a)", i) for i in range(50)}) == 50, "each of many runs has a colour of its own"


def test_a_value_that_is_no_number_is_said_until_a_later_one_is_known(js: Any) -> None:
    odd = line([1, 2], [4, 3], nonfinite=[[5, "nan", 1760000000]])
    got = js.evaluate(SHOWN, [[odd], {}, {}])
    assert (got["value"], got["odd"]) == ("NaN", [5])
    assert got["words"] == "✕ NaN first at step 5, generation 1"
    assert js.evaluate(SHOWN, [[odd], {}, {"axis": "time"}])["odd"] == [1760000000]
    assert js.evaluate(SHOWN, [[{**odd, "x": [1, 6]}], {}, {}])["value"] == "3"
    validation = line([5], [None], name="val_loss", nonfinite=[[5, "-inf", 1]])
    got = js.evaluate(SHOWN, [[line([1, 2], [4, 3]), validation], {}, {}])
    assert (got["value"], got["words"]) == ("3", "✕ val \u2212Inf first at step 5, generation 1")


def test_lines_share_one_axis_and_points_of_others_are_no_gaps(js: Any) -> None:
    made = js.evaluate(
        "(lines) => columns(lines, [9]).map((each) => [...each].map((y) => y === undefined ? 'spanned' : y))",
        [{"x": [1, 10], "y": [5, 6]}, {"x": [2, 10], "y": [None, 7]}],
    )
    assert made == [
        [1, 2, 9, 10],
        [5, "spanned", "spanned", 6],
        ["spanned", None, "spanned", 7],
    ]


def test_which_plots_there_are_and_what_belongs_together(js: Any) -> None:
    series = [
        ("", "zeta"),
        ("", "val_loss"),
        ("worker:0", "rss_bytes"),
        ("", "steps_per_s"),
        ("", "acc"),
        ("", "loss"),
    ]
    named = [{"task": task, "name": name} for task, name in series]
    assert say(js, "plotNames(a)", named) == ["loss", "steps_per_s", "acc", "zeta"]
    whose = [{"task": "host:a", "name": "gpu12_power_w"}, {"task": "host:a", "name": "cpu_percent"}, named[2]]
    assert say(js, "a.map(familyOf)", whose) == [
        ["gpu", "power_w"],
        ["host", "cpu_percent"],
        ["task", "rss_bytes"],
    ]
    again = [{"x": [1, 2, 3], "y": [9, 8, 7]}, {"x": [3, 4], "y": [6, 5]}]
    assert say(js, "keptOnce(a)", again) == [9, 8, 6, 5]


def test_time_is_counted_once_and_marks_that_touch_are_one(js: Any) -> None:
    spent = say(js, "spentByClass(a)", {"kept_s": 10, "risk_s": 4, "badput": {"lost": 3}})
    assert spent == {"lost": 3, "kept": 6, "risk": 4}
    assert say(js, "spentByClass(a)", {"kept_s": 1, "risk_s": 4})["kept"] == 0
    history = {
        "checkpoints": [[5, 10], [12, 20]],
        "generations": [
            {"at_risk": False, "spans": [["training", 0, 10]]},
            {
                "at_risk": True,
                "spans": [["start", 10, 11], ["training", 11, 15], ["stall", 15, 16], ["training", 16, 18]],
            },
        ],
    }
    seconds, first, last = js.evaluate(
        "(h) => [atRiskSeconds(h), ...h.generations.map((one) => one.spans)]", history
    )
    assert (seconds, first) == (5, [["training", 0, 10]])
    assert last == [
        ["start", 10, 11], ["training", 11, 12], ["risk", 12, 15], ["stall", 15, 16], ["risk", 16, 18],
    ]  # fmt: skip
    places = [(0, "✕"), (5, "⚡"), (9, "✕"), (12, "✕"), (44, "✕"), (76, "✕")]
    marks = [{"x": x, "glyph": glyph, "count": 1} for x, glyph in places]
    merged = [(each["x"], each["glyph"], each["count"]) for each in say(js, "mergedMarks(a, 32)", marks)]
    assert merged == [(0, "✕⚡", 3), (44, "✕", 1), (76, "✕", 1)]


def test_a_stretch_of_the_timeline_stays_within_the_run_and_is_a_second_at_least(js: Any) -> None:
    line = "Object.assign(new Timeline(() => 0), {all: [100, 200], range: [120, 160], width: 996})"
    assert say(js, f"{line}.within([90, 110])") == [100, 120]
    assert say(js, f"{line}.within([190, 230])") == [160, 200]
    assert say(js, f"{line}.within([0, 900])") == [100, 200]
    assert say(js, f"{line}.within([150, 150.1])") == [149.55, 150.55]
    assert say(js, f"{line}.around(0.5, 130)") == [125, 145]
    assert say(js, f"{line}.moved(0.25)") == [130, 170]
    assert say(js, f"[{line}.x(120), {line}.x(160), {line}.at({line}.x(133))]") == [96, 988, 133]


def test_of_tasks_those_have_a_row_whose_fate_was_their_own(js: Any) -> None:
    causes = [
        {"task": "worker:1", "time": 50, "generation": 1},
        {"task": "worker:2", "time": None, "generation": 1},
    ]
    event = {"generation": 2, "time": "1970-01-01T00:01:10Z", "message": "given up"}
    events = [
        {**event, "kind": "task-lost", "task": "worker:3"},
        {**event, "kind": "chaos", "task": "worker:4"},
    ]
    rows = "new Timeline(() => 0).taskRows(a, b, c, [])"
    told = f"{rows}.map(({{name, own}}) => [name, own.map((one) => one.from)])"
    shown = say(js, told, causes, events, ["worker:0"])
    assert shown == [["worker:0", []], ["worker:1", [50]], ["worker:3", [70]]]
    many = [{"task": f"worker:{i}", "time": 1, "generation": 1} for i in range(20)]
    assert say(js, "new Timeline(() => 0).taskRows(a, [], [], []).length", many) == 12


def folded(
    js: Any, *lines: tuple[str, float, str], fold: bool = True
) -> list[tuple[str, str, int, int, int]]:
    """Return of each row its first task, its text, how many tasks say the same, lines of its traceback, and repeats."""
    made = [
        {"id": f"{task}/1/{i}", "task": task, "generation": 1, "time": at, "level": "info", "text": text}
        for i, (task, at, text) in enumerate(lines)
    ]
    told = "[row.line.task, row.text, row.same.length, row.more.length, row.times]"
    rows = say(js, f"foldLines(a, b).map((row) => {told})", made, fold)
    return [tuple(row) for row in rows]


def test_lines_that_say_the_same_are_one_row(js: Any) -> None:
    both = ("worker:0", 1.0, "step 7 took 0.5 s"), ("worker:1", 2.9, "step 7 took 0.6 s")
    assert folded(js, *both) == [("worker:0", "step 7 took 0.5 s", 1, 0, 1)]
    assert len(folded(js, *both, fold=False)) == 2
    late = ("worker:1", 3.0, both[1][2])
    assert [row[2] for row in folded(js, both[0], late)] == [0, 0]
    assert [row[2] for row in folded(js, both[0], ("worker:0", 1.5, both[0][2]))] == [0, 0]
    assert [row[2] for row in folded(js, both[0], ("worker:1", 1.5, "epoch 7 took 0.5 s"))] == [0, 0]


def test_a_traceback_is_one_row_that_ends_with_its_exception(js: Any) -> None:
    trace = ["Traceback (most recent call last):", '  File "a.py", line 3', "KeyError: 'x'"]
    chained = [
        *trace[:2],
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *trace,
    ]
    lines = [("worker:0", 1.0, text) for text in ["before", *trace, "after"]]
    assert folded(js, *lines) == [
        ("worker:0", "before", 0, 0, 1),
        ("worker:0", "KeyError: 'x'", 0, 3, 1),
        ("worker:0", "after", 0, 0, 1),
    ]
    assert folded(js, *(("worker:0", 1.0, text) for text in chained)) == [
        ("worker:0", "KeyError: 'x'", 0, 8, 1)
    ]
    mixed = [each for text in trace for each in (("worker:0", 1.0, text), ("worker:1", 1.0, text))]
    assert folded(js, *mixed) == [("worker:0", "KeyError: 'x'", 1, 3, 1)]


def test_a_progress_bar_is_one_row_that_counts_how_often_it_was_written(js: Any) -> None:
    bars = [("worker:0", float(i), f" {i}0%|███  | {i}/9") for i in range(1, 4)]
    assert folded(js, *bars) == [("worker:0", bars[-1][2], 0, 0, 3)]
    assert folded(js, ("worker:0", 1.0, "10%|#  |\r20%|## |\r \r")) == [("worker:0", "20%|## |", 0, 0, 2)]
    between = [bars[0], ("worker:0", 1.5, "saved"), bars[1]]
    assert [row[4] for row in folded(js, *between)] == [1, 1, 1]
    assert len(folded(js, bars[0], ("worker:1", 9.0, bars[1][2]))) == 2


def test_places_in_logs_are_read_by_task_and_generation(js: Any) -> None:
    assert say(js, "[...placesOf(a)]", "worker:0/1/480,worker:1/2/99") == [
        ["worker:0/1", "480"],
        ["worker:1/2", "99"],
    ]
    assert say(js, "[...placesOf(null)]") == []


def test_the_newest_step_that_is_written_and_not_verified(js: Any) -> None:
    of: dict[str, Any] = {"writing": False, "whole": True, "verified_at": None, "set_aside": False}
    more: list[tuple[int, dict[str, Any]]] = [
        (10, {"verified_at": 5}),
        (20, {}),
        (30, {"whole": False}),
        (40, {"writing": True}),
        (50, {"set_aside": True}),
        (15, {}),
    ]
    checkpoints = [{**of, "global_step": step, **differs} for step, differs in more]
    written = "Object.assign(new Checkpoints({}), {inventory: {checkpoints: a}}).written"
    assert say(js, written, checkpoints) == 20
    assert say(js, written, checkpoints[:1]) is None


def test_many_tasks_are_counted_by_what_they_do(js: Any) -> None:
    tasks = [{"task": f"worker:{i}", "phase": "RUNNING"} for i in range(33)]
    strip = "(() => { const strip = new Strip(() => 0); strip.show(a, new Map(b)); return strip.summary ?? null; })()"
    assert say(js, strip, tasks[:32], []) is None
    tasks[0]["phase"], tasks[1]["phase"], tasks[2]["phase"] = "LOST", "EXITED", "PENDING"
    assert say(js, strip, tasks, [["worker:3", 30], ["worker:4", 40]]) == (
        "33 tasks: 28 train, 1 is in trouble, 2 are slow, 1 has ended, 1 does not train yet"
    )

"""What the page's views make of what its server sends, and what they ask it for: in Chromium, without a coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.head.records import run_series
from tests.cluster.browsing import bare_page
from tests.contract.fake_api import event_document, first_cause_document, run_document, task_document
from tests.patience import patient

pytestmark = pytest.mark.browser

RUN = "mnist-20261120-1"
BEGIN = 1_760_000_000


class Page:
    """A tab of `bare_page`, in which what happens is told by the stream and by answers."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab
        self.given: dict[str, Any] = {}
        """What `open_run` answers other than usual."""

    def stream(self, event: str, data: object, number: int = 1) -> None:
        self.tab.evaluate("send", f"id: {number}\nevent: {event}\ndata: {json.dumps(data)}\n\n")

    def snapshot(self, *runs: dict[str, Any], **state: Any) -> None:
        by_name = [
            {
                **run,
                "tasks": {one["task"]: one for one in run["tasks"]},
                "hosts": {one["host"]: one for one in run["hosts"]},
            }
            for run in runs
        ]
        self.do("globalThis.before = page.state")
        self.stream(
            "snapshot", {"away_since": None, "runs": {run["run_id"]: run for run in by_name}, **state}
        )
        self.until("page.state !== before")

    def answer(self, **documents: Any) -> None:
        self.tab.evaluate("(made) => Object.assign(answers, made)", documents)

    def open(self, path: str) -> None:
        """Go to a view; its run is streamed anew."""
        self.tab.evaluate("(hash) => { location.hash = hash; }", path)
        self.until("(hash) => location.hash === `#${hash}`", path)

    def open_run(self, history: dict[str, Any] | None = None, path: str = f"/r/{RUN}") -> None:
        self.answer(**{"history": history or HISTORY, "why": {"first_causes": []}, "events": {"events": []},
                       "checkpoints": {"checkpoints": []}, "series": {"series": []}} | self.given)  # fmt: skip
        self.open(path)
        self.see("[data-loaded]")

    def until(self, script: str, given: object = None) -> None:
        """Wait until it is so."""
        try:
            self.tab.wait_for_function(script, arg=given, timeout=patient(10) * 1000)
        except Exception as e:
            raise AssertionError(f"never: {script}") from e

    def see(self, selector: str) -> None:
        """Wait until something of the kind is seen."""
        try:
            self.tab.wait_for_selector(selector, timeout=patient(10) * 1000)
        except Exception as e:
            raise AssertionError(f"never seen: {selector}") from e

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).inner_text())

    def texts(self, selector: str) -> list[str]:
        return list(self.tab.locator(selector).all_inner_texts())

    def asked(self, what: str) -> list[dict[str, Any]]:
        return [each for each in self.tab.evaluate("asked") if each["what"] == what]

    def do(self, script: str, given: object = None) -> Any:
        return self.tab.evaluate(script, given)


HISTORY: dict[str, Any] = {
    "begin": BEGIN,
    "end": BEGIN + 7200,
    "generations": [
        {"generation": 1, "spans": [["start", 0, 10], ["training", 10, 3600]], "kept_to": 50, "last_step": 57,
         "resumed_from": None, "at_risk": False},
        {"generation": 2, "spans": [["start", 3600, 3620], ["training", 3620, 7200]], "kept_to": None, "last_step": 120,
         "resumed_from": 50, "at_risk": False},
    ],
    "checkpoints": [[3000, 50], [7000, 100]],
    "goodput": {"value": 0.9, "kept_s": 7000.0, "risk_s": 0.0, "badput": {"start": 30.0, "lost": 0.01}, "final": False},
    "series": [{"task": "", "name": "loss"}, {"task": "", "name": "val_loss"}],
}  # fmt: skip


@pytest.fixture
def shown(browser: Any) -> Iterator[Page]:
    with bare_page(browser) as tab:
        wrong: list[str] = []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        yield Page(tab)
        assert not wrong


# ---------------------------------------------------------------- the stream


def test_what_the_page_knows_and_since_when_is_said(shown: Page) -> None:
    assert "not" not in shown.text("#live")
    shown.snapshot(run_document())
    assert shown.text("#live") == "live"
    shown.stream("delta", {"away_since": BEGIN})
    shown.see("#away:visible")
    assert shown.text("#live") == "coordinator away"
    assert "has not answered since 2025-10-09 08:53:20" in shown.text("#away")
    assert shown.do("document.body.classList.contains('stale')")
    shown.do("answers.stream = {status: 502}; streams.at(-1).close()")
    shown.until("document.getElementById('live').textContent === 'not connected'")
    assert "`orch ui` does not answer" in shown.text("#away")
    shown.do("answers.stream = undefined")
    shown.until("streams.length === 2")
    assert shown.asked("stream")[-1]["query"] == {"after": "1"}
    shown.snapshot(run_document())
    assert shown.text("#live") == "live"
    assert not shown.tab.locator("#away").is_visible()


def test_halves_of_an_event_are_put_together(shown: Page) -> None:
    first, second = ({"runs": {name: {"run_id": name}}} for name in "ab")
    text = "".join(f"event: delta\r\ndata: {json.dumps(each)}\r\n\r\n" for each in (first, second))
    at = len(text) // 2 - 7
    shown.do("send", text[:at])
    shown.tab.wait_for_timeout(50)
    shown.do("send", text[at:])
    shown.until("Object.keys(page.state.runs).join('') === 'ab'")


def test_a_run_that_cannot_be_read_is_named_where_it_would_be(shown: Page) -> None:
    shown.snapshot()
    shown.see("text=There are no runs yet")
    shown.stream("delta", {"troubles": ["t-1 is set aside"]})
    shown.see("text=No run can be shown.")
    assert shown.texts("[role=alert] .away:visible") == ["t-1 is set aside"]
    shown.stream("delta", {"troubles": []})
    shown.see("text=There are no runs yet")


def test_without_access_it_asks_once_and_a_new_key_of_another_tab_is_taken(shown: Page) -> None:
    shown.do("answers.stream = {status: 403}; streams.at(-1).close()")
    shown.see("#away:visible")
    assert "This browser has no access" in shown.text("#away")
    asked = len(shown.asked("stream"))
    shown.tab.wait_for_timeout(700)
    assert len(shown.asked("stream")) == asked
    shown.do(
        "answers.stream = undefined; window.dispatchEvent(new StorageEvent('storage', {key: 'orch-key'}))"
    )
    shown.until("streams.length === 2")
    shown.snapshot(run_document())
    assert shown.text("#live") == "live"


def test_a_server_that_sends_nothing_is_noticed(shown: Page) -> None:
    shown.snapshot(run_document())
    shown.do("page.heardAt -= 15")
    shown.see("#away:visible")
    assert "`orch ui` has sent nothing since" in shown.text("#away")
    shown.tab.evaluate("send", ": ping\n\n")
    shown.until("document.getElementById('live').textContent === 'live'")
    assert not shown.tab.locator("#away").is_visible()


def test_an_error_of_the_page_is_said_as_that(browser: Any) -> None:
    with bare_page(browser) as tab:
        page, wrong = Page(tab), []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        page.snapshot(run_document())
        page.do("void (view.update = () => { throw new Error('no such colour'); })")
        page.snapshot(run_document())
        page.see("#away:visible")
        assert "This page has met an error of its own" in page.text("#away")
        assert "no such colour" in page.text("#away")
        assert page.text("#live") == "live", "the server is well"
        assert len(page.asked("stream")) == 1, "the stream goes on"
        assert wrong[0] == "no such colour"
        page.answer(plan={"rows": []})
        page.open("/")
        page.open("/compare")
        assert not tab.locator("#away").is_visible(), "another view is another chance"


def test_keys_act_where_nobody_types_and_until_they_are_turned_off(shown: Page) -> None:
    shown.snapshot(run_document())
    shown.answer(why={}, logs={"lines": []})
    shown.open(f"/r/{RUN}/logs")
    shown.tab.locator("#find").press("r")
    assert shown.do("location.hash") == f"#/r/{RUN}/logs"
    shown.tab.get_by_label("Level").focus()
    shown.tab.get_by_label("Level").select_option("error")
    shown.until("location.hash.includes('level=error')")
    assert shown.do("document.activeElement.getAttribute('aria-label')") == "Level"
    shown.do("document.activeElement.blur()")
    shown.tab.keyboard.press("r")
    shown.until("location.hash === '#/'")
    shown.do("setting('keys', 'off')")
    shown.open(f"/r/{RUN}/logs")
    shown.tab.keyboard.press("r")
    assert shown.do("location.hash") == f"#/r/{RUN}/logs"


def test_another_run_is_another_view_with_a_stream_of_its_own(shown: Page) -> None:
    other = run_document(run_id="other-1", name="other")
    shown.snapshot(run_document(), other)
    shown.open_run()
    shown.until("streams.length === 2")
    shown.snapshot(run_document(), other)
    shown.open("/r/other-1")
    shown.until("streams.length === 3")
    assert shown.asked("stream")[-1]["query"]["run"] == "other-1"
    shown.snapshot(run_document(), other)
    shown.until("document.querySelector('h1').textContent.includes('other')")


# ---------------------------------------------------------------- a run


def run_shown(shown: Page, history: dict[str, Any] | None = None, **changes: Any) -> None:
    """Show the run, opened anew."""
    shown.open("/")
    shown.snapshot(run_document(**changes))
    shown.open_run(history)
    shown.until("streams.length > 1")
    shown.snapshot(run_document(**changes))


def test_a_cause_that_is_over_is_shown_in_short(shown: Page) -> None:
    cause = first_cause_document()
    run_shown(shown, first_cause=cause)
    assert shown.do("document.querySelector('section.cause').className") == "cause over"
    assert shown.tab.locator("section.cause h2").count() == 0
    for run in ({"phase": "FAILED"}, {"generation": 1}):
        shown.snapshot(run_document(first_cause=cause, **run))
        shown.until("document.querySelector('section.cause').className === 'cause'")
        assert "was killed by SIGKILL at step 57" in shown.text("section.cause h2")


def test_a_run_that_has_ended_has_no_bottleneck_and_its_culprit_is_marked(shown: Page) -> None:
    limit = {"sentence": "the input", "remedy": "prefetch"}
    run_shown(shown, bottleneck=limit)
    assert "Limited by the input (prefetch)." in shown.text("main")
    ended = [task_document(i, phase="EXITED", cause="ordered") for i in range(2)]
    shown.snapshot(
        run_document(phase="FAILED", bottleneck=limit, first_cause=first_cause_document(), tasks=ended)
    )
    shown.see("tr.failed")
    assert shown.texts("tr.failed td[data-name=task]") == ["worker:1"]
    assert "Limited by" not in shown.text("main")


@pytest.mark.parametrize(
    ("kind", "why", "said"),
    [
        ("nothing", "a survivor hands over its state (rescue)", "nothing (a survivor hands over its state (rescue))"),
        ("since-save", "at most 10 min", "at most 10 min (since the last save)"),
        ("since-save", "the script decides when it saves",
         "what was trained since the last save (the script decides when it saves)"),
        ("everything", "train.py saves nothing; add …", "everything since step 0: train.py saves nothing; add …"),
    ],
)  # fmt: skip
def test_what_a_fault_costs_is_said_of_a_run_that_goes_on(
    shown: Page, kind: str, why: str, said: str
) -> None:
    costs = {"kind": kind, "why": why}
    run_shown(shown, fault_costs=costs)
    assert shown.text("p.costs") == f"A fault costs: {said}"
    shown.snapshot(run_document(phase="FAILED", fault_costs=costs))
    shown.until("document.querySelector('p.costs').textContent === ''")


def test_events_and_causes_stand_newest_first_and_once(shown: Page) -> None:
    causes = [first_cause_document(generation=g, sentence=f"died {g}", time=BEGIN) for g in (1, 2)]
    events = [event_document(0, "state", "an old one") | {"seq": -seq} for seq in range(200, 0, -1)]
    events += [event_document(seq, "state", f"message {seq}") for seq in (1, 2)]
    shown.given = {"why": {"first_causes": causes}, "events": {"events": events}}
    run_shown(shown)
    for seq, run in ((2, RUN), (3, RUN), (4, "another-1")):
        shown.stream("event", event_document(seq, "state", f"message {seq}") | {"run": run}, seq)
    messages = "section[aria-label=Events] td[data-name=message]"
    shown.until("view.events.length === 203")
    assert shown.texts(messages)[:4] == ["message 3", "message 2", "message 1", "an old one"]
    assert shown.tab.locator(messages).count() == 200
    assert shown.texts("section[aria-label=Why] summary") == ["generation 2: died 2", "generation 1: died 1"]


def test_a_hundred_tasks_are_listed_until_one_asks_for_all(shown: Page) -> None:
    tasks = [
        task_document(0, task=f"worker:{i}", stage="evaluating" if i == 1 else "training") for i in range(101)
    ]
    hosts = [
        {"host": f"gpu-{i}", "link": "CONNECTED", "state": "ready", "tasks": [f"worker:{i}"]}
        for i in range(9)
    ]
    run_shown(shown, tasks=tasks, hosts=hosts)
    rows = "section[aria-label=Tasks] tbody tr"
    assert shown.tab.locator(rows).count() == 100
    assert shown.texts("td[data-name=phase]")[:2] == ["▶ RUNNING", "▶ RUNNING: evaluating"]
    shown.tab.get_by_text("100 of 101 tasks are listed").click()
    assert shown.tab.locator(rows).count() == 101
    shown.tab.get_by_label("Find hosts").fill("worker:7")
    assert shown.texts("section[aria-label=Hosts] td[data-name=host]") == ["gpu-7"]


def test_long_words_are_cut_until_one_asks_for_them(shown: Page) -> None:
    named = ", ".join(f"worker:{i} on gpu-{i // 8}" for i in range(64))
    long = f"64 tasks ended at once: {named}. " + "Each says that its peers are gone. " * 25
    cause = first_cause_document(sentence=long)
    run_shown(shown, phase="FAILED", reason=long, reason_rest=long, first_cause=cause)
    for selector in ("div.sentence", "section.cause h2"):
        assert len(shown.text(selector)) < 400, "a few lines, on a phone too"
        shown.tab.locator(f"{selector} summary").click()
        # The browser tells of the opening later
        shown.until("(at) => !document.querySelector(at).innerText.includes('characters more')", selector)
        assert shown.text(selector).endswith("its peers are gone.")
    shown.snapshot(
        run_document(phase="FAILED", reason=long, reason_rest=long, first_cause=cause, global_step=9)
    )
    shown.until("document.querySelector('div.sentence details').open", None)
    shown.open("/")
    shown.see("td[data-name=state]")
    assert len(shown.text("td[data-name=state]")) < 400


def test_the_line_that_shows_images_and_histograms_is_told(shown: Page) -> None:
    run_shown(shown)
    shown.tab.get_by_role("button", name="Images", exact=True).click()
    assert shown.text("dialog pre") == f"orch tensorboard {RUN}"
    assert "no login" in shown.text("dialog")
    assert shown.tab.get_by_role("button", name="Start it").count() == 0, "it only reads"
    shown.tab.get_by_role("button", name="Close").click()
    assert not shown.tab.locator("dialog pre").is_visible()


def test_with_actions_tensorboard_is_started_and_linked_to_and_a_refusal_is_said(acting: Page) -> None:
    run_shown(acting)
    acting.answer(tensorboard={"status": 409, "body": {"error": {"message": "TensorBoard is not installed"}}})
    acting.tab.get_by_role("button", name="Images", exact=True).click()
    start = acting.tab.get_by_role("button", name="Start it")
    start.click()
    acting.tab.get_by_text("TensorBoard is not installed").wait_for()
    acting.answer(tensorboard={"address": "http://127.0.0.1:6543/"})
    start.click()
    link = acting.tab.get_by_role("link", name="http://127.0.0.1:6543/")
    link.wait_for()
    assert (link.get_attribute("href"), link.get_attribute("rel")) == ("http://127.0.0.1:6543/", "noopener")
    assert "ssh -L 6543:127.0.0.1:6543 HEAD" in acting.text("dialog")
    assert [each["run"] for each in acting.asked("tensorboard")] == [RUN] * 2


def test_a_killed_run_promises_nothing(shown: Page) -> None:
    cause = first_cause_document(generation=9, done="generation 10 resumes from step 50")
    run_shown(shown, first_cause=cause, phase="BACKOFF")
    assert "generation 10 resumes" in shown.text("section.cause")
    shown.snapshot(run_document(first_cause=cause, phase="KILLED"))
    shown.until("document.querySelector('section.cause').className === 'cause over'")
    assert "resumes" not in shown.text("section.cause")


def test_all_browsers_show_the_goodput_that_the_stream_tells(shown: Page) -> None:
    spent = {"value": 0.76, "kept_s": 760.0, "badput": {"start": 240.0}, "final": False, "lost_gpu_hours": 0}
    run_shown(shown, time_use=spent)
    goodput = "section[aria-label=Goodput] strong"
    shown.until(f"document.querySelector('{goodput}').textContent === '76.0%'")
    assert "starting 4 min" in shown.text(".legend")
    shown.snapshot(run_document(time_use={**spent, "value": 0.62}))
    shown.until(f"document.querySelector('{goodput}').textContent === '62.0%'")


def test_on_a_phone_those_in_trouble_are_there_and_the_rest_is_folded(shown: Page) -> None:
    shown.tab.set_viewport_size({"width": 400, "height": 850})
    tasks = [task_document(0, task=f"worker:{i}") for i in range(64)]
    hosts = [{"host": f"gpu-{i}", "state": "ready", "tasks": [], "gpus": []} for i in range(64)]
    for lost in range(30, 41):
        tasks[lost] |= {"phase": "LOST"}
    hosts[50]["state"] = "lost"
    run_shown(shown, tasks=tasks, hosts=hosts)
    listed = shown.texts("section[aria-label=Tasks] td[data-name=task]")
    assert listed == [f"worker:{i}" for i in range(30, 41)], "all that are in trouble"
    assert shown.texts("section[aria-label=Hosts] td[data-name=host]")[0] == "gpu-50"
    assert shown.tab.locator("section[aria-label=Hosts] tbody tr").count() == 8
    assert shown.do("document.scrollingElement.scrollHeight") < 7000
    shown.tab.get_by_text("11 of 64 tasks are listed").click()
    assert shown.tab.locator("section[aria-label=Tasks] tbody tr").count() == 64


def test_a_stretch_of_time_is_taken_from_the_address(shown: Page) -> None:
    run_shown(shown)
    for query, expected in (
        (f"from={BEGIN}&to={BEGIN + 60}", [BEGIN, BEGIN + 60]),
        (f"from={BEGIN + 60}&to={BEGIN}", None),
        ("from=-90m", 5400),
        ("from=-2h", 7200),
        ("from=-2d", None),
    ):
        shown.open(f"/r/{RUN}?{query}")
        seen = shown.do("view.window")
        if isinstance(expected, int):
            assert seen[1] - seen[0] == pytest.approx(expected)
        else:
            assert seen == expected


def test_the_legend_names_what_took_time_and_a_phase_that_changes_is_loaded(shown: Page) -> None:
    run_shown(shown)
    legend = shown.text(".legend")
    assert "training that counts 1 h 56 min" in legend
    assert "starting 30 s" in legend
    assert "lost" not in legend
    before = len(shown.asked("history"))
    shown.snapshot(run_document(phase="BACKOFF"))
    shown.until("(before) => asked.filter((one) => one.what === 'history').length > before", before)
    assert shown.text("#announce") == "mnist is BACKOFF"


def test_first_causes_are_gone_to_and_lead_to_their_logs(shown: Page) -> None:
    causes = [first_cause_document(generation=g, time=BEGIN + at) for g, at in ((1, 1800), (2, 5400))]
    shown.given = {"why": {"first_causes": causes}}
    run_shown(shown)
    for key, at in (("n", 5400), ("p", 1800), ("n", 5400), ("N", 1800)):
        shown.tab.locator("h1").press(key)
        shown.until("(at) => Math.abs((view.window?.[0] ?? 0) - at) < 1", BEGIN + at - 60)
    shown.do("view.openLog('worker:1', {generation: 2}, 1760001800.04)")
    assert shown.do("route()") == {
        "parts": ["r", RUN, "logs"],
        "query": {"task": "worker:1", "generation": "2", "until": "1760001800.0"},
    }


def test_the_table_of_time_shows_the_newest_spans(shown: Page) -> None:
    spans = [["training" if i % 2 else "start", i, i + 1] for i in range(310)]
    many = {**HISTORY, "generations": [{**HISTORY["generations"][1], "spans": spans}], "checkpoints": []}
    run_shown(shown, many)
    shown.tab.get_by_text("As a table").click()
    rows = shown.tab.locator("section[aria-label=Timeline] tbody tr")
    rows.last.wait_for()  # they are made once the browser has opened the table
    assert rows.count() == 300
    assert "10 older spans are not listed" in shown.text("section[aria-label=Timeline]")
    assert rows.last.inner_text().split("\t")[1:] == ["training", "2025-10-09 08:58:29", "1.0 s",
                                                      "from 50, kept to \u2013, reached 120"]  # fmt: skip


# ---------------------------------------------------------------- plots


def series(name: str, x: list[float], y: list[float], generation: int = 2) -> dict[str, Any]:
    return {"task": "", "name": name, "generation": generation, "x": x, "y": y}


def test_plots_hold_validation_marks_and_what_the_stream_adds(shown: Page) -> None:
    shown.given = {
        "why": {"first_causes": [first_cause_document(time=BEGIN + 3600)]},
        "series": {"series": [series("loss", [1, 119], [4, 3]), series("val_loss", [100], [5])]},
    }
    run_shown(shown)
    shown.until("view.plots.plots.get('loss')?.lines")
    lines = shown.do("view.plots.plots.get('loss').lines.map((one) => [one.name, one.x])")
    marks = "(({checkpoints, begins, causes}) => [checkpoints, [...begins], causes])"
    checkpoints, begins, causes = shown.do(f"{marks}(view.plots.plots.get('loss').marks)")
    assert lines[1] == ["val_loss", [100]]
    assert checkpoints == [[BEGIN + 3000, 50], [BEGIN + 7000, 100]]
    assert begins == [[1, [BEGIN, None]], [2, [BEGIN + 3600, 50]]]
    assert causes == [[BEGIN + 3600, 57]]
    assert shown.asked("series")[-1]["query"]["names"] == "loss,val_loss"
    shown.do("view.plots.add({phase: 'RUNNING', global_step: 130, generation: 3, metrics: {loss: 9}})")
    shown.do("view.plots.add({phase: 'STOPPING', global_step: 131, generation: 2, metrics: {loss: 9}})")
    shown.do("view.plots.add({phase: 'RUNNING', global_step: 119, generation: 2, metrics: {loss: 9}})")
    shown.do("view.plots.add({phase: 'RUNNING', global_step: 125, generation: 2, metrics: {loss: 2.5}})")
    added = shown.do("view.plots.plots.get('loss').lines[0]")
    assert (added["x"][-2:], added["y"][-2:]) == ([120, 125], [0.31, 2.5])
    shown.tab.get_by_label("Axis").select_option("time")
    shown.until("view.plots.plots.get('loss').byStep === false")
    assert shown.asked("series")[-1]["query"]["x"] == "time"
    shown.do("view.plots.add({phase: 'RUNNING', global_step: 140, generation: 2, metrics: {loss: 2}})")
    assert shown.do("view.plots.plots.get('loss').lines[0].x.at(-1) - Date.now() / 1000") == pytest.approx(
        0, abs=5
    )
    shown.tab.get_by_role("button", name="log y").click()
    shown.until("view.plots.plots.get('loss').plot?.scales.y.distr === 3")


def test_the_axis_is_chosen_kept_in_the_address_and_zooms_what_it_shows(shown: Page) -> None:
    shown.given = {"series": {"series": [series("loss", [50, 100], [4, 3], 2)]}}
    run_shown(shown, steps_total=200, training_epochs=4)
    loss = "view.plots.plots.get('loss')"
    shown.until(f"{loss}?.lines")
    axis = shown.tab.get_by_label("Axis")
    axis.select_option("epoch")
    shown.until(f"{loss}.axis === 'epoch' && {loss}.lines")
    assert shown.do(f"{loss}.lines[0].x")[:2] == [1, 2]  # the stream may have told a step more by now
    assert shown.do(f"[...{loss}.marks.checkpoints.map((pair) => {loss}.at(pair))]") == [1, 2]
    assert "x=epoch" in shown.do("location.hash")
    shown.do(f"{loss}.zoom([1, 1.5])")
    shown.until("location.hash.includes('steps=50-75')")
    shown.until("asked.findLast((one) => one.what === 'series').query.to_step === '75'")
    shown.until(f"{loss}.range?.[1] === 1.5")
    axis.select_option("relative")
    shown.until(f"{loss}.axis === 'relative' && {loss}.lines")
    assert "steps=" not in shown.do("location.hash"), "a stretch of another axis means nothing on this one"
    assert shown.asked("series")[-1]["query"]["x"] == "time"
    assert shown.do(f"[{loss}.placeText(65), {loss}.lines[0].x[0]]") == ["1 min 5 s", 50 - BEGIN]
    shown.do(f"{loss}.zoom([60, 120])")
    shown.until(f"location.hash.includes('from={BEGIN + 60}.0&to={BEGIN + 120}.0')")
    shown.do("history.back()")
    shown.until("!location.hash.includes('from=')")
    run_shown(shown, steps_total=None)
    shown.until(f"{loss}?.lines")
    assert shown.tab.get_by_label("Axis").locator("option").all_inner_texts() == [
        "over the step", "over the time", "over the time since the start",
    ]  # fmt: skip


def test_a_plot_that_the_address_asks_for_is_shown(shown: Page) -> None:
    names = ["loss", *(f"metric{i:02d}" for i in range(12))]
    many = {**HISTORY, "series": [{"task": "", "name": name} for name in names]}
    shown.given = {"series": {"series": [series(name, [1], [1]) for name in names]}}
    shown.open("/")
    shown.snapshot(run_document())
    shown.open_run(many, f"/r/{RUN}?plots=metric11,no_such")
    shown.until("view.plots?.plots.size")
    assert shown.do("[...view.plots.plots.keys()]") == [*names[:10], "metric11"]
    assert shown.texts("select[aria-label='Another plot'] option") == ["2 more…", "metric09", "metric10"]


# ---------------------------------------------------------------- lists, comparison, plan


def test_runs_that_go_on_stand_first_and_two_are_chosen(shown: Page) -> None:
    runs = [
        run_document(run_id=f"t-{i}", phase=phase) for i, phase in enumerate(["RUNNING", "FAILED", "BACKOFF"])
    ]
    shown.snapshot(*runs)
    shown.see("td[data-name=run]")
    assert shown.texts("td[data-name=run]") == ["t-2", "t-0", "t-1"]
    for run in ("t-0", "t-1"):
        shown.tab.get_by_label(f"Compare {run}").check()
    assert (
        shown.tab.get_by_role("link", name="Compare t-0 and t-1").get_attribute("href")
        == "#/compare?run=t-0%2Ct-1"
    )
    shown.tab.get_by_label("Compare t-2").check()
    assert (
        shown.tab.get_by_role("link", name="Compare 3 runs").get_attribute("href").endswith("t-0%2Ct-1%2Ct-2")
    )
    shown.tab.get_by_label("Compare t-1").uncheck()
    assert shown.tab.get_by_role("link", name="Compare t-0 and t-2").is_visible()


def test_the_list_follows_its_address_and_a_column_goes_as_it_came(shown: Page) -> None:
    rates = ["0.1", "0.05", "1e-3"]
    runs = [
        run_document(
            run_id=f"t-{i}", metrics={"mae": 1.0}, phase="SUCCEEDED", parameters={"--lr": lr, "note": "x"}
        )
        for i, lr in enumerate(rates)
    ]
    shown.snapshot(*runs)
    shown.see("td[data-name=run]")
    find = shown.tab.get_by_label("Find runs")
    shown.tab.get_by_label("Another column").select_option("--lr")
    shown.see("td[data-name='--lr']")
    assert sorted(shown.texts("td[data-name='--lr']")) == ["0.001", "0.05", "0.1"]
    shown.tab.get_by_role("button", name="--lr", exact=True).click()
    shown.until("location.hash.includes('sort=---lr')")
    assert shown.texts("td[data-name='--lr']") == ["0.1", "0.05", "0.001"], "as numbers"
    find.fill("--lr=0.05")
    shown.until("document.querySelectorAll('tbody tr').length === 1")
    assert shown.texts("td[data-name=run]") == ["t-1"]
    shown.do("location.hash = '#/?q=t-2'")
    shown.until("document.querySelector('td[data-name=run]')?.textContent === 't-2'")
    assert (find.input_value(), shown.tab.locator("td[data-name='--lr']").count()) == ("t-2", 0)
    shown.do("history.back()")
    shown.until("document.querySelector('td[data-name=run]')?.textContent === 't-1'")
    assert find.input_value() == "--lr=0.05", "the field says what is looked for after a step back too"
    assert shown.texts("td[data-name='--lr']") == ["0.05"]
    find.fill("")
    shown.until("document.querySelectorAll('tbody tr').length === 3")
    shown.tab.get_by_label("Remove the column --lr").click()
    shown.until("!document.querySelector('td[data-name=\"--lr\"]')")
    assert "lr" not in shown.do("location.hash").replace("sort=---lr", "")
    shown.tab.get_by_role("button", name="Compare them").click()
    shown.tab.get_by_role("link", name="Compare 3 runs").wait_for()


def test_many_runs_are_over_each_other_and_grouped_by_what_differs(shown: Page) -> None:
    rates = {"a": "0.1", "b": "0.1", "c": "0.01"}
    runs = [run_document(run_id=run, parameters={"--lr": lr, "--seed": "1"}) for run, lr in rates.items()]
    answers = {
        f"{run}/{what}": document
        for i, run in enumerate(rates)
        for what, document in (
            ("history", {**HISTORY, "begin": BEGIN + i}),
            ("series", {"series": [series("loss", [0, 10], [i, i + 10])]}),
        )
    }
    shown.answer(**answers, compare={"spec": [], "code": None, "packages": []})
    shown.snapshot(*runs)
    shown.open("/compare?run=a,b,c")
    shown.see("[data-loaded]")
    shown.snapshot(*runs)
    shown.see("section[aria-label=Outcome] td")
    assert "--lr\t0.1\t0.1\t0.01" in shown.texts("section[aria-label=Outcome] tbody tr")
    assert not [row for row in shown.texts("section[aria-label=Outcome] tbody tr") if "--seed" in row]
    lines = "view.plots[0].lines.map((one) => [one.task, one.hue, Boolean(one.isMean), one.y])"
    assert [each[:2] for each in shown.do(lines)] == [["a", 0], ["b", 1], ["c", 2]]
    assert [each["query"]["with"] for each in shown.asked("compare")] == ["b", "c"]
    shown.tab.get_by_label("Group").select_option("--lr")
    shown.until("location.hash.includes('group=--lr') && view.plots[0].lines.length === 5")
    assert shown.do(lines) == [
        ["a", 1, False, [0, 10]],
        ["b", 1, False, [1, 11]],
        ["c", 0, False, [2, 12]],
        ["mean of 0.01", 0, True, [2, 12]],
        ["mean of 0.1", 1, True, [0.5, 10.5]],
    ]
    assert "--lr 0.01 (1)" in shown.text("p.legend")
    shown.do("view.plots[0].zoom([2, 8])")
    shown.until("location.hash.includes('zoom=2~8') || location.hash.includes('zoom=2%7E8')")
    shown.until("asked.findLast((one) => one.what === 'series').query.to_step === '8'")
    assert shown.do("location.hash.includes('group=--lr')"), "all of the view is in its address"
    shown.tab.get_by_label("Axis").select_option("relative")
    shown.until("view.plots[0].axis === 'relative' && view.plots[0].lines.length === 5")
    assert [each["query"]["x"] for each in shown.asked("series")[-3:]] == ["time"] * 3


def test_each_of_two_compared_runs_has_its_own_lines_and_metrics(shown: Page) -> None:
    runs = [run_document(run_id="a"), run_document(run_id="b", metrics={"loss": 0.2, "mae": 7})]
    shown.answer(
        **{
            f"{name}/{what}": document
            for name, y in (("a", 1), ("b", 2))
            for what, document in (
                ("history", HISTORY),
                ("series", {"series": [series("loss", [1, 2], [y, y])]}),
            )
        },
        compare={"spec": [{"key": "seed", "old": 1, "new": None}], "code": None, "packages": []},
    )
    shown.open("/compare?run=a,b")
    shown.see("[data-loaded]")
    shown.snapshot(*runs)
    shown.see("section[aria-label=Outcome] td")
    outcome = shown.texts("section[aria-label=Outcome] tbody tr")
    assert outcome[-2:] == ["loss\t0.31\t0.2", "mae\t\u2013\t7"]
    assert shown.do("view.plots[0].lines.map((one) => [one.task, one.hue, one.y])") == [
        ["a", 0, [1, 1]],
        ["b", 1, [2, 2]],
    ]
    assert [each["run"] for each in shown.asked("series")] == ["a", "b"]
    differs = shown.text("section[aria-label='What differs']")
    assert "seed: 1 → none" in differs
    assert "not known" in differs
    assert "nothing" in differs


def test_of_a_hundred_metrics_ten_are_compared_the_others_when_asked_for_and_the_server_is_asked_in_parts(
    shown: Page,
) -> None:
    names = [f"m{i}" for i in range(100)]
    history = {**HISTORY, "series": [{"task": "", "name": name} for name in names]}
    # The server's answer to a part has only what was asked for; here each answer has all, so what was asked counts.
    shown.answer(history=history, series={"series": []}, compare={"spec": [], "code": None, "packages": []})
    shown.open("/compare?run=a,b")
    shown.see("[data-loaded]")
    assert shown.do("view.plots.length") == 10
    assert {each["query"]["names"] for each in shown.asked("series")} == {",".join(sorted(names)[:10])}
    shown.do("asked.length = 0")
    shown.tab.get_by_role("button", name="Show 90 more plots").click()
    shown.until("view.plots.length === 100")
    asked = [each["query"]["names"].split(",") for each in shown.asked("series") if each["run"] == "b"]
    assert sorted(name for part in asked for name in part) == sorted(names)
    assert max(map(len, asked)) <= run_series.SERIES_MAX


def test_a_plan_shows_once_what_all_tasks_have_and_follows_a_restart(shown: Page) -> None:
    tasks = [
        {"task": f"worker:{i}", "host": "gpu-a", "address": f"gpu-a:{i}", "command": ["python", "train.py"],
         "tf_config": {"task": i}, "env": {"TF_CONFIG": "{}", "SAME": "1", "RANK": str(i)}}
        for i in range(2)
    ]  # fmt: skip
    plan = {"strategy": "multi_worker_mirrored", "workdir": "git", "checkpoint_dir": None, "ports_held": True,
            "generation": 2, "tasks": tasks, "resolved": None}  # fmt: skip
    shown.answer(plan=plan)
    shown.open(f"/r/{RUN}/plan")
    shown.see("details")
    own = shown.texts("details pre")
    assert own == ['{\n  "task": 0\n}', "RANK=0", '{\n  "task": 1\n}', "RANK=1"]
    assert shown.texts("section[aria-label='All 2 tasks'] pre") == ["python train.py", "SAME=1"]
    shown.until("streams.length === 2")
    shown.snapshot(run_document(generation=3))
    shown.until("asked.filter((one) => one.what === 'plan').length > 1")


def test_a_cell_of_the_strip_is_its_task(shown: Page) -> None:
    tasks = [task_document(0, task=f"worker:{i}") for i in range(200)]
    run_shown(shown, tasks=tasks)
    columns = shown.do("view.strip.columns")
    assert 40 < columns < 200
    told = "view.strip.at({offsetX: 3 * 12 + 5, offsetY: 12 + 5}).task"
    assert shown.do(told) == f"worker:{columns + 3}"
    assert shown.do("view.strip.at({offsetX: view.strip.columns * 12 + 1, offsetY: 1})") is None


@pytest.mark.parametrize("count", [33, pytest.param(64, marks=pytest.mark.long), 300])
def test_many_tasks_are_seen_through_start_failure_and_end(shown: Page, count: int) -> None:
    def told(phase: str, *, run: str = "RUNNING", first: str | None = None) -> None:
        tasks = [
            task_document(0, task=f"worker:{i}", phase=first if first and i == 0 else phase)
            for i in range(count)
        ]
        shown.stream("snapshot", {"away_since": None, "runs": {RUN: {
            **run_document(phase=run), "run_id": RUN, "tasks": {one["task"]: one for one in tasks}, "hosts": {}}}},
        )  # fmt: skip

    run_shown(shown, tasks=[task_document(0, task=f"worker:{i}", phase="PENDING") for i in range(count)])
    words = ".strip p"
    assert shown.text(words) == f"{count} tasks: {count} do not train yet"
    for phase, run, first, said in [
        ("LAUNCHING", "LAUNCHING", None, f"{count} do not train yet"),
        ("RUNNING", "RUNNING", None, f"{count} train"),
        ("RUNNING", "RUNNING", "LOST", f"{count - 1} train, 1 is in trouble"),
        ("EXITED", "SUCCEEDED", None, f"{count} have ended"),
    ]:
        told(phase, run=run, first=first)
        shown.until(
            "(text) => document.querySelector('.strip p').textContent === text", f"{count} tasks: {said}"
        )
        assert not shown.tab.locator("#away").is_visible()


# ---------------------------------------------------------------- actions


@pytest.fixture
def acting(shown: Page) -> Page:
    shown.do("page.actions = true")
    return shown


def test_an_action_is_asked_for_once_it_is_confirmed_and_a_refusal_can_be_tried_again(acting: Page) -> None:
    run_shown(acting)
    acting.tab.get_by_role("button", name="Stop the run…").click()
    acting.tab.get_by_role("button", name="No", exact=True).click()
    assert acting.asked("kill") == []
    acting.answer(kill={"status": 409, "body": {"error": {"message": "it is busy", "hint": "wait"}}})
    acting.tab.get_by_role("button", name="Stop the run…").click()
    yes = acting.tab.get_by_role("button", name="Yes, kill")
    yes.click()
    acting.tab.get_by_text("it is busy: wait").wait_for()
    acting.answer(kill={})
    yes.click()
    acting.until("!document.getElementById('dialog').open")
    assert [(each["run"], json.loads(each["body"])) for each in acting.asked("kill")] == [(RUN, {})] * 2


def test_a_restart_names_the_generation_of_its_checkpoint(acting: Page) -> None:
    run_shown(acting)
    acting.answer(rollback={})
    acting.tab.get_by_role("button", name="Restart…").click()
    acting.tab.get_by_role("button", name="Yes, restart").click()
    acting.until("asked.some((one) => one.what === 'rollback')")
    assert json.loads(acting.asked("rollback")[0]["body"]) == {"checkpoint": "gen-2", "restart": True}


def test_checkpoints_say_what_they_are_and_a_run_that_has_ended_is_not_restarted_by_a_rollback(
    acting: Page,
) -> None:
    one = {"generation": 2, "bytes": 1, "whole": True, "writing": False, "verified_at": None, "pinned": False,
           "set_aside": False, "saved_at": BEGIN}  # fmt: skip
    acting.given = {"checkpoints": {"checkpoints": [
        {**one, "name": "c1", "global_step": 1, "verified_at": BEGIN, "pinned": True},
        {**one, "name": "c2", "global_step": 2, "saved_at": BEGIN + 2, "whole": False, "why": "no index"},
        {**one, "name": "c3", "global_step": 3, "saved_at": BEGIN + 3, "set_aside": True},
        {**one, "name": "c4", "global_step": 4, "saved_at": BEGIN + 4, "writing": True},
    ]}}  # fmt: skip
    run_shown(acting, phase="SUCCEEDED")
    states = "section[aria-label=Checkpoints] td[data-name=state]"
    acting.see(states)
    assert acting.texts(states) == [
        "is being written",
        "not verified yet, set aside",
        "✕ no index",
        "✓ verified, ◆ pinned",
    ]
    acting.answer(rollback={})
    assert acting.tab.get_by_role("button", name="Roll back to step").count() == 2
    acting.tab.get_by_role("button", name="Roll back to step 1 ").click()
    acting.tab.get_by_role("button", name="Yes, roll back").click()
    acting.until("asked.some((one) => one.what === 'rollback')")
    assert json.loads(acting.asked("rollback")[0]["body"]) == {"checkpoint": "c1", "restart": False}


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        ("ready", "drain"),
        ("draining", "drain"),
        ("drained", "undrain"),
        ("quarantined", "undrain"),
        ("stuck", "undrain"),
    ],
)
def test_a_host_is_let_in_again_whatever_has_shut_it_out(acting: Page, state: str, verb: str) -> None:
    assert acting.do("(state) => drainButton({}, {host: 'a', state}).textContent", state) == f"{verb}…"


def test_a_drain_says_when_the_tasks_move(acting: Page) -> None:
    acting.do("drainButton({}, {host: 'a', state: 'ready'}).click()")
    said = acting.text("#dialog")
    assert "at the next verified checkpoint, or at the next restart where none is kept" in said


# ---------------------------------------------------------------- logs


def lines(*numbers: int, task: str = "worker:0") -> list[dict[str, Any]]:
    return [
        {
            "id": f"{task}/1/{n}",
            "task": task,
            "generation": 1,
            "time": BEGIN + n,
            "level": "info",
            "text": f"line {n} of it",
        }
        for n in numbers
    ]


def logs_shown(shown: Page, first: list[dict[str, Any]], query: str = "", **page: Any) -> None:
    usual = {"before": None, "after": "worker:0/1/99", "searched_to": None}
    shown.answer(logs={"lines": first, **usual, **page}, why={"first_causes": shown.given.get("causes", [])})
    shown.open(f"/r/{RUN}/logs{query}")
    shown.until("view.logs?.lines.length > 0")


def held(shown: Page) -> list[str]:
    return [each.split("/")[2] for each in shown.do("view.logs.lines.map((line) => line.id)")]


def test_lines_are_held_once_in_order_and_those_at_the_far_end_are_dropped(shown: Page) -> None:
    logs_shown(shown, lines(1000, 1001))
    shown.do("(fresh) => view.logs.add(fresh, false)", lines(1001, 1002))
    shown.do("(fresh) => view.logs.add(fresh, true)", lines(998, 999))
    assert held(shown) == ["998", "999", "1000", "1001", "1002"]
    shown.do("(fresh) => view.logs.add(fresh, true)", lines(*range(998)))
    shown.do("(fresh) => view.logs.add(fresh, false)", lines(*range(1003, 3002)))
    now = held(shown)
    assert (len(now), now[0], now[-1]) == (3000, "2", "3001")
    assert shown.do("view.logs.before") == "worker:0/1/2"
    shown.do("(fresh) => view.logs.add(fresh, true)", lines(0, 1))
    now = held(shown)
    assert (len(now), now[0], now[-1]) == (3000, "0", "2999")
    assert shown.do("[view.logs.cut, [...view.logs.next]]") == [True, [["worker:0/1", "3000"]]]


def test_newer_lines_are_looked_for_until_the_end_and_then_followed(shown: Page) -> None:
    logs_shown(shown, lines(5), f"?at={'worker:0/1/5'.replace('/', '%2F')}")
    assert shown.do("view.logs.cut")
    shown.answer(
        logs={"lines": lines(6), "before": None, "after": "worker:0/1/7", "searched_to": None, "is_end": True}
    )
    shown.do("view.logs.newer()")
    assert shown.asked("logs")[-1]["query"]["next"] == "worker:0/1/99"
    assert held(shown) == ["5", "6"]
    assert shown.do("[view.logs.cut, view.logs.after]") == [False, "worker:0/1/7"]


def test_the_filters_are_asked_for_and_a_search_that_finds_nothing_asks_before_it_goes_on(
    shown: Page,
) -> None:
    logs_shown(
        shown,
        lines(9),
        "?level=error&q=boom&task=worker%3A0&generation=2",
        before="worker:0/1/9",
        searched_to=BEGIN,
    )
    shown.until("asked.filter((one) => one.what === 'logs').length === 4")
    first, *_, last = shown.asked("logs")
    wanted = {"level": "error", "q": "boom", "task": "worker:0", "generation": "2", "limit": "500"}
    assert first["query"] == wanted
    assert last["query"] == {**wanted, "before": "worker:0/1/9"}
    shown.tab.wait_for_timeout(200)
    assert len(shown.asked("logs")) == 4
    assert "1 line fits; searched back to 2025-10-09 08:53:20" in shown.text(".log .tools")
    shown.tab.get_by_role("button", name="go on").click()
    shown.until("asked.filter((one) => one.what === 'logs').length > 4")


def test_what_comes_while_one_reads_older_lines_is_counted_and_moves_nothing(shown: Page) -> None:
    logs_shown(shown, lines(*range(1000, 1400)))
    # What is asked for once a second finds nothing yet, even if that comes before the first lines are read here.
    shown.answer(logs={"lines": [], "before": None, "after": "worker:0/1/99", "searched_to": None})
    shown.do("(() => { setting('fold', 'no'); view.logs.fold = false; view.logs.list.scrollTop = 500; })()")
    shown.until("!view.logs.following")
    row = "document.querySelector('[data-id=\"worker:0/1/1030\"]')"
    where = f"({row}?.getBoundingClientRect().top ?? null)"
    shown.until(f"{where} !== null")
    before = shown.do(where)
    shown.do("(fresh) => view.logs.add(fresh, true)", lines(*range(900, 1000)))
    assert abs((shown.do(where) or 0) - before) < 18  # the height of a line
    more = {
        "lines": lines(2000, 2001),
        "before": None,
        "after": "worker:0/1/2002",
        "searched_to": None,
        "skipped": 7,
    }
    shown.answer(logs=more)
    shown.until("view.logs.missed > 0")
    # It is asked for again each second: a slow machine sees two answers of three lines.
    missed, text = shown.do("[view.logs.missed, document.querySelector('.log .tools').innerText]")
    assert missed % 3 == 0
    assert f"paused, {missed} new" in text
    assert "7 lines were too fast to show; the log has them" in shown.do(
        "view.logs.lines.map((line) => line.text)"
    )


def test_the_cause_is_marked_among_the_lines_and_pinned_where_it_is_of_this_task(shown: Page) -> None:
    cause = first_cause_document(task="worker:0", last_lines=["line 3 of it"], sentence="worker:0 died")
    shown.given = {"causes": [cause, first_cause_document(task="worker:9", sentence="worker:9 died")]}
    logs_shown(shown, lines(1, 3), "?task=worker:0")
    assert "worker:0 died" in shown.text("p.pinned")
    shown.see(".line.cause")
    assert shown.texts(".line.cause .said") == ["✕ line 3 of it"]


def test_the_place_to_go_on_from_keeps_tasks_of_which_no_line_is_held(shown: Page) -> None:
    logs_shown(shown, lines(5, 9), before="worker:0/1/9,worker:1/1/480")
    assert shown.do("view.logs.placeOf(view.logs.lines)") == "worker:0/1/5,worker:1/1/480"

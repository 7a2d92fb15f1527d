"""The page in a real browser, over real runs."""

from __future__ import annotations

import gzip
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.head.records.history import History
from tests.cluster.browsing import Ui, reload, visit
from tests.cluster.cluster import Cluster
from tests.contract.fake_api import run_document, task_document
from tests.contract.test_page import Served
from tests.patience import comes, patient

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A run that failed once, came back, and is about to end; its environment holds a secret."""
    made = Cluster(tmp_path_factory.mktemp("page"))
    made.env["API_TOKEN"] = "s3cr3t-value"
    options = [
        "--steps",
        "200",
        "--pace",
        "0.03",
        "--fail-at",
        "60",
        "--fail-once",
        "--fail-task",
        "worker:1",
        "--talk",
        "--nan-at",
        "150",
    ]
    made.ok("up", made.spec(*options, env={"API_TOKEN": "s3cr3t-value", "SHOWN": "yes"}))
    made.wait_phase("SUCCEEDED")
    yield made
    made.close()


@pytest.fixture
def seen(trained: Cluster, browser: Any) -> Iterator[Ui]:
    ui = Ui(trained, browser)
    yield ui
    assert ui.close() == 0
    assert ui.wrong == []


def test_a_run_is_killed_comes_back_and_is_seen_doing_so(local_cluster: Cluster, browser: Any) -> None:
    local_cluster.ok("up", local_cluster.spec("--steps", "4000", "--pace", "0.03", "--talk"))
    run = local_cluster.wait_step(30)
    ui = Ui(local_cluster, browser, "--actions")
    page = ui.page
    page.get_by_role("region", name="Runs, a table").get_by_role("link", name=run["run_id"]).click()
    page.get_by_text("RUNNING").first.wait_for()
    page.get_by_text(re.compile(r"ETA \d")).wait_for()
    assert re.search(r"[\d,]+ / 4,000", page.inner_text("main"))
    os.kill(local_cluster.task("worker:1")["pid"], signal.SIGKILL)
    cause = page.get_by_role("region", name="First cause")
    cause.wait_for(timeout=20_000)
    assert "worker:1" in cause.inner_text()
    page.get_by_text("generation 2").first.wait_for(timeout=20_000)
    events = page.get_by_role("region", name="Events, a table")
    events.get_by_text(re.compile("generation 2 resumes|trains again")).first.wait_for(timeout=20_000)
    page.get_by_role("button", name="Stop the run…").wait_for()
    page.get_by_text(re.compile(r"[\d,]+ / 4,000")).first.wait_for(timeout=20_000)  # its first step
    local_cluster.kill_coordinator()
    page.get_by_text("The coordinator has not answered").wait_for(timeout=20_000)
    known = _step(page)
    assert known > 60
    _is_as_known(page)
    visit(page, page.url)
    page.get_by_text("The coordinator has not answered").wait_for(timeout=20_000)
    _is_as_known(page)
    assert _step(page) == known, "the newest step that was known stays"
    local_cluster.ok("coordinator", "start")
    page.get_by_text("The coordinator has not answered").wait_for(state="hidden", timeout=20_000)
    page.get_by_role("button", name="Stop the run…").wait_for()
    assert "stale" not in (page.get_attribute("body", "class") or "")
    page.get_by_role("link", name="log of worker:1").click()
    page.locator(".said", has_text="worker:1 at step").first.wait_for()
    page.wait_for_url(re.compile("task=worker"))
    assert ui.close() == 0
    assert ui.wrong == []


def _step(page: Any) -> int:
    found = re.search(r"([\d,]+) / 4,000", page.inner_text("main"))
    assert found is not None
    return int(found[1].replace(",", ""))


def _is_as_known(page: Any) -> None:
    """Without a coordinator nothing counts on, nothing is promised, and what needs it is not offered."""
    assert page.get_attribute("body", "class") == "stale"
    assert page.inner_text("#live") == "coordinator away"
    main = page.inner_text("main")
    assert "whether it is still so is not known" in main
    assert "ETA" not in main
    assert "it would resume" not in main
    assert page.get_by_role("button", name=re.compile("Stop|Restart")).count() == 0
    spent = page.inner_text(".head .dim >> nth=-1")
    page.wait_for_timeout(2100)
    assert page.inner_text(".head .dim >> nth=-1") == spent


def test_what_a_host_says_is_text(local_cluster: Cluster, browser: Any) -> None:
    local_cluster.ok(
        "up",
        local_cluster.spec(
            script="says_markup.py", tasks=1, restart={"without_progress_max": 1, "backoff": "0.1s"}
        ),
    )
    run = local_cluster.wait_phase("FAILED")
    ui = Ui(local_cluster, browser)
    ui.go("r", run["run_id"])
    ui.page.wait_for_timeout(1500)
    text = ui.page.inner_text("main")
    assert "<img src=x onerror='window.hacked=1'><script>" in text
    ui.go("r", run["run_id"], "logs")
    ui.page.get_by_text("gnp.exe").wait_for()
    line = ui.page.get_by_text("gnp.exe").inner_text()
    assert "\\u202e" in line, "a change of direction is shown, and not obeyed"
    assert "red" in line
    assert "\x1b" not in line
    ui.go()
    ui.page.wait_for_timeout(500)
    assert ui.page.evaluate("window.hacked") is None
    assert ui.page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    ui.close()
    assert ui.wrong == []


VIEWS = [[], ["logs"], ["plan"]]


@pytest.mark.parametrize(
    ("colours", "width"),
    [
        ("light", 1280),
        ("dark", 400),
        pytest.param("light", 400, marks=pytest.mark.long),  # each colour and each width is seen above
        pytest.param("dark", 1280, marks=pytest.mark.long),
    ],
)
def test_nothing_serious_stands_in_anybodys_way(trained: Cluster, seen: Ui, colours: str, width: int) -> None:
    from axe_playwright_python.sync_playwright import Axe

    run_id = trained.run()["run_id"]
    seen.page.emulate_media(color_scheme=colours)
    seen.page.set_viewport_size({"width": width, "height": 800})
    for parts in ([], *(["r", run_id, *more] for more in VIEWS)):
        seen.go(*parts)
        seen.page.wait_for_timeout(700)
        # axe is put in by the browser's own tools, which the page's policy does not bind.
        found = Axe().run(seen.page).response["violations"]
        serious = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], parts
        assert seen.page.evaluate("document.scrollingElement.scrollWidth") <= width, parts
    for name in ("Times: local", "Colours: auto"):
        assert seen.page.get_by_role("button", name=name).count() == 1


# The tab moves on at once; what Playwright knows of its address follows in a message of the browser.
def _is_zoomed(address: str) -> bool:
    return "from=" in address


def test_it_is_used_by_keyboard(trained: Cluster, seen: Ui) -> None:
    run_id = trained.run()["run_id"]
    seen.go("r", run_id)
    page = seen.page
    page.keyboard.press("w")
    page.wait_for_url(_is_zoomed)
    page.keyboard.press("0")
    page.wait_for_url(lambda url: not _is_zoomed(url))
    page.go_back()
    page.wait_for_url(_is_zoomed)  # back undoes the zoom
    page.keyboard.press("l")
    page.locator(".said", has_text=re.compile(r"at step")).first.wait_for()
    page.keyboard.press("/")
    page.keyboard.type("the data ends")
    page.keyboard.press("Enter")
    page.get_by_text("ValueError: the data ends at step 60").first.wait_for()
    assert "at step 61" not in page.inner_text("[role=log]")
    page.keyboard.press("Escape")
    page.locator("main").focus()
    page.keyboard.press("?")
    page.get_by_text("Turn them off").click()
    page.keyboard.press("r")
    assert "logs" in page.url, "single keys are off"


def test_the_time_is_zoomed_by_wheel_and_fingers_and_a_cause_leads_to_its_log(
    trained: Cluster, seen: Ui
) -> None:
    seen.go("r", trained.run()["run_id"])
    page, canvas = seen.page, seen.page.locator(".timeline canvas")
    page.get_by_text(re.compile(r"NaN first at step 1\d\d, generation 2")).wait_for()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 30

    def range_after() -> tuple[float, float]:
        page.wait_for_timeout(500)
        begin, end = page.evaluate("page.timeline.range")
        return begin, end

    whole = range_after()
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    for _ in range(3):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    near = range_after()
    assert near[1] - near[0] < 0.6 * (whole[1] - whole[0])
    page.wait_for_url(_is_zoomed)
    page.keyboard.down("Shift")
    page.mouse.wheel(0, 100)
    page.keyboard.up("Shift")
    assert range_after()[0] > near[0] + 0.1
    page.keyboard.press("0")
    fingers = page.context.new_cdp_session(page)
    for kind, apart in (("touchStart", 60), ("touchMove", 90), ("touchMove", 120), ("touchEnd", 0)):
        points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}] if apart else []
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    pinched = range_after()
    assert pinched[1] - pinched[0] < 0.7 * (whole[1] - whole[0])
    page.keyboard.press("0")
    page.keyboard.press("n")
    at_cause = range_after()
    assert at_cause[0] <= page.evaluate("page.timeline.marks[0].at") <= at_cause[1]
    canvas.focus()
    page.keyboard.press("Enter")
    page.get_by_text("ValueError: the data ends at step 60").first.wait_for()
    page.go_back()
    page.wait_for_selector("[data-loaded]")
    page.keyboard.press("0")
    page.wait_for_timeout(300)
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": page.evaluate("page.timeline.x(page.timeline.marks[0].at)"), "y": 8})
    page.get_by_text("traceback, ").first.wait_for()
    page.wait_for_url(re.compile("task=worker%3A1"))


def test_the_words_beside_the_canvas_say_the_same(trained: Cluster, seen: Ui) -> None:
    seen.go("r", trained.run()["run_id"])
    main = seen.page.inner_text("main")
    assert re.search(r"training that counts \d", main)
    seen.page.get_by_text("As a table", exact=True).click()
    table = seen.page.get_by_role("region", name="Timeline, a table").inner_text()
    assert "starting" in table
    seen.page.get_by_role("button", name="all 2 tasks").click()
    rows = seen.page.evaluate(
        "page.timeline.rows.map((row) => [row.name, row.spans.some((span) => span.cause)])"
    )
    assert rows == [["run", False], ["worker:0", False], ["worker:1", True]]
    assert "training" in table


def test_two_runs_are_chosen_from_the_list_and_compared(
    trained: Cluster, seen: Ui, browser: Any, tmp_path: Path
) -> None:
    trained.ok("up", trained.spec("--steps", "40", "--pace", "0.02", name="other"))
    run, other = trained.run()["run_id"], trained.run("other")["run_id"]
    seen.go()
    for one in (run, other):
        seen.page.get_by_label(f"Compare {one}").check()
    seen.page.get_by_role("link", name=f"Compare {run} and {other}").click()
    seen.page.wait_for_selector("[data-loaded]")
    assert seen.page.locator(".uplot canvas").count() >= 1
    told = " ".join(seen.page.inner_text("main").split())
    seen.page.get_by_role("button", name="clip outliers").click()
    seen.page.get_by_role("button", name="clip outliers", pressed=True).wait_for()
    assert seen.page.evaluate("view.plots[0].clip")
    assert "name: t → other" in told
    assert "Packages nothing" in told
    path = tmp_path / "both.html"
    trained.ok("report", "t", "other", "--html", str(path))
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("[data-loaded]")
    assert page.locator(".uplot canvas").count() >= 1
    assert "name: t → other" in " ".join(page.inner_text("main").split())
    page.get_by_role("link", name=other).first.click()
    page.get_by_role("heading", name=f"other {other}").wait_for()
    page.wait_for_selector("[data-loaded]")
    assert f"{other}: 2 tasks on 1 host" in page.inner_text("main"), (
        "all of the second run is in the file too"
    )
    context.close()
    trained.ok("kill", "other")


def test_a_report_holds_all_and_asks_nobody(trained: Cluster, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    trained.ok("report", "t", "--html", str(path))
    text = path.read_text()
    assert "s3cr3t-value" not in text
    assert len(text) < 1 << 20
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("[data-loaded]")
    main = page.inner_text("main")
    assert "SUCCEEDED" in main
    assert "the data ends at step 60" in main
    assert page.evaluate("document.querySelectorAll('.uplot canvas').length") >= 2
    assert "NaN first at step 1" in main
    page.keyboard.press("i")
    page.get_by_text("SHOWN=yes").first.wait_for()
    plan = page.inner_text("main")
    assert "API_TOKEN=***" in plan
    assert "The ports are those of generation 2." in plan
    assert plan.count("ORCH_GENERATION=2") == 1, "what both tasks have is shown once"
    assert plan.count("TF_CONFIG") == 2
    assert "without_progress_max: " in plan, "what the spec resolved to"
    assert [url for url in asked if not url.startswith(path.as_uri())] == []
    assert wrong == []
    context.close()


def test_the_actions_say_what_they_do_and_do_it_after_a_question(
    local_cluster: Cluster, browser: Any
) -> None:
    local_cluster.ok("up", local_cluster.spec("--steps", "4000", "--pace", "0.03"))
    run = local_cluster.wait(lambda run: bool((run.get("checkpoint") or {}).get("global_step")))
    reading = Ui(local_cluster, browser)
    reading.go("r", run["run_id"])
    assert reading.page.get_by_role("button", name=re.compile("Stop|Restart|drain|Roll back")).count() == 0
    assert reading.close() == 0
    ui = Ui(local_cluster, browser, "--actions")
    page, dialog = ui.page, ui.page.get_by_role("dialog")
    ui.go("r", run["run_id"])
    page.get_by_role("button", name="Restart…").click()
    assert "All its tasks are stopped, and go on from the newest checkpoint of" in dialog.inner_text()
    dialog.get_by_role("button", name="No").click()
    assert local_cluster.run()["generation"] == 1, "nothing happens without a yes"
    page.get_by_role("button", name="Restart…").click()
    dialog.get_by_role("button", name="Yes, restart").click()
    page.get_by_text("generation 2").first.wait_for(timeout=20_000)
    page.get_by_text("RUNNING").first.wait_for(timeout=20_000)
    page.get_by_role("button", name="Stop the run…").click()
    dialog.get_by_role("button", name="Yes, kill").click()
    page.get_by_text("KILLED").first.wait_for(timeout=20_000)
    assert [event["kind"] for event in local_cluster.events() if event["kind"] in ("rollback", "kill")] == [
        "rollback",
        "kill",
    ]
    assert ui.close() == 0
    assert ui.wrong == []


def test_a_drained_host_is_let_in_again_by_its_button(browser: Any, tmp_path: Path) -> None:
    with Served(tmp_path, actions=True) as served:
        host = {"host": "gpu-a", "state": "drained", "gpus": [], "tasks": []}
        run = {**run_document(hosts=[host]), "run_id": "t-20260101-000000"}
        served.api.runs = [run]
        context = browser.new_context()
        page = context.new_page()
        visit(page, f"http://127.0.0.1:{served.port}/login?token={served.keys.access.new_token()}")
        visit(page, f"http://127.0.0.1:{served.port}/#/r/{run['run_id']}")
        page.get_by_role("button", name="undrain…").click()
        dialog = page.get_by_role("dialog")
        assert "It may be given tasks again" in dialog.inner_text()
        dialog.get_by_role("button", name="Yes, undrain").click()
        dialog.wait_for(state="hidden")
        assert served.api.posted == [("/v1/runs/t-20260101-000000/undrain", {"host": "gpu-a"})]
        served.api.runs = [{**run, "phase": "KILLED"}]
        page.get_by_role("columnheader", name="action").wait_for(state="hidden")
        assert page.get_by_role("button", name="undrain…").count() == 0, "an ended run has no actions"
        context.close()


def test_64_tasks_and_100_000_points_are_seen_within_a_moment(browser: Any, tmp_path: Path) -> None:
    """The budget is a second on a quiet machine; this one may be busy with other tests."""
    with Served(tmp_path) as served:
        tasks = [task_document(0, task=f"worker:{index}", host=f"gpu-{index // 8}") for index in range(64)]
        load = {
            "index": 0,
            "name": "NVIDIA H100",
            "utilization_percent": 97.0,
            "temperature_c": 61.0,
            "power_w": 310.5,
        }
        load |= {"memory_used_bytes": 71 << 30, "memory_total_bytes": 80 << 30}
        hosts = [
            {"host": f"gpu-{index}", "gpus": [{**load, "index": i} for i in range(8)]} for index in range(8)
        ]
        run = {**run_document(tasks=tasks, hosts=hosts), "run_id": "t-20260101-000000"}
        served.api.runs = [run]
        directory = tmp_path / "state/runs/t-20260101-000000"
        directory.mkdir(parents=True)
        kept = History(str(directory / "history.db"))
        for step in range(100_000):
            kept.add(1_760_000_000 + step, 1, step, "", {"loss": 1 / (step + 1), "steps_per_s": 1.0})
            if step % 10_000 == 9_999:
                kept.flush(1_760_000_000 + step)
        kept.close()
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        visit(page, f"http://127.0.0.1:{served.port}/login?token={served.keys.access.new_token()}")
        visit(page, f"http://127.0.0.1:{served.port}/#/r/{run['run_id']}")
        held: list[Any] = []
        page.route("**/series?*", lambda asked: asked.continue_() if held else held.append(asked))
        reload(page)
        page.get_by_role("link", name="worker:63").wait_for()
        assert comes(lambda: held or page.wait_for_timeout(20), 30)
        beside = page.get_by_role("region", name="Tasks", exact=True)
        top = "each => each.getBoundingClientRect().top"
        before = beside.evaluate(top)
        held[0].continue_()
        page.wait_for_selector("[data-loaded]")
        assert abs(beside.evaluate(top) - before) < 1, "the plots come to a place that is kept for them"
        assert page.get_by_text("97% 311 W 71 GiB/80 GiB 61 °C").count() == 64
        took_ms = page.evaluate("performance.now()")
        shifted = page.evaluate(
            "new Promise((done) => { let sum = 0; new PerformanceObserver((list) => {"
            " for (const one of list.getEntries()) sum += one.value;"
            " }).observe({type: 'layout-shift', buffered: true});"
            " setTimeout(() => done(sum), 300); })"
        )
        assert shifted < 0.1, "nothing jumps while it loads"
        print(f"complete after {took_ms:.0f} ms")
        assert took_ms < patient(4000)
        assert page.evaluate("document.querySelectorAll('*').length") < 3000
        began = page.evaluate("performance.now()")
        drawn = "view.plots.plots.get('loss').lines && view.plots.plots.get('loss').axis"
        page.get_by_label("Axis").select_option("time")
        assert comes(lambda: page.evaluate(drawn) == "time", 10)
        assert page.evaluate("performance.now()") - began < patient(2000)
        page.get_by_label("Axis").select_option("step")
        assert comes(lambda: page.evaluate(drawn) == "step", 10)
        _zooms_steps(page)
        page.set_viewport_size({"width": 1200, "height": 900})
        wide = "[...document.querySelectorAll('.scroll')].some((each) => each.scrollWidth > each.clientWidth)"
        assert not page.evaluate(wide), "nothing is off the screen"
        lost, done = {**tasks[40], "phase": "LOST"}, {**tasks[41], "phase": "EXITED", "cause": "finished"}
        slow = {**tasks[63], "steps_per_s": 1.7}
        served.api.runs = [{**run, "tasks": [*tasks[:40], lost, done, *tasks[42:63], slow]}]
        table = page.get_by_role("region", name="Tasks, a table")
        first = table.locator("tbody tr").first
        first.get_by_text("LOST").wait_for()
        assert "failed" in (first.get_attribute("class") or ""), "what is lost stands first, in red"
        page.get_by_text("64 tasks: 61 train, 1 is in trouble, 1 is slow, 1 has ended").wait_for()
        assert re.search("1.7 ▼ .50%", table.locator("tbody tr").nth(1).inner_text()), "then what is slow"
        table.get_by_role("button", name="task", exact=True).click()
        first.get_by_text("worker:0").wait_for()
        table.get_by_role("button", name="steps/s").click()
        table.get_by_role("button", name="steps/s").click()
        first.get_by_text("worker:63").wait_for()
        assert table.locator("th[aria-sort]").inner_text().startswith("steps/s")
        table.get_by_role("button", name="steps/s").click()
        first.get_by_text("worker:40").wait_for()
        page.get_by_label("Find tasks").fill("gpu-3")
        page.get_by_role("link", name="worker:63").wait_for(state="detached")
        assert page.get_by_role("region", name="Tasks, a table").locator("tbody tr").count() == 8
        page.set_viewport_size({"width": 400, "height": 850})
        top = page.evaluate(
            "document.querySelector('section[aria-label=Tasks]').getBoundingClientRect().top + scrollY"
        )
        assert top < 3 * 850, "the tasks are near on a phone"
        context.close()


def _zooms_steps(page: Any) -> None:
    """Enlarge a plot, smooth it, and zoom by a drag: what was reported stays, and all plots follow."""
    page.get_by_role("button", name="Enlarge loss").click()
    page.locator(".plot.large").wait_for()
    with page.expect_response(re.compile("/series")):
        page.get_by_label("Smoothing").select_option("0.9")
    page.wait_for_timeout(300)  # it is drawn anew
    plot = page.locator(".plot", has_text="loss").locator(".u-over").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=5)
    page.mouse.up()
    page.get_by_role("button", name="all steps").wait_for()
    value = page.locator(".plot .value").first

    def pointed() -> bool:  # it is drawn anew once its values have come
        plot.hover(position={"x": 25, "y": 50})
        plot.hover(position={"x": 26, "y": 50})
        return re.match(r"step 2[5-9],\d{3}: .*smoothed", value.inner_text()) is not None

    assert comes(pointed, 10), value.inner_text()
    page.get_by_role("button", name="all steps").click()


def test_the_files_are_few_and_small() -> None:
    from orchestrator.page.server import FILES, MEASURES, STATIC, joined, read

    assert set(os.listdir(STATIC)) == {*FILES, "uplot-LICENSE"} - {MEASURES}
    served = [joined(".js"), joined(".css"), read("index.html")]
    # A browser loads them once, in a tenth of a second over a phone's line. uPlot is a third of that.
    assert sum(map(len, served)) < 250_000
    assert sum(len(gzip.compress(text.encode())) for text in served) < 85_000
    scripts = [name for name in FILES if name.endswith(".js") and name != "uplot.js"]
    long = [f"{name}: {line}" for name in scripts for line in read(name).splitlines() if len(line) > 120]
    assert not long

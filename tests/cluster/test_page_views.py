"""What stands in the page's views: many tasks, many lines, marks in the time, and what a person asks for by buttons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from orchestrator.head.records.history import History
from orchestrator.head.records.runlogs import RunLogs
from tests.cluster import browsing
from tests.cluster.browsing import Ui, is_wrong, visit
from tests.cluster.cluster import Cluster
from tests.contract.fake_api import run_document, task_document
from tests.contract.test_page import Served
from tests.patience import patient

pytestmark = pytest.mark.browser

RUN = "t-20260101-000000"
BEGIN = 1_760_000_000


class Looked:
    """The page of a coordinator of the test's own, in a tab."""

    def __init__(self, browser: Any, directory: Path, *, actions: bool = False) -> None:
        self.served = Served(directory, actions=actions)
        self.directory = directory / "state/runs" / RUN
        self.directory.mkdir(parents=True)
        self.logs = RunLogs(str(directory / "state"))
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self.wrong.append(said.text) if is_wrong(said) else None)

    def open(self, path: str, **run: Any) -> Any:
        self.served.api.runs = [{**run_document(**run), "run_id": RUN}]
        origin = f"http://127.0.0.1:{self.served.port}"
        visit(self.page, f"{origin}/login?token={self.served.keys.access.new_token()}")
        visit(self.page, f"{origin}/#{path}")
        return self.page

    def say(self, task: str, *lines: tuple[float, str], generation: int = 1) -> None:
        data = b"".join(f"{BEGIN + at:.6f} o {text}\n".encode() for at, text in lines)
        self.logs.append(RUN, task, generation, self.logs.end(RUN, task, generation), data)


@pytest.fixture
def looked(browser: Any, tmp_path: Path) -> Iterator[Looked]:
    made = Looked(browser, tmp_path)
    with made.served:
        yield made
        made.context.close()
    assert made.wrong == []


TASKS = [f"worker:{index}" for index in range(8)]


def test_lines_of_ranks_tracebacks_and_progress_bars_are_one_row_each(looked: Looked) -> None:
    for index, task in enumerate(TASKS):
        looked.say(task, (1 + index / 100, f"{task} joined"), (2 + index / 100, f"epoch 1 loss 0.{index}"))
    looked.say("worker:3", (3, "only this one is slow"))
    looked.say("worker:5", (4, "".join(f"{at}%|###       |\r" for at in range(50)) + "51%|#####     |"))
    trace = ["Traceback (most recent call last):", '  File "train.py", line 3', "    fit()", "ValueError: no"]
    for index, task in enumerate(TASKS):
        looked.say(task, *((5 + index / 100, line) for line in trace))
    page = looked.open(f"/r/{RUN}/logs", tasks=[task_document(0, task=task) for task in TASKS])
    page.get_by_label("Task").get_by_text("worker:7").wait_for(state="attached")
    rows = page.locator(".line")
    page.locator(".said", has_text="epoch 1 loss").wait_for()
    said = [" ".join(text.split()) for text in rows.all_inner_texts()]
    assert len(said) == 5, said
    assert "×8" in said[0]
    assert "epoch 1 loss 0.0…0.7" in said[1], "numbers that differ are not one number"
    rows.nth(1).get_by_text("each").click()
    assert "worker:5  epoch 1 loss 0.5" in rows.nth(1).inner_text()
    assert "⟲51 51%|##### |" in said[3]
    assert "×8 ValueError: no traceback, 4 lines" in said[4]
    assert "fit()" not in page.inner_text("[role=log]")
    page.get_by_text("traceback, 4 lines").click()
    assert "fit()" in page.inner_text("[role=log]")
    page.get_by_role("button", name="only what differs").click()
    page.get_by_text("2 lines fit").wait_for()
    assert ["slow" in text or "51%" in text for text in rows.all_inner_texts()] == [True, True]
    page.get_by_role("button", name="only what differs").click()
    page.get_by_role("button", name="fold equal lines").click()
    page.get_by_text("fit()").nth(7).wait_for()
    page.get_by_role("button", name="fold equal lines").click()
    page.get_by_label("Text to find").fill("worker:5 joined")
    page.get_by_label("Text to find").press("Enter")
    page.get_by_text("1 line fits").wait_for()
    assert "worker:5 joined" in rows.first.inner_text(), (
        "a line is found that is folded into another's elsewhere"
    )


def test_long_logs_cost_few_elements_and_what_is_missed_is_counted(looked: Looked) -> None:
    looked.say("worker:0", *((at / 100, f"step {at}") for at in range(6_000)))
    page = looked.open(f"/r/{RUN}/logs")
    page.get_by_text("step 5999").wait_for()
    elements = "document.querySelectorAll('*').length"
    log = page.get_by_role("log")
    _scroll(log, "step 0", -1)
    _scroll(log, "step 5999", 1)
    log.focus()
    page.keyboard.press("Home")
    page.get_by_text("step 0", exact=True).wait_for()
    assert page.evaluate(elements) < 3000
    page.keyboard.press("End")
    page.get_by_text("step 5999").wait_for()
    log.evaluate(
        """log => new Promise((scrolled) => {
          log.addEventListener("scroll", () => requestAnimationFrame(scrolled), { once: true });
          log.scrollTop = 0;
        })"""
    )
    page.get_by_text("searched back to").wait_for()
    looked.say("worker:0", *((201 + at / 100, f"late {at}") for at in range(14)))
    page.get_by_text("paused, 14 new").wait_for()
    page.get_by_role("button", name="to the end").click()
    page.get_by_text("late 13").wait_for()
    page.get_by_text("paused").wait_for(state="hidden")
    looked.say("worker:0", (300, "followed"))
    page.get_by_text("followed").wait_for()


def _scroll(log: Any, wanted: str, direction: int) -> None:
    """Turn the wheel until a line is seen; what was seen stays near where it was, whatever page comes meanwhile."""
    log.hover()
    known = _seen(log)
    for _ in range(400):
        if wanted in known:
            return
        log.page.mouse.wheel(0, direction * 9000)
        log.page.wait_for_timeout(25)
        now = _seen(log)
        jump = abs(_number(now[0]) - _number(known[0]))
        assert jump < 1100, f"from {known[0]} to {now[0]} by one turn"
        known = now
    raise AssertionError(f"no {wanted} after 400 turns, but {known[:2]}")


def _seen(log: Any) -> list[str]:
    """Return the lines within the visible part."""
    return list(
        log.evaluate(
            """log => {
              const box = log.getBoundingClientRect();
              const isSeen = (at) => at.bottom > box.top && at.top < box.bottom;
              const rows = [...log.querySelectorAll(".line")].filter((row) => isSeen(row.getBoundingClientRect()));
              return rows.map((row) => row.querySelector(".said").textContent.trim());
            }"""
        )
    )


def _number(line: str) -> int:
    return int(line.split()[-1])


def test_a_filter_finds_what_lies_far_back_at_once(looked: Looked, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot hold the text is passed over, and does not count as read."""
    monkeypatch.setattr("orchestrator.head.records.log_pages.BYTES_MAX", 1 << 16)
    looked.say("worker:0", (0, "the needle"), *((at, "x" * 200) for at in range(1, 6000)))
    page = looked.open(f"/r/{RUN}/logs?q=needle")
    page.get_by_text("1 line fits").wait_for()
    assert page.get_by_text("the needle").count() == 1


def test_a_hit_leads_to_its_place_and_stays_there_when_the_text_is_cleared(looked: Looked) -> None:
    red = "\x1b]0;title\x07\x1b[1;31mNaN\x1b[0m in layer 7"
    lines = [(at / 100, red if at % 4000 == 999 else f"step {at} (a+b)") for at in range(20_000)]
    looked.say("worker:0", *lines)
    looked.say("worker:1", (1, "y" * 9000))
    page = looked.open(f"/r/{RUN}/logs?task=worker:0")
    find = page.get_by_label("Text to find")
    find.fill("n.n in LAYER")
    find.press("Enter")
    page.get_by_text("0 lines fit").wait_for()
    page.get_by_role("button", name=".*", exact=True).click()
    page.get_by_text("5 lines fit").wait_for()
    assert page.locator("mark").all_inner_texts()[:2] == ["NaN", " in layer"], (
        "the colour ends within the hit"
    )
    assert page.locator(".ansi-red.ansi-bold").first.inner_text() == "NaN"
    assert "title" not in page.inner_text("[role=log]")
    page.locator(".line").nth(2).locator(".at").click()
    target = page.locator(".line.target")
    target.get_by_text("in layer 7").wait_for()
    page.get_by_text("step 8998 ").wait_for()
    page.get_by_text("step 9000 ").wait_for()
    page.get_by_role("button", name="next hit").click()
    page.get_by_text("step 13000 ").wait_for()
    page.get_by_role("button", name="previous hit").click()
    page.get_by_text("step 9000 ").wait_for()
    find.fill("")
    find.press("Enter")
    page.locator("mark").first.wait_for(state="detached")
    page.get_by_text("step 9000 ").wait_for()
    page.goto(page.url.split("#")[0] + f"#/r/{RUN}/logs?task=worker:1")
    page.get_by_text("5,000 characters more").wait_for()


def test_an_address_holds_how_plots_are_drawn_and_a_plot_is_saved_as_it_is_seen(looked: Looked) -> None:
    made = History(str(looked.directory / "history.db"))
    rows = [[step, 1.0 / step] for step in range(1, 5001)]
    made.follow(BEGIN, 1, "loss", len(rows), rows)
    made.flush(BEGIN + 1)
    made.close()
    page = looked.open(f"/r/{RUN}?steps=1000-1020&smooth=0.9&log=yes")
    page.wait_for_selector("[data-loaded]")
    page.get_by_role("button", name="all steps").wait_for()
    assert page.get_by_label("Smoothing").input_value() == "0.9"
    assert page.get_by_role("button", name="log y").get_attribute("aria-pressed") == "true"
    page.locator(".plot canvas").first.wait_for()
    with page.expect_download() as begun:
        page.get_by_label("Save Loss as CSV").click()
    head, *lines = Path(begun.value.path()).read_text().splitlines()
    assert head == "task,name,generation,step,value"
    told = [line.split(",") for line in lines]
    assert [(int(step), float(value)) for *_, step, value in told] == [
        (step, 1.0 / step) for step in range(1000, 1021)
    ], "each step on its own, since so few are looked at"
    with page.expect_download() as begun:
        page.get_by_label("Save Loss as PNG").click()
    assert Path(begun.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as begun:
        page.get_by_label("Save Loss as SVG").click()
    drawn = ElementTree.fromstring(Path(begun.value.path()).read_text())
    svg = "{http://www.w3.org/2000/svg}"
    assert "loss" in [text.text for text in drawn.iter(f"{svg}text")]
    (*_, smooth) = drawn.iter(f"{svg}path")
    assert len(re.findall(r"[ML]", smooth.attrib["d"])) == 21
    page.get_by_role("button", name="all steps").click()
    page.wait_for_url(lambda url: "steps=" not in url)
    page.go_back()
    page.get_by_role("button", name="all steps").wait_for()


def test_a_log_is_downloaded_whole_and_its_ticket_is_good_once(looked: Looked) -> None:
    looked.say("worker:0", *((at / 100, f"step {at}") for at in range(5000)))
    looked.say("worker:1", (1, "another"))
    page = looked.open(f"/r/{RUN}/logs?task=worker:0")
    page.get_by_text("step 4999").wait_for()
    with page.expect_download() as begun:
        page.get_by_role("button", name="download whole").click()
    text = Path(begun.value.path()).read_text()
    assert begun.value.suggested_filename == f"{RUN}-worker-0.log"
    assert [line.split(" ", 2)[2] for line in text.splitlines()] == [f"step {at}" for at in range(5000)]
    assert text.startswith("2025-10-09T08:53:20.000000Z worker:0/1 step 0\n")
    headers = looked.served.log_in()
    assert looked.served.ask(begun.value.url.split(str(looked.served.port))[1], **headers).status == 404
    ticket = looked.served.ask(f"/v1/runs/{RUN}/ticket", **headers).json["ticket"]
    assert looked.served.ask(f"/download/{ticket}").status == 401, "a ticket without a cookie opens nothing"
    assert looked.served.ask(f"/download/{ticket}", **headers).status == 200


def test_of_many_tasks_the_middle_is_shown_and_who_is_apart(looked: Looked) -> None:
    kept = History(str(looked.directory / "history.db"))
    for at in range(0, 1200, 10):
        for index in range(30):
            value = {"cpu_percent": 5.0 if index == 17 else 90.0 + index / 10}
            kept.add(BEGIN + at, 1, at, f"worker:{index}", value, tiers=(10, 60))
        kept.add(BEGIN + at, 1, at, "", {"loss": 1.0})
        kept.add(BEGIN + at, 1, at, "host:a", {"gpu0_power_w": 300.0}, tiers=(10, 60))
    kept.flush(BEGIN + 1200)
    kept.close()
    tasks = [task_document(0, task=f"worker:{index}", host="a") for index in range(30)]
    page = looked.open(f"/r/{RUN}", tasks=tasks)
    page.wait_for_selector("[data-loaded]")
    headers = looked.served.log_in()
    told = looked.served.ask(f"/v1/runs/{RUN}/band?of=task&name=cpu_percent&buckets=100", **headers).json
    assert (told["members"], told["outliers"][0]["task"], len(told["outliers"])) == (30, "worker:17", 3)
    assert 50 <= len(told["x"]) <= 130
    assert set(told["outliers"][0]["y"]) == {5.0}
    for low, middle, high in zip(told["low"], told["middle"], told["high"], strict=True):
        assert 90 <= low <= middle <= high <= 93
    page.get_by_role("button", name="What tasks, hosts and GPUs use").click()
    page.get_by_text("by host, not by task").wait_for()
    page.get_by_text(re.compile("median and .* of 30")).wait_for()
    page.get_by_role("heading", name="CPU (%) of tasks").wait_for()
    page.get_by_role("heading", name="power (W) of GPUs").wait_for()
    assert page.locator(".plot strong").first.inner_text().strip() == "worker:17"


def test_what_is_wrong_is_said_in_the_list_and_at_the_plots(looked: Looked) -> None:
    kept = History(str(looked.directory / "history.db"))
    for generation in (1, 2):
        for step in range(1, 30):
            kept.add(BEGIN + 100 * generation + step, generation, step, "", {"loss": 1 / step})
    kept.not_finite(BEGIN + 230, 2, {"loss": (30, "nan")})
    kept.flush(BEGIN + 300)
    kept.close()
    cause = {"sentence": "worker:1 failed", "task": "worker:1", "generation": 2}
    odd = {"loss": {"global_step": 30, "value": "nan"}}
    tasks = [task_document(0, task=f"worker:{index}") for index in range(4)]
    hosts = [{"host": "gpu-a", "tasks": [task["task"] for task in tasks], "gpus": []}]
    run = {
        "phase": "FAILED",
        "reason": "given up",
        "reason_rest": None,
        "first_cause": cause,
        "nonfinite": odd,
    }
    page = looked.open("/", **run, tasks=tasks, hosts=hosts)
    state = page.get_by_role("region", name="Runs, a table").locator("tbody tr").first
    state.get_by_text("loss is nan since step 30").wait_for()
    assert "worker:1 failed: given up" in state.inner_text()
    again = "keptOnce([{x: [1, 2, 3], y: [9, 8, 7]}, {x: [2, 3], y: [5, 4]}])"
    assert page.evaluate(again) == [9, 5, 4], "no step is drawn twice"
    page.get_by_role("link", name=RUN).first.click()
    page.wait_for_selector("[data-loaded]")
    assert page.locator(".plot .value").first.inner_text() == "NaN"
    page.get_by_text("worker:0…3").wait_for()
    newest = (
        "view.plots.plots.get('loss').lines.filter((line) => line.generation === 2).map((line) => line.lost)"
    )
    assert not any(page.evaluate(newest)), "nothing of the newest generation was trained again"


def test_hosts_with_their_gpus_stand_below_the_runs(looked: Looked) -> None:
    load = {"name": "H100", "temperature_c": 60.0, "power_w": 310.4, "utilization_percent": 97.0}
    load |= {"memory_used_bytes": 40 << 30, "memory_total_bytes": 80 << 30}
    hosts = [
        {
            "host": "gpu-a",
            "state": "ready",
            "tasks": ["worker:0"],
            "gpus": [{**load, "index": i} for i in range(8)],
        },
        {
            "host": "gpu-b",
            "state": "quarantined",
            "reason": "it failed twice",
            "gpus": [],
            "cpu_percent": 3.0,
        },
    ]
    page = looked.open("/", hosts=hosts)
    page.get_by_text("8 GPUs 97% 2480 W").wait_for()
    page.get_by_role("img", name="GPU 7: 97%, memory 50%, 310 W").wait_for()
    page.get_by_text("quarantined").wait_for()
    page.get_by_text("CPU 3%").wait_for()
    assert page.get_by_role("img", name="GPU").count() == 1, "a host without GPUs has no gauges"


# ---------------------------------------------------------------- what a person asks for


def test_the_pool_is_a_grid_of_gpus_and_slots_with_who_holds_them_and_follows_them(looked: Looked) -> None:
    lease = {"run": RUN, "user": "ann", "head": "h1", "since": BEGIN}
    gpu = {"index": 0, "name": "A100", "memory_total_bytes": 40 << 30, "memory_used_bytes": 1 << 30}
    gpu |= {"utilization_percent": 87.0, "processes": [], "held_by": lease}
    process = {"run": None, "user": "bob", "pid": 4711}
    gpus = [
        gpu,
        {**gpu, "index": 1, "held_by": None},
        {**gpu, "index": 2, "held_by": None, "processes": [process]},
    ]
    common: dict[str, Any] = {
        "state": None,
        "reason": None,
        "spare": False,
        "labels": {},
        "gpus": [],
        "slots": [],
        "runs": [],
    }
    slots = [{"slot": 0, "held_by": {**lease, "run": "z-1"}}, {"slot": 1, "held_by": None}]
    hosts: list[dict[str, Any]] = [
        {**common, "host": "gpu-a", "reachable": True, "gpus": gpus, "labels": {"room": "2"}},
        {
            **common,
            "host": "cpu-a",
            "reachable": True,
            "slots": slots,
            "state": "drained",
            "reason": "by the user",
        },
        {**common, "host": "gone", "reachable": False, "problem": "no route <b>to</b> host"},
    ]
    answer = {"hosts": hosts, "runs": [RUN]}
    looked.page.route("**/v1/pool", lambda route: route.fulfill(json=answer))
    page = looked.open("/")
    page.get_by_role("link", name="hosts", exact=True).click()
    card = page.get_by_role("region", name="gpu-a")
    card.wait_for()
    assert [text.split("A100")[0] for text in card.get_by_role("listitem").all_inner_texts()] == [
        f"GPU 0\n{RUN}\n", "GPU 1\nfree\n", "GPU 2\nbob, pid 4711\n"
    ]  # fmt: skip
    assert "1.0 GiB of 40 GiB · 87% · user ann, h1, since" in card.inner_text()
    assert card.get_by_role("link").get_attribute("href") == f"#/r/{RUN}"
    assert "drained: by the user" in page.get_by_role("region", name="cpu-a").inner_text()
    assert "unreachable: no route <b>to</b> host" in page.get_by_role("region", name="gone").inner_text()
    page.get_by_text("1 of 5 GPUs and slots are free, on 3 hosts.").wait_for()
    gpus[0] = {**gpu, "held_by": None}
    page.get_by_text("2 of 5 GPUs and slots are free, on 3 hosts.").wait_for()
    answer["hosts"] = []
    page.get_by_text("No run is active, so no hosts are known.").wait_for()


@pytest.mark.lab
@pytest.mark.long
def test_a_host_is_drained_and_let_in_again_by_buttons(cluster: Cluster, browser: Any) -> None:
    *hosts, last = cluster.hosts(3)
    cluster.ok("up", cluster.spec(hosts=[*hosts, {**last, "spare": True}]))
    run = cluster.wait(lambda run: run["checkpoint"] is not None and run["hosts"][2]["state"] == "spare")
    ui = Ui(cluster, browser, "--actions")
    page, dialog = ui.page, ui.page.get_by_role("dialog")
    ui.go("r", run["run_id"])
    row = page.get_by_role("region", name="Hosts, a table").get_by_role("row").filter(has_text="host-1")
    row.get_by_role("button", name="drain…").click()
    assert "Its tasks move to another host" in dialog.inner_text()
    dialog.get_by_role("button", name="Yes, drain").click()
    row.get_by_role("button", name="undrain…").wait_for()
    # The run moves at its next checkpoint.
    cluster.wait(lambda run: run["generation"] == 2 and run["phase"] == "RUNNING", timeout=100)
    page.get_by_text("generation 2").first.wait_for()
    other = page.get_by_role("region", name="Hosts, a table").get_by_role("row").filter(has_text="host-0")
    other.get_by_role("button", name="drain…").click()
    dialog.get_by_role("button", name="Yes, drain").click()
    dialog.get_by_text("no other host that is ready has room for worker:0").wait_for()
    dialog.get_by_role("button", name="No").click()
    row.get_by_role("button", name="undrain…").click()
    dialog.get_by_role("button", name="Yes, undrain").click()
    row.get_by_role("button", name="drain…", exact=True).wait_for(timeout=20_000)
    assert [event["kind"] for event in cluster.events() if "drained" in event["kind"]] == [
        "drained",
        "undrained",
    ]
    assert ui.close() == 0
    assert [said for said in ui.wrong if "409" not in said] == []


def test_a_run_goes_back_to_a_step_by_its_button(local_cluster: Cluster, browser: Any) -> None:
    local_cluster.ok(
        "up", local_cluster.spec("--steps", "4000", "--pace", "0.03", restart={"backoff": "0.1s"})
    )
    run = local_cluster.wait(lambda run: bool((run.get("checkpoint") or {}).get("global_step")))
    pinned = json.loads(local_cluster.ok("ckpt", "pin", "gen-1", "--json"))["checkpoint"]["global_step"]
    ui = Ui(local_cluster, browser, "--actions")
    page, dialog = ui.page, ui.page.get_by_role("dialog")
    ui.go("r", run["run_id"])
    table = page.get_by_role("region", name="Checkpoints, a table")
    row = table.get_by_role("row").filter(has_text="◆ pinned")
    row.wait_for()
    row.get_by_role("button", name=f"Roll back to step {pinned:,} of generation 1").click()
    assert "All newer checkpoints are set aside" in dialog.inner_text()
    dialog.get_by_role("button", name="Yes, roll back").click()
    dialog.wait_for(state="hidden", timeout=20_000)
    local_cluster.wait(lambda run: run["generation"] == 2 and run["phase"] == "RUNNING")
    assert local_cluster.events(kind="resumed")[-1]["data"]["global_step"] == pinned
    assert ui.close() == 0
    assert ui.wrong == []


def test_a_checkpoint_that_was_removed_is_not_offered_again(browser: Any, tmp_path: Path) -> None:
    """The script removes it while the question is open: why it was refused is said, and the list is made anew."""
    looked = Looked(browser, tmp_path, actions=True)
    broken = checkpoint(120, whole=False, why="cut short")
    refusal = {"code": "usage", "message": "no checkpoint is named ckpt-40", "hint": "`orch ckpt ls`"}
    with looked.served as served:
        half = checkpoint(160, whole=None, verified_at=None, writing=True)
        served.api.checkpoints = {"checkpoints": [checkpoint(40), checkpoint(80), broken, half]}
        page = looked.open(f"/r/{RUN}", phase="RUNNING")
        buttons = page.get_by_role("button", name=re.compile("Roll back to step"))
        page.get_by_text("✕ cut short").wait_for()
        words = [each.get_attribute("aria-label") for each in buttons.all()]
        assert words == [f"Roll back to step {step} of generation 1" for step in (80, 40)], (
            "neither a broken one is offered, nor one that is being written"
        )
        page.get_by_role("cell", name="is being written").wait_for()
        buttons.last.click()
        served.api.refuse = 404, {"error": refusal}
        served.api.checkpoints = {"checkpoints": [checkpoint(80)]}
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Yes, roll back").click()
        dialog.get_by_text("no checkpoint is named ckpt-40: `orch ckpt ls`").wait_for()
        dialog.get_by_role("button", name="No").click()
        page.get_by_role("button", name="Roll back to step 40").wait_for(state="detached")
        assert buttons.count() == 1
        ((path, body),) = served.api.posted
        assert (path, body["checkpoint"]) == (f"/v1/runs/{RUN}/checkpoints/rollback", "ckpt-40")
        looked.context.close()


def test_the_table_of_checkpoints_follows_what_is_verified_and_says_what_is_only_written(
    browser: Any, tmp_path: Path
) -> None:
    looked = Looked(browser, tmp_path)
    with looked.served as served:
        served.api.checkpoints = {"checkpoints": [checkpoint(40)]}
        told = {"reason": "step 90", "reason_begins_with": "global_step", "reason_rest": None}
        known = {"global_step": 40, "path": "ckpt-40"}
        page = looked.open(f"/r/{RUN}", phase="RUNNING", checkpoint=known, **told)
        table = page.get_by_role("region", name="Checkpoints, a table")
        table.get_by_text("✓ verified").wait_for()
        written = checkpoint(120, verified_at=None, whole=None)
        served.api.checkpoints = {"checkpoints": [checkpoint(40), checkpoint(80), written]}
        served.api.runs[0]["checkpoint"] = {"global_step": 80, "path": "ckpt-80"}
        verified = table.get_by_role("row").filter(has_text="80").filter(has_text="✓ verified")
        verified.wait_for(timeout=patient(4) * 1000)
        page.get_by_text("Verified is step 80").wait_for()
        page.get_by_text("Step 120 is written, and not verified yet.").wait_for()
        assert "✓ verified" not in table.get_by_role("row").first.inner_text()
        looked.context.close()


def checkpoint(step: int, **changes: Any) -> dict[str, Any]:
    """Return an entry of the list, as a host tells it."""
    told: dict[str, Any] = {
        "generation": 1,
        "name": f"ckpt-{step}",
        "global_step": step,
        "proof": "checksums",
    }
    told |= {"bytes": 1 << 20, "saved_at": BEGIN + step, "resumes": True, "whole": True, "why": None}
    told |= {"verified_at": BEGIN + step, "pinned": False, "set_aside": False, "by": None, "given": False}
    return {**told, **changes}


@pytest.mark.parametrize("what", ["**/*", "**/*.js"], ids=["the page", "what it loads"])
def test_a_load_that_the_network_cut_is_repeated(
    looked: Looked, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Chromium names one error for a network that changes, which only the kernel can cause: another stands for it."""
    monkeypatch.setattr(browsing, "NETWORK_CHANGED", "net::ERR_CONNECTION_RESET")
    page = looked.open("/")
    cut: list[str] = []

    def cut_once(route: Any) -> None:
        if cut:
            route.continue_()
            return
        cut.append(route.request.url)
        route.abort("connectionreset")

    page.route(what, cut_once)
    browsing.reload(page)
    assert len(cut) == 1
    page.get_by_role("heading").first.wait_for()

"""`orch top`, by Textual's pilot, over a coordinator that is played."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, RichLog, Static

from orchestrator.cli.top import view
from orchestrator.cli.top.app import Choice, Page, Question, Top
from orchestrator.cli.top.feed import Feed, Seen
from orchestrator.core.errors import UsageError
from orchestrator.head.records.runlogs import RunLogs
from tests.contract.fake_api import FakeApi, event_document, run_document, task_document
from tests.unit.cli.desk import RUN, WHY, Desk

Do = Callable[[Top, Pilot[None]], Awaitable[None]]


def play(desk: Desk, do: Do, *, size: tuple[int, int] = (120, 35), name: str | None = None) -> Top:
    """Run the application on a terminal of this size, look once, and let a test do something."""
    app = Top(Feed(desk, name), every_s=3600)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await looked(app, pilot)
            await do(app, pilot)

    asyncio.run(run())
    return app


async def looked(app: Top, pilot: Pilot[None]) -> None:
    """Wait until nothing is asked any more; a look may lead to another one."""
    while True:
        await pilot.pause()
        if not list(app.workers):
            return
        await app.workers.wait_for_complete()


def text_of(app: Top, name: str) -> str:
    return str(app.screen_stack[0].query_one(name, Static).render())


def lines_of(app: Top, name: str) -> list[str]:
    return [line.text for line in app.screen_stack[0].query_one(name, RichLog).lines]


@pytest.fixture
def api_run(api: FakeApi, logs: RunLogs) -> FakeApi:
    slow = task_document(1, steps_per_s=2.0)
    hosts = [{"host": host, "link": "CONNECTED", "state": "ready"} for host in ("gpu-a", "gpu-b")]
    times = {"steps_total": 240, "eta_s": 185.0, "goodput": 0.91}
    api.runs.append(run_document(tasks=[task_document(0), slow], hosts=hosts, **times))
    api.events.append(event_document(1, "running", "2/2 tasks joined"))
    return api


def test_the_run_its_tasks_events_and_the_log_of_the_chosen_task(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        head = text_of(app, "#head")
        assert (
            f"{RUN}  ▶ RUNNING  ● live  gen 2 120/240 ▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░ 50% ETA 3 min 5 s goodput 91%"
            in head
        )
        assert text_of(app, "#pace").endswith("3.4")
        table: DataTable[Text] = app.query_one(DataTable)
        assert [str(cell) for cell in table.get_row_at(1)][:5] == [
            "worker:1",
            "gpu-b",
            "RUNNING",
            "120",
            "2",
        ]
        assert lines_of(app, "#events") == ["12:00:01 UTC running  2/2 tasks joined"]
        await looked(app, pilot)
        assert lines_of(app, "#log") == ["loading", "oops"]
        await pilot.press("down")
        await looked(app, pilot)
        assert lines_of(app, "#log") == ["also"]
        await pilot.press("a")
        await looked(app, pilot)
        assert lines_of(app, "#log") == ["worker:0 | loading", "worker:1 | also", "worker:0 | oops"]

    play(orch, do)


def test_what_is_new_is_added_and_what_is_the_same_is_left(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        api_run.events.append(event_document(2, "failed", "worker:1 was killed"))
        api_run.runs[0].update(
            global_step=130, steps_per_s=5.0, phase="STOPPING", reason="2 tasks are asked to end"
        )
        app.poll()
        await looked(app, pilot)
        assert lines_of(app, "#events")[1] == "12:00:02 UTC failed  worker:1 was killed"
        assert "■ STOPPING" in text_of(app, "#head")
        assert "▁█ 5" in text_of(app, "#pace")

    play(orch, do)


def test_a_kill_is_asked_about_and_ordered(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("k")
        assert isinstance(app.screen, Question)
        await pilot.press("n")
        await looked(app, pilot)
        assert api_run.posted == []
        await pilot.press("k", "y")
        await looked(app, pilot)
        assert api_run.posted == [(f"/v1/runs/{RUN}/kill", {"force": False})]

    play(orch, do)


def test_a_run_that_has_ended_is_not_killed_nor_is_a_newer_one_of_its_name(
    orch: Desk, api_run: FakeApi
) -> None:
    api_run.runs[0]["phase"] = "FAILED"
    api_run.runs.append(run_document(run_id="mnist-20261120-2"))

    async def do(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("k")
        await looked(app, pilot)
        [told] = list(app._notifications)
        assert told.message == f"{RUN} has ended"
        await pilot.press("y")
        await looked(app, pilot)
        assert api_run.posted == []

    play(orch, do, name=RUN)


def test_the_stacks_are_those_of_the_run_that_is_shown(orch: Desk, api_run: FakeApi) -> None:
    api_run.runs.append(run_document(run_id="mnist-20261120-2"))

    async def do(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("s")
        await looked(app, pilot)
        assert [path for path, _ in api_run.posted] == [f"/v1/runs/{RUN}/stacks"]

    play(orch, do, name=RUN)


def test_a_drain_is_of_the_host_of_the_chosen_task(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        await pilot.press("d")
        asked = " ".join(str(text.render()) for text in app.screen.query(Static))
        assert "or at the next restart where none is kept" in asked
        await pilot.press("y")
        await looked(app, pilot)
        assert api_run.posted == [(f"/v1/runs/{RUN}/drain", {"host": "gpu-b"})]

    play(orch, do)


def test_what_is_refused_is_said_with_its_hint(orch: Desk, api_run: FakeApi) -> None:
    error = {"code": "refused", "message": "no [room]\x1b[2J", "hint": "add a spare", "exit_code": 6}
    api_run.refuse = (409, {"error": error})

    async def do(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("d", "y")
        await looked(app, pilot)
        [told] = list(app._notifications)
        assert told.message == "no [room]\\x1b[2J\nadd a spare"

    play(orch, do)


def test_why_and_stacks_are_pages(orch: Desk, api_run: FakeApi) -> None:
    api_run.first_causes.append(WHY)
    api_run.stacks = {"worker:0": "Thread 1\n  a.py:1"}

    async def do(app: Top, pilot: Pilot[None]) -> None:
        for key, text in (("w", "worker:1 was killed"), ("s", "a.py:1"), ("question_mark", "kill the run")):
            await pilot.press(key)
            await looked(app, pilot)
            assert isinstance(app.screen, Page)
            assert text in str(app.screen.query(Static).first().render())
            await pilot.press("escape")

    play(orch, do)


def test_only_lines_with_a_text(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        await pilot.press("slash")
        assert isinstance(app.focused, Input)
        await pilot.press(*"oops", "enter")
        await looked(app, pilot)
        assert lines_of(app, "#log") == ["oops"]

    play(orch, do)


def test_another_run_is_chosen(orch: Desk, api_run: FakeApi) -> None:
    api_run.runs.append(run_document(name="b", run_id="b-20261120-1", phase="FAILED", tasks=[]))

    async def do(app: Top, pilot: Pilot[None]) -> None:
        assert "2 runs (r)" in text_of(app, "#head")
        await pilot.press("r")
        assert isinstance(app.screen, Choice)
        await pilot.press("enter")
        await looked(app, pilot)
        assert "b-20261120-1  ✕ FAILED" in text_of(app, "#head")

    play(orch, do)


def test_a_narrow_terminal_shows_one_pane_at_a_time(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        for pane in ("tasks", "events", "log", "tasks"):
            assert [w.id for w in app.query("#tasks, #events, #log") if not w.has_class("hidden")] == [pane]
            await pilot.press("tab")

    play(orch, do, size=(60, 24))


def test_80_by_24_show_the_tasks_the_events_and_the_log_of_the_chosen_task(
    orch: Desk, api_run: FakeApi, logs: RunLogs
) -> None:
    logs.append(RUN, "worker:0", 2, 0, b"998.000000 o of worker 0\n")

    async def do(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot)
        rooms = [app.query_one(f"#{name}").region for name in ("tasks", "events", "log")]
        assert all(room.height >= 3 for room in rooms), rooms
        assert rooms[-1].bottom <= 23
        assert lines_of(app, "#log")[-1] == "of worker 0"

    play(orch, do, size=(80, 24))


def test_a_terminal_that_becomes_narrow_or_wide_is_arranged_anew(orch: Desk, api_run: FakeApi) -> None:
    def shown(app: Top) -> list[str | None]:
        return [w.id for w in app.query("#tasks, #events, #log") if not w.has_class("hidden")]

    async def do(app: Top, pilot: Pilot[None]) -> None:
        assert shown(app) == ["tasks", "events", "log"]
        await pilot.resize_terminal(60, 24)
        await pilot.pause()
        assert shown(app) == ["tasks"]
        await pilot.resize_terminal(120, 30)
        await pilot.pause()
        assert shown(app) == ["tasks", "events", "log"]

    play(orch, do, size=(120, 30))


def test_a_coordinator_that_is_away_leaves_what_was_seen(orch: Desk, api_run: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        api_run.close()
        app.poll()
        await looked(app, pilot)
        assert "● away  gen 2 120/240" in text_of(app, "#head"), "how far it was is not pushed out"
        assert "no coordinator is running" in text_of(app, "#head")
        assert app.query_one(DataTable).row_count == 2

    play(orch, do)


def test_what_hosts_say_acts_on_no_terminal(orch: Desk, api_run: FakeApi, logs: RunLogs) -> None:
    api_run.runs[0].update(reason="[red]no\x1b[2J", reason_rest="[red]no\x1b[2J")
    logs.append(RUN, "worker:0", 2, 0, b"998.000000 o [bold]x\x1b]0;t\x07y\n")

    async def do(app: Top, pilot: Pilot[None]) -> None:
        await looked(app, pilot)
        assert "[red]no\\x1b[2J" in text_of(app, "#head")
        assert lines_of(app, "#log")[-1] == "[bold]xy"

    play(orch, do)


def test_a_run_that_cannot_be_read_is_no_empty_head(orch: Desk, api: FakeApi) -> None:
    api.troubles.append("t-1 is set aside: its state cannot be read")

    async def do(app: Top, pilot: Pilot[None]) -> None:
        assert "No run can be shown" in text_of(app, "#head")
        assert "t-1 is set aside" in text_of(app, "#head")

    play(orch, do)


def test_no_runs(orch: Desk, api: FakeApi) -> None:
    async def do(app: Top, pilot: Pilot[None]) -> None:
        assert "No runs yet" in text_of(app, "#head")
        await pilot.press("k", "d", "w")

    play(orch, do)


def test_it_needs_a_terminal_and_a_run_that_is(orch: Desk, api_run: FakeApi) -> None:
    assert orch("top") == 2
    assert orch.said.startswith("error: orch top needs a terminal")
    with pytest.raises(UsageError, match="no run is named 'nosuch'"):
        Feed(orch, "nosuch").read(None, "")


def tasks_of(app: Top) -> list[str]:
    table: DataTable[Text] = app.query_one(DataTable)
    return [str(key.value) for key in table.rows]


def test_of_many_tasks_those_in_trouble_stand_first_and_others_are_found(
    orch: Desk, api_run: FakeApi
) -> None:
    tasks = [
        task_document(0, task=f"worker:{i}", host=f"gpu-{i // 8}", steps_per_s=3.0 + i, global_step=100 - i)
        for i in range(64)
    ]
    tasks[40] |= {"phase": "LOST", "steps_per_s": None}
    tasks[50] |= {"phase": "EXITED", "cause": "oom"}
    tasks[51] |= {"phase": "EXITED", "cause": "finished"}
    api_run.runs[0].update(tasks=tasks)

    async def do(app: Top, pilot: Pilot[None]) -> None:
        table: DataTable[Text] = app.query_one(DataTable)
        assert tasks_of(app)[:4] == ["worker:40", "worker:50", "worker:0", "worker:1"]
        assert table.size.height >= 4, "they are seen without scrolling on a terminal of 80 × 24"
        await pilot.press("down")
        await looked(app, pilot)
        assert app.screen_stack[0].query_one("#log", RichLog).border_title == "log worker:50"
        await pilot.press("o")
        assert tasks_of(app)[:2] == ["worker:63", "worker:62"], "the smallest step first"
        assert table.border_title == "tasks by STEP"
        await looked(app, pilot)
        assert app.screen_stack[0].query_one("#log", RichLog).border_title == "log worker:50", (
            "it stays chosen"
        )
        assert table.cursor_row == tasks_of(app).index("worker:50")
        for _ in range(10):
            if table.border_title == "tasks by STEPS/S":
                break
            await pilot.press("o")
        assert (tasks_of(app)[0], tasks_of(app)[-1]) == ("worker:0", "worker:40"), (
            "what is not known comes last"
        )
        await pilot.press("f", *"gpu-6", "enter")
        await looked(app, pilot)
        assert tasks_of(app) == [f"worker:{i}" for i in range(48, 56)]
        assert str(table.border_title).endswith("with 'gpu-6': 8 of 64")
        await pilot.press("f", *["backspace"] * 5, *"nothing", "enter")
        await looked(app, pilot)
        assert tasks_of(app) == []
        await pilot.press("f", *["backspace"] * 7, "enter")
        await looked(app, pilot)
        while table.border_title != "tasks ":
            await pilot.press("o")
        assert tasks_of(app)[0] == "worker:40"

    play(orch, do, size=(80, 24))


@pytest.mark.parametrize("width", [20, 40, 60])
def test_columns_are_left_out_until_the_table_fits(width: int) -> None:
    gpu: dict[str, Any] = {
        "index": 0,
        "utilization_percent": 97,
        "memory_used_bytes": 71 << 30,
        "power_w": 310,
    }
    run = run_document(hosts=[{"host": "gpu-a", "gpus": [gpu]}])
    columns, rows = view.task_rows(run, width)
    assert columns[:4] == ["TASK", "HOST", "PHASE", "STEP"]
    wide, cells = view.task_rows(run, 200)
    assert wide == [name for name in view.COLUMNS if name != "RESCUE"], "no task has tried one"
    assert [str(cell) for cell in cells["worker:0"]][-2:] == ["97% 71 GiB", "310"]
    assert len(columns) < len(wide)
    assert rows.keys() == cells.keys()


def test_a_run_that_has_ended_says_nothing_of_a_way_on() -> None:
    run = run_document(phase="SUCCEEDED", first_cause={"sentence": "worker:1 was killed"})
    assert "killed" not in view.head(Seen((run,), run)).plain


def test_what_is_over_or_not_known_is_no_alarm_and_no_promise() -> None:
    cause = {"sentence": "worker:1 was killed", "generation": 1, "ended_time": 1_760_000_000}
    run = run_document(eta_s=185.0, generation=2, first_cause=cause)
    over = view.head(Seen((run,), run))
    third = over.plain.splitlines()[2]
    assert re.match(r"2025-10-\d\d \d\d:\d\d:\d\d \S+: worker:1 was killed$", third), third
    assert not any(span.style == "red" for span in over.spans)
    assert "ETA" not in view.head(Seen((run,), run, away="no coordinator")).plain
    nothing = view.head(Seen(has_asked=False)).plain
    assert "Asking the coordinator" in nothing
    assert "live" not in nothing


@pytest.mark.parametrize(("width", "bar"), [(120, "▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░ "), (85, "▓▓▓▓▓░░░░░ "), (70, "")])
def test_a_narrow_terminal_loses_the_bar_before_it_loses_words(width: int, bar: str) -> None:
    run = run_document(name="t", run_id="t", steps_total=240, eta_s=185.0, goodput=0.91)
    first = view.head(Seen(runs=[run], run=run), width).plain.splitlines()[0]
    assert first == f"t  ▶ RUNNING  ● live  gen 2 120/240 {bar}50% ETA 3 min 5 s goodput 91%"
    assert len(first) <= width


@pytest.mark.parametrize(
    ("width", "facts"), [(60, "gen 2 120/240 50% ETA 3 min 5 s"), (45, "gen 2 120/240 50%"), (9, "")]
)
def test_and_then_it_loses_whole_facts(width: int, facts: str) -> None:
    run = run_document(name="t", run_id="t", steps_total=240, eta_s=185.0, goodput=0.91)
    first = view.head(Seen(runs=[run, run], run=run), width).plain.splitlines()[0]
    assert first == f"t  ▶ RUNNING  ● live  {facts}"

"""The page in Chromium: an hour (`--long`: eight) of 200 tasks on 25 hosts of 8 GPUs, and how soon a run is shown.

The hours are played: a source tells a state for each second, in which all that heartbeats measure has moved, as fast as
the browser takes it; the browser's own clock is moved along, so that what it asks for again is asked for as often as in
that time. Heap and DOM are read after a collection of garbage, and the bytes are those of the stream, of a minute.
The other run has 64 tasks and 100,000 points: from the reload of its page until all of it is there.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure, NotMeasured
from benchmarks.length import is_long
from benchmarks.limits import LIMITS
from orchestrator.core.notes import NoteKind as Kind
from orchestrator.head.node.page_access import PageAccess
from orchestrator.head.node.paths import Paths
from orchestrator.head.records import run_series
from orchestrator.head.records.accounts import Accounts
from orchestrator.head.records.history import History
from orchestrator.page import server, serving
from orchestrator.page.feed import Calm, difference, steady, viewer_document
from orchestrator.page.guard import Keys
from orchestrator.page.source import Source
from orchestrator.reporting.goodput import Account, Event, account
from tests.contract.fake_api import run_document, task_document

HOURS, HOURS_LONG = 1.0, 8.0
TASKS, HOSTS, GPUS = 200, 25, 8
POINTS = 100_000
LOADS = 7
STEP_S = 15
"""The page asks for history, events and series so often."""

LOOK_S = 1800
"""How often heap and DOM are looked at, of the played time."""

RUN = "t-20260101-000000"
BEGAN = 1_760_000_000.0


def hours() -> float:
    """Return how long the run that is played lasts."""
    return HOURS_LONG if is_long() else HOURS


def measure() -> list[Figure]:
    """Measure all of it. An hour is played in two minutes."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise NotMeasured("there is no Chromium on this machine: apt install chromium")
    from playwright.sync_api import sync_playwright

    figures = [_stream()]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        figures += [*_hours(browser), _complete(browser)]
        browser.close()
    return figures


class Played(Source):
    """A coordinator's answers at a time that the benchmark moves."""

    def __init__(self, paths: Paths, tasks: int, hosts: int) -> None:
        super().__init__(paths)
        self.second = 0
        self._tasks, self._hosts = tasks, hosts

    def runs(self) -> dict[str, Any]:
        """Return the state at this second. Heartbeats come every two."""
        now = BEGAN + self.second
        of_host = self._tasks // self._hosts
        tasks = [
            task_document(0, task=f"worker:{i}", host=f"gpu-{i // of_host:02}") | self._measured(i)
            for i in range(self._tasks)
        ]
        hosts = [self._host(i, of_host) for i in range(self._hosts)]
        step = self.second * 3
        run = run_document(
            run_id=RUN,
            name="t",
            tasks=tasks,
            hosts=hosts,
            global_step=step,
            steps_per_s=round(3 + random.Random(self.second).random() / 10, 4),
            metrics={"loss": 1000 / (step + 1)},
            reason=f"step {step}; all {self._tasks} tasks report",
            phase_age_s=self.second,
            elapsed_s=self.second,
            started_at=BEGAN,
            steps_total=90_000,
            eta_s=round((90_000 - step) / 3.05, 1),
        )
        return {"schema": 1, "runs": [run], "away_since": None, "now": now}

    def _measured(self, index: int) -> dict[str, Any]:
        beat = (self.second + index) // 2
        noise = random.Random(beat * 1000 + index)
        return {
            "global_step": beat * 6,
            "steps_per_s": round(3 + noise.random() / 10, 4),
            "cpu_percent": round(90 + 20 * noise.random(), 1),
            "rss_bytes": (4 << 30) + noise.randrange(1 << 28),
            "log_bytes": beat * 90,
            "heartbeat_age_s": round((self.second + index) % 2 + noise.random() / 5, 1),
        }

    def _host(self, index: int, of_host: int) -> dict[str, Any]:
        noise = random.Random((self.second // 5) * 1000 + index)
        load = {"name": "NVIDIA H100 80GB HBM3", "memory_total_bytes": 80 << 30}
        gpus = [
            {**load, "index": i, "utilization_percent": float(noise.randrange(90, 100))}
            | {"memory_used_bytes": 71 << 30, "temperature_c": float(noise.randrange(60, 65))}
            | {"power_w": round(300 + 20 * noise.random(), 2)}
            for i in range(GPUS)
        ]
        first = index * of_host
        return {
            "host": f"gpu-{index:02}",
            "state": "ready",
            "link": "CONNECTED",
            "gpus": gpus,
            "cpu_percent": round(50 + noise.random() * 5, 1),
            "memory_percent": 41.5,
            "gpu_faults": [],
            "tasks": [f"worker:{i}" for i in range(first, first + of_host)],
            "heard_age_s": round((self.second + index) % 2 + 0.1, 1),
        }

    def events(self, run_id: str | None, after: int) -> dict[str, Any]:  # noqa: ARG002
        """Return those of a checkpoint each ten minutes."""
        newest = self.second // 600
        seqs = range(max(after, newest - 1000) + 1, newest + 1)
        event = {"run": RUN, "kind": "checkpoint", "task": None, "generation": 2}
        return {
            "schema": 1,
            "events": [
                {**event, "seq": seq, "time": "2026-01-01T00:00:00Z", "message": f"checkpoint {seq} is whole"}
                for seq in seqs
            ],
        }

    def run_id(self, name: str) -> str:  # noqa: ARG002
        """Return the only one."""
        return RUN

    def history(self, run_id: str) -> dict[str, Any]:  # noqa: ARG002
        """Return what it did until this second: a checkpoint each ten minutes, and a restart each hour."""
        told = [Event(BEGAN - POINTS, Kind.SUBMITTED, 0), Event(BEGAN - POINTS + 20, Kind.GENERATION, 1)]
        told.append(Event(BEGAN - POINTS + 60, Kind.RUNNING, 1))
        for minute in range(-POINTS // 60, self.second // 60, 10):
            at, generation = BEGAN + minute * 60, 2 + minute // 60 + POINTS // 3600
            told.append(Event(at, Kind.CHECKPOINT, generation, {"global_step": minute + POINTS}))
            if minute % 60 == 0:
                told += [Event(at + 5, Kind.STOPPING, generation), Event(at + 9, Kind.BACKOFF, generation)]
                told += [
                    Event(at + 20, Kind.GENERATION, generation),
                    Event(at + 50, Kind.RUNNING, generation),
                ]
        found = account(told, now=BEGAN + self.second)
        return run_series.history_document(_Known(found), self.paths.run_dir(RUN), RUN)


class _Known(Accounts):
    """The account of the only run."""

    def __init__(self, found: Account | None) -> None:
        self._found = found

    def account(self, run_id: str) -> Account | None:  # noqa: ARG002
        return self._found


class Served:
    """The page over a source of ours, in a thread."""

    def __init__(self, source: Source, poll_s: float) -> None:
        self.listener = server.listen(0)
        self.port = self.listener.getsockname()[1]
        self.keys = Keys(self.port, PageAccess(source.paths.state_dir))
        app = server.application(source, self.keys, actions=False, opened=lambda: None, poll_s=poll_s)
        self._server = serving.server(app)
        self._thread = threading.Thread(target=self._server.run, args=([self.listener],), daemon=True)
        self._thread.start()

    def open(self, context: Any) -> Any:
        """Return a page of a browser that shows the run."""
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{self.port}/login?token={self.keys.access.new_token()}")
        page.wait_for_url(lambda url: "/login" not in url)
        page.goto(f"http://127.0.0.1:{self.port}/#/r/{RUN}")
        page.wait_for_selector("[data-loaded]", timeout=120_000)
        return page

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join()


@contextmanager
def _served(tasks: int, hosts: int, points: int, poll_s: float) -> Iterator[tuple[Played, Served]]:
    directory = Path(tempfile.mkdtemp(prefix="orch-browser-"))
    paths = Paths(str(directory / "state"), str(directory / "run"))
    paths.ensure()
    kept = History(str(_made(Path(paths.run_dir(RUN))) / "history.db"))
    for step in range(points):
        kept.add(BEGAN - points + step, 1, step, "", {"loss": 1 / (step + 1), "steps_per_s": 1.0})
    kept.flush(BEGAN)
    kept.close()
    source = Played(paths, tasks, hosts)
    served = Served(source, poll_s)
    try:
        yield source, served
    finally:
        served.close()
        shutil.rmtree(directory, ignore_errors=True)


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _stream() -> Figure:
    """Measure what a viewer of 200 tasks is sent in a second, over a minute."""
    directory = tempfile.mkdtemp(prefix="orch-browser-")
    source, calm, before, sent = Played(Paths(directory, directory), TASKS, HOSTS), Calm(), None, 0
    for second in range(61):
        source.second = second
        found = source.runs()
        now = calm(steady(found, before), before, found["now"])
        if before is not None:
            change = difference(viewer_document(before, RUN), viewer_document(now, RUN))
            sent += len(json.dumps(change, separators=(",", ":"))) + len("event: delta\r\ndata: \r\n\r\n")
        before = now
    shutil.rmtree(directory)
    note = f"{TASKS} tasks, {HOSTS * GPUS} GPUs, all of which moves with each heartbeat"
    return Figure("the page's stream", "kB/s", LIMITS["browser: stream"], (sent / 60 / 1000,), note)


def _hours(browser: Any) -> list[Figure]:
    """Play the hours, and look at the heap and the DOM each half of them."""
    heap: list[float] = []
    dom: list[float] = []
    with _served(TASKS, HOSTS, int(hours() * 3600), 0.01) as (source, served):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = served.open(context)
        page.clock.install()
        page.evaluate(_REACHED)
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        for second in range(STEP_S, int(hours() * 3600) + 1, STEP_S):
            for at in range(second - STEP_S + 1, second + 1):
                source.second = at
                time.sleep(0.004)
            page.evaluate("step => window.orchReached(step)", second * 3)
            page.clock.run_for(STEP_S * 1000)
            if second % LOOK_S == 0:
                session.send("HeapProfiler.collectGarbage")
                found = {
                    one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]
                }
                heap.append(found["JSHeapUsedSize"] / 1e6)
                dom.append(page.evaluate("document.querySelectorAll('*').length"))
        step = page.evaluate("Object.values(page.state.runs)[0].global_step")
        context.close()
    note = f"the most of {hours():g} hours, played; to step {step}; {heap[0]:.1f} MB at first, {heap[-1]:.1f} at last"
    return [
        Figure("the page's heap over hours", "MB", LIMITS["browser: heap"], (max(heap),), note),
        Figure("the page's DOM elements", "", LIMITS["browser: DOM"], (max(dom),), f"{TASKS} tasks"),
    ]


_REACHED = """() => {
  window.orchReached = (step) => new Promise((done) => {
    const look = () => {
      const run = Object.values(page.state.runs)[0];
      if (run && run.global_step >= step) done(); else queue.port2.postMessage(0);
    };
    const queue = new MessageChannel();
    queue.port1.onmessage = look;
    look();
  });
}"""
"""Without timers, whose clock is moved by us."""


def _complete(browser: Any) -> Figure:
    """Measure from the reload to the moment at which the last thing is there."""
    took: list[float] = []
    with _served(64, 8, POINTS, 1.0) as (_, served):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = served.open(context)
        for _ in range(LOADS):
            page.reload()
            page.wait_for_function(_ALL_IS_THERE, polling="raf")
            took.append(page.evaluate("performance.now()") / 1000)
        context.close()
    note = f"64 tasks, 64 GPUs, {POINTS} points; from the reload"
    return Figure("a run is shown completely", "s", LIMITS["browser: complete"], tuple(took), note)


_ALL_IS_THERE = """() => document.querySelector('[data-loaded]')
  && document.querySelectorAll('.uplot canvas').length >= 2
  && [...document.querySelectorAll('a')].some((link) => link.textContent === 'worker:63')"""

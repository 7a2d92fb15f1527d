"""What a viewer is told: differences that put together give the state, and little of it where little has changed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.page.feed import VIEWERS_MAX, Calm, Feed, difference, steady, viewer_document

if TYPE_CHECKING:
    from orchestrator.page.source import Source

_LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
_DOCUMENTS = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), _LEAVES, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), st.one_of(_LEAVES, inner), max_size=4),
    max_leaves=20,
)


def patch(target: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Do as `applyChanges` of base.js does."""
    for name in changes.get("-", ()):
        del target[name]
    for name, value in changes.items():
        if name != "-":
            known = target.get(name)
            inner = isinstance(value, dict)
            target[name] = patch(known if isinstance(known, dict) else {}, value) if inner else value
    return target


@given(_DOCUMENTS, _DOCUMENTS)
def test_a_difference_put_in_gives_the_newer_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    made = patch(json.loads(json.dumps(before)), json.loads(json.dumps(difference(before, after))))
    assert made == after


def status(now: float, *, tasks: int, step: int) -> dict[str, Any]:
    """Return a status in which every task has just been heard, a little later or sooner each time."""
    found = [
        {"task": f"worker:{i}", "host": f"h{i}", "phase": "RUNNING", "global_step": step, "steps_per_s": 3.4}
        | {"cpu_percent": 98.0, "rss_bytes": 1 << 30, "heartbeat_age_s": 0.3 + (now * (i + 1)) % 1}
        for i in range(tasks)
    ]
    run = {"run_id": "t", "phase_age_s": now - 5.0, "elapsed_s": now, "global_step": step, "tasks": found}
    return {"now": now, "away_since": None, "runs": [run]}


def test_ages_are_told_as_instants_that_stand_still_while_a_task_is_heard() -> None:
    first = steady(status(100.0, tasks=3, step=1), None)
    later = steady(status(101.0, tasks=3, step=1), first)
    run = later["runs"]["t"]
    assert run["phase_time"] == 5.0
    assert "elapsed_s" not in run
    plain = {"run_id": "t", "tags": ["a task"], "ids": [4, 7], "none": []}
    assert steady({"runs": [plain]}, None)["runs"]["t"] == plain, "only lists of tasks and hosts have names"
    moved = [name for name in run["tasks"] if run["tasks"][name] != first["runs"]["t"]["tasks"][name]]
    assert moved == [], "a jitter of a second is no news"
    assert difference(first, steady(status(110.0, tasks=3, step=1), later))["runs"]["t"]["tasks"]
    unheard = status(102.0, tasks=1, step=1)
    unheard["runs"][0]["tasks"][0]["heartbeat_age_s"] = None
    assert steady(unheard, later)["runs"]["t"]["tasks"]["worker:0"]["heartbeat_time"] is None


def test_what_is_wrong_with_the_records_is_told() -> None:
    assert steady({"runs": [], "troubles": ["t is set aside"]}, None)["troubles"] == ["t is set aside"]


def test_200_tasks_that_train_cost_a_few_kilobytes_a_second() -> None:
    before, sizes, calm = None, [], Calm()
    for second in range(20):
        at = 100.0 + second
        now = calm(steady(status(at, tasks=200, step=second), before), before, at)
        if before is not None:
            change = difference(viewer_document(before, "t"), viewer_document(now, "t"))
            sizes.append(len(json.dumps(change, separators=(",", ":"))))
        before = now
    assert sum(sizes) / len(sizes) < 5_000
    assert max(sizes[:5]) < 200, "how far the run is, is told each second"


def test_what_happens_to_one_of_many_tasks_is_told_at_once() -> None:
    calm = Calm()
    first = calm(steady(status(100.0, tasks=200, step=1), None), None, 100.0)
    found = status(101.0, tasks=200, step=2)
    found["runs"][0]["tasks"][7]["phase"] = "EXITED"
    found["runs"][0]["tasks"][8]["exit_code"] = 1
    change = difference(first, calm(steady(found, first), first, 101.0))["runs"]["t"]
    assert change["global_step"] == 2
    assert set(change.get("tasks", ())) == {"worker:7", "worker:8"}
    few = calm(steady(status(100.0, tasks=20, step=1), None), None, 100.0)
    later = calm(steady(status(101.0, tasks=20, step=2), few), few, 101.0)
    assert later["runs"]["t"]["tasks"]["worker:3"]["global_step"] == 2, "of few tasks all is told"


def test_a_list_of_runs_is_told_without_their_tasks() -> None:
    known = steady(status(1.0, tasks=2, step=1), None)
    assert "tasks" not in viewer_document(known, None)["runs"]["t"]
    assert set(viewer_document(known, "t")["runs"]["t"]["tasks"]) == {"worker:0", "worker:1"}


def test_the_hosts_of_a_run_that_is_over_are_not_shown_beside_those_that_train() -> None:
    runs = {
        name: {"phase": phase, "hosts": {name: {}}} for name, phase in (("a", "RUNNING"), ("b", "FAILED"))
    }
    assert list(viewer_document({"runs": runs}, None)["hosts"]) == ["a"]


class Told:
    """A source of one run that moves, with events since a viewer came."""

    def __init__(self, newest: int) -> None:
        self.asked, self.newest = 0, newest

    def runs(self) -> dict[str, Any]:
        self.asked += 1
        return status(100.0 + self.asked, tasks=1, step=self.asked)

    def archived(self) -> dict[str, Any]:
        return {}

    def events(self, run_id: str | None, after: int) -> dict[str, Any]:
        newest = 1 if self.asked < 3 else self.newest
        return {"events": [{"seq": n, "run": run_id} for n in range(after + 1, newest + 1)]}


@pytest.mark.parametrize("newest", [3, 300])
def test_a_viewer_is_told_each_event_once_and_of_many_the_newest(newest: int) -> None:
    async def look() -> list[dict[str, str]]:
        feed = Feed(cast("Source", Told(newest)), poll_s=0.01)
        heard: list[dict[str, str]] = []
        async for message in feed.view("t", None, shows_env=True):
            heard.append(message)
            if [m["event"] for m in heard].count("delta") >= 8:
                return heard
        return heard

    heard = asyncio.run(look())
    assert heard[0]["event"] == "snapshot"
    told = [int(m["id"]) for m in heard if m["event"] == "event"]
    assert told == list(range(max(2, newest - 255), newest + 1)), "of those since it began to look"


class Fresh(Told):
    """The same, in a journal in which nothing has happened yet."""

    def events(self, run_id: str | None, after: int) -> dict[str, Any]:
        newest = 0 if self.asked < 3 else self.newest
        return {"events": [{"seq": n, "run": run_id} for n in range(after + 1, newest + 1)]}


def test_who_looks_from_the_beginning_is_told_the_first_event_of_all() -> None:
    async def look() -> str:
        async for message in Feed(cast("Source", Fresh(2)), poll_s=0.01).view("t", None):
            if message["event"] == "event":
                return message["id"]
        return ""

    assert asyncio.run(look()) == "1"


def test_who_has_looked_takes_no_place_of_who_looks() -> None:
    async def look() -> tuple[bool, bool]:
        source = Told(3)
        feed = Feed(cast("Source", source), poll_s=0.01)
        views = [feed.view("t", None, shows_env=False) for _ in range(VIEWERS_MAX)]
        for view in views:
            assert not feed.is_full
            await anext(view)
        was_full = feed.is_full
        for view in views:
            await cast("Any", view).aclose()
        return was_full, feed.is_full

    assert asyncio.run(look()) == (True, False)


class Archive(Told):
    """The same, with a run that has left the journal."""

    def __init__(self) -> None:
        super().__init__(1)
        self.read: list[str] = []

    def archived(self) -> dict[str, Any]:
        return {"old": {"phase": "FAILED"}}

    def archived_run(self, run_id: str) -> dict[str, Any]:
        self.read.append(run_id)
        return {**status(9.0, tasks=2, step=7)["runs"][0], "run_id": run_id}


def test_a_run_that_has_left_the_journal_is_read_whole_for_those_who_look_at_it() -> None:
    async def first(feed: Feed, run_id: str | None) -> dict[str, Any]:
        view = feed.view(run_id, None)
        message = await anext(view)
        await cast("Any", view).aclose()
        runs: dict[str, dict[str, Any]] = json.loads(message["data"])["runs"]
        return runs["old"]

    async def look() -> None:
        source = Archive()
        feed = Feed(cast("Source", source), poll_s=0.01)
        assert await first(feed, None) == {"phase": "FAILED"}
        assert source.read == []
        assert set((await first(feed, "old"))["tasks"]) == {"worker:0", "worker:1"}
        read = len(source.read)
        assert await first(feed, "t") == {"phase": "FAILED"}, "nobody looks at it any more"
        assert len(source.read) == read == 1
        view, asked = feed.view("old", None), source.asked
        async for _ in view:
            if source.asked > asked + 5:
                break
        await cast("Any", view).aclose()
        assert len(source.read) == read + 1, "what changes no more is read once for those who look"

    asyncio.run(look())


def test_a_host_of_two_runs_is_shown_with_both_and_with_the_gpus_that_one_of_them_knows() -> None:
    load = {"index": 0, "utilization_percent": 97.0, "memory_used_bytes": 1, "memory_total_bytes": 4}
    known = {"state": "OPEN", "cpu_percent": 5.0}
    runs = {
        "first": {"phase": "RUNNING", "hosts": {"a": {**known, "gpus": [load]}}},
        "second": {"phase": "RUNNING", "hosts": {"a": {**known, "gpus": []}}},
    }
    assert viewer_document({"runs": runs}, None)["hosts"] == {
        "a": {
            **known,
            "runs": ["first", "second"],
            "gpus": [[0, 97.0, 25, None]],
            "reason": None,
            "memory_percent": None,
        }
    }


class Requeued(Told):
    """A source of a run of many tasks that makes way, and so has no hosts any more."""

    def runs(self) -> dict[str, Any]:
        self.asked += 1
        found = status(100.0 + self.asked / 10, tasks=60, step=1)
        found["runs"][0]["hosts"] = [{"host": "a"}] if self.asked == 1 else []
        return found


def test_a_run_of_many_tasks_that_has_no_hosts_any_more_is_told_as_soon(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def look() -> list[Any]:
        source, hosts = Requeued(1), []
        view = Feed(cast("Source", source), poll_s=0.0).view("t", None)
        async for message in view:
            change = json.loads(message["data"])
            hosts.append(change["runs"]["t"].get("hosts"))
            if len(hosts) == 2:
                break
        await cast("Any", view).aclose()
        return hosts

    assert asyncio.run(look()) == [{"a": {"host": "a"}}, []]
    assert not caplog.messages, "the state could be read each time"

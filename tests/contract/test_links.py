"""Links over the fake transport: they come back, notice silence, and end without leaving a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.errors import ConnectFailed, HostKeyUnknown
from orchestrator.core.plan import HostPlan
from orchestrator.core.state.run import Problem
from orchestrator.head.code import compiled
from orchestrator.head.links import conversation
from orchestrator.head.links import link as link_module
from orchestrator.head.links.conversation import Answer, LinkDown, NoAnswer, OrderRefused, Reply
from orchestrator.head.links.link import HostLink, Pace, Watch
from orchestrator.head.reach.transport import Channel
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.checkpoints import HIGHEST, HighestGeneration
from orchestrator.protocol.orders.preparation import BLOB, CODE, CodeState
from orchestrator.protocol.orders.tasks import LOG
from orchestrator.protocol.reports import Report, Task
from tests.contract.fake_agent import BUNDLE, SOON_S, FakeAgent, FakeHosts, Refusal, always, until
from tests.fake_transport import FakeChannel

FAST = Pace(
    retry_s=(0.02,),
    refused_retry_s=0.05,
    steady_s=30.0,
    silence_check_s=0.02,
    misbehaving_retry_s=(0.5, 30.0),
)
OF_A_LINK = ("fake-reader", "connection-timers")
"""The threads that go on for as long as a link does."""
WATCH = Watch(epoch=3, heartbeat_s=0.5, silence_max_s=5.0)
ASKED: Order[HighestGeneration] = HIGHEST({"run": "r", "epoch": 3, "dir": "/shared/t"})
CODE_ASKED: Order[CodeState] = CODE({"run": "r", "epoch": 3, "files": []})


def task(generation: int = 1) -> Task:
    """Something that a report may hold."""
    return {"task": "worker:0", "generation": generation, "phase": "unknown"}


class Ear:
    """Hears what a link says."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.on_report: Callable[[], None] = lambda: None

    def up(self, run_id: str, host: str, hello: Greeting) -> None:
        self.heard.append(("up", run_id, host, hello["boot_id"]))

    def down(self, run_id: str, host: str, problem: str) -> None:
        self.heard.append(("down", run_id, host, problem))

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        self.heard.append(("refused", run_id, host, problem))

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        self.on_report()
        assert link.host.name == host
        generations = [told["generation"] for told in report["runs"][run_id]]
        self.heard.append(("report", run_id, generations))

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        self.heard.append(("flooded", run_id, host, problem))

    def kinds(self, run_id: str = "r") -> list[str]:
        return [what[0] for what in list(self.heard) if what[1] == run_id]


class Rig:
    def __init__(self) -> None:
        self.hosts = FakeHosts("a", "b")
        self.agent: FakeAgent = self.hosts.agents["a"]
        self.ear = Ear()
        self.links: list[HostLink] = []

    def link(self, pace: Pace = FAST, name: str = "a") -> HostLink:
        link = HostLink(self.hosts.plans[name], self.hosts.transport, lambda: BUNDLE, self.ear, pace)
        self.links.append(link)
        return link

    def connected(self, watch: Watch = WATCH, pace: Pace = FAST) -> HostLink:
        link = self.link(pace)
        link.attach("r", watch)
        self.agent.wait_order("watch")
        until(lambda: "up" in self.ear.kinds())
        return link


@pytest.fixture
def rig() -> Iterator[Rig]:
    before = set(threading.enumerate())
    made = Rig()
    yield made
    made.hosts.heal("a")
    for link in made.links:
        link.close()
    until(
        lambda: not [t for t in set(threading.enumerate()) - before if t.is_alive() and t.name in OF_A_LINK],
        "threads are left",
    )


@pytest.mark.fault(80)
def test_orders_to_a_host_that_has_obeyed_a_high_epoch_are_above_it_and_those_of_other_runs_are_not(
    rig: Rig,
) -> None:
    link = rig.link()
    link.fence("r", 10**12)
    link.attach("r", WATCH)
    link.attach("other", WATCH)
    rig.agent.wait_order("watch", count=2)
    until(lambda: link.is_connected)
    link.ask(ASKED, timeout_s=SOON_S)
    link.ask(HIGHEST({"run": "other", "epoch": 3, "dir": "/shared/t"}), timeout_s=SOON_S)
    link.detach("r")
    rig.agent.wait_order("unwatch")
    assert {(order["run"], order["epoch"]) for order in rig.agent.orders if "run" in order} == {
        ("r", 10**12 + 3),
        ("other", 3),
    }


def test_a_host_that_wants_psutil_gets_it_after_a_while_and_not_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "PSUTIL_AFTER_S", 0.05)
    rig.agent.lies = {"psutil_wanted": True}
    rig.connected()
    order = rig.agent.wait_order("psutil")
    names = [each["order"] for each in rig.agent.orders]
    assert names.index("watch") < names.index("psutil")
    assert (order["sha256"], order["last"]) == (compiled.psutil().digest, True)


def test_a_host_that_has_psutil_gets_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "PSUTIL_AFTER_S", 0.0)
    link = rig.connected()
    until(lambda: "report" in rig.ear.kinds() or link.is_connected)
    assert "psutil" not in [each["order"] for each in rig.agent.orders]


def test_it_connects_watches_and_hands_on_what_concerns_its_runs(rig: Rig) -> None:
    rig.connected()
    assert rig.agent.wait_order("watch") == {
        "order": "watch",
        "run": "r",
        "epoch": 3,
        "heartbeat_s": 0.5,
        "id": 1,
    }
    rig.agent.report({"r": [task(1)], "not-ours": [task(2)]})
    until(lambda: len(rig.ear.heard) >= 2)
    rig.agent.report({"not-ours": [task(3)]})
    time.sleep(0.1)
    rig.agent.report({"r": [task(4)]})
    until(lambda: len(rig.ear.heard) >= 3)
    assert rig.ear.heard == [("up", "r", "a", "boot-1"), ("report", "r", [1]), ("report", "r", [4])]


def test_an_answer_reaches_who_asked_and_a_refusal_is_raised(rig: Rig) -> None:
    link = rig.connected()
    rig.agent.answers["log"] = lambda order, _: (
        {"offset": order["offset"], "end": 9, "time": 7.0},
        b"line\n",
    )
    where = {"run": "r", "epoch": 3, "generation": 1, "task": "worker:0", "offset": 4, "bytes_max": 5}
    assert link.ask(LOG(where)) == Answer({"offset": 4, "end": 9, "time": 7.0}, b"line\n")  # type: ignore[arg-type]
    rig.agent.answers["code"] = always(Refusal("no-space", "no space left"))
    with pytest.raises(OrderRefused, match="no space left") as caught:
        link.ask(CODE_ASKED)
    assert caught.value.problem == Problem("no-space", "no space left")
    replies: list[Reply[CodeState]] = []
    link.send(CODE_ASKED, on_reply=replies.append)
    until(lambda: replies)
    assert replies[0].error is not None


@pytest.mark.fault(3)
def test_it_comes_back_when_the_agent_dies_and_watches_again(rig: Rig) -> None:
    link = rig.connected(
        pace=replace(FAST, retry_s=(0.02, 600.0), steady_s=0.0)
    )  # each was a good connection
    for again in range(2, 5):
        rig.agent.die()
        rig.agent.wait_order("watch", count=again)
        until(lambda again=again: rig.ear.kinds().count("up") == again)  # type: ignore[misc]
    assert rig.ear.kinds() == ["up", "down"] * 3 + ["up"]
    assert rig.ear.heard[1] == ("down", "r", "a", "the connection broke")
    assert link.is_connected


@pytest.mark.fault(33)
def test_who_waits_for_an_answer_is_told_at_once_that_the_connection_broke(rig: Rig) -> None:
    link = rig.connected()
    rig.agent.answers["highest"] = always(None)
    with ThreadPoolExecutor(4) as askers:
        asked = [askers.submit(link.ask, ASKED, timeout_s=60.0) for _ in range(4)]
        rig.agent.wait_order("highest", count=4)
        began = time.monotonic()
        rig.agent.die()
        for one in asked:
            assert isinstance(one.exception(SOON_S), LinkDown)
        assert time.monotonic() - began < SOON_S


def test_orders_are_dropped_and_questions_refused_while_there_is_no_connection(rig: Rig) -> None:
    rig.hosts.cut("a")
    link = rig.link()
    link.attach("r", WATCH)
    until(lambda: "down" in rig.ear.kinds())
    assert not link.is_connected
    link.send(CODE_ASKED, on_reply=lambda _: rig.ear.heard.append(("reply", "r")))
    with pytest.raises(LinkDown, match="a is not connected"):
        link.ask(ASKED)
    rig.hosts.heal("a")
    rig.agent.wait_order("watch")
    assert link.ask(ASKED).ok == {"generation": 1}
    assert rig.agent.verbs() == ["watch", "highest"]


def test_a_cut_is_noticed_by_the_silence_and_what_was_asked_is_not_waited_for(rig: Rig) -> None:
    link = rig.connected(WATCH._replace(silence_max_s=0.3))
    rig.hosts.cut("a")
    with pytest.raises(LinkDown, match="the connection to a broke"):
        link.ask(ASKED, timeout_s=60.0)
    until(lambda: "down" in rig.ear.kinds())
    assert rig.ear.heard[-1][3].startswith(("nothing was heard for", "a: does not answer"))
    rig.hosts.heal("a")
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert link.ask(ASKED).ok == {"generation": 1}, "a late answer to the first is not taken for this one"


def test_a_writer_that_is_blocked_by_the_cut_does_not_hide_it(rig: Rig) -> None:
    link = rig.connected(WATCH._replace(silence_max_s=0.3))
    rig.hosts.cut("a")
    began = time.monotonic()
    blob = BLOB({"run": "r", "epoch": 3, "sha256": "0" * 64, "offset": 0, "last": True})
    with pytest.raises(LinkDown):
        link.ask(blob, b"x" * (1 << 20), timeout_s=60.0)
    assert time.monotonic() - began < SOON_S


def test_who_speaks_is_not_silent(rig: Rig) -> None:
    rig.connected(WATCH._replace(silence_max_s=0.4))
    for _ in range(12):
        rig.agent.report({"r": []})
        time.sleep(0.1)
    assert "down" not in rig.ear.kinds()


def test_an_agent_that_does_not_answer_is_connected_anew_when_asked_to(rig: Rig) -> None:
    link = rig.connected()
    rig.agent.answers["highest"] = always(None)
    with pytest.raises(NoAnswer, match=r"a did not answer `highest` in 0"):
        link.ask(ASKED, timeout_s=0.05)
    assert link.is_connected
    link.reset("it sleeps")
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert ("down", "r", "a", "it sleeps") in rig.ear.heard


def test_a_link_that_is_held_off_is_cut_and_comes_back_after_it_and_not_before(rig: Rig) -> None:
    link, began = rig.connected(), time.monotonic()
    link.hold_off(0.3)
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert rig.ear.heard[1] == ("down", "r", "a", "orch chaos cut it off for 0.3 s")
    assert rig.agent.connected_at[1] >= began + 0.3


def test_a_host_that_refuses_is_told_as_such_and_tried_again(rig: Rig) -> None:
    rig.hosts.transport.refuse(
        rig.hosts.plans["a"], HostKeyUnknown("a", "its key is not known", hint="orch trust")
    )
    rig.link().attach("r", WATCH)
    until(lambda: rig.ear.kinds().count("refused") >= 2)
    assert rig.ear.heard[0][3] == Problem("host-key-unknown", "a: its key is not known", "orch trust", 5)
    rig.hosts.transport.refuse(rig.hosts.plans["a"], None)
    until(lambda: "up" in rig.ear.kinds())


def test_an_agent_that_dies_at_once_is_not_connected_to_without_end(rig: Rig) -> None:
    rig.agent.dies_at_once = True
    rig.link(replace(FAST, retry_s=(0.02, 0.04, 30.0))).attach("r", WATCH)
    until(lambda: len(rig.agent.connected_at) == 3)
    time.sleep(0.3)
    assert len(rig.agent.connected_at) == 3


def test_what_is_no_frame_ends_the_connection_with_that_sentence(rig: Rig) -> None:
    rig.connected()
    rig.agent.say(b"Broadcast message from root: going down\n")
    until(lambda: rig.ear.kinds().count("up") == 2)
    (down,) = [what for what in rig.ear.heard if what[0] == "down"]
    assert "Does something else write to this channel?" in down[3]


def test_what_an_agent_printed_last_is_said_when_the_connection_breaks(rig: Rig) -> None:
    rig.connected()
    rig.agent.last_words = b"Traceback (most recent call last):\n  ...\nKeyError: '\x1b[31mphase'\n\n"
    rig.agent.die()
    until(lambda: "down" in rig.ear.kinds())
    assert rig.ear.heard[-1] == ("down", "r", "a", r"the connection broke: KeyError: '\x1b[31mphase'")


LYING: Task = {**task(), "phase": "running", "global_step": "x"}  # type: ignore[typeddict-item]
LIE = "a sent a report that orch cannot use: runs.r[0].global_step is 'x', not a whole number"


@pytest.mark.fault(56)
def test_a_report_that_is_none_ends_the_connection_and_nobody_hears_it(rig: Rig) -> None:
    rig.connected()
    rig.agent.report({"r": [LYING]})
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert rig.ear.kinds() == ["up", "down", "up"]
    assert rig.ear.heard[1] == ("down", "r", "a", LIE)


@pytest.mark.fault(56)
def test_a_host_that_goes_on_lying_is_said_to_misbehave_and_left_alone_while_others_go_on(rig: Rig) -> None:
    """The first lie is taken for an accident; after the second, nobody connects for half a second, then for longer."""
    other = rig.link(name="b")
    other.attach("s", WATCH)
    rig.hosts.agents["b"].wait_order("watch")
    link = rig.connected()
    for lies in range(1, 4):
        until(lambda lies=lies: rig.ear.kinds().count("up") == lies)  # type: ignore[misc]
        rig.agent.report({"r": [LYING]})
        until(lambda lies=lies: rig.ear.kinds().count("down") == lies)  # type: ignore[misc]
        rig.hosts.agents["b"].report({"s": [task(lies)]})
        until(lambda lies=lies: rig.ear.kinds("s").count("report") == lies)  # type: ignore[misc]
    accident, misbehaves, again = [what[3] for what in rig.ear.heard if what[0] == "down"]
    assert accident == LIE
    assert misbehaves == f"it misbehaves: {LIE}; it is connected to again in about 0.5 s"
    assert again == f"it misbehaves: {LIE}; it is connected to again in about 30 s"
    first, second, third = rig.agent.connected_at
    assert second - first < third - second
    assert third - second >= 0.5 * 0.75
    link.attach("late", WATCH)
    assert rig.ear.kinds("late") == ["down"], "a run that comes meanwhile is told why it waits"
    assert rig.ear.kinds("s") == ["up", "report", "report", "report"]
    assert other.ask(ASKED).ok == {"generation": 1}


def test_a_host_that_behaves_for_long_is_forgiven(rig: Rig) -> None:
    link = rig.link(replace(FAST, forgiven_s=0.0))
    link.attach("r", WATCH)
    for lies in range(1, 4):
        until(lambda lies=lies: rig.ear.kinds().count("up") == lies)  # type: ignore[misc]
        rig.agent.report({"r": [LYING]})
    until(lambda: rig.ear.kinds().count("up") == 4)
    assert [what[3] for what in rig.ear.heard if what[0] == "down"] == [LIE] * 3


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({}, "a sent an empty frame, which is neither report nor reply"),
        ({"hello": {}}, "a sent a frame with 'hello', which is neither report nor reply"),
        ({"\x1b[2J": 1}, r"a sent a frame with '\x1b[2J', which is neither report nor reply"),
        ({"report": 5}, "a sent a report that orch cannot use: it is 5, not an object"),
        ({"reply": "1", "ok": {}}, "a sent a reply that orch cannot use: reply is '1', not a whole number"),
        ({"reply": 1}, "a sent a reply that orch cannot use: ok is missing"),
        ({"reply": 1, "error": "no"}, "a sent a reply that orch cannot use: error is 'no', not an object"),
    ],
)
@pytest.mark.fault(56)
def test_a_frame_that_is_none_of_ours_is_named(rig: Rig, frame: dict[str, Any], said: str) -> None:
    rig.connected()
    rig.agent.send(frame)
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert rig.ear.heard[1] == ("down", "r", "a", said)


@pytest.mark.fault(56)
def test_an_answer_that_is_none_ends_the_connection_and_whoever_asked_is_told(rig: Rig) -> None:
    link = rig.connected()
    rig.agent.answers["highest"] = always({"generation": -1})
    with pytest.raises(LinkDown, match="the connection to a broke"):
        link.ask(ASKED, timeout_s=60.0)
    until(lambda: rig.ear.kinds().count("up") == 2)
    said = "a sent an answer to `highest` that orch cannot use: generation is -1, not from 0 to 1000000000"
    assert rig.ear.heard[1] == ("down", "r", "a", said)
    rig.agent.answers["highest"] = always(({"generation": 1}, b"bytes"))
    with pytest.raises(LinkDown):
        link.ask(ASKED, timeout_s=60.0)
    until(lambda: rig.ear.kinds().count("down") == 2)
    assert "with 5 bytes, where 0 were asked for" in rig.ear.heard[-1][3]


@pytest.mark.fault(56)
def test_a_hello_that_is_none_is_no_hello(rig: Rig) -> None:
    rig.agent.lies = {"boot_id": 5}
    rig.link().attach("r", WATCH)
    until(lambda: rig.ear.kinds() == ["down", "down"])
    said = "a sent a hello that orch cannot use: boot_id is 5, not a text"
    assert [what[3] for what in rig.ear.heard] == [
        said,
        f"it misbehaves: {said}; it is connected to again in about 0.5 s",
    ]


@pytest.mark.fault(57)
def test_of_a_flood_of_reports_the_newest_is_heard_now_and_then_and_it_is_said(rig: Rig) -> None:
    link = rig.link(replace(FAST, reports_per_s=20.0, unasked_bytes_per_s=1e5))
    link.attach("r", WATCH)
    until(lambda: "up" in rig.ear.kinds())
    began = time.monotonic()
    for generation in range(3000):
        rig.agent.report({"r": [task(generation)]})
    until(lambda: ("report", "r", [2999]) in rig.ear.heard)
    assert rig.ear.kinds().count("report") <= 200 + (time.monotonic() - began) * 20
    assert link.ask(ASKED).ok == {"generation": 1}


@pytest.mark.fault(57)
def test_a_host_that_is_read_more_slowly_is_said_to_be_so_once_and_answers_go_on(rig: Rig) -> None:
    link = rig.link(replace(FAST, reports_per_s=1000.0, unasked_bytes_per_s=20_000))
    link.attach("r", WATCH)
    until(lambda: "up" in rig.ear.kinds())
    flood = {"r": [{**task(), "said": [{"kind": "k", "message": "x" * 2000}] * 20}]}
    for _ in range(10):  # 400 kB, where 200 kB may come at once
        rig.agent.report(flood)  # type: ignore[arg-type]
    until(lambda: "flooded" in rig.ear.kinds(), timeout_s=30.0)
    rig.agent.report(flood)  # type: ignore[arg-type]
    assert link.ask(ASKED).ok == {"generation": 1}
    told = "a sends more than orch reads of a host; it is read more slowly"
    assert [heard for heard in rig.ear.heard if heard[0] == "flooded"] == [("flooded", "r", "a", told)]


@pytest.mark.fault(57)
def test_a_host_that_answers_nothing_is_connected_to_anew_before_orders_pile_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "UNANSWERED_MAX", 20)
    link = rig.connected()
    rig.agent.answers["highest"] = always(None)
    for _ in range(25):
        with contextlib.suppress(LinkDown):  # the last ones may find it broken off
            link.send(ASKED)
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert rig.ear.heard[1] == ("down", "r", "a", "it answers no orders: 21 are without a reply")


@pytest.mark.fault(57)
def test_a_host_that_takes_nothing_is_connected_to_anew_before_bytes_pile_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "UNWRITTEN_BYTES_MAX", 1 << 20)
    link = rig.connected(WATCH._replace(silence_max_s=60.0))
    rig.hosts.cut("a")
    blob = BLOB({"run": "r", "epoch": 3, "sha256": "0" * 64, "offset": 0, "last": True})
    with ThreadPoolExecutor(4) as askers:
        for asked in [askers.submit(link.ask, blob, b"x" * (400 << 10)) for _ in range(4)]:
            assert isinstance(asked.exception(SOON_S), LinkDown)
    until(lambda: "down" in rig.ear.kinds())
    assert rig.ear.heard[1][3].startswith("it reads no orders: 1.2 MiB wait")


def test_a_fault_of_ours_is_said_and_does_not_end_the_link(rig: Rig) -> None:
    rig.connected()

    def faulty() -> None:
        rig.ear.on_report = lambda: None
        raise ZeroDivisionError

    rig.ear.on_report = faulty
    rig.agent.report({"r": [task()]})
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert ("down", "r", "a", "a fault in orch; see the coordinator's log") in rig.ear.heard


def test_a_channel_that_cannot_be_fed_from_is_let_go_and_one_connection_takes_its_place(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, failures = FakeChannel.feed, [OSError("no descriptor left")]

    def fail_once(channel: FakeChannel, take: Callable[[bytes], float]) -> None:
        if failures:
            raise failures.pop()
        feed(channel, take)

    monkeypatch.setattr(FakeChannel, "feed", fail_once)
    link = rig.link()
    link.attach("r", WATCH)
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert rig.ear.kinds() == ["up", "down", "up"]
    assert link.ask(ASKED)
    time.sleep(0.1)
    assert rig.ear.kinds() == ["up", "down", "up"]


def test_two_runs_share_a_link_and_the_last_one_leaves_it(rig: Rig) -> None:
    link = rig.connected()
    link.attach("s", WATCH._replace(epoch=4))
    assert rig.ear.kinds("s") == ["up"], "it is connected already"
    rig.agent.wait_order("watch", count=2)
    rig.agent.report({"r": [task(1)], "s": [task(2)]})
    until(lambda: "report" in rig.ear.kinds("s"))
    link.detach("r")
    assert link.is_needed
    assert rig.agent.wait_order("unwatch") == {"order": "unwatch", "run": "r", "epoch": 3, "id": 3}
    rig.agent.report({"r": [task(3)], "s": [task(4)]})
    until(lambda: rig.ear.kinds("s").count("report") == 2)
    assert rig.ear.kinds("r").count("report") == 1
    link.detach("s")
    assert not link.is_needed
    assert link.is_connected
    link.close()
    until(lambda: not link.is_connected)
    assert rig.ear.kinds() == ["up", "report"], "an end that was asked for is no trouble"


def test_a_detach_may_be_asked_twice(rig: Rig) -> None:
    link = rig.connected()
    link.attach("s", WATCH)
    link.detach("r")
    link.detach("r")
    assert link.is_needed
    link.detach("s")
    link.detach("s")
    assert not link.is_needed


class SlowTransport:
    """Opens only when it is let; then as the fake does."""

    def __init__(self, hosts: FakeHosts) -> None:
        self.hosts = hosts
        self.opening, self.let = threading.Event(), threading.Event()
        self.opened: FakeChannel | None = None

    def open(self, host: HostPlan, command: str) -> Channel:
        self.opening.set()
        if not self.let.wait(SOON_S):
            raise ConnectFailed(host.name, "was not let")
        channel = self.hosts.transport.open(host, command)
        assert isinstance(channel, FakeChannel)
        self.opened = channel
        return channel

    def close(self, host: HostPlan) -> None:
        self.hosts.transport.close(host)


@pytest.mark.parametrize("way", ["closed", "held off"])
def test_closed_or_held_off_while_it_connects_it_does_not_live_on(rig: Rig, way: str) -> None:
    slow = SlowTransport(rig.hosts)
    link = HostLink(rig.hosts.plans["a"], slow, lambda: BUNDLE, rig.ear, FAST)
    link.attach("r", WATCH)
    assert slow.opening.wait(SOON_S)
    if way == "held off":
        rig.links.append(link)
        link.hold_off(600.0)
    else:
        link.detach("r")
        link.close()
    slow.let.set()
    until(lambda: slow.opened is not None and slow.opened.is_closed, "it lives on")
    assert not link.is_connected
    assert rig.ear.heard == []


def test_an_order_in_the_moment_of_the_break_is_not_waited_for(rig: Rig) -> None:
    link = rig.connected()
    connection = link._connection
    assert connection is not None
    rig.agent.die()
    until(lambda: "down" in rig.ear.kinds())
    future: Future[Reply[HighestGeneration]] = Future()
    connection.send(ASKED, future=future)  # by who held it before the break
    assert isinstance(future.exception(0), LinkDown)


def test_whoever_asks_while_connections_break_gets_an_end(rig: Rig) -> None:
    link = rig.connected()
    ends: list[str] = []

    def ask() -> None:
        for _ in range(60):
            try:
                link.ask(ASKED, timeout_s=60.0)
                ends.append("ok")
            except LinkDown:
                ends.append("down")
                time.sleep(0.005)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    while any(asker.is_alive() for asker in askers):
        rig.agent.die()
        time.sleep(0.03)
    assert len(ends) == 240
    assert {"ok", "down"} == set(ends)

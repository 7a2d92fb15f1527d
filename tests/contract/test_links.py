"""Links over the fake transport: they come back, notice silence, and end without leaving a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.adapters.transport import Channel
from orchestrator.core.errors import ConnectFailed, HostKeyUnknown
from orchestrator.core.model import Problem
from orchestrator.core.plan import HostPlan
from orchestrator.daemon.connection.link import (
    HostLink,
    LinkDown,
    NoAnswer,
    OrderRefused,
    Pace,
    Reply,
    Watch,
)
from orchestrator.daemon.connection.wire import WireError
from tests.contract.fake_agent import BUNDLE, SOON_S, FakeAgent, FakeHosts, Refusal, always, until

FAST = Pace(retry_s=(0.02,), refused_retry_s=0.05, steady_s=30.0, silence_check_s=0.02)
WATCH = Watch(epoch=3, heartbeat_s=0.5, silence_max_s=5.0)


class Ear:
    """Hears what a link says."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.on_report: Callable[[], None] = lambda: None

    def up(self, run_id: str, host: str, hello: Mapping[str, Any]) -> None:
        self.heard.append(("up", run_id, host, hello["boot_id"]))

    def down(self, run_id: str, host: str, problem: str) -> None:
        self.heard.append(("down", run_id, host, problem))

    def refused(self, run_id: str, host: str, problem: Problem) -> None:
        self.heard.append(("refused", run_id, host, problem))

    def reported(self, run_id: str, host: str, report: Mapping[str, Any], link: HostLink) -> None:
        self.on_report()
        assert link.host.name == host
        self.heard.append(("report", run_id, report["runs"][run_id]))

    def kinds(self, run_id: str = "r") -> list[str]:
        return [what[0] for what in list(self.heard) if what[1] == run_id]


class Rig:
    def __init__(self) -> None:
        self.hosts = FakeHosts("a")
        self.agent: FakeAgent = self.hosts.agents["a"]
        self.ear = Ear()
        self.links: list[HostLink] = []

    def link(self, pace: Pace = FAST) -> HostLink:
        link = HostLink(self.hosts.plans["a"], self.hosts.transport, lambda: BUNDLE, self.ear, pace)
        self.links.append(link)
        return link

    def connected(self, watch: Watch = WATCH) -> HostLink:
        link = self.link()
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
        lambda: not [t for t in set(threading.enumerate()) - before if t.is_alive() and "link" in t.name],
        "threads are left",
    )


def test_it_connects_watches_and_hands_on_what_concerns_its_runs(rig: Rig) -> None:
    rig.connected()
    assert rig.agent.wait_order("watch") == {
        "order": "watch",
        "run": "r",
        "epoch": 3,
        "heartbeat_s": 0.5,
        "id": 1,
    }
    rig.agent.report({"r": [1], "not ours": [2]})
    rig.agent.report({"not ours": [3]})
    rig.agent.report({"r": [4]})
    until(lambda: len(rig.ear.heard) >= 3)
    assert rig.ear.heard == [("up", "r", "a", "boot-1"), ("report", "r", [1]), ("report", "r", [4])]


def test_an_answer_reaches_who_asked_and_a_refusal_is_raised(rig: Rig) -> None:
    link = rig.connected()
    rig.agent.answers["probe"] = lambda _, blob: ({"python": "3.11"}, b"blob" + blob)
    assert link.ask({"order": "probe"}, b"!") == Reply({"python": "3.11"}, None, b"blob!")
    rig.agent.answers["code"] = always(Refusal("no-space", "no space left"))
    with pytest.raises(OrderRefused, match="no space left") as caught:
        link.ask({"order": "code"})
    assert caught.value.problem == Problem("no-space", "no space left")
    replies: list[Reply] = []
    link.send({"order": "code"}, on_reply=replies.append)
    until(lambda: replies)
    assert replies[0].error is not None


@pytest.mark.fault(3)
def test_it_comes_back_when_the_agent_dies_and_watches_again(rig: Rig) -> None:
    link = rig.connected()
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
    rig.agent.answers["probe"] = always(None)
    with ThreadPoolExecutor(4) as askers:
        asked = [askers.submit(link.ask, {"order": "probe"}, timeout_s=60.0) for _ in range(4)]
        rig.agent.wait_order("probe", count=4)
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
    link.send({"order": "stop"}, on_reply=lambda _: rig.ear.heard.append(("reply", "r")))
    with pytest.raises(LinkDown, match="a is not connected"):
        link.ask({"order": "probe"})
    rig.hosts.heal("a")
    rig.agent.wait_order("watch")
    assert link.ask({"order": "after"}).ok == {}
    assert rig.agent.verbs() == ["watch", "after"]


def test_a_cut_is_noticed_by_the_silence_and_what_was_asked_is_not_waited_for(rig: Rig) -> None:
    link = rig.connected(WATCH._replace(silence_max_s=0.3))
    rig.hosts.cut("a")
    with pytest.raises(LinkDown, match="the connection to a broke"):
        link.ask({"order": "probe"}, timeout_s=60.0)
    until(lambda: "down" in rig.ear.kinds())
    assert rig.ear.heard[-1][3].startswith(("nothing was heard for", "a: does not answer"))
    rig.hosts.heal("a")
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert link.ask({"order": "probe"}).ok == {}, "a late answer to the first is not taken for this one"


def test_a_writer_that_is_blocked_by_the_cut_does_not_hide_it(rig: Rig) -> None:
    link = rig.connected(WATCH._replace(silence_max_s=0.3))
    rig.hosts.cut("a")
    began = time.monotonic()
    with pytest.raises(LinkDown):
        link.ask({"order": "blob"}, b"x" * (1 << 20), timeout_s=60.0)
    assert time.monotonic() - began < SOON_S


def test_who_speaks_is_not_silent(rig: Rig) -> None:
    rig.connected(WATCH._replace(silence_max_s=0.4))
    for _ in range(12):
        rig.agent.report({"r": []})
        time.sleep(0.1)
    assert "down" not in rig.ear.kinds()


def test_an_agent_that_does_not_answer_is_connected_anew_when_asked_to(rig: Rig) -> None:
    link = rig.connected()
    rig.agent.answers["probe"] = always(None)
    with pytest.raises(NoAnswer, match=r"a did not answer `probe` in 0 s"):
        link.ask({"order": "probe"}, timeout_s=0.05)
    assert link.is_connected
    link.reset("it sleeps")
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert ("down", "r", "a", "it sleeps") in rig.ear.heard


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


def test_a_report_that_cannot_be_read_ends_the_connection_with_that_sentence(rig: Rig) -> None:
    rig.connected()

    def unreadable() -> None:
        rig.ear.on_report = lambda: None
        raise WireError("the agent on a sent a report that cannot be read: 5")

    rig.ear.on_report = unreadable
    rig.agent.report({"r": [5]})
    until(lambda: rig.ear.kinds().count("up") == 2)
    (down,) = [what for what in rig.ear.heard if what[0] == "down"]
    assert down[3] == "the agent on a sent a report that cannot be read: 5"


def test_a_fault_of_ours_is_said_and_does_not_end_the_link(rig: Rig) -> None:
    rig.connected()

    def faulty() -> None:
        rig.ear.on_report = lambda: None
        raise ZeroDivisionError

    rig.ear.on_report = faulty
    rig.agent.report({"r": [5]})
    until(lambda: rig.ear.kinds().count("up") == 2)
    assert ("down", "r", "a", "a fault in orch; see the coordinator's log") in rig.ear.heard


def test_two_runs_share_a_link_and_the_last_one_closes_it(rig: Rig) -> None:
    link = rig.connected()
    link.attach("s", WATCH._replace(epoch=4))
    assert rig.ear.kinds("s") == ["up"], "it is connected already"
    rig.agent.wait_order("watch", count=2)
    rig.agent.report({"r": [1], "s": [2]})
    until(lambda: "report" in rig.ear.kinds("s"))
    assert link.detach("r") is True
    assert rig.agent.wait_order("unwatch") == {"order": "unwatch", "run": "r", "epoch": 3, "id": 3}
    rig.agent.report({"r": [3], "s": [4]})
    until(lambda: rig.ear.kinds("s").count("report") == 2)
    assert rig.ear.kinds("r").count("report") == 1
    assert link.detach("s") is False
    until(lambda: not link.is_connected)
    assert rig.ear.kinds() == ["up", "report"], "an end that was asked for is no trouble"


def test_a_detach_may_be_asked_twice(rig: Rig) -> None:
    link = rig.connected()
    link.attach("s", WATCH)
    assert link.detach("r") is True
    assert link.detach("r") is True
    assert link.detach("s") is False
    assert link.detach("s") is False


class SlowTransport:
    """Opens only when it is let; then as the fake does."""

    def __init__(self, hosts: FakeHosts) -> None:
        self.hosts = hosts
        self.opening, self.let = threading.Event(), threading.Event()

    def open(self, host: HostPlan, command: str) -> Channel:
        self.opening.set()
        if not self.let.wait(SOON_S):
            raise ConnectFailed(host.name, "was not let")
        return self.hosts.transport.open(host, command)

    def close(self, host: HostPlan) -> None:
        self.hosts.transport.close(host)


def test_closed_while_it_connects_it_does_not_live_on(rig: Rig) -> None:
    slow = SlowTransport(rig.hosts)
    link = HostLink(rig.hosts.plans["a"], slow, lambda: BUNDLE, rig.ear, FAST)
    link.attach("r", WATCH)
    assert slow.opening.wait(SOON_S)
    assert link.detach("r") is False
    slow.let.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "link-a"], "it lives on")
    assert not link.is_connected
    assert rig.ear.heard == []


def test_an_order_in_the_moment_of_the_break_is_not_waited_for(rig: Rig) -> None:
    link = rig.connected()
    connection = link._connection
    assert connection is not None
    rig.agent.die()
    until(lambda: "down" in rig.ear.kinds())
    future: Future[Reply] = Future()
    connection.send({"order": "probe"}, b"", None, future)  # by who held it before the break
    assert isinstance(future.exception(0), LinkDown)


def test_whoever_asks_while_connections_break_gets_an_end(rig: Rig) -> None:
    link = rig.connected()
    ends: list[str] = []

    def ask() -> None:
        for _ in range(60):
            try:
                link.ask({"order": "probe"}, timeout_s=60.0)
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

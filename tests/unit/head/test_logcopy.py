"""Copying the tasks' logs: one chunk at a time, nothing twice, and what was rotated away is marked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.core.events import HostReported, TaskReport
from orchestrator.core.plan import TaskId
from orchestrator.core.state.run import new_run
from orchestrator.core.state.task import Progress
from orchestrator.head.links.clock import HostClock
from orchestrator.head.links.conversation import Reply
from orchestrator.head.links.link import HostLink
from orchestrator.head.records.runlogs import RunLogs
from orchestrator.head.transfer.logcopy import ASK_AGAIN_S, CHUNK_BYTES, LogCopier
from orchestrator.protocol.orders.base import Order
from orchestrator.protocol.orders.tasks import LogPart
from tests.contract.fake_agent import SOON_S
from tests.contract.small_disk import mounted
from tests.unit.core.transcript import make_plan

W0 = TaskId("worker", 0)
LINE = b"1.000000 o hello\n"
RUN = new_run("t-1", make_plan(["a", "b"], checkpoint=False), epoch=1, at=0.0)


class FakeLink:
    """Keeps the orders, and answers when it is told to."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self.orders: list[tuple[dict[str, Any], Callable[[Reply[LogPart]], None]]] = []

    def send(
        self,
        order: Order[LogPart],
        blob: bytes = b"",
        on_reply: Callable[[Reply[LogPart]], None] | None = None,
    ) -> None:
        assert on_reply is not None
        assert blob == b""
        self.orders.append((dict(order.fields), on_reply))

    def answer(self, log: bytes, *, dropped: int = 0, chunk: int = CHUNK_BYTES) -> None:
        """As a host would that still has `log` from byte `dropped` on."""
        order, on_reply = self.orders.pop(0)
        offset = max(order["offset"], dropped)
        on_reply(
            Reply(
                {"offset": offset, "end": len(log), "time": 1.7e9 + self.ahead_s},
                None,
                log[offset : offset + chunk],
            )
        )

    def refuse(self) -> None:
        _, on_reply = self.orders.pop(0)
        on_reply(Reply(None, {"code": "x", "message": "no", "hint": None}, b""))


class Rig:
    def __init__(self, state: Path) -> None:
        self.now = 100.0
        self.logs = RunLogs(str(state))
        self.told: list[tuple[str, str, TaskId, str]] = []
        self.skewed: list[tuple[str, str, str]] = []
        self.copier = LogCopier(
            self.logs,
            lambda *told: self.told.append(told),
            now=lambda: self.now,
            unix_time=lambda: 1.7e9,
            skewed=lambda *told: self.skewed.append(told),
        )
        self.link = FakeLink()
        self.run = replace(RUN, run_id="t-1")
        for generation in (1, 2):
            self.copier.expect(self.run, W0, "a", generation)

    def report(self, log_bytes: int, generation: int = 1, *, host: str = "a", task: TaskId = W0) -> None:
        told = TaskReport(task, generation, "running", progress=Progress(measured={"log_bytes": log_bytes}))
        event = HostReported(self.now, host, (told,))
        self.copier.reported(cast("HostLink", self.link), "t-1", 3, event)

    def copied(self, generation: int = 1) -> bytes:
        found = Path(self.logs.runs_dir) / "t-1" / "logs" / f"worker-0.gen-{generation:06d}.log"
        return found.read_bytes() if found.exists() else b""

    @property
    def is_behind(self) -> bool:
        return self.copier.is_behind("t-1", ["worker:0"])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_is_new_is_asked_for_piece_by_piece_until_it_is_here(rig: Rig) -> None:
    log = LINE * 5
    rig.report(len(log))
    assert rig.link.orders[0][0] == {
        "order": "log",
        "run": "t-1",
        "epoch": 3,
        "generation": 1,
        "task": "worker:0",
        "offset": 0,
        "bytes_max": CHUNK_BYTES,
    }
    assert rig.is_behind
    while rig.link.orders:
        rig.link.answer(log, chunk=30)
    assert rig.copied() == log
    assert not rig.is_behind
    assert rig.logs.host_of("t-1", "worker:0", 1) == "a"


def test_one_piece_is_on_its_way_at_a_time(rig: Rig) -> None:
    for size in (10, 20, 30):
        rig.report(size)
    assert len(rig.link.orders) == 1
    rig.report(10, generation=2)
    assert len(rig.link.orders) == 2, "another log has its own"


def test_nothing_is_asked_where_nothing_is_new(rig: Rig) -> None:
    rig.report(0)
    assert rig.link.orders == []
    assert not rig.is_behind
    rig.report(len(LINE))
    rig.link.answer(LINE)
    rig.report(len(LINE))
    assert rig.link.orders == []


def test_a_piece_that_was_lost_with_its_connection_is_asked_for_again(rig: Rig) -> None:
    rig.report(len(LINE))
    rig.link.orders.clear()
    rig.now += ASK_AGAIN_S - 1
    rig.report(len(LINE))
    assert rig.link.orders == []
    rig.now += 2
    rig.report(len(LINE))
    rig.link.answer(LINE)
    assert rig.copied() == LINE


def test_an_answer_that_comes_twice_is_put_down_once(rig: Rig) -> None:
    rig.report(len(LINE))
    _, on_reply = rig.link.orders[0]
    rig.link.answer(LINE)
    on_reply(Reply({"offset": 0, "end": len(LINE), "time": 1.7e9}, None, LINE))
    assert rig.copied() == LINE


def test_what_was_rotated_away_before_it_was_copied_is_marked(rig: Rig) -> None:
    log = LINE * 10
    rig.report(len(log))
    while rig.link.orders:
        rig.link.answer(log, dropped=3 * len(LINE))
    assert b"rotated away" in rig.copied()
    assert rig.copied().endswith(LINE * 7)
    assert not rig.is_behind


def test_a_log_that_cannot_be_read_now_is_asked_for_later(rig: Rig) -> None:
    rig.report(len(LINE))
    rig.link.refuse()
    rig.report(len(LINE))
    assert rig.link.orders == []
    rig.now += ASK_AGAIN_S + 1
    rig.report(len(LINE))
    rig.link.answer(LINE)
    assert rig.copied() == LINE


def test_where_the_disk_refuses_the_task_goes_on_and_the_piece_is_asked_for_later(rig: Rig) -> None:
    in_the_way = Path(rig.logs.runs_dir) / "t-1" / "logs"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.symlink_to("nowhere")
    rig.report(len(LINE))
    rig.link.answer(LINE)
    in_the_way.unlink()
    in_the_way.write_text("a file where the directory should be")
    rig.now += ASK_AGAIN_S + 1
    rig.report(len(LINE))
    assert not rig.is_behind, "nobody waits for what cannot come"
    in_the_way.unlink()
    rig.now += ASK_AGAIN_S + 1
    rig.report(len(LINE))
    rig.link.answer(LINE)
    assert rig.copied() == LINE


def test_only_the_named_tasks_are_waited_for_and_forgotten(rig: Rig) -> None:
    rig.report(len(LINE))
    assert not rig.copier.is_behind("t-1", ["worker:1"])
    assert not rig.copier.is_behind("other", ["worker:0"])
    rig.copier.forget("t-1", ["worker:1"])
    assert rig.is_behind
    rig.copier.forget("t-1", ["worker:0"])
    assert not rig.is_behind


def test_the_clock_of_a_runs_host_is_known_until_the_last_of_its_logs_is_forgotten(rig: Rig) -> None:
    rig.copier.expect(rig.run, TaskId("worker", 1), "b", 1)
    rig.link.ahead_s = 40.0
    rig.report(len(LINE))
    rig.link.answer(LINE)
    rig.copier.forget("t-1", ["worker:0"])
    assert rig.copier.clock("t-1", "a").ahead_s == 40.0, "another task's log is still copied"
    rig.copier.forget("t-1", ["worker:1"])
    assert rig.copier.clock("t-1", "a").ahead_s == 0.0


def test_a_clock_that_differs_is_said_again_once_the_run_was_forgotten(rig: Rig) -> None:
    rig.link.ahead_s = 40.0
    for size in (1, 2):
        rig.copier.expect(rig.run, W0, "a", 1)
        rig.report(size * len(LINE))
        rig.link.answer(LINE * size)
        rig.copier.forget("t-1", ["worker:0"])
    assert [told[:2] for told in rig.skewed] == [("t-1", "a")] * 2
    assert rig.copier._skew_reported == set(), "nothing is kept of a run that has ended"


def test_nothing_is_forgotten_while_another_thread_goes_through_what_is_copied(rig: Rig) -> None:
    class Copies(dict[Any, Any]):
        def pop(self, *given: Any) -> Any:
            assert rig.copier._lock.locked(), "the deciding thread may be in `expect`"
            return super().pop(*given)

    rig.copier._copies = Copies(rig.copier._copies)
    rig.copier.forget("t-1", ["worker:0"])
    assert rig.copier._copies == {}
    assert not rig.copier._lock.locked()


@pytest.mark.fault(57)
def test_who_waits_for_the_rest_of_a_log_is_woken_by_it_and_waits_no_longer_than_it_may(rig: Rig) -> None:
    rig.report(len(LINE))
    rig.copier.wait_for_the_rest("t-1", ["worker:0"], rig.now)
    waiting = threading.Thread(target=rig.copier.wait_for_the_rest, args=("t-1", ["worker:0"], rig.now + 60))
    waiting.start()
    rig.link.answer(LINE)
    waiting.join(SOON_S)
    assert not waiting.is_alive()
    assert rig.copied() == LINE
    assert rig.copier._moved == (), "nobody waits any more"


def test_a_host_gives_only_the_logs_of_its_own_tasks_and_last_generations(rig: Rig) -> None:
    rig.copier.expect(rig.run, TaskId("worker", 1), "b", 1)
    rig.report(100, task=TaskId("worker", 1))
    rig.report(100, task=TaskId("worker", 77))
    rig.report(100, generation=9)
    rig.report(100, host="b")
    assert rig.link.orders == []
    rig.report(100, generation=1)
    rig.copier.expect(rig.run, W0, "b", 3)
    rig.link.answer(LINE)
    assert rig.copied() == b"", "it came when its generation was an old one"
    rig.report(100, generation=1)
    rig.report(100, generation=3)
    assert rig.link.orders == []
    rig.report(len(LINE), generation=3, host="b")
    rig.link.answer(LINE)
    assert rig.copied(3) == LINE


@pytest.mark.fault(57)
def test_of_a_task_no_more_is_copied_than_its_limit_and_it_is_said_once(rig: Rig) -> None:
    small = replace(rig.run, plan=replace(rig.run.plan, log_bytes_max=3 * len(LINE)))
    for generation in (1, 2):
        rig.copier.expect(small, W0, "a", generation)
    endless = LINE * 1000
    for _ in range(5):
        rig.report(len(endless))
        rig.report(len(endless), generation=2)
        while rig.link.orders:
            rig.link.answer(endless, chunk=len(LINE))
    assert len(rig.copied()) + len(rig.copied(2)) <= 4 * len(LINE)
    said = "the head node has 51 B of the logs of worker:0 (run.log_limit); what worker:0 prints from now on stays on a"
    assert rig.told[0] == ("t-1", "a", W0, said)
    assert len(rig.told) == 2, "once for each log"
    assert not rig.is_behind, "nobody waits for what is not copied"


@pytest.mark.fault(57)
def test_a_log_full_of_gaps_is_not_copied_without_end(rig: Rig) -> None:
    for at in range(1, 5000):
        rig.report(1 << 40)
        if not rig.link.orders:
            break
        _, on_reply = rig.link.orders.pop(0)
        on_reply(Reply({"offset": at * 100, "end": 1 << 40, "time": 1.7e9}, None, b"x"))
        rig.link.orders.clear()
        rig.now += ASK_AGAIN_S + 1
    assert 500 < at < 3000
    assert rig.told[0][3].startswith("the log of worker:0 is rotated faster than it can be copied")


@pytest.mark.fault(57)
def test_the_reserve_of_the_journal_is_left_free_and_copying_goes_on_by_itself(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", megabytes=4) as small:
        rig = Rig(small.path)
        ballast = small.path / "big"
        ballast.write_bytes(b"x" * (4 * (1 << 20) - (150 << 10)))  # 5 % are 200 kB
        rig.report(len(LINE))
        assert rig.link.orders == []
        assert not rig.is_behind
        ballast.unlink()
        rig.report(len(LINE))
        rig.link.answer(LINE)
        assert rig.copied() == LINE
    (told,) = rig.told
    assert "are reserved for the journal" in told[3]


@pytest.mark.fault(96)
@pytest.mark.parametrize(("ahead_s", "side"), [(3 * 3600.0, "ahead of"), (-1.7e9 + 60, "behind")])
def test_lines_of_a_host_whose_clock_is_off_have_the_heads_time_and_it_is_said_once(
    rig: Rig, ahead_s: float, side: str
) -> None:
    rig.link.ahead_s = ahead_s
    log = b"%017.6f o at 1.500000 o\n%017.6f e then\n" % (1.7e9 + ahead_s - 9, 1.7e9 + ahead_s - 7.5)
    rig.report(len(log))
    while rig.link.orders:
        rig.link.answer(log, chunk=log.index(b"\n") + 1)
    assert rig.copied() == b"1699999991.000000 o at 1.500000 o\n1699999992.500000 e then\n"
    ((run, host, said),) = rig.skewed
    assert (run, host) == ("t-1", "a")
    assert side in said
    assert rig.copier.clock("t-1", "a").is_off
    assert not rig.copier.clock("t-2", "a").is_off, "another run may give that name to another machine"


def test_a_clock_is_as_far_off_as_all_round_trips_allow_until_it_is_set() -> None:
    clock = HostClock()
    assert (clock.ahead_s, clock.is_off) == (0.0, False)
    clock.add_sample(105.0, asked=99.0, answered=102.0)
    assert (clock.ahead_s, clock.is_off) == (4.5, True)
    clock.add_sample(205.0, asked=200.0, answered=200.5)
    assert clock.ahead_s == 4.75
    clock.add_sample(300.0, asked=299.0, answered=301.0)
    assert (clock.ahead_s, clock.is_off) == (0.0, False), "somebody has set it"
    clock.add_sample(390.0, asked=400.0, answered=400.2)
    assert clock.ahead_s == pytest.approx(-10.1)
    assert clock.sentence == "its clock is 10 s behind that of the head node"

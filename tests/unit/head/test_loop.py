"""The loop: nothing is done before the journal has it, and a journal that cannot be written stops no reader."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.actions import Action, Note, PrepareHost, StartTask
from orchestrator.core.errors import DecisionsStopped, InvariantViolated, JournalError
from orchestrator.core.events import (
    DrainRequested,
    Event,
    HostDown,
    HostPrepared,
    HostReported,
    HostSwept,
    HostUp,
    KillRequested,
    TaskReport,
)
from orchestrator.core.plan import Ask, HostPlan, Plan, QueuePlan, TaskId, TaskPlan
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.host import Facts
from orchestrator.core.state.phase_states import Phase, Queued, Rendezvous, Swept
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress
from orchestrator.head.coordinator.halts import STORY_MAX
from orchestrator.head.coordinator.inbox import JOURNAL_RETRY_S
from orchestrator.head.coordinator.loop import AWAKE_S, Loop, _Asked
from orchestrator.head.journal.journal import Journal
from orchestrator.head.node import disk
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan

W0 = TaskId("worker", 0)
FACTS = Facts(python="3.11.2")
ONE = Ask("worker", 1, 1)

JOURNALED_BURST_OF_WORDS = 700
"""Reports with 2000 characters each: together more than the allowance of a host."""


class Disk(Journal):
    """A journal whose disk can be full, and that says in which order things happened."""

    def __init__(self, path: str, story: list[str]) -> None:
        super().__init__(path)
        self.story = story
        self.full = False
        self.full_after: int | None = None
        """How many commits there is room for."""

    def commit(self, run: Run, event: Event, notes: Sequence[Note], **more: Any) -> int:
        if self.full_after is not None:
            self.full, self.full_after = self.full_after <= 0, self.full_after - 1
        if self.full:
            self.story.append(f"refused {type(event).__name__}")
            raise disk.full_error(self.path)
        entry = super().commit(run, event, notes, **more)
        self.story.append(f"kept {type(event).__name__}")
        return entry


class Rig:
    """A loop whose thread is the test's own, unless it is started."""

    def __init__(self, path: Path) -> None:
        self.story: list[str] = []
        self.now = 100.0
        self.journal = Disk(str(path), self.story)
        self.loop = Loop(self.journal, self.execute, changed=self.changed, now=lambda: self.now)
        self.run_id = "t-20260101-000000"

    def execute(self, run: Run, action: Action) -> None:
        assert self.loop.runs[run.run_id] is run
        self.story.append(f"did {type(action).__name__}")

    def changed(self, before: Run, after: Run) -> None:
        if before.phase is not after.phase:
            self.story.append(after.phase.value)

    @property
    def run(self) -> Run:
        return self.loop.runs[self.run_id]

    def submit(self) -> None:
        plan = make_plan(["a"], checkpoint=False)
        self.loop.submit(new_run(self.run_id, plan, epoch=1, at=self.now))

    def play(self, *events: Event) -> None:
        """Post, and let the loop run dry."""
        for event in events:
            self.loop.post(self.run_id, event)
        self.loop.stop()
        self.loop.run()

    def tick(self) -> None:
        """Something that concerns no run wakes the loop."""
        self.loop.post("nobody", HostUp(self.now, "a", "boot"))
        self.play()

    def wait(self, s: float) -> None:
        """Let the time pass in which nobody says anything, while the loop wakes as it does."""
        until = self.now + s
        while self.now < until:
            self.now = min(until, self.now + min(AWAKE_S, self.loop.sleep_s() or AWAKE_S) + 0.001)
            self.loop.turn(0.0)

    def is_in(self, phase: Phase) -> bool:
        return self.run.phase is phase

    def come_to_rendezvous(self) -> None:
        self.submit()
        self.play(HostUp(self.now, "a", "boot"), self.report(), HostPrepared(self.now, "a", FACTS))
        self.story.clear()

    def report(self, **changes: object) -> HostReported:
        if not changes:
            return HostReported(self.now, "a", ())
        told = TaskReport(W0, self.run.generation, "ready", pid=7, port=20000)
        return HostReported(self.now, "a", (replace(told, **changes),))  # type: ignore[arg-type]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "journal.db")
    yield made
    made.journal.close()


def test_what_is_decided_is_kept_before_it_is_done(rig: Rig) -> None:
    rig.submit()
    assert rig.story == ["kept Submitted", "did PrepareHost"]
    for event in (HostUp(rig.now, "a", "boot"), rig.report(), HostPrepared(rig.now, "a", FACTS)):
        rig.play(event)
    assert rig.story[2:] == [
        "kept HostUp",
        "did PrepareHost",
        "kept HostReported",
        "kept HostPrepared",
        "RENDEZVOUS",
        "did StartTask",
    ]
    (kept,) = rig.journal.runs()
    assert kept.run == rig.run


def test_what_lies_in_the_inbox_is_kept_in_one_transaction_before_any_of_it_is_done(rig: Rig) -> None:
    rig.submit()
    rig.story.clear()
    statements: list[str] = []
    rig.journal._db.set_trace_callback(statements.append)
    rig.play(HostUp(rig.now, "a", "boot"), rig.report(), HostPrepared(rig.now, "a", FACTS))
    assert statements.count("COMMIT") == statements.count("BEGIN IMMEDIATE") == 1
    assert rig.story == [
        "kept HostUp",
        "kept HostReported",
        "kept HostPrepared",
        "did PrepareHost",
        "RENDEZVOUS",
        "did StartTask",
    ]
    (kept,) = rig.journal.runs()
    assert kept.run == rig.run
    statements.clear()
    rig.play(rig.report(phase="starting", pid=None), rig.report(phase="starting", pid=None))
    statements.clear()
    rig.play(rig.report(phase="starting", pid=None, progress=Progress(measured={"log_bytes": 5})))
    assert statements == [], "what only moves numbers needs no transaction"


def test_where_the_disk_fills_up_within_a_turn_none_of_it_has_happened_yet(rig: Rig) -> None:
    rig.submit()
    before = rig.run
    rig.story.clear()
    rig.journal.full_after = 1
    rig.play(HostUp(rig.now, "a", "boot"), rig.report(), HostPrepared(rig.now, "a", FACTS))
    assert rig.story == ["kept HostUp", "refused HostReported"]
    assert rig.run is before
    assert rig.journal.runs()[0].run == before, "nor does the journal have any of it"
    rig.story.clear()
    rig.journal.full, rig.journal.full_after = False, None
    rig.now += JOURNAL_RETRY_S
    rig.tick()
    assert rig.is_in(Phase.RENDEZVOUS)
    assert rig.story[0] == "kept HostUp"
    assert rig.journal.runs()[0].run == rig.run


def test_a_transaction_that_the_disk_rolled_back_is_not_continued(rig: Rig) -> None:
    rig.come_to_rendezvous()
    before, event = rig.run, HostDown(rig.now, "a", "gone")

    def commit_twice() -> None:
        with rig.journal.together():
            rig.journal.commit(before, event, [])
            rig.journal._db.execute("ROLLBACK")  # as SQLite does by itself when a disk is full
            rig.journal.commit(before, event, [])

    with pytest.raises(JournalError):
        commit_twice()
    assert [entry.type for entry in rig.journal.entries(rig.run_id)].count("HostDown") == 0


def test_what_cannot_be_kept_is_not_done_and_has_not_happened(rig: Rig) -> None:
    rig.come_to_rendezvous()
    before = rig.run
    rig.journal.full = True
    with pytest.raises(JournalError, match="state disk full"):
        rig.loop.decide(rig.run_id, KillRequested(rig.now))
    assert rig.story == ["refused KillRequested"]
    assert rig.run is before


def test_a_run_that_cannot_be_kept_does_not_begin(rig: Rig) -> None:
    rig.journal.full = True
    with pytest.raises(JournalError):
        rig.submit()
    assert rig.loop.runs == {}
    rig.journal.full = False
    assert rig.journal.runs() == []
    rig.submit()
    assert rig.run.phase is Phase.PENDING


def test_events_wait_in_their_order_for_the_disk_and_reports_are_let_go(rig: Rig) -> None:
    rig.submit()
    rig.play(rig.report())
    rig.story.clear()
    rig.journal.full = True
    rig.play(HostUp(rig.now, "a", "boot"), rig.report(), HostPrepared(rig.now, "a", FACTS))
    assert rig.is_in(Phase.PENDING)
    assert rig.story == ["refused HostUp"], "and the one behind it was not tried before it"
    rig.journal.full = False
    rig.now += JOURNAL_RETRY_S
    rig.play(rig.report())
    assert [line for line in rig.story if line.startswith("kept")] == ["kept HostUp", "kept HostPrepared"]
    assert rig.is_in(Phase.RENDEZVOUS)
    assert rig.run.within(Rendezvous).deadline_at == rig.now + rig.run.plan.timing.start_after_s, (
        "the wait begins when it is acted on"
    )


def test_the_disk_is_not_tried_more_often_than_it_should_be(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.journal.full = True
    rig.play(HostDown(rig.now, "a", "gone"))
    rig.play(*(HostDown(rig.now, "a", f"gone {n}") for n in range(50)))
    assert rig.story == ["refused HostDown"]
    rig.now += JOURNAL_RETRY_S
    rig.play(HostDown(rig.now, "a", "gone again"))
    assert rig.story.count("refused HostDown") == 2
    assert f"for {JOURNAL_RETRY_S:.0f} s the coordinator" in (rig.loop.trouble() or ""), (
        "since the first time"
    )


def test_a_deadline_that_comes_while_the_disk_is_full_waits_for_it(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.journal.full = True
    rig.wait(10.5)  # the host is silent
    assert rig.story == ["refused Ticked"]
    rig.journal.full = False
    rig.now += JOURNAL_RETRY_S
    rig.tick()
    assert rig.story == ["refused Ticked", "kept Ticked"]
    assert rig.run.hosts[0].link.value == "UNREACHABLE"


def test_nobody_is_given_up_for_the_time_in_which_this_process_did_not_run(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """It was stopped; what its hosts said meanwhile is read only now, or not yet."""
    rig.come_to_rendezvous()
    rig.play(rig.report(phase="ready"))
    assert rig.is_in(Phase.RUNNING)
    rig.now += 10 * rig.run.plan.timing.lost_after_s
    rig.tick()
    rig.wait(rig.run.plan.timing.unreachable_after_s - 2 * AWAKE_S)
    assert rig.run.hosts[0].link.value == "CONNECTED"
    assert "this coordinator did not run for 599 s; no host is judged for that time" in caplog.text
    rig.wait(2 * rig.run.plan.timing.lost_after_s)
    assert rig.run.hosts[0].link.value == "UNREACHABLE", "its own silence counts"


class Jumping:
    """A clock that goes far ahead after each reading: the process is stopped there, within a turn too."""

    def __init__(self, rig: Rig, jump_s: float) -> None:
        self.rig = rig
        self.jump_s = jump_s

    def __call__(self) -> float:
        now = self.rig.now
        self.rig.now += self.jump_s
        return now


@pytest.mark.fault(108)
@pytest.mark.parametrize("is_reported", [True, False], ids=["reports wait", "nothing waits"])
def test_a_pause_within_a_turn_blames_nobody(rig: Rig, is_reported: bool) -> None:
    """What was posted before the pause is decided after it, and counts as said after it."""
    rig.come_to_rendezvous()
    rig.play(rig.report(phase="ready"))
    timing = rig.run.plan.timing
    rig.loop._now = Jumping(rig, 3 * timing.lost_after_s)
    for _ in range(4):
        if is_reported:
            rig.loop.post(rig.run_id, rig.report(phase="running"))
        else:
            rig.loop.post("nobody", HostUp(rig.now, "a", "boot"))
        rig.now += 3 * timing.lost_after_s
        rig.loop.turn(0.0)
    assert rig.run.hosts[0].link.value == "CONNECTED"
    assert rig.is_in(Phase.RUNNING)


@pytest.mark.fault(108)
def test_a_pause_before_a_persons_command_blames_nobody(rig: Rig) -> None:
    """The command is decided in the turn, by the turn's instant, whatever the clock says meanwhile."""
    rig.come_to_rendezvous()
    rig.play(rig.report(phase="ready"))
    rig.now += 0.5

    def command() -> None:
        rig.now += 3 * rig.run.plan.timing.lost_after_s
        rig.loop.decide(rig.run_id, DrainRequested(rig.now, "a"))

    rig.loop._inbox.put(_Asked(command, _ignored()))
    rig.loop.turn(0.0)
    rig.tick()
    assert rig.run.hosts[0].link.value == "CONNECTED"


def test_what_fails_after_a_decision_does_not_end_the_thread_that_decides(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError(13, "not ours", "/state/secrets/t.json")

    rig.loop._changed = rig.loop._execute = fails
    rig.come_to_rendezvous()
    assert rig.is_in(Phase.RENDEZVOUS)
    assert "could not tell what has changed" in caplog.text
    assert "could not carry out an action" in caplog.text


def test_silence_while_the_disk_is_full_does_not_count(rig: Rig) -> None:
    """The loop turns meanwhile, so this is no absence of its own; but reports are let go."""
    rig.come_to_rendezvous()
    rig.play(rig.report(phase="ready"))
    rig.journal.full = True
    rig.wait(3 * rig.run.plan.timing.lost_after_s)
    rig.journal.full = False
    rig.wait(2 * JOURNAL_RETRY_S)
    silent_s = rig.now - (rig.run.hosts[0].heard_at or 0.0)
    assert silent_s < rig.run.plan.timing.unreachable_after_s + 5 * JOURNAL_RETRY_S, (
        "it counts before and since"
    )


def test_nobody_is_given_up_for_the_time_in_which_the_disk_was_full(rig: Rig) -> None:
    """The host was heard all the time, and what it said could not be taken."""
    rig.come_to_rendezvous()
    rig.play(rig.report(phase="ready"))
    assert rig.is_in(Phase.RUNNING)
    rig.journal.full = True
    rig.play(HostDown(rig.now, "a", "gone"))
    rig.play(rig.report(phase="exited"), rig.report(phase="exited"))
    rig.journal.full = False
    rig.now += 10 * rig.run.plan.timing.start_after_s
    before = rig.run.hosts[0].heard_at
    rig.tick()
    assert rig.run.hosts[0].link.value == "CONNECTED"
    assert rig.run.hosts[0].heard_at == rig.now != before
    found = rig.run.first_cause
    assert found is not None
    assert found.cause.value == "shim died", "what it said last is not lost, and it is not lost with its host"


def test_a_report_that_only_moves_numbers_is_not_kept_but_seen(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.play(rig.report(), rig.report(phase="running", progress=Progress(global_step=1)))
    rig.story.clear()
    seq = rig.loop.news.seq
    for step in range(2, 9):
        rig.play(rig.report(phase="running", progress=Progress(global_step=step)))
    assert rig.story == []
    assert rig.loop.news.seq == seq
    assert rig.run.global_step == 8


@pytest.mark.fault(57)
def test_of_the_reports_that_wait_only_the_newest_of_a_host_is_decided(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.play(*(rig.report(pid=pid) for pid in range(100, 600)))
    assert rig.story.count("kept HostReported") == 1
    assert rig.run.task(W0).pid == 599


def test_no_report_is_decided_before_what_happened_earlier(rig: Rig) -> None:
    rig.come_to_rendezvous()
    gone = HostDown(rig.now, "a", "gone")
    rig.play(rig.report(pid=1), gone, rig.report(pid=2), rig.report(pid=3))
    kept = [line for line in rig.story if line.startswith("kept")]
    assert kept == ["kept HostReported", "kept HostDown", "kept HostReported"]
    assert rig.run.task(W0).pid == 3


@pytest.mark.fault(57)
def test_a_host_that_says_something_else_each_time_is_heard_less_often_and_without_its_texts(
    rig: Rig,
) -> None:
    rig.come_to_rendezvous()
    words = "x" * 2000
    for number in range(JOURNALED_BURST_OF_WORDS):
        rig.play(rig.report(pid=1000 + number, said=(("said", f"{number} {words}"),)))
    kept = len(rig.story)
    for _ in range(200):
        rig.now += 0.1
        rig.play(rig.report(pid=int(rig.now * 10), said=(("said", f"{rig.now} late"),)))
        rig.tick()
    assert 9 <= len(rig.story) - kept <= 11, "one in two seconds"
    rig.play(rig.report(pid=7, said=(("said", "later still"),)))
    paused_until = rig.loop._unread.due_at()
    assert paused_until is not None
    rig.now = paused_until - 0.25
    assert rig.loop.sleep_s() == pytest.approx(0.25), "it wakes for what it holds back"
    assert not any("late" in said for said in rig.run.task(W0).said)
    assert rig.run.host("a").heard_at is not None
    assert rig.now - (rig.run.host("a").heard_at or 0.0) <= 2.0, "it never seems to be silent"
    rig.play(HostDown(rig.now, "a", "gone"))
    assert rig.story[-1] == "kept HostDown", "nothing else waits for that"


def test_an_event_that_changes_nothing_is_not_kept(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.play(HostDown(rig.now, "a", "gone"))
    rig.story.clear()
    rig.play(HostDown(rig.now, "a", "gone"), HostDown(rig.now, "a", "gone"))
    assert rig.story == []


def test_an_event_of_a_run_that_is_not_known_is_let_go(rig: Rig) -> None:
    rig.tick()
    assert rig.story == []


def test_another_coordinator_goes_on_with_what_was_kept(rig: Rig, tmp_path: Path) -> None:
    rig.come_to_rendezvous()
    rig.journal.close()
    other = Rig(tmp_path / "journal.db")
    other.now = 5.0  # after a boot, another clock
    other.loop.take_up(other.journal.runs(), epoch=2)
    assert other.story == ["kept EpochBegan"]
    assert (other.run.epoch, other.run.phase) == (2, Phase.RENDEZVOUS)
    assert other.run.within(Rendezvous).deadline_at == pytest.approx(5.0 + rig.run.plan.timing.start_after_s)
    other.play(HostUp(6.0, "a", "boot"))
    assert other.story[1:] == ["kept HostUp", "did StartTask"]
    other.journal.close()


def test_what_a_run_has_waited_under_one_coordinator_counts_under_the_next_one(
    rig: Rig, tmp_path: Path
) -> None:
    """Of a run that waits nothing is journaled, so its own last entry does not say how long a coordinator lived."""
    host = HostPlan("a", address="a", gpus=(0,))
    task = TaskPlan(W0, "a", (0,))
    for name in ("trains", "z", "a", "new"):
        queue = QueuePlan(max_wait_s=500_000.0) if name != "trains" else None
        plan = Plan(name, "mirrored", (host,), (task,), "t.py", queue=queue)
        rig.tick()
        rig.loop.submit(new_run(name, plan, epoch=1, at=rig.now))
        rig.now += 100_000
    rig.journal.close()
    other = Rig(tmp_path / "journal.db")
    other.now = 5.0
    other.loop.take_up(other.journal.runs(), epoch=2)
    waiting = {name: run.within(Queued) for name, run in other.loop.runs.items() if name != "trains"}
    waited = {name: round(5.0 - queued.since_at) for name, queued in waiting.items()}
    assert waited == {"z": 200_000, "a": 100_000, "new": 0}
    assert waiting["z"].give_up_at == 5.0 + 300_000
    other.journal.close()


def test_a_host_that_a_run_has_waited_for_in_vain_is_passed_over_for_a_while(rig: Rig) -> None:
    hosts = tuple(HostPlan(name, address=name, gpus=(0,)) for name in ("off", "on"))
    plan = Plan("t", "mirrored", hosts, (TaskPlan(W0, "off", (0,)),), "t.py", queue=QueuePlan(), needs=(ONE,))
    rig.loop.submit(new_run(rig.run_id, plan, epoch=1, at=rig.now))
    rig.tick()
    assert (rig.run.phase, rig.run.plan.tasks[0].host) == (Phase.PENDING, "off")
    rig.wait(plan.timing.start_after_s + 1)
    assert rig.run.phase is Phase.QUEUED, "it has not failed, although it has never trained"
    rig.wait(60)
    assert (rig.run.phase, rig.run.plan.tasks[0].host) == (Phase.PENDING, "on")


def test_runs_of_the_queue_begin_one_after_the_other_as_what_they_need_becomes_free(rig: Rig) -> None:
    def phases() -> list[Phase]:
        return [run.phase for run in rig.loop.runs.values()]

    host = HostPlan("a", address="a", gpus=(0,))
    task = TaskPlan(W0, "a", (0,))
    for name in ("first", "second"):
        plan = Plan(name, "mirrored", (host,), (task,), "t.py", queue=QueuePlan("normal"))
        rig.loop.submit(new_run(name, plan, epoch=1, at=rig.now))
        rig.now += 1
    assert phases() == [Phase.QUEUED, Phase.QUEUED]
    rig.tick()
    assert phases() == [Phase.PENDING, Phase.QUEUED]
    rig.loop.post("first", KillRequested(rig.now))
    rig.now += 30
    rig.tick()
    assert phases() == [Phase.KILLED, Phase.PENDING]
    assert rig.loop._waits == set(), "nobody waits any more"


# --- a fault of ours ----------------------------------------------------------------------------------------


def impossible(rig: Rig) -> Event:
    """Return an event in which the core raises: of a host that the run does not have."""
    return HostUp(rig.now, "no-such-host", "boot")


@pytest.mark.fault(58)
def test_a_step_that_raises_stops_the_decisions_about_that_run_and_changes_nothing(rig: Rig) -> None:
    rig.come_to_rendezvous()
    before = rig.run
    rig.play(impossible(rig))
    assert rig.run is before
    assert rig.story == ["kept HostUp"], "the event is there to be replayed, and nothing is done"
    assert rig.loop.sleep_s() is None, "it is not woken for what was due"
    rig.play(rig.report(), HostDown(rig.now, "a", "gone"))
    assert rig.run is before
    rig.now += 1e6
    rig.tick()
    assert rig.run is before
    assert rig.loop.sleep_s() is None, "nothing of it is due any more"


@pytest.mark.fault(58)
def test_it_is_said_with_what_led_to_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.come_to_rendezvous()
    rig.play(impossible(rig))
    halt = rig.loop.halted[rig.run_id]
    assert halt.error == "KeyError: 'no-such-host'"
    assert "its tasks keep training" in halt.sentence(rig.run)
    assert f"`orch kill {rig.run.plan.name} --force` ends it" in halt.sentence(rig.run)
    *earlier, last = halt.story
    assert [line for line in earlier if "PENDING -> RENDEZVOUS; StartTask worker:0 gen 1 on a" in line]
    assert last.endswith("HostUp host=no-such-host boot_id=boot before=: KeyError: 'no-such-host'")
    event = rig.journal.events()[-1]
    assert (event["kind"], event["message"]) == ("decisions-stopped", halt.sentence(rig.run))
    assert event["data"] == {"error": halt.error, "story": list(halt.story)}
    assert "what led to it:" in caplog.text


def test_the_story_is_bounded(rig: Rig) -> None:
    rig.come_to_rendezvous()
    for number in range(3 * STORY_MAX):
        rig.play(HostDown(rig.now, "a", f"try {number} " + "x" * 10_000))
    rig.play(impossible(rig))
    halt = rig.loop.halted[rig.run_id]
    assert len(halt.story) == STORY_MAX + 1
    assert sum(map(len, halt.story)) < 20_000


@pytest.mark.fault(58)
def test_a_state_that_breaks_an_invariant_is_never_taken(rig: Rig) -> None:
    rig.come_to_rendezvous()
    broken = replace(rig.run, budget=Budget(without_progress=99))
    rig.loop.runs = {rig.run_id: broken}
    rig.play(HostDown(rig.now, "a", "gone"))
    assert rig.run is broken
    assert "restarts stay within the budget" in rig.loop.halted[rig.run_id].error


@pytest.mark.fault(58)
def test_all_other_runs_go_on(rig: Rig) -> None:
    rig.come_to_rendezvous()
    other = new_run("u-20260101-000000", make_plan(["b"], checkpoint=False), epoch=1, at=rig.now)
    rig.loop.submit(other)
    rig.play(impossible(rig))
    for event in (HostUp(rig.now, "b", "boot"), HostPrepared(rig.now, "b", FACTS)):
        rig.loop.post(other.run_id, event)
    rig.play()
    assert rig.loop.runs[other.run_id].phase is Phase.RENDEZVOUS
    due_s = rig.loop.sleep_s()
    assert due_s is not None


def test_what_a_person_wants_of_such_a_run_is_refused_with_the_way_out(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.play(impossible(rig))
    with pytest.raises(
        DecisionsStopped, match="because of a bug in orch: KeyError: 'no-such-host'"
    ) as caught:
        rig.loop.decide(rig.run_id, KillRequested(rig.now))
    assert caught.value.exit_code == 6
    assert "--force" in str(caught.value.hint)


def test_a_person_whose_own_command_stops_the_decisions_is_told(rig: Rig) -> None:
    rig.come_to_rendezvous()
    with pytest.raises(DecisionsStopped):
        rig.loop.decide(rig.run_id, DrainRequested(rig.now, "no-such-host"))


def test_such_a_run_is_ended_by_sweeping_its_hosts(rig: Rig) -> None:
    rig.come_to_rendezvous()
    rig.play(impossible(rig))
    rig.story.clear()
    rig.loop.abandon(rig.run_id)
    assert rig.story == ["kept KillRequested", "KILLED", "did SweepHost"]
    assert rig.run.proof == {}
    assert rig.loop.halted == {}
    rig.play(HostSwept(rig.now, "a", Swept(by="cgroup")))
    assert rig.story[3:] == ["kept HostSwept", "did CloseHost"]
    assert rig.run.proof == {"a": Swept(by="cgroup")}


def test_a_run_that_raises_at_once_does_not_begin(rig: Rig) -> None:
    plan = make_plan(["a"], checkpoint=False)
    broken = replace(new_run(rig.run_id, plan, epoch=1, at=rig.now), budget=Budget(without_progress=99))
    with pytest.raises(InvariantViolated):
        rig.loop.submit(broken)
    assert rig.loop.runs == {}
    assert rig.story == []


def test_the_next_coordinator_tries_again(rig: Rig, tmp_path: Path) -> None:
    rig.come_to_rendezvous()
    rig.play(impossible(rig))
    rig.journal.close()
    other = Rig(tmp_path / "journal.db")
    other.loop.take_up(other.journal.runs(), epoch=2)
    assert other.loop.halted == {}
    assert (other.run.epoch, other.run.phase) == (2, Phase.RENDEZVOUS)
    other.journal.close()


def test_a_fault_in_the_deadlines_of_a_run_is_one_of_that_run(rig: Rig) -> None:
    rig.come_to_rendezvous()
    nowhere = replace(rig.run.tasks[0], host="no-such-host")
    rig.loop.runs = {rig.run_id: in_phase(rig.run.with_task(nowhere), Phase.RUNNING, position_at=1.0)}
    rig.loop._due.clear()
    assert rig.loop.sleep_s() is None
    assert rig.loop.halted[rig.run_id].error == "KeyError: 'no-such-host'"


# --- commands ---------------------------------------------------------------------------------------------


@pytest.fixture
def running(rig: Rig) -> Iterator[Rig]:
    rig.submit()
    thread = threading.Thread(target=rig.loop.run)
    thread.start()
    yield rig
    rig.loop.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_commands_are_answered_by_the_deciding_thread(running: Rig) -> None:
    assert running.loop.call(lambda: threading.current_thread().name) != threading.current_thread().name


def test_what_a_command_raises_is_for_who_asked_and_ends_nothing(running: Rig) -> None:
    def bad() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        running.loop.call(bad)
    assert running.loop.call(lambda: 5) == 5


def test_on_a_full_disk_a_change_is_refused_at_once_and_a_look_is_answered(running: Rig) -> None:
    running.journal.full = True
    running.loop.post(running.run_id, HostUp(running.now, "a", "boot"))
    with pytest.raises(JournalError, match="state disk full"):
        running.loop.call(
            lambda: running.loop.decide(running.run_id, KillRequested(running.now)), timeout_s=5.0
        )
    events = running.loop.call(lambda: running.journal.events(), timeout_s=5.0)
    assert [event["kind"] for event in events] == ["submitted"]
    assert running.run.phase is Phase.PENDING


def test_a_command_that_nobody_waits_for_any_more_is_not_run(running: Rig) -> None:
    gate, ran = threading.Event(), threading.Event()
    running.loop._inbox.put(_Asked(gate.wait, _ignored()))
    with pytest.raises(TimeoutError):
        running.loop.call(ran.set, timeout_s=0.01)
    gate.set()
    assert running.loop.call(lambda: "later", timeout_s=10.0) == "later"
    assert not ran.is_set()


def test_a_command_that_had_begun_is_waited_for(running: Rig) -> None:
    begun, gate, told = threading.Event(), threading.Event(), []

    def slow() -> str:
        begun.set()
        gate.wait(10)
        return "done"

    def ask() -> None:
        while not begun.is_set():  # one that timed out before it had begun is never run, and asked for again
            with contextlib.suppress(TimeoutError):
                told.append(running.loop.call(slow, timeout_s=0.01))

    asker = threading.Thread(target=ask)
    asker.start()
    assert begun.wait(10)
    asker.join(0.05)
    assert asker.is_alive()
    gate.set()
    asker.join(10)
    assert told == ["done"]


def _ignored() -> Future[object]:
    return Future()


def test_notes_are_not_performed(rig: Rig) -> None:
    rig.submit()
    assert not any(name in line for line in rig.story for name in (Note.__name__,))
    assert {PrepareHost.__name__, StartTask.__name__} >= {
        line.split()[1] for line in rig.story if "did" in line
    }

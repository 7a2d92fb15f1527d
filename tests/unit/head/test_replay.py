"""A run is replayed from its journal as it was: with heartbeats that have no entry, over several coordinators."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.actions import Action, Note
from orchestrator.core.decision import Decision
from orchestrator.core.errors import UsageError
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Phase, Swept
from orchestrator.core.state.run import Run, new_run
from orchestrator.core.state.task import Progress
from orchestrator.head.journal.changes import changed, changes
from orchestrator.head.journal.reading import read_entries
from orchestrator.head.journal.replay import Played, replay
from orchestrator.head.node.paths import Paths
from tests.unit.core.phases import in_phase
from tests.unit.core.transcript import make_plan
from tests.unit.head.recording import FACTS, RUN, Head


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def played(path: Path) -> list[Played]:
    return list(replay(read_entries(Paths(str(path.parent), "/nowhere"), "t")[1]))


def told(path: Path) -> list[str]:
    """Return what today's core decides, which must be what was recorded."""
    found = played(path)
    assert [one.entry.seq for one in found if one.differs or one.why_not] == []
    return [one.outcome.decision.phase for one in found if one.outcome and one.outcome.decision]


def test_it_is_decided_again_as_it_was_although_hardly_a_heartbeat_has_an_entry(path: Path) -> None:
    head = Head(path)
    head.begin()
    head.train(600)
    head.train(80, hosts="a")  # b is silent, and counts as lost
    entries = len(head.journal.entries(RUN))
    head.end()
    phases = told(path)
    assert "RUNNING -> STOPPING" in phases
    assert len(phases) == entries < 40, "and there were some six hundred heartbeats"


def test_another_coordinator_on_another_clock_is_replayed_too(path: Path) -> None:
    head = Head(path, now=1e6)
    head.begin()
    head.train(60)
    head.end()
    after = Head(path, now=5.0)
    after.loop.take_up(after.journal.runs(), 2)
    for host in "ab":
        after.tell(ev.HostUp(after.now, host, "boot"))
    after.train(60)
    after.tell(ev.KillRequested(after.now))
    after.end()
    assert told(path)[-1] == "RUNNING -> STOPPING"


def test_time_in_which_nothing_could_be_decided_is_replayed_too(path: Path) -> None:
    head = Head(path)
    head.begin()
    head.train(20)
    head.loop._backlog.begin(head.now)  # as where the disk was full
    head.now += 300.0
    head.loop.post("nobody", ev.Ticked(head.now))
    head.loop.turn(0.0)
    head.train(100, hosts="a")
    head.end()
    assert "RUNNING -> STOPPING" in told(path)


def otherwise(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Run, list[Action]], tuple[Run, list[Action]]]
) -> None:
    """Let today's core answer a kill in another way than it did."""
    step = decide.step

    def other(run: Run, event: ev.Event) -> Decision:
        after, actions, weight = step(run, event)
        if isinstance(event, ev.KillRequested):
            after, actions = change(after, actions)
        return Decision(after, actions, weight)

    monkeypatch.setattr(decide, "step", other)


@pytest.fixture
def killed(path: Path) -> int:
    """Return the entry of the kill, of a run that was killed; another coordinator came after it."""
    head = Head(path)
    head.begin()
    head.train(10)
    head.tell(ev.KillRequested(head.now))
    (seq,) = (entry.seq for entry in head.journal.entries(RUN) if entry.type == "KillRequested")
    head.tell(ev.HostDown(head.now, "a", "gone"))
    head.end()
    after = Head(path, now=5.0)
    after.loop.take_up(after.journal.runs(), 2)
    after.end()
    return seq


def test_where_todays_core_decides_otherwise_is_said_and_what_follows_is_not_played(
    path: Path, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    otherwise(monkeypatch, lambda after, actions: (after, actions[:1]))
    found = played(path)
    assert [one.entry.seq for one in found if one.differs] == [killed]
    *_, down, epoch = found
    assert down.why_not == f"today's core decides otherwise at {killed}, so it does not reach this state"
    assert epoch.outcome is not None, "the next coordinator wrote the whole state"
    assert not epoch.differs


def test_another_note_is_a_difference_and_leads_to_the_same(
    path: Path, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    otherwise(monkeypatch, lambda after, actions: (after, [*actions, Note(NoteKind.WARNING, "it is so")]))
    found = played(path)
    assert [one.entry.seq for one in found if one.differs] == [killed]
    assert all(not one.why_not for one in found)


def test_a_fault_of_ours_is_replayed_and_said(path: Path) -> None:
    head = Head(path)
    head.begin()
    head.tell(ev.HostUp(head.now, "no-such-host", "boot"))
    head.loop.abandon(RUN)
    head.tell(ev.HostSwept(head.now, "a", Swept(by="cgroup")))
    head.end()
    *_, fault, forced, swept = played(path)
    assert fault.outcome is not None
    assert (fault.outcome.raised, fault.differs) == ("KeyError: 'no-such-host'", False)
    assert forced.why_not.startswith("the core did not decide it")
    assert swept.outcome is not None
    assert not swept.differs


def test_what_cannot_be_read_is_said_and_the_next_whole_state_goes_on(path: Path, killed: int) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE journal SET event = '{}' WHERE seq = ?", (killed,))
        db.execute("UPDATE journal SET type = 'OfTomorrow' WHERE seq = ?", (killed - 1,))
    *_, unknown, unreadable, after, epoch = played(path)
    assert (
        unknown.why_not
        == "this orch does not understand this OfTomorrow (changed on the disk: its checksum is wrong)"
    )
    assert unreadable.why_not == after.why_not == f"{killed - 1} could not be played"
    assert epoch.outcome is not None


def test_a_run_that_is_not_there(path: Path) -> None:
    with pytest.raises(UsageError, match="there is no journal"):
        read_entries(Paths(str(path.parent), "/nowhere"), "t")
    Head(path).end()
    with pytest.raises(UsageError, match="the journal has no run 't'"):
        read_entries(Paths(str(path.parent), "/nowhere"), "t")


# --- changes -------------------------------------------------------------------------------------------------


BEFORE = in_phase(new_run(RUN, make_plan(["a", "b"], checkpoint=True), epoch=1, at=0.0), Phase.RUNNING)


@pytest.mark.parametrize(
    "after",
    [
        BEFORE,
        replace(BEFORE, best_step=7, reason="é — 漢"),
        BEFORE.with_host(replace(BEFORE.hosts[1], heard_at=3.5, link=Link.CONNECTED, facts=FACTS)),
        BEFORE.with_task(replace(BEFORE.tasks[0], progress=Progress(global_step=5, metrics={"loss": 0.1}))),
        in_phase(BEFORE, Phase.RUNNING, position=5, position_at=3.25),
        in_phase(BEFORE, Phase.STOPPING),
        replace(BEFORE, tasks=BEFORE.tasks[:1], replacements={"b": None}),
        replace(BEFORE, warnings=("one", "two")),
    ],
)
def test_a_change_that_is_applied_gives_what_it_was_made_of(after: Run) -> None:
    found = changes(BEFORE, after)
    assert changed(BEFORE, found) == after
    assert (found is None) == (after == BEFORE)
    assert changed(None, changes(None, after)) == after
    if found is not None:
        assert changed(None, found) is None, "without the state that it is of, it is nothing"


def test_a_change_to_what_is_not_there_is_not_applied() -> None:
    of_two = changes(BEFORE, BEFORE.with_host(replace(BEFORE.hosts[1], heard_at=3.5)))
    assert changed(replace(BEFORE, hosts=BEFORE.hosts[:1]), of_two) is None

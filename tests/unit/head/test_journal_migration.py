"""A journal of 0.1.0, written by its code, and a record of a host: nothing is lost, and the runs are taken up."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from orchestrator.core.events import HostReported, HostUp, TaskReport
from orchestrator.core.invariants import check
from orchestrator.core.rebuild import rebuilt
from orchestrator.core.state.host import HostState
from orchestrator.core.state.phase_states import (
    Backoff,
    Ended,
    Intent,
    Pending,
    Phase,
    Rendezvous,
    Running,
    Stopping,
)
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import TaskPhase
from orchestrator.head.coordinator.loop import Loop
from orchestrator.head.hosts import host_records as records
from orchestrator.head.journal.format import VERSION
from orchestrator.head.journal.journal import Journal
from orchestrator.head.journal.migration import migrated, migrated_text
from orchestrator.head.journal.reading import peek, read_entries
from orchestrator.head.journal.states import dump_run

FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "journal_0_1_0"
UP_S = 1_000_000.0
"""How long the head node had been up when it was written."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = tmp_path / "journal.db"
    found.write_bytes(gzip.decompress((FIXTURE / "journal.db.gz").read_bytes()))
    return str(found)


@pytest.fixture
def journal(path: str) -> Iterator[Journal]:
    opened = Journal(path)
    yield opened
    opened.close()


def by_name(journal: Journal) -> dict[str, Run]:
    return {one.run.plan.name: one.run for one in journal.contents().kept}


PHASES = {
    "moved": Phase.RUNNING,
    "cut": Phase.RUNNING,
    "stopping": Phase.STOPPING,
    "regroups": Phase.STOPPING,
    "proving": Phase.STOPPING,
    "backoff": Phase.BACKOFF,
    "starting": Phase.RENDEZVOUS,
    "stalled": Phase.RUNNING,
    "pending": Phase.PENDING,
    "done": Phase.SUCCEEDED,
    "owing": Phase.KILLED,
    "refused": Phase.FAILED,
}


@pytest.mark.fault(39)
def test_all_runs_of_0_1_0_are_read_after_a_backup(path: str) -> None:
    seen = {one.run.plan.name: one.run for one in peek(path).kept}
    assert {name: run.phase for name, run in seen.items()} == PHASES, "a look reads them as they are"
    assert not os.path.exists(f"{path}.before-v{VERSION}")
    opened = Journal(path)
    assert by_name(opened) == seen
    assert opened.contents().unreadable == ()
    assert len(opened.events()) == 89
    opened.close()
    before = peek(f"{path}.before-v{VERSION}")
    assert {one.run.plan.name: one.run for one in before.kept} == seen, "the way back"


def test_what_0_1_0_called_otherwise_is_there(journal: Journal) -> None:
    runs = by_name(journal)
    moved = runs["moved"]
    assert dict(moved.replacements) == {"b": "s"}
    assert (moved.host("b").state, moved.host("b").state_why) == (HostState.DRAINED, "by the user")
    assert moved.checkpoint is not None
    assert moved.within(Running).position == 40, "the heartbeat of step 50 taught nothing"
    assert moved.within(Running).verify_at is not None
    assert runs["backoff"].budget.failure == "ValueError: bad"
    assert runs["backoff"].within(Backoff).start_at is not None
    assert runs["stopping"].within(Stopping).intent is Intent.KILL
    assert runs["regroups"].within(Stopping).intent is Intent.RESCHEDULE
    proving = runs["proving"].within(Stopping)
    assert set(proving.proof or {}) == {"l"}
    assert proving.final_verification_asked_at is not None
    starting = runs["starting"].within(Rendezvous)
    assert (starting.seeding, starting.seeding_at is not None) == (
        "3 of 9 MiB of the checkpoint are on r",
        True,
    )
    assert runs["stalled"].within(Running).evidence_at is not None
    assert runs["pending"].within(Pending).deadline_at is not None
    assert set(runs["owing"].within(Ended).proof or {}) == {"y"}
    assert runs["refused"].within(Ended).proof is None


def parts_of(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    if get_origin(hint) in (Union, types.UnionType, tuple):
        for part in get_args(hint):
            yield from parts_of(part)


def lost(document: Any, kinds: list[type[Any]], path: str) -> list[str]:
    """Return the keys of a document that no type of ours has: pydantic passes over them in silence."""
    if isinstance(document, list):
        return [found for i, one in enumerate(document) for found in lost(one, kinds, f"{path}[{i}]")]
    if not isinstance(document, dict) or not kinds:
        return []
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
    known = {field.name for kind in kinds for field in fields(kind)}
    found = [f"{path}.{name}" for name in document if name not in known]
    for name in known & document.keys():
        found += lost(document[name], list(parts_of(hints[name])), f"{path}.{name}")
    return found


def test_nothing_that_was_known_is_dropped_in_silence(path: str) -> None:
    with sqlite3.connect(path) as db:
        states = [json.loads(state) for (state,) in db.execute("SELECT state FROM runs")]
    for state in states:
        assert lost(migrated(state), [Run], state["run_id"]) == []
    assert lost(states[0], [Run], "r") != [], "this test would notice"


def test_a_migrated_state_is_not_migrated_again(journal: Journal) -> None:
    for run in by_name(journal).values():
        assert migrated_text(dump_run(run)) == dump_run(run)
    for text in ("", "null", "[]", '{"phase": "RUNNING"}', '{"phase": "RUNNING", "hosts": 7, "since_at": 0}'):
        assert migrated_text(text) == text, "what is no state is found when it is read"


def test_the_events_of_0_1_0_are_understood(path: str) -> None:
    run_id, entries = read_entries(path, "moved")
    assert run_id == "moved-20261001-080000"
    assert len(entries) == 24
    assert all(entry.event is not None for entry in entries)
    assert all(entry.outcome is None for entry in entries)


class Head:
    """A coordinator of today that takes up the journal after a reboot: the new clock has hardly begun."""

    def __init__(self, journal: Journal, now: float = 100.0) -> None:
        self.now = now
        self.loop = Loop(journal, lambda *_: None, changed=lambda *_: None, now=lambda: self.now)
        self.loop.take_up(journal.runs(), journal.take_epoch())

    def run(self, name: str) -> Run:
        return self.loop.runs[f"{name}-20261001-080000"]

    def pass_time(self, until: float) -> None:
        while (sleep_s := self.loop.sleep_s()) is not None and self.now + sleep_s <= until:
            self.now += sleep_s
            self.loop.post("nobody", HostUp(self.now, "x", "boot"))
            self.loop.turn(0.0)
        self.now = until

    def hear(self, name: str, *hosts: str, phase: str = "running") -> None:
        run = self.run(name)
        for host in hosts:
            self.loop.post(run.run_id, HostUp(self.now, host, f"boot-of-{host}"))
            told = tuple(
                TaskReport(t.id, t.generation, phase, pid=t.pid, port=t.port)
                for t in run.tasks
                if t.host == host
            )
            self.loop.post(run.run_id, HostReported(self.now, host, told))
        for _ in range(2 * len(hosts)):
            self.loop.turn(0.0)


def test_a_coordinator_takes_them_all_up(journal: Journal) -> None:
    head = Head(journal)
    assert head.loop.halted == {}
    for name, phase in PHASES.items():
        assert head.run(name).phase is phase
        check(head.run(name))
    due_s = head.loop.sleep_s()
    assert due_s is not None
    assert due_s < 60.0, "deadlines are of the new clock"


def test_a_run_that_trained_trains_on_under_the_next_coordinator(journal: Journal) -> None:
    head = Head(journal)
    head.hear("moved", "a", "s")
    assert (head.run("moved").phase, head.run("moved").budget.restarts) == (Phase.RUNNING, 1)
    assert all(task.heard_at == 100.0 for task in head.run("moved").tasks)
    adopted = [
        event["task"] for event in journal.events(name="moved", limit=10_000) if event["kind"] == "adopted"
    ]
    assert adopted == ["worker:0", "worker:1"]


@pytest.mark.fault(67)
def test_row_67_a_host_that_never_comes_back_is_lost_by_the_new_clock(journal: Journal) -> None:
    head = Head(journal)
    for second in range(0, 120, 2):
        head.hear("cut", "c", "d", "e")
        head.pass_time(100.0 + second + 2)
    assert (
        head.run("cut").task(min(t.id for t in head.run("cut").tasks if t.host == "f")).phase
        is TaskPhase.LOST
    )


def test_what_was_being_ended_comes_to_its_end(journal: Journal) -> None:
    head = Head(journal)
    head.pass_time(100.0 + 3600.0)
    assert head.loop.halted == {}
    assert head.run("stopping").phase is Phase.KILLED
    assert head.run("proving").phase is Phase.KILLED
    assert head.run("pending").phase is Phase.FAILED
    assert head.run("moved").phase is Phase.RUNNING, (
        "all its hosts are silent: it is the head that is cut off"
    )


def test_what_a_host_has_kept_of_0_1_0_is_readable() -> None:
    found = records.read(json.loads((FIXTURE / "record.json").read_text()))
    assert found is not None
    version, written_at, run = found
    assert (version, dict(run.replacements)) == ((1, 0), {"b": "s"})
    assert run.host("b").state is HostState.DRAINED
    told = {
        host: [TaskReport(t.id, 2, "running", pid=t.pid, port=t.port)]
        for host, t in ((task.host, task) for task in run.tasks)
    }
    again = rebuilt(run, told, at=100.0, written_at=written_at)
    assert (again.phase, again.generation) == (Phase.RUNNING, 2)
    check(again)

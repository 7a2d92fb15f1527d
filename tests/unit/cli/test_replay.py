"""`orch replay`: what was decided at each event, and what this orch would decide, without a coordinator."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.core import decide
from orchestrator.core import events as ev
from orchestrator.core.decision import Decision
from orchestrator.core.state.run import Run
from tests.unit.cli.desk import Desk
from tests.unit.head.recording import RUN, Head


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Return a desk with the journal of a run that trained and was killed."""
    made = Desk(tmp_path)
    os.makedirs(made.paths.state_dir, mode=0o700)
    head = Head(Path(made.paths.journal))
    head.begin()
    head.train(10)
    head.tell(ev.KillRequested(head.now))
    head.end()
    return made


def test_phases_and_orders_are_shown_per_event(desk: Desk) -> None:
    before = Path(desk.paths.journal).read_bytes()
    assert desk("replay", "t") == 0
    lines = desk.put_out.splitlines()
    start = next(i for i, line in enumerate(lines) if "HostPrepared host=b" in line)
    assert lines[start + 1 : start + 4] == [
        "        PENDING -> RENDEZVOUS",
        "        SeedCheckpoint gen 1 on a",
        "        StartTask worker:0 gen 1 on a",
    ]
    assert "        note generation: generation 1 starts: 2 tasks on 2 hosts" in lines
    assert "KillRequested force=False" in desk.put_out
    assert "RUNNING -> STOPPING" in desk.put_out
    assert f"{RUN}: 11 events played, 0 decided differently than recorded" in desk.said
    assert Path(desk.paths.journal).read_bytes() == before, "it is only read"


def test_it_stops_where_it_is_told_to(desk: Desk) -> None:
    assert desk("replay", RUN, "--to", "2") == 0
    assert [line.split()[0] for line in desk.put_out.splitlines() if not line.startswith("        ")] == [
        "1",
        "2",
    ]


def kinder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the deciding code give a kill another order of its stops."""
    step = decide.step

    def other(run: Run, event: ev.Event) -> Decision:
        after, actions, weight = step(run, event)
        return Decision(after, actions[::-1] if isinstance(event, ev.KillRequested) else actions, weight)

    monkeypatch.setattr(decide, "step", other)


def test_a_difference_is_shown_as_a_diff_does(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    kinder(monkeypatch)
    assert desk("replay", "t") == 0
    lines = desk.put_out.splitlines()
    (start,) = (i for i, line in enumerate(lines) if "KillRequested" in line)
    assert lines[start].endswith("  differs")
    assert lines[start + 1] == "      - RUNNING -> STOPPING"
    assert "      - StopTask worker:0 gen 1 on a, grace 10 s" in lines[start:]
    assert "      + RUNNING -> STOPPING" in lines[start:]
    assert "11 events played, 1 decided differently than recorded" in desk.said


def test_as_json_each_entry_is_a_line(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    kinder(monkeypatch)
    assert desk("replay", "t", "--json") == 0
    *_, last = (json.loads(line) for line in desk.put_out.splitlines())
    assert (last["run"], last["event"], last["what"]) == (
        RUN,
        "KillRequested",
        "KillRequested force=False at_checkpoint=False",
    )
    assert last["differs"] is True
    assert last["not_played"] is None
    assert last["recorded"]["phase"] == last["decided"]["phase"] == "RUNNING -> STOPPING"
    assert last["recorded"]["orders"] == last["decided"]["orders"][::-1]


def test_a_run_that_is_not_known(desk: Desk) -> None:
    assert desk("replay", "mnist") == 2
    assert "the journal has no run 'mnist'" in desk.said
    assert "it has: t" in desk.said


def test_what_a_host_said_does_nothing_to_the_terminal(desk: Desk) -> None:
    head = Head(Path(desk.paths.journal))
    head.loop.take_up(head.journal.runs(), 2)
    head.tell(ev.HostDown(head.now, "a", "\x1b[31mgone\x1b[0m"))
    head.end()
    assert desk("replay", "t") == 0
    assert "\x1b" not in desk.put_out

"""What an agent decides: who is started, what a report names, and how old a word is."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.both.hostdir import HostFault
from orchestrator.host.agent import state


def test_nothing_older_is_started_where_a_newer_generation_was() -> None:
    state.refuse_older("worker:1", 3, newest=3)
    state.refuse_older("worker:1", 3, newest=0)
    with pytest.raises(HostFault, match="generation 4 of worker:1 was started here already; this is 3"):
        state.refuse_older("worker:1", 3, newest=4)


WAITS, TRAINS = state.Known(ended=False, released=False), state.Known(ended=False, released=True)
TRAINED, WAITED = state.Known(ended=True, released=True), state.Known(ended=True, released=False)


def test_a_report_names_the_newest_of_each_task_and_every_older_one_that_lives() -> None:
    known = {
        ("worker:0", 1): TRAINED,
        ("worker:0", 2): TRAINS,
        ("worker:0", 3): TRAINED,
        ("worker:1", 1): TRAINS,
    }
    assert state.shown(known) == [("worker:0", 2), ("worker:0", 3), ("worker:1", 1)]
    assert state.unknown("worker:0", 2) == {"task": "worker:0", "generation": 2, "phase": "unknown"}


def test_the_end_of_a_task_is_reported_beside_its_standby_and_not_hidden_by_one_that_was() -> None:
    known = {("worker:0", 1): TRAINED, ("worker:0", 2): TRAINED, ("worker:0", 3): WAITED}
    assert state.shown(known) == [("worker:0", 2), ("worker:0", 3)]
    assert state.shown({**known, ("worker:0", 4): WAITS}) == [("worker:0", 2), ("worker:0", 4)]


def test_whether_a_task_was_released_is_told_by_its_phase_or_its_record() -> None:
    told: Any = {phase: {**RUNNING, "phase": phase} for phase in ("ready", "running")}
    released = {phase: state.known(told[phase], ended=False).released for phase in told}
    assert released == {"ready": False, "running": True}
    assert not state.known(None, ended=False).released
    records: Any = [{**ENDED, "exit": {"released": said}} for said in (True, False)]
    ends = [state.known(record, ended=True).released for record in records]
    assert ends == [True, False]
    assert state.known(ENDED, ended=True).released, "the record of an older shim, which held no standby"


RUNNING: Any = {"phase": "running", "heartbeat_age_s": 0.5, "exit": None}
ENDED: Any = {"phase": "exited", "heartbeat_age_s": None, "exit": {"code": 0, "ago_s": 2.0}}


def half_a_minute_later(told: Any) -> Any:
    return state.as_of(told, 30.0)


def test_what_a_shim_said_grows_old_while_it_is_silent() -> None:
    assert half_a_minute_later(RUNNING)["heartbeat_age_s"] == 30.5
    assert half_a_minute_later(ENDED)["exit"] == {"code": 0, "ago_s": 32.0}
    after_a_reboot = {**ENDED, "exit": {"code": None, "ago_s": None}}
    assert half_a_minute_later(after_a_reboot)["exit"]["ago_s"] is None
    never_heard = state.unknown("worker:0", 1)
    assert half_a_minute_later(never_heard) == never_heard
    assert (RUNNING["heartbeat_age_s"], ENDED["exit"]["ago_s"]) == (0.5, 2.0), "what was said stays as it was"

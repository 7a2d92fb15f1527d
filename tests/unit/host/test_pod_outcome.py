"""What a pod's entry decides: the exit code, when a position stands still, and when a run is given up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.host.pod import generation, outcome
from orchestrator.host.pod.generation import Roll
from orchestrator.host.pod.main import Leaving
from orchestrator.host.pod.outcome import PEERS, STALL, TERM, Pace
from orchestrator.host.pod.settings import Settings, Unfit
from orchestrator.host.shim.report import blank_task
from orchestrator.protocol import pod
from orchestrator.protocol.reports import Task


def ended(code: int | None = None, signal: int | None = None, cause: str = "script", kind: str = "") -> Task:
    task = cast("Any", blank_task({"task": "worker:0", "generation": 1}))
    task["global_step"] = 40
    task["exit"] = {
        "code": code,
        "signal": signal,
        "cause": cause,
        "last_lines": ["ValueError: no"],
        "ended_at": 1.0,
    }
    if kind:
        task["error"] = {"kind": kind, "message": "no such module"}
    return cast("Task", task)


@pytest.mark.parametrize(
    ("task", "stopped", "code", "counts"),
    [
        (ended(0), TERM, pod.DONE, False),
        (ended(42), TERM, pod.SAVED, False),
        (ended(143), TERM, pod.STOPPED, False),
        (ended(143), STALL, pod.STALLED, True),
        (ended(143), PEERS, pod.SUPERSEDED, False),
        (ended(1), None, 1, True),
        (ended(7), None, 7, True),
        (ended(64), None, 1, True),  # a script's own 64 is not ours
        (ended(143), None, 1, True),  # nobody asked it to end
        (ended(1, kind="import"), None, pod.HOPELESS, True),
        (ended(1, kind="exception"), None, 1, True),
        (ended(None, cause="start-failed"), None, pod.HOPELESS, True),
        (ended(None, 9, cause="oom"), None, 137, True),
        (ended(None, 11, cause="signal"), None, 139, True),
    ],
)
def test_the_exit_code_says_what_follows(task: Task, stopped: str | None, code: int, counts: bool) -> None:
    found = outcome.judge(task, stopped)
    assert (found.code, found.counts) == (code, counts)


def test_a_standstill_is_judged_by_the_pace_so_far() -> None:
    pace = Pace({"stall_after_s": None, "stall_floor_s": 60.0, "stall_factor": 10.0})
    assert pace.standstill_s(1000.0) is None  # before the first step nothing is known
    for step, at in ((1, 0.0), (2, 20.0), (3, 30.0), (None, 100.0), (3, 150.0)):
        pace.heard(step, at)
    assert pace.limit_s() == 200.0
    assert pace.standstill_s(229.0) is None
    assert pace.standstill_s(231.0) == 201.0


def started(saved_at: float, step: int | None = None) -> dict[str, Any]:
    """Return what a generation starts from."""
    return {"global_step": step, "saved_at": saved_at}


def test_a_checkpoint_is_newer_by_its_step_whatever_the_clocks_said() -> None:
    failed, before = (
        {"sentence": "worker:1 failed at step 7"},
        {"count": 1, "global_step": 5, "saved_at": 900.0},
    )
    assert outcome.give_up(before, failed, started(10.0, 6), 5)[0] == 0
    assert outcome.give_up(before, failed, started(990.0, 5), 5)[0] == 2


def test_failures_without_a_newer_checkpoint_end_the_run() -> None:
    failed = {"sentence": "worker:1 failed at step 7"}
    before: dict[str, Any] = {"count": 0, "mark": "", "saved_at": 10.0}
    assert outcome.give_up(before, failed, started(20.0), 5)[0] == 0  # a newer checkpoint clears the count
    count, mark, why = outcome.give_up(before, failed, started(10.0), 5)
    assert (count, mark, why) == (1, "worker:1 failed at step 7", None)
    assert "twice" in (
        outcome.give_up({**before, "count": 1, "mark": mark}, failed, started(10.0), 5)[2] or ""
    )
    other = {**before, "count": 4, "mark": "another"}
    assert "5 failures" in (outcome.give_up(other, failed, started(10.0), 5)[2] or "")
    assert outcome.give_up(other, None, started(10.0), 5) == (4, "", None)  # a drained node is nobody's fault


def test_what_ended_a_generation_is_the_drained_pod_and_not_the_peer_that_noticed(tmp_path: Path) -> None:
    roll = Roll(str(tmp_path))
    roll.announce({"generation": 1})

    def ends(task: str, kind: str, at: float) -> None:
        sentence = f"{task} {kind}"
        roll.record_end(
            1, task, {"kind": kind, "counts": kind == "failed", "ended_at": at, "sentence": sentence}
        )

    def first() -> Any:
        return (roll.first_end(1) or {}).get("sentence")

    ends("worker:1", "failed", 130.9)
    ends("worker:2", "superseded", 120.0)
    assert first() == "worker:1 failed"
    ends("worker:0", "stopped", 130.0)
    assert first() == "worker:0 stopped"
    ends("worker:2", "failed", 129.0)  # before anybody was stopped
    assert first() == "worker:2 failed"
    roll.join(1, "worker:2", "its pod came back alone")
    assert first() == "worker:0 stopped"


def test_a_pod_that_is_asked_to_end_waits_for_a_checkpoint_newer_than_the_first_that_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, answer = tmp_path / "orch.py", tmp_path / "answer"
    bundle.write_text("import json, sys\nprint(open(json.loads(sys.argv[3])['directory']).read())\n")
    monkeypatch.setattr(sys, "argv", [str(bundle)])
    leaving = Leaving(str(answer), wait_s=60.0, at=0.0)

    def is_over(saved_at: float | None, at: float) -> bool:
        answer.write_text(json.dumps({"checkpoint": {"saved_at": saved_at} if saved_at else None}))
        assert not leaving.is_over(at), "its verification has only begun"
        assert leaving._verification is not None
        leaving._verification.wait()
        return leaving.is_over(at)

    looks = [(5.0, 0.0), (5.0, 2.0), (None, 4.0), (6.0, 6.0)]
    assert [is_over(saved_at, at) for saved_at, at in looks] == [False, False, False, True]
    assert leaving.is_over(60.0)
    assert Leaving(None, wait_s=60.0, at=0.0).is_over(0.0), "it saves nothing"


DOCUMENT: dict[str, Any] = {
    "name": "m",
    "chief": "chief:0",
    "tasks": {name: {"wiring": {"P": "a:@PORT@"}} for name in ("chief:0", "worker:0", "worker:1")},
    "python": "python3",
    "script": "t.py",
    "ports": [20000, 20009],
    "timing": {},
}


def test_a_pod_joins_the_generation_of_its_own_set_and_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "POLL_S", 0.0)
    document = {**DOCUMENT, "checkpoint": {"dir": str(tmp_path)}}
    mine = Settings(document, {pod.TYPE: "worker", pod.INDEX: "0", pod.SET: "new", pod.ATTEMPT: "1"})
    roll = Roll(str(tmp_path))
    for number, (set_, attempt) in enumerate((("old", 1), ("new", 0), ("new", 1)), 1):
        roll.announce({"set": set_, "attempt": attempt, "generation": number, "path": f"/c/{number}"})
        joined = generation.begin_or_join(mine, lambda _: None, iter([False, True]).__next__)
        assert (joined and joined.path) == ("/c/3" if number == 3 else None)


def test_a_pod_finds_its_task_by_type_and_index() -> None:
    document = DOCUMENT
    typed = Settings(document, {pod.TYPE: "worker", pod.INDEX: "1", pod.SET: "abcdefghij", pod.ATTEMPT: "3"})
    assert (typed.task, typed.is_chief, typed.attempt, typed.run) == ("worker:1", False, 3, "m-abcdefgh")
    assert Settings(document, {pod.TYPE: "chief", pod.INDEX: "0"}).is_chief
    assert (typed.wiring(3), typed.wiring(14)) == ({"P": "a:20003"}, {"P": "a:20004"})
    for environ in ({}, {pod.INDEX: "7"}, {pod.TYPE: "ps", pod.INDEX: "0"}):
        with pytest.raises(Unfit):
            Settings(document, environ)

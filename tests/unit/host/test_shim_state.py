"""What a shim decides: each rule as a short story of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.host.shim.report import Progress
from orchestrator.host.shim.state import (
    KILL_BOUND_S,
    Do,
    Ended,
    Exited,
    KillChecked,
    Ordered,
    Phase,
    RuntimeReady,
    Signalled,
    State,
    StopBy,
    Ticked,
    begin,
    cause_of,
    decide,
)
from orchestrator.protocol.limits import SAID_MAX
from orchestrator.protocol.reports import Left


def tell(state: State, *events: Any) -> tuple[State, list[Do]]:
    """Return the state after the events, and the actions of the last one."""
    actions: list[Any] = []
    for event in events:
        state, actions = decide(state, event)
    return state, [action for action, _ in actions]


def order(verb: str, at: float = 1.0, grace_s: float = 10.0, epoch: int = 3, generation: int = 2) -> Ordered:
    return Ordered(at, verb, epoch, generation, grace_s)


def running(hold: bool = True) -> State:
    state, _ = begin(2, 3, hold)
    return tell(state, *([RuntimeReady(0.5)] if hold else []), order("release"))[0]


def test_how_it_ended_is_known_by_its_first_end() -> None:
    state, did = tell(running(), Exited(Ended(20.0, code=3)), Exited(Ended(21.0, signal=9)))
    assert state.ended is not None
    assert (state.ended.at, state.ended.code, state.ended.signal, did) == (20.0, 3, None, [])


def test_with_the_runtime_the_process_starts_at_once_and_waits() -> None:
    state, actions = begin(2, 3, hold=True)
    assert (state.phase, actions) == (Phase.STARTING, [(Do.SPAWN, None)])
    state, did = tell(state, order("release"))
    assert did == [Do.REFUSE]
    state, did = tell(state, RuntimeReady(1.0))
    assert (state.shown, did) == ("ready", [Do.REPORT])
    state, did = tell(state, order("release"))
    assert (state.shown, did) == ("running", [Do.ACCEPT, Do.GO, Do.REPORT])
    assert tell(state, order("release"))[1] == [Do.ACCEPT], "asked twice, done once"


def test_without_it_the_release_starts_the_process() -> None:
    state, actions = begin(2, 3, hold=False)
    assert (state.shown, actions) == ("ready", [])
    assert tell(state, order("release"))[1] == [Do.ACCEPT, Do.SPAWN, Do.REPORT]


def test_a_stop_before_there_is_a_process_ends_at_once() -> None:
    state, did = tell(begin(2, 3, hold=False)[0], order("stop"))
    assert did == [Do.ACCEPT, Do.KILL]
    state, did = tell(state, KillChecked(1.1, []))
    assert (state.phase, did, state.stop_by) == (Phase.ENDED, [Do.RECORD], StopBy.ORDER)
    assert tell(state, order("stop"))[1] == [Do.ACCEPT]
    assert tell(state, order("release"))[1] == [Do.REFUSE]


def test_a_stop_asks_then_kills_at_the_end_of_the_grace() -> None:
    state, did = tell(running(), order("stop", at=10.0, grace_s=5.0))
    assert did == [Do.ACCEPT, Do.ASK_TO_STOP, Do.TERMINATE, Do.REPORT]
    assert (state.phase, state.shown, state.deadline_at) == (Phase.STOPPING, "running", 15.0)
    assert tell(state, Ticked(14.9))[1] == []
    assert tell(state, Ticked(15.0))[1] == [Do.KILL]
    later, _ = tell(state, order("stop", at=11.0, grace_s=60.0))
    assert later.deadline_at == 15.0, "never prolonged"
    sooner, _ = tell(state, order("stop", at=11.0, grace_s=1.0))
    assert sooner.deadline_at == 12.0
    assert tell(state, order("stop", at=11.0, grace_s=0.0))[1] == [Do.ACCEPT, Do.KILL]


def test_a_stop_that_asks_for_a_rescue_sends_no_signal_and_has_a_bound() -> None:
    state, did = tell(running(), Ordered(1.0, "stop", 3, 2, 5.0, True))
    assert did == [Do.ACCEPT, Do.ASK_TO_RESCUE, Do.REPORT], "SIGTERM would end the script before it is done"
    assert tell(state, Ticked(5.9))[1] == []
    assert tell(state, Ticked(6.0))[1] == [Do.KILL]
    assert tell(state, order("stop", grace_s=0.0))[1] == [Do.ACCEPT, Do.KILL], (
        "who wants it gone need not wait"
    )
    state, _ = tell(running(), Ordered(1.0, "stop", 3, 2, 5.0, True, True))
    assert tell(state, Ordered(2.0, "stop", 3, 2, 4.0, True, True))[1] == [Do.ACCEPT], (
        "it has been asked what it holds"
    )
    assert tell(state, Ordered(2.0, "stop", 3, 2, 4.0, True))[1] == [Do.ACCEPT, Do.ASK_TO_RESCUE], (
        "it is chosen"
    )
    ready, _ = tell(begin(2, 3, True)[0], RuntimeReady(0.5))
    assert Do.ASK_TO_STOP in tell(ready, Ordered(1.0, "stop", 3, 2, 5.0, True))[1], "it has trained nothing"


def test_what_is_left_is_killed_until_nothing_is_left() -> None:
    state, did = tell(running(), Exited(Ended(20.0, code=0)))
    assert did == [Do.KILL]
    left: list[Left] = [{"pid": 7, "why": "D state"}]
    state, did = tell(state, KillChecked(20.0, left))
    assert did == []
    assert state.deadline_at is not None
    state, did = tell(state, Ticked(state.deadline_at))
    assert did == [Do.KILL]
    done, did = tell(state, KillChecked(20.1, []))
    assert (did, done.left, done.stop_by) == ([Do.RECORD], (), StopBy.NOBODY)
    stuck, did = tell(state, KillChecked(20.0 + KILL_BOUND_S, left))
    assert (did, stuck.left) == ([Do.RECORD], tuple(left))


def test_a_main_process_that_will_not_die_is_recorded_too() -> None:
    state, _ = tell(
        running(), order("stop", at=0.0, grace_s=0.0), KillChecked(KILL_BOUND_S, [{"pid": 1, "why": "D"}])
    )
    assert state.phase is Phase.ENDED
    assert state.ended is not None
    assert (state.ended.code, state.ended.signal) == (None, None)


def test_a_shim_that_is_told_to_end_ends_its_task_unordered() -> None:
    state, did = tell(running(), Signalled(5.0))
    assert did == [Do.ASK_TO_STOP, Do.TERMINATE, Do.REPORT]
    assert state.stop_by is StopBy.SIGNAL
    assert tell(state, order("stop"))[0].stop_by is StopBy.SIGNAL, "whose wish it was first"


@pytest.mark.parametrize(
    ("epoch", "generation", "obeyed"),
    [(3, 2, True), (9, 2, True), (2, 2, False), (3, 1, False), (3, 3, False)],
)
def test_the_fence(epoch: int, generation: int, obeyed: bool) -> None:
    state, actions = decide(running(), order("stop", epoch=epoch, generation=generation))
    if obeyed:
        assert (actions[0][0], state.epoch) == (Do.ACCEPT, epoch)
    else:
        assert [action for action, _ in actions] == [Do.REFUSE]
        assert (state.phase, actions[0][1][0]) == (Phase.RUNNING, "superseded")


EVENTS = st.one_of(
    st.builds(
        lambda verb, grace_s, epoch, generation: ("order", verb, grace_s, epoch, generation),
        st.sampled_from(["release", "stop", "dance"]),
        st.sampled_from([0.0, 1.0, 10.0]),
        st.integers(2, 4),
        st.integers(1, 3),
    ),
    st.tuples(st.sampled_from(["ready", "exited", "signalled", "tick", "none left", "some left"])),
)


@given(st.booleans(), st.lists(st.tuples(EVENTS, st.floats(0, 8)), max_size=30))
def test_whatever_comes_it_ends_once_and_within_its_bound(hold: bool, story: list[Any]) -> None:
    state, _ = begin(2, 3, hold)
    at, recorded, spawned, epoch = 0.0, 0, int(hold), state.epoch
    for what, wait_s in story:
        at += wait_s
        event: Any = {
            "ready": RuntimeReady(at),
            "exited": Exited(Ended(at, code=1)),
            "signalled": Signalled(at),
            "tick": Ticked(at),
            "none left": KillChecked(at, []),
            "some left": KillChecked(at, [{"pid": 1, "why": "D"}]),
        }.get(what[0])
        state, actions = decide(state, event or Ordered(at, what[1], what[3], what[4], what[2]))
        did = [action for action, _ in actions]
        recorded += did.count(Do.RECORD)
        spawned += did.count(Do.SPAWN)
        assert state.epoch >= epoch
        epoch = state.epoch
        if state.phase in (Phase.STOPPING, Phase.KILLING):
            assert state.deadline_at is not None
            after, did_then = decide(state, Ticked(state.deadline_at))
            assert did_then, "a tick at its own deadline changes something"
            assert after.deadline_at is None or after.deadline_at > state.deadline_at
    assert recorded == (state.phase is Phase.ENDED)
    assert spawned <= 1


@pytest.mark.parametrize(
    ("ended", "stop_by", "group", "shared", "is_one", "cause"),
    [
        (Ended(0, code=0), StopBy.NOBODY, None, 0, True, "script"),
        (Ended(0, code=1), StopBy.NOBODY, None, 1, True, "script"),
        (Ended(0, signal=9), StopBy.NOBODY, None, 0, True, "signal"),
        (Ended(0, signal=9), StopBy.NOBODY, None, 1, True, "oom"),
        (Ended(0, signal=9), StopBy.NOBODY, None, 1, False, "perhaps-oom"),
        (Ended(0, signal=9), StopBy.ORDER, None, 1, True, "signal"),
        (Ended(0, signal=11), StopBy.NOBODY, None, 1, True, "signal"),
        (Ended(0, signal=9), StopBy.NOBODY, 1, 0, False, "oom"),
        (Ended(0, code=1), StopBy.NOBODY, 1, 1, True, "oom"),
        (Ended(0, code=0), StopBy.NOBODY, 1, 1, True, "script"),
        (Ended(0, signal=9), StopBy.NOBODY, 0, 1, True, "signal"),
        (Ended(0, why="no Python"), StopBy.NOBODY, None, 1, True, "start-failed"),
    ],
)
def test_why_it_ended(
    ended: Ended, stop_by: StopBy, group: int | None, shared: int, is_one: bool, cause: str
) -> None:
    assert cause_of(ended, stop_by, group, shared, is_one=is_one) == cause


def test_the_pace_is_of_the_last_seconds_and_falls_while_nothing_comes() -> None:
    progress = Progress()
    assert progress.steps_per_s(0.0) is None
    assert progress.heard({"step": 100, "epoch": 0, "metrics": {"loss": 0.5}}, 0.0) == "now"
    for second in range(1, 61):
        assert progress.heard({"step": 100 + 4 * second}, float(second)) == "soon"
    assert progress.steps_per_s(60.0) == 4.0
    assert (progress.steps_per_s(80.0) or 9) < 2.5
    progress.heard({"step": 50}, 81.0)
    assert progress.steps_per_s(81.0) is None
    told: Any = {}
    progress.put_into(told, 81.0)
    assert (told["global_step"], told["epoch"], told["metrics"]) == (50, 0, {"loss": 0.5})


def test_noise_on_the_runtimes_socket_changes_nothing_and_a_step_that_is_none_is_said_once() -> None:
    progress = Progress()
    assert progress.heard({"x": 1}, 0.0) == ""
    noise = ({"step": "7"}, {"step": True}, {"step": None}, {"step": 1.5})
    assert [progress.heard(line, 0.0) for line in noise] == ["soon", "", "", ""]
    told: Any = {}
    progress.put_into(told, 0.0)
    assert "global_step" not in told
    assert len(told["said"]) == 1
    assert progress.heard({"error": "text only"}, 0.0) == "now"
    progress.put_into(told, 0.0)
    assert told["error"] == {"kind": "exception", "message": "text only"}
    for number in range(100):
        progress.heard({"say": {"kind": "k", "message": str(number % 60)}}, 0.0)
    progress.put_into(told, 0.0)
    assert len(told["said"]) == SAID_MAX

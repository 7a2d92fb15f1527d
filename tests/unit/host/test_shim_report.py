"""What a shim makes of its runtime's words, and how a report stays within a frame and within the protocol."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.saving import Loaded
from orchestrator.head.links import wire
from orchestrator.host.agent import main as agent_main
from orchestrator.host.agent import state as agent_state
from orchestrator.host.shim.connections import AgentLink
from orchestrator.host.shim.report import CUTS, TRIMMED, Progress, blank_task, cut, ended_task
from orchestrator.protocol.channel import JSON_BYTES_MAX, Decoder, encode
from orchestrator.protocol.check import check_of
from orchestrator.protocol.limits import LAST_LINE_CHARS_MAX, LAST_LINES_MAX, METRICS_MAX, STEP_MAX
from orchestrator.protocol.reports import HostSample, Report, Task
from tests.protocol_values import valid


def said(progress: Progress, at: float, *, attached: bool = True) -> Task:
    """Return the TASK, as far as its runtime tells."""
    task = blank_task({"task": "worker:0", "generation": 1})
    progress.put_into(task, at, attached=attached)
    return task


def test_a_step_grows_old_until_the_next_and_saying_it_again_makes_it_no_newer() -> None:
    progress = Progress()
    assert said(progress, 9.0).get("step_age_s") is None
    progress.heard({"step": 1}, 10.0)
    progress.heard({"step": 1}, 11.0)
    assert said(progress, 12.0)["step_age_s"] == 2.0
    progress.heard({"step": 2, "age_s": 0.25}, 12.5)
    assert said(progress, 13.0)["step_age_s"] == 0.75
    progress.heard({"step": 3, "age_s": "long ago"}, 14.0)
    assert said(progress, 14.0)["step_age_s"] == 0.0


def test_a_runtime_that_beats_grows_old_and_any_word_is_a_sign_of_life() -> None:
    progress = Progress()
    progress.heard({"step": 1}, 10.0)
    assert said(progress, 12.0).get("runtime_age_s") is None, (
        "it has never beaten: nothing can be said of its silence"
    )
    assert progress.heard({"heartbeat": {}}, 13.0) == "", "no report of its own"
    assert said(progress, 15.5)["runtime_age_s"] == 2.5
    progress.heard({"step": 2}, 16.0)
    assert said(progress, 16.25)["runtime_age_s"] == 0.25
    assert said(progress, 90.0, attached=False).get("runtime_age_s") is None, "it is not silent, it has left"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=200), inner, max_size=3),
    max_leaves=8,
)
lines = st.fixed_dictionaries(
    {},
    optional={
        "step": anything,
        "age_s": anything,
        "epoch": anything,
        "metrics": st.dictionaries(st.text(max_size=200), anything, max_size=100) | anything,
        "say": anything | st.fixed_dictionaries({"kind": anything, "message": anything}),
        "error": anything,
        "heartbeat": anything,
        "ready": anything,
    },
)


@settings(max_examples=50, deadline=None)
@given(st.lists(lines, max_size=30))
def test_whatever_a_script_says_its_host_is_not_taken_for_a_liar(said_lines: list[dict[str, Any]]) -> None:
    progress = Progress()
    for at, line in enumerate(said_lines):
        progress.heard(json.loads(json.dumps(line)), float(at))
    ((frame, _),) = Decoder().feed(encode({"report": said(progress, 1000.0)}))
    assert check_of(Task)(frame["report"]) is not None


def test_metrics_without_end_are_bounded_and_it_is_said_once() -> None:
    progress = Progress()
    for step in range(1000):
        progress.heard({"step": step, "metrics": {"loss": 1.0, f"layer-{step}": 2.0}}, float(step))
    assert len(said(progress, 1.0)["metrics"]) == METRICS_MAX
    progress.heard({"step": 1000, "metrics": {"loss": 9.0, "huge": 10**400}}, 1000.0)
    assert said(progress, 1.0)["metrics"]["loss"] == 9.0
    assert [one["kind"] for one in said(progress, 1.0)["said"]] == ["metrics-dropped"]


def test_validation_that_comes_when_all_places_are_taken_gets_one_and_an_older_agent_does_not_cut_it() -> (
    None
):
    progress = Progress()
    progress.heard({"step": 1, "metrics": {f"layer-{number:03}": 1.0 for number in range(METRICS_MAX)}}, 1.0)
    assert said(progress, 1.0)["said"] == []
    odd = {"loss": "nan", "zero": "inf"}
    progress.heard({"step": 9, "metrics": {"val_loss": 2.0}, "nonfinite": odd}, 2.0)
    progress.heard({"step": 10, "metrics": {"layer-255": 7.0, "layer-000": 7.0}}, 3.0)
    task = said(progress, 3.0)
    assert len(task["metrics"]) == METRICS_MAX
    assert list(task["metrics"])[:3] == ["loss", "val_loss", "layer-000"], "an older one takes the first 64"
    assert {"layer-253", "layer-254", "layer-255", "zero"} - task["metrics"].keys() == {
        "layer-254",
        "layer-255",
        "zero",
    }
    assert task["metric_steps"].keys() == task["metrics"].keys() - {"layer-000"}
    assert task["nonfinite"] == {"loss": {"step": 9, "value": "nan"}}
    assert [one["kind"] for one in task["said"]] == ["metrics-dropped"]
    check_of(Task)(json.loads(json.dumps(task)))
    assert list(cut(task, CUTS - 1)["metrics"])[:2] == ["loss", "val_loss"], (
        "nor does a frame that is too long"
    )


def test_where_the_runtime_has_said_how_many_metrics_there_are_it_is_not_said_again() -> None:
    progress = Progress()
    progress.heard({"say": {"kind": "metrics-dropped", "message": "1,200 metrics"}}, 1.0)
    progress.heard({"step": 1, "metrics": {f"layer-{number}": 1.0 for number in range(1200)}}, 1.0)
    assert [one["message"] for one in said(progress, 1.0)["said"]] == ["1,200 metrics"]


def test_the_cuts_of_an_older_shims_report_leave_out_validation_last() -> None:
    task: Task = {**blank_task({"task": "worker:0", "generation": 1}), "phase": "running"}
    task["metrics"] = {**{f"layer-{number}": 1.0 for number in range(63)}, "val_loss": 2.0}
    task["nonfinite"] = {name: {"step": 1, "value": "nan"} for name in task["metrics"]}
    assert cut(task, 1) is task
    shown = cut(task, 2)
    assert next(iter(shown["metrics"])) == next(iter(shown["nonfinite"])) == "val_loss"


def test_a_metric_keeps_the_step_at_which_it_was_reported() -> None:
    progress, task = Progress(), blank_task({})
    progress.heard({"step": 20, "metrics": {"loss": 1.0, "val_loss": 2.0}}, 1.0)
    progress.heard(
        {"step": 43, "metrics": {"loss": 0.5, "lr": 0.1}, "metric_steps": {"lr": 40, "no": "x"}}, 2.0
    )
    progress.put_into(task, 2.0)
    assert task["metric_steps"] == {"val_loss": 20, "lr": 40}
    assert cut({**task, "metrics": {"lr": 0.1}}, 1)["metric_steps"] == {"lr": 40}
    del task["metric_steps"]
    assert cut(task, 1) == task, "a shim that began before these were told is not called too long"


@pytest.mark.fault(117)
def test_the_first_step_that_was_not_finite_is_remembered_and_its_number_before_that_is_not_shown() -> None:
    progress = Progress()
    progress.heard({"step": 1, "metrics": {"loss": 0.5}}, 1.0)
    progress.heard(
        {"step": 2, "metrics": {}, "nonfinite": {"loss": "nan", "x" * 500: "inf", "no": "NaN"}}, 2.0
    )
    progress.heard({"step": 3, "metrics": {}, "nonfinite": {"loss": "inf"}}, 3.0)
    task = blank_task({})
    progress.put_into(task, 3.0)
    assert task["nonfinite"]["loss"] == {"step": 2, "value": "nan"}
    assert (len(task["nonfinite"]), task["metrics"]["loss"]) == (2, None)
    for name in range(1000):
        progress.heard({"step": 4, "nonfinite": {f"layer-{name}": "nan"}}, 4.0)
    assert len(said(progress, 4.0)["nonfinite"]) <= METRICS_MAX
    progress.heard({"step": 5, "nonfinite": ["loss"]}, 5.0)


def test_numbers_that_json_cannot_hold_are_no_numbers() -> None:
    progress = Progress()
    values = json.loads('{"nan": NaN, "inf": 1e999, "big": 1' + "0" * 400 + ', "yes": true, "ok": 2}')
    progress.heard({"step": 1, "epoch": True, "metrics": values}, 0.0)
    assert said(progress, 1.0)["metrics"] == {"nan": None, "inf": None, "big": None, "ok": 2.0}
    assert said(progress, 1.0).get("epoch") is None
    assert progress.heard({"step": STEP_MAX + 1}, 1.0) == "soon", "it is said"
    assert progress.heard({"step": -1}, 1.0) == ""
    assert said(progress, 1.0)["global_step"] == 1


def long_task(index: int = 0, chars: int = 5000) -> Task:
    """Return a task of which everything is too long."""
    task = ended_task(
        blank_task({"task": f"worker:{index}", "generation": 1}),
        {
            "cause": "script",
            "code": 1,
            "signal": None,
            "ago_s": 0.0,
            "last_lines": [f"{number} " + "\x1b" * chars for number in range(50)],
            "left": [{"pid": 7, "why": "D state"}] * 5000,
        },
    )
    task["metrics"] = {f"metric-{number}-" + "x" * 500: 1.0 for number in range(5000)}
    task["said"] = [{"kind": "k", "message": f"{number} " + "é" * chars} for number in range(50)]
    task["error"] = {"kind": "exception", "message": "x" * chars}
    return task


def test_what_fits_is_not_touched() -> None:
    task: Task = valid(Task)
    task["exit"] = None
    assert cut(task, 1) is task


def test_what_is_too_long_is_cut_to_what_the_protocol_takes_and_says_so() -> None:
    task = long_task()
    shown = cut(task, 1)
    check_of(Task)(json.loads(json.dumps(shown)))
    assert shown["said"][-1] == TRIMMED
    ended = shown["exit"]
    assert ended is not None
    assert len(ended["last_lines"]) == LAST_LINES_MAX
    assert {len(line) for line in ended["last_lines"]} == {LAST_LINE_CHARS_MAX}
    assert ended["last_lines"][-1].startswith("49 "), "the last of them stay"
    assert task["said"][0]["message"].startswith("0 "), "the original is whole"
    assert cut(shown, 1) is shown, "what was cut once is not cut again"
    assert len(encode({"report": cut(task, CUTS)})) < 4000
    assert [one["kind"] for one in cut(shown, CUTS)["said"]] == ["report-trimmed"]


HOST: HostSample = valid(HostSample)


def test_a_report_of_many_tasks_fits_into_a_frame_with_each_of_them() -> None:
    tasks = [
        told
        for i in range(20)
        if (told := agent_state.own_report(long_task(i), f"worker:{i}", 1)) is not None
    ]
    report: Report = {"host": HOST, "runs": {"t-1": tasks}}
    frame = agent_main._frame(report)
    assert len(frame) <= JSON_BYTES_MAX + 8
    ((message, _),) = Decoder().feed(frame)
    told = check_of(Report)(message["report"])["runs"]["t-1"]
    assert [task["task"] for task in told] == [f"worker:{i}" for i in range(20)]
    assert all(task["said"][-1] == TRIMMED for task in told)
    assert all(task["exit"]["code"] == 1 for task in told)


def test_what_cannot_be_read_of_a_task_leaves_it_as_it_was_known() -> None:
    whole: Task = {**blank_task({"task": "worker:0", "generation": 1}), "phase": "running"}
    assert agent_state.own_report(whole, "worker:3", 7) == {**whole, "task": "worker:3", "generation": 7}
    broken: list[Any] = [
        None,
        {},
        {"phase": "exited"},
        {"phase": "exited", "exit": []},
        {"phase": "unknown"},
        5,
    ]
    broken += [{**whole, "said": [5]}, {**whole, "error": "x"}, {**whole, "exit": {}}]
    assert [agent_state.own_report(told, "worker:0", 1) for told in broken] == [None] * len(broken)


def receive(sock: socket.socket) -> list[dict[str, Any]]:
    """All frames that have come, up to the end."""
    decoder, found = Decoder(), []
    while data := sock.recv(1 << 20):
        found += [message for message, _ in decoder.feed(data)]
    return found


def test_a_shim_survives_what_it_has_to_say() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    link = AgentLink(ours, 0.0)
    reader = ThreadPoolExecutor(1)
    with theirs:
        heard = reader.submit(receive, theirs)
        link.say_last(long_task(), 20.0)
        ours.close()
        (frame,) = heard.result(20.0)
    assert check_of(Task)(frame["report"])["said"][-1] == TRIMMED


def test_an_agent_that_says_nothing_holds_up_no_shim() -> None:
    ours, theirs = socket.socketpair()
    with theirs, ours:
        link = AgentLink(ours, 0.0)
        assert not ours.getblocking()
        assert link.receive() == []


@pytest.mark.parametrize("chars", [10, 5 << 20])
def test_an_answer_that_no_frame_holds_is_an_error(chars: int) -> None:
    ours, theirs = socket.socketpair()
    link = AgentLink(ours, 0.0)
    with theirs:
        link.reply(1, {"ok": {"stacks": "x" * chars, "by": "runtime"}})
        ours.close()
        (reply,) = receive(theirs)
    assert (reply["reply"], "ok" in reply) == (1, chars == 10)
    if chars > 10:
        assert reply["error"]["code"] == "too-large"


@pytest.mark.parametrize("bad", [-1, 10**16, "5", 1.5, None, True])
def test_a_position_that_is_none_is_said_once(bad: Any) -> None:
    progress = Progress()
    assert progress.heard({"step": bad}, 1.0) == "soon"
    assert progress.heard({"step": bad}, 2.0) == ""
    told = said(progress, 2.0)
    assert told.get("global_step") is None
    (sentence,) = told["said"]
    assert sentence["kind"] == "progress-lost"
    progress.heard({"step": 7}, 3.0)
    assert said(progress, 3.0)["global_step"] == 7


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"step": 141, "stride": 0}, {"step": 141, "stride": 0}),
        ({"step": -1, "stride": 0}, None),
        ({"step": 141}, None),
        ("141", None),
    ],
)
def test_where_training_began_is_kept_as_it_was_said_first(told: object, kept: object) -> None:
    progress = Progress()
    progress.heard({"step": 150, "began": told}, 1.0)
    assert said(progress, 1.0).get("began") == kept
    progress.heard({"step": 160, "began": {"step": 159, "stride": 0}}, 2.0)
    assert said(progress, 2.0)["began"] == (kept or {"step": 159, "stride": 0})


def test_how_often_it_saves_is_taken_only_as_it_should_be() -> None:
    progress = Progress()
    saving: dict[str, Any] = {
        "every_steps": 7,
        "saved_step": 14,
        "failure_s": 60.0,
        "why": "share",
        "every_s": 2.5,
        "cost_s": 0.02,
    }
    progress.heard({"step": 1, "saving": saving}, 1.0)
    assert said(progress, 1.0)["saving"] == {**saving}
    wrong: list[Any] = [[], {}, {**saving, "every_steps": -1}, {**saving, "failure_s": float("nan")}]
    for told in [*wrong, {**saving, "failure_s": "x"}]:
        progress.heard({"step": 2, "saving": told}, 2.0)
        assert said(progress, 2.0)["saving"] == {**saving}
    progress.heard(
        {
            "step": 3,
            "saving": {**saving, "cost_s": -1.0, "saved_step": -1, "every_s": True, "why": "x" * 1000},
        },
        3.0,
    )
    assert said(progress, 3.0)["saving"] == {"every_steps": 7, "failure_s": 60.0, "why": "x" * 64}


def test_what_a_task_hands_over_is_told_as_it_is_now_and_once_it_is_done_as_it_was_said_first() -> None:
    progress = Progress()
    for rescues in (True, False, "yes"):
        progress.heard({"step": 7, "rescues": rescues}, 1.0)
        assert said(progress, 1.0)["rescues"] is (rescues is True)
    for holds in ({"step": 7, "checksum": 2**32 + 9}, {"step": "x", "checksum": 9}, {"step": 8}, None):
        progress.heard({"holds": holds}, 1.0)
        assert said(progress, 1.0)["holds"] == {"step": 7, "checksum": 9}
    for rescued in ({"step": "x", "took_s": float("nan"), "why": "a full disk"}, {"step": 7, "took_s": 0.5}):
        progress.heard({"rescued": rescued}, 1.0)
        assert said(progress, 1.0)["rescued"] == {"step": None, "took_s": 0.0, "why": "a full disk"}


def test_when_training_began_is_known_only_where_it_is_exact() -> None:
    exact = Progress()
    exact.heard({"step": 40, "began": {"step": 40, "stride": 0}}, 10.0)
    exact.heard({"step": 41, "began": {"step": 40, "stride": 0}}, 12.0)
    assert said(exact, 13.0)["began_age_s"] == 3.0
    inexact = Progress()
    inexact.heard({"step": 41, "began": {"step": 40, "stride": 1}}, 10.0)
    assert said(inexact, 13.0).get("began_age_s") is None


def test_a_stage_grows_old_until_the_next_and_a_step_is_training() -> None:
    progress, task = Progress(), blank_task({})
    assert progress.heard({"heartbeat": {"stage": "connecting"}}, 10.0) == "soon"
    assert progress.heard({"heartbeat": {"stage": "connecting"}}, 11.0) == ""
    odd: tuple[Any, ...] = ({"stage": "juggling"}, {"stage": ["connecting"]}, {"stage": {}}, {}, [])
    for told in odd:
        progress.heard({"heartbeat": told}, 12.0)
    progress.put_into(task, 14.0)
    assert (task["stage"], task["stage_age_s"]) == ("connecting", 4.0)
    progress.heard({"step": 40, "began": {"step": 40, "stride": 0}}, 15.0)
    assert not progress.has_stepped, "it tells from where the training goes on"
    assert progress.heard({"step": 41}, 16.0) == "now"
    progress.put_into(task, 16.0)
    assert (progress.has_stepped, task["stage"], task["stage_age_s"]) == (True, "training", 0.0)


def test_batches_that_are_passed_over_are_told_until_a_heartbeat_has_none() -> None:
    progress, start = Progress(), {"task": "worker:0"}
    task = blank_task(start)
    progress.heard({"heartbeat": {"stage": "compiling", "passing": {"done": 4000, "total": 90000}}}, 10.0)
    progress.put_into(task, 11.0)
    assert task["passing"] == {"done": 4000, "total": 90000}
    read = wire.task_report(task, at=11.0, unix_time=1.7e9).progress
    assert read.passing == (4000, 90000)
    for odd in ({"done": -1, "total": 7}, {"total": 7}, 7, None):
        progress.heard({"heartbeat": {"stage": "compiling", "passing": odd}}, 12.0)
        task = blank_task(start)
        progress.put_into(task, 12.0)
        assert "passing" not in task
    assert wire.task_report(task, at=11.0, unix_time=1.7e9).progress.passing is None


def test_what_was_tried_of_a_rescue_and_which_weights_were_loaded_reach_the_head() -> None:
    progress, task = Progress(), blank_task({"task": "worker:0"})
    progress.heard({"step": 4, "rescue": "9.0 MB in 0.2 s"}, 10.0)
    progress.heard({"step": 5}, 10.0)
    for loaded in (
        {"number": 1, "file": "ckpt_3", "checksum": 7},
        {"number": 2, "file": "ckpt_8", "checksum": 8},
    ):
        assert progress.heard({"loaded": loaded}, 11.0) == "soon"
    progress.heard({"loaded": {"number": 3, "file": 7}}, 12.0)
    progress.put_into(task, 12.0)
    read = wire.task_report(task, at=12.0, unix_time=1.7e9).progress
    assert read.measured["rescue"] == "9.0 MB in 0.2 s"
    assert read.loaded == Loaded(2, "ckpt_8", 8)


RESTORED = {"file": "orch/fit-000/latest.weights.h5", "step": 7, "saved_at": 5.5, "bytes": 9, "why": ""}


@pytest.mark.parametrize(
    "odd",
    [
        *(
            "x",
            None,
            {},
            {**RESTORED, "file": "a\nb"},
            {**RESTORED, "file": "\ud800"},
            {**RESTORED, "file": 7},
            {**RESTORED, "file": "a" * 5000},
        ),
        *({**RESTORED, "saved_at": value} for value in (float("nan"), float("inf"), -1.0, "x", None, 1e300)),
        *({**RESTORED, "bytes": value} for value in (-1, 1.5, True, None, 1 << 70)),
    ],
)
def test_what_a_task_restored_is_told_and_what_is_malformed_is_not(odd: Any) -> None:
    progress = Progress()
    assert progress.heard({"restored": odd}, 1.0) == "soon"
    assert said(progress, 1.0).get("restored") is None
    progress.heard({"restored": {**RESTORED, "step": "x", "why": "y" * 99_999}}, 1.0)
    told = said(progress, 1.0)["restored"]
    assert told is not None
    assert (told["step"], len(told["why"])) == (None, 2000)
    progress.heard({"restored": odd}, 1.0)
    progress.heard({"restored": RESTORED}, 1.0)
    assert said(progress, 1.0)["restored"] == RESTORED

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator import runtime
from orchestrator.protocol.limits import METRICS_MAX
from orchestrator.task.link import Link
from orchestrator.task.progress import Progress, as_number


class Wire:
    """Both ends of a socket, and what arrived at the shim's."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.link = Link(self.theirs)
        self.ours.setblocking(False)

    def arrived(self) -> list[dict[str, Any]]:
        try:
            data = self.ours.recv(1 << 20)
        except BlockingIOError:
            return []
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def wire() -> Iterator[Wire]:
    both = Wire()
    yield both
    both.ours.close()
    both.theirs.close()


def test_the_first_report_leaves_at_once_and_the_next_ones_wait(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=3600.0)
    for step in range(1, 1000):
        progress.report(step, {"loss": 1.0 / step})
    (first,) = wire.arrived()
    assert (first["step"], first["metrics"]) == (1, {"loss": 1.0})
    progress.flush()
    (last,) = wire.arrived()
    assert last["step"] == 999
    assert 0.0 <= last["age_s"] < 60.0
    progress.flush()
    assert wire.arrived() == []


def test_a_line_that_was_begun_is_finished_and_what_does_not_fit_is_dropped_whole(wire: Wire) -> None:
    wire.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    large = {"say": {"kind": "x", "message": "y" * 30_000}}
    assert wire.link.send(large)  # type: ignore[arg-type]
    assert not wire.link.send({"step": 1, "age_s": 0.0}), "the reader has not taken the one before"
    heard, sent = b"", False
    while not sent:
        heard += wire.ours.recv(1 << 20)
        sent = wire.link.send({"step": 2, "age_s": 0.0})
    heard += wire.ours.recv(1 << 20)
    wire.link._flush(0.0)  # the next report would do so
    heard += wire.ours.recv(1 << 20)
    lines = heard.split(b"\n")
    assert lines[0] == json.dumps(large, separators=(",", ":")).encode()
    assert lines[1:] == [b'{"step":2,"age_s":0.0}', b""]


def test_a_child_of_the_script_has_not_the_runtimes_socket(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.dup(wire.theirs.fileno())
    os.set_inheritable(fd, True)
    monkeypatch.setenv("ORCH_FD", str(fd))
    link = Link.from_environment()
    assert link._sock is not None
    assert not link._sock.get_inheritable()
    assert "ORCH_FD" not in os.environ
    link._sock.close()


class Variable:
    """Of a strategy: reading it from another thread could order a collective."""

    def __int__(self) -> int:
        raise AssertionError("it was read")

    __float__ = __int__


def test_what_was_held_back_before_a_pause_is_told_by_another_thread(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    progress._latest = (20, {"loss": 0.5}, None, time.monotonic() - 0.5)  # held back, and now due
    progress.catch_up()
    told = wire.arrived()
    assert [message["step"] for message in told] == [20]
    assert told[0]["age_s"] >= 0.5, "when it was made, and not when it was told"
    progress.catch_up()
    assert wire.arrived() == []


@pytest.mark.parametrize("held", [(Variable(), {}, None, 0.0), (20, {"loss": Variable()}, None, 0.0)])
def test_what_may_be_a_collective_is_left_to_the_scripts_own_thread(wire: Wire, held: Any) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    progress._latest = held
    progress.catch_up()
    assert wire.arrived() == []


def test_the_pace_is_that_of_the_steps(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    progress.report(0, {})
    progress.report(50, {}, epoch=3)
    last = wire.arrived()[-1]
    assert last["epoch"] == 3
    assert last["steps_per_s"] > 0


def test_a_step_that_went_back_starts_the_pace_anew(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    for step in (100, 200, 20):
        progress.report(step, {})
    assert "steps_per_s" not in wire.arrived()[-1]


def test_what_is_no_number_does_not_travel_and_does_not_raise(wire: Wire) -> None:
    progress = Progress(wire.link)
    progress.report(1, {"loss": float("nan"), "text": "x", "none": None, "ok": 2})
    assert [message["metrics"] for message in wire.arrived()] == [{"ok": 2.0}]


def test_what_is_not_finite_is_told_by_its_word_since_json_has_no_number_for_it(wire: Wire) -> None:
    progress = Progress(wire.link)
    progress.report(7, {"loss": float("nan"), "norm": float("inf"), "gain": -float("inf"), "ok": 2})
    (message,) = wire.arrived()
    assert message["nonfinite"] == {"loss": "nan", "norm": "inf", "gain": "-inf"}
    assert message["metrics"] == {"ok": 2.0}


def test_a_metric_that_the_next_steps_do_not_have_is_sent_with_its_own_step(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=3600)
    progress.report(1, {"loss": 3.0})
    progress.report(20, {"loss": 2.0, "val_loss": 2.5, "val_norm": float("nan")})
    progress.report(21, {"loss": 1.9})
    progress.flush()
    first, message = wire.arrived()
    assert "metric_steps" not in first
    assert (message["metrics"], message["nonfinite"]) == ({"loss": 1.9, "val_loss": 2.5}, {"val_norm": "nan"})
    assert message["metric_steps"] == {"val_loss": 20, "val_norm": 20}


@pytest.mark.fault(117)
def test_what_was_not_finite_between_two_messages_is_told_with_its_first_step(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=3600)
    for step in range(1, 3000):
        odd = {1000: float("nan"), 1001: float("nan"), 2000: float("inf")}.get(step)
        progress.report(
            step, {"loss": 0.5 if odd is None else odd, "norm": 1.0 if step != 2000 else float("inf")}
        )
    progress.flush()
    progress.report(3000, {"loss": 0.4})
    progress.flush()
    first, message, last = wire.arrived()
    assert "nonfinite" not in first
    assert message["nonfinite"] == {"loss": "nan", "norm": "inf"}
    assert (message["step"], message["metric_steps"]) == (2999, {"loss": 1000, "norm": 2000})
    assert message["metrics"] == {}, "of these it is known that they were no numbers since"
    assert (last["metrics"], "nonfinite" in last) == ({"loss": 0.4}, False)


def test_of_too_many_metrics_the_same_are_sent_each_time_with_loss_and_validation_and_their_number_is_said_once(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    layers = {f"layer-{number:04}": 1.0 for number in range(1195)}
    ends = {"val_loss": 2.0, "val/acc": 0.5, "loss": 3.0, "val_norm": float("nan"), "val_auc": 0.7}
    progress.report(1, {**layers, **ends})
    said, first = wire.arrived()
    assert said["say"]["kind"] == "metrics-dropped"
    assert "reports 1,200 metrics; 256 are kept" in said["say"]["message"]
    assert capsys.readouterr().err.count("1,200 metrics") == 1
    for step, told in ((2, {**ends, **layers}), (3, dict(reversed(layers.items()))), (4, {**layers, **ends})):
        progress.report(step, told)
    sent = [first, *wire.arrived()]
    assert {str(message.get("say")) for message in sent} == {"None"}, "it is said once"
    names = [{*message["metrics"], *message.get("nonfinite", {})} for message in sent]
    assert names[0] == names[1] == names[3] > names[2]
    assert len(names[0]) == METRICS_MAX
    assert names[0] >= ends.keys()
    assert names[2] == names[0] - ends.keys()


def test_of_too_many_metrics_those_that_wait_with_a_step_of_their_own_are_cut_in_the_same_way(
    wire: Wire,
) -> None:
    progress = Progress(wire.link, interval_s=3600.0)
    progress.report(1, {})
    progress.report(2, {f"a-{number}": float("nan") for number in range(400)} | {"val_loss": 2.5})
    progress.report(3, {f"b-{number}": 1.0 for number in range(400)} | {"loss": float("nan")})
    progress.report(4, {"loss": 1.0})
    progress.flush()
    _, said, message = wire.arrived()
    assert "802 metrics" in said["say"]["message"]
    assert message["metrics"] == {"val_loss": 2.5}
    assert message["nonfinite"]["loss"] == "nan", "however many others were not finite before"
    assert len(message["nonfinite"]) == METRICS_MAX - 1
    assert message["metric_steps"].keys() == message["metrics"].keys() | message["nonfinite"].keys()


def test_a_position_that_is_none_is_said_once_and_does_not_raise(
    wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    for bad in ("ten", float("nan"), None):
        progress.report(bad, {})  # type: ignore[arg-type]
    progress.report(5, {})
    said, step, *more = wire.arrived()
    assert more == [], "it is said once"
    assert said["say"]["kind"] == "progress-lost"
    assert said["say"]["message"].startswith(
        "the position 'ten' cannot be reported (ValueError: invalid literal"
    )
    assert step["step"] == 5, "and later ones are sent"
    assert "a standstill cannot be told from it" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), ("2.5", 2.5), (float("inf"), None), ([], None)])
def test_as_number(value: object, number: float | None) -> None:
    assert as_number(value) == number


def test_a_shim_that_does_not_read_never_blocks_training_nor_breaks_a_line(wire: Wire) -> None:
    sent = sum(wire.link.send({"say": {"kind": "x", "message": "m" * 10_000}}) for _ in range(2000))
    assert 0 < sent < 2000
    text = b""
    while True:
        try:
            text += wire.ours.recv(1 << 20)
        except BlockingIOError:
            if not wire.link._pending:
                break
            wire.link.send({"step": 1})
    lines = text.split(b"\n")[:-1]
    assert all(json.loads(line) for line in lines)
    assert len(lines) >= sent


def test_a_shim_that_is_gone_is_no_error_of_the_script(wire: Wire) -> None:
    wire.ours.close()
    progress = Progress(wire.link)
    progress.report(1, {})
    progress.report(2, {})
    progress.flush()
    assert wire.link._pending == b"", "nothing is kept for it either"


def test_without_orch_everything_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_CHECKPOINT_DIR", raising=False)
    runtime.report(1, loss=2.0)
    assert runtime.checkpoint_dir() is None
    assert Link(None).send({"step": 1}) is False
    assert list(Link(None).orders()) == []
    monkeypatch.setenv("ORCH_CHECKPOINT_DIR", "/c/gen-000001")
    assert runtime.checkpoint_dir() == "/c/gen-000001"


def test_orders_come_in_any_pieces_and_bad_lines_are_skipped(wire: Wire) -> None:
    wire.ours.sendall(b'{"go": {"env')
    wire.ours.sendall(b'": {}}}\nnonsense\n[1]\n{"stop": {}}\n')
    wire.ours.shutdown(socket.SHUT_WR)
    assert list(wire.link.orders()) == [{"go": {"env": {}}}, {"stop": {}}]


@pytest.mark.parametrize(
    ("steps", "began"),
    [
        ([1, 2, 3], {"step": 0, "stride": 1}),
        ([100, 200], {"step": 0, "stride": 100}),
        ([151, 161], {"step": 141, "stride": 10}),
        ([0, 50], {"step": 0, "stride": 50}),
        ([500], None),
        ([7, 7], None),
    ],
)
def test_where_a_loop_of_its_own_began_follows_from_its_first_two_reports(
    wire: Wire, steps: list[int], began: dict[str, int] | None
) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    for step in steps:
        progress.report(step, {})
    assert wire.arrived()[-1].get("began") == began


def test_keras_knows_exactly_where_it_began_and_a_second_fit_does_not_change_that(wire: Wire) -> None:
    progress = Progress(wire.link, interval_s=0.0)
    progress.began(141)
    progress.report(141, {})
    progress.began(300)
    progress.report(300, {})
    assert [line["began"] for line in wire.arrived()] == [{"step": 141, "stride": 0}] * 2

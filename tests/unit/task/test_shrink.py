"""What fewer replicas than planned mean for batch and learning rate; TensorFlow itself is in the contract tests."""

from __future__ import annotations

import pytest

from orchestrator.task.link import Link
from orchestrator.task.transparent.backup import Position
from orchestrator.task.transparent.reporter import Reporter
from orchestrator.task.transparent.shrink import WARMUP_STEPS, Shrink


class Variable:
    def __init__(self) -> None:
        self.value = 1.0

    def assign(self, value: float) -> None:
        self.value = value


def shrink(
    monkeypatch: pytest.MonkeyPatch, *, now: int, planned: int, on_shrink: str, batch: str = "global"
) -> Shrink:
    monkeypatch.setenv("ORCH_REPLICAS_PLANNED", str(planned))
    made = Shrink({"on_shrink": on_shrink, "batch": batch}, now, Reporter(Link(None)))
    made._variable = Variable()
    return made


@pytest.mark.parametrize(
    ("on_shrink", "batch", "factor"),
    [
        ("ignore", "global", (1, 1)),
        ("ignore", "per_replica", (3, 1)),
        ("hold_batch", "global", (1, 1)),
        ("hold_batch", "per_replica", (4, 1)),
        ("scale_lr", "global", (3, 4)),
        ("scale_lr", "per_replica", (3, 1)),
    ],
)
def test_what_the_batch_of_three_of_four_replicas_is(
    monkeypatch: pytest.MonkeyPatch, on_shrink: str, batch: str, factor: tuple[int, int]
) -> None:
    made = shrink(monkeypatch, now=3, planned=4, on_shrink=on_shrink, batch=batch)
    assert made.batch_factor == factor


def test_the_rate_goes_to_what_is_left_at_once_and_back_again_within_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = shrink(monkeypatch, now=1, planned=2, on_shrink="scale_lr")
    fewer.begin(1.0)
    assert "1 of 2 replicas train" in capsys.readouterr().err
    assert fewer.rate == fewer._variable.value == 0.5
    again = shrink(monkeypatch, now=2, planned=2, on_shrink="scale_lr")
    again.begin(0.5)
    assert again.rate == 0.5
    again.advance(WARMUP_STEPS // 2)
    assert again.rate == pytest.approx(0.75)
    again.begin(None)
    assert again.rate == pytest.approx(0.75), "the second fit goes on"
    again.advance(WARMUP_STEPS)
    assert again.rate == again._variable.value == 1.0


def test_a_gang_that_begins_with_fewer_begins_at_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = shrink(monkeypatch, now=1, planned=2, on_shrink="scale_lr")
    fewer.begin(None)
    assert fewer.rate == 0.5
    assert shrink(monkeypatch, now=1, planned=2, on_shrink="hold_batch").rate == 1.0


def test_a_position_is_counted_in_the_batches_of_now() -> None:
    position = Position(1, 10)
    position.in_batches_of(1.0)
    assert position.batch == 10, "of an older backup nothing is known of the batch"
    position.scale = 2.0
    position.in_batches_of(1.0)
    assert (position.batch, position.scale) == (20, 1.0)
    position.in_batches_of(0.75)
    assert position.batch == 26
    assert Position.from_json(position.as_json()).scale == 0.75

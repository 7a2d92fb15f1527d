"""The callback that `fit` is given, on a Keras whose model may only be read between two epochs."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from orchestrator.runtime.callbacks import reporter
from orchestrator.runtime.link import Link
from orchestrator.runtime.progress import Progress


class Told(Progress):
    """A progress that is always due, and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Link(None), interval_s=0.0)
        self.steps: list[tuple[int, int | None]] = []

    def report(self, step: int, metrics: Mapping[str, Any], epoch: int | None = None) -> None:
        self.steps.append((step, epoch))
        self.metrics = dict(metrics)


class Callback:
    """What Keras's own is on JAX: to look at the model brings its state back, amid a step."""

    def __init__(self) -> None:
        self.iterations = 0
        self.looks = 0

    @property
    def model(self) -> SimpleNamespace:
        self.looks += 1
        return SimpleNamespace(optimizer=SimpleNamespace(iterations=self.iterations))


def epoch(callback: Any, number: int, batches: list[int]) -> int:
    """One epoch, each batch with the number that Keras gives it; how often the model was read within it."""
    callback.on_epoch_begin(number)
    before = callback.looks
    for batch in batches:
        callback.on_train_batch_end(batch, {"loss": 1.0})
    looks = callback.looks - before
    callback.iterations += batches[-1] + 1
    callback.on_epoch_end(number)
    return int(looks)


def test_within_an_epoch_batches_are_counted_from_what_the_optimizer_had_at_its_begin() -> None:
    told = Told()
    callback = reporter(Callback, told, batches=True, counted=True)
    callback.iterations = 56  # restored from a checkpoint
    callback.on_train_begin()
    assert [epoch(callback, 2, [0, 1, 2]), epoch(callback, 3, [1, 2])] == [0, 0]
    assert told.steps == [(56, 0), (57, 2), (58, 2), (59, 2), (59, 2), (61, 3), (62, 3), (62, 3)]


def test_elsewhere_the_optimizer_itself_is_asked() -> None:
    told = Told()
    callback = reporter(Callback, told, batches=True)
    assert epoch(callback, 0, [0, 1]) == 2
    assert [step for step, _ in told.steps] == [0, 0, 2]
    assert told.metrics == {}, "of the epoch's end"

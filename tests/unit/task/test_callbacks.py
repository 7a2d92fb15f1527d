"""The callback that `fit` is given, on a Keras whose model may only be read between two epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.keras.callbacks import reporter
from orchestrator.task.keras.optimizers import iterations_of, optimizers_of
from orchestrator.task.link import Link
from orchestrator.task.progress import Progress


class Told(Progress):
    """A progress that is always due, and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Link(None), interval_s=0.0)
        self.steps: list[tuple[int, int | None]] = []
        self.began_at: list[int] = []

    def began(self, step: int) -> None:
        self.began_at.append(step)

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
    assert told.began_at[0] == 56
    assert told.steps == [(56, 0), (57, 2), (58, 2), (59, 2), (59, 2), (61, 3), (62, 3), (62, 3)]


def test_elsewhere_the_optimizer_itself_is_asked() -> None:
    told = Told()
    callback = reporter(Callback, told, batches=True)
    assert epoch(callback, 0, [0, 1]) == 2
    assert [step for step, _ in told.steps] == [0, 0, 2]
    assert told.metrics == {}, "of the epoch's end"


def test_a_model_whose_position_cannot_be_read_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Unreadable(Callback):
        @property
        def model(self) -> SimpleNamespace:
            raise RuntimeError("iterations is on a lost device")

    callback = reporter(Unreadable, Progress(Link(None), interval_s=0.0), batches=True, counted=False)
    for batch in range(3):
        callback.on_train_batch_end(batch, {"loss": 1.0})
    said = "a position of the training cannot be reported (RuntimeError: iterations is on a lost device)"
    assert capsys.readouterr().err.count(said) == 1


def fit(
    params: dict[str, Any], epochs: list[list[int]], *, begin: int = 0, first: int = 0
) -> list[int | None]:
    """Return the step at which the training was said to end: at the begin and at the end of each epoch."""
    told = Told()
    callback = reporter(Callback, told, batches=True)
    callback.params, callback.iterations = params, begin
    said: list[int | None] = []
    for number, batches in enumerate(epochs, first):
        callback.on_epoch_begin(number)
        said.append(told.total)
        callback.iterations += len(batches)
        callback.on_epoch_end(number)
        said.append(told.total)
    assert told.epochs == (params.get("epochs") if said[-1] is not None else None)
    return said


class EagerTensor:
    """A number on a device, which counts how often it is waited for."""

    waited = 0

    def __init__(self, value: float, ndim: int = 0) -> None:
        self.value, self.ndim = value, ndim

    def __float__(self) -> float:
        EagerTensor.waited += 1
        return self.value


class Sent(Link):
    """A link that keeps the messages."""

    def __init__(self) -> None:
        super().__init__(None)
        self.messages: list[Any] = []

    def send(self, message: Any, wait_s: float = 0.0) -> bool:
        assert wait_s == 0.0, "training waits for nobody"
        self.messages.append(message)
        return True

    def rows(self, name: str) -> list[list[Any]]:
        return [row for message in self.messages for row in message.get("stretches", {}).get(name, ())]


def batches_of(values: list[Any], *, steps_each: int = 1, counted: bool = False) -> Sent:
    """Train one epoch whose batches say these losses, between two messages, from step 100 on."""
    sent = Sent()
    callback = reporter(Callback, Progress(sent, interval_s=3600.0), batches=True, counted=counted)
    callback.iterations = 100
    callback.on_train_begin()
    callback.on_epoch_begin(0)
    looks, EagerTensor.waited = callback.looks, 0
    for batch, value in enumerate(values):
        callback.iterations += 0 if counted else steps_each
        callback.on_train_batch_end(batch, {"loss": value})
    assert (callback.looks, EagerTensor.waited) == (looks, 0), "a batch waits for no device"
    callback.iterations = 100 + len(values) * steps_each
    callback.on_epoch_end(0, {"accuracy": 0.5})
    return sent


@pytest.mark.parametrize("counted", [False, True])
def test_what_each_batch_says_between_two_messages_is_told_at_its_step(counted: bool) -> None:
    values = [2.0, 50.0, 0.5, math.nan, 0.25, math.inf, 0.125]
    sent = batches_of([EagerTensor(value) for value in values], counted=counted)
    finite = [(step, value) for step, value in enumerate(values, 101) if math.isfinite(value)]
    assert [tuple(row) for row in sent.rows("loss")] == finite
    assert sent.rows("accuracy") == [[107, 0.5]]
    (odd,) = (message for message in sent.messages if "nonfinite" in message)
    assert (odd["nonfinite"], odd["metric_steps"]["loss"]) == ({"loss": "nan"}, 104)


def test_batches_of_several_steps_lie_evenly_between_the_steps_that_were_read() -> None:
    assert batches_of([3.0, 2.0, 1.0], steps_each=10).rows("loss") == [[110, 3.0], [120, 2.0], [130, 1.0]]


def test_tensors_of_many_numbers_do_not_pile_up_on_a_device() -> None:
    sent = batches_of([EagerTensor(0.0, ndim=2) for _ in range(5)])
    assert (sent.rows("loss"), EagerTensor.waited) == ([], 0)


def test_a_fit_says_where_it_ends() -> None:
    assert fit({"epochs": 3, "steps": 2}, [[0, 1]] * 3) == [6] * 6


def test_a_trial_says_no_end_of_its_many_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.task.this_task.measuring", object())
    assert fit({"epochs": 1_000_000, "steps": 16}, [[0, 1]]) == [None, None]


def test_a_data_set_of_unknown_size_has_shown_it_after_an_epoch() -> None:
    assert fit({"epochs": 2, "steps": None}, [[0, 1, 2]] * 2) == [None, 6, None, 6]


def test_a_fit_that_goes_on_amid_an_epoch_knows_its_end_after_it() -> None:
    assert fit({"epochs": 3, "steps": 4}, [[2, 3], [0, 1, 2, 3]], begin=6, first=1) == [14, 12, 12, 12]


def test_a_fit_that_orch_resumes_amid_an_epoch_knows_its_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.task.this_task.batches_done", 2)
    assert fit({"epochs": 3, "steps": 4}, [[2, 3], [0, 1, 2, 3]], begin=6, first=1) == [12] * 4


def test_a_model_of_two_optimizers_counts_both() -> None:
    assert fit({"epochs": 2, "steps": 1}, [[0, 0], [0, 0]])[1] == 4


def test_a_loop_that_gives_no_numbers_ends_nowhere() -> None:
    assert fit({}, [[0]]) == [None, None]


def test_an_optimizer_under_two_names_is_one() -> None:
    adam, other = (type("Optimizer", (), {"__module__": "keras.src"})() for _ in range(2))
    model = SimpleNamespace(optimizer=adam, first=adam, later={"b": other, "a": adam}, once_more=[other])
    assert optimizers_of(model) == {"optimizer": adam, "optimizer.later.b": other}


def test_an_optimizer_of_a_model_within_a_model_is_restored_and_counts_no_steps() -> None:
    mine, pretrained = (type("Optimizer", (), {"__module__": "keras.src"})() for _ in range(2))
    mine.iterations, pretrained.iterations = 3, 1000
    layers = [SimpleNamespace(), SimpleNamespace(optimizer=mine), SimpleNamespace(optimizer=pretrained)]
    model = SimpleNamespace(optimizer=mine, _flatten_layers=lambda **_: layers)
    assert optimizers_of(model) == {"optimizer": mine, "optimizer.layer 2": pretrained}
    assert iterations_of(model) == 3

"""What each replica has counted for the figures of an epoch, over a restart. The strategy and variables are fakes."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent import backup, shares
from orchestrator.task.transparent.shares import NAME, Shares

np: Any = pytest.importorskip("numpy")


class Component:
    """What one replica has counted."""

    dtype = SimpleNamespace(as_numpy_dtype="float32")

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value, "float32")
        self.shape = self.value.shape

    def numpy(self) -> Any:
        return self.value

    def assign(self, value: Any) -> None:
        assert (value.shape, value.dtype) == (self.value.shape, self.value.dtype)
        self.value = value

    def assign_add(self, value: Any) -> None:
        assert (value.shape, value.dtype) == (self.value.shape, self.value.dtype)
        self.value = self.value + value


class Metric:
    """A variable with a component for each replica of this process."""

    def __init__(self, *values: Any) -> None:
        self.values = [Component(value) for value in values]
        self.shape = self.values[0].value.shape

    def now(self) -> list[Any]:
        return [each.value.tolist() for each in self.values]


def strategy(worker: int, replicas: int) -> Any:
    extended = SimpleNamespace(_id_in_cluster=worker)
    return SimpleNamespace(num_replicas_in_sync=replicas, extended=extended)


def told(worker: int, metrics: list[Metric], rows: Any) -> Any:
    """Return what a worker knows of all shares, which were these when the last step began."""
    known = Shares(strategy(worker, len(rows or ())), lambda: None, lambda: metrics)
    known.told = None if rows is None else Component(rows)
    return known.known(lambda metric: [each.numpy() for each in metric.values]).get(NAME)


def test_of_a_step_that_was_not_done_all_shares_are_known_to_the_last_bit() -> None:
    rows = [[0.1, 1.0, 2.0], [0.7, 3.0, 4.0]]
    mine = [Metric(np.float32(0.7)), Metric([3.0, 4.0])]
    assert told(1, mine, rows).tolist() == np.asarray(rows, "float32").astype(float).tolist()


def test_of_a_step_that_was_done_since_the_others_shares_are_as_much_as_ones_own() -> None:
    mine = [Metric(10.0, 20.0), Metric([1.0, 1.0], [2.0, 2.0])]
    rows = [[1.0, 5.0, 5.0], [2.0, 6.0, 6.0], [9.0, 1.0, 1.0], [15.0, 2.0, 2.0]]
    assert told(1, mine, rows).tolist() == [
        [2.0, 5.0, 5.0],
        [3.0, 6.0, 6.0],
        [10.0, 1.0, 1.0],
        [20.0, 2.0, 2.0],
    ]


def test_nothing_is_known_of_metrics_that_were_made_since() -> None:
    assert told(0, [Metric(1.0), Metric(2.0)], [[1.0], [1.0]]) is None
    assert told(0, [Metric(1.0)], None) is None


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a model be what it tells: its metrics and its averages."""
    monkeypatch.setattr(shares, "told_of", lambda model, _: model)


@pytest.mark.parametrize("local", [1, 2])
def test_each_replica_gets_back_what_it_had_counted_and_averaged(local: int) -> None:
    values = {NAME: np.arange(16.0).reshape(4, 4)}
    for worker in range(4 // local):
        counted = [Metric(*[0.0] * local), Metric(*[[1.0, 1.0]] * local)]
        average = Metric(*[7.0] * local)
        model = counted, [average]
        assert shares.give_back(strategy(worker, 4), model, values)
        mine = values[NAME][worker * local : (worker + 1) * local]
        assert counted[0].now() == mine[:, 0].tolist()
        assert counted[1].now() == (mine[:, 1:3] + 1.0).tolist(), (
            "tf_keras has counted the first batch by then"
        )
        assert average.now() == [7.0] * local
        assert shares.give_back(strategy(worker, 4), model, values, averages=True)
        assert average.now() == mine[:, 3].tolist()
        assert counted[0].now() == mine[:, 0].tolist()


def test_other_replicas_or_metrics_get_the_sum_as_before() -> None:
    metrics, values = [Metric(0.0)], {NAME: np.zeros((2, 1))}
    assert shares.give_back(strategy(0, 2), (metrics, []), values)
    assert not shares.give_back(strategy(0, 3), (metrics, []), values)
    assert not shares.give_back(strategy(0, 2), ([*metrics, Metric(0.0)], []), values)
    assert not shares.give_back(strategy(0, 2), (metrics, [Metric(0.0)]), values, averages=True)
    assert not shares.give_back(strategy(0, 2), (metrics, []), {})


def test_what_is_told_is_kept_for_a_backup() -> None:
    assert shares.of_all(strategy(0, 2), ([], [])) == {}
    model = [Metric(4.0), Metric([1.0, 2.0])], [Metric(9.0)]
    assert shares.of_all(strategy(0, 1), model)[NAME].tolist() == [[4.0, 1.0, 2.0, 9.0]]


def of_size(monkeypatch: pytest.MonkeyPatch, metrics: int, averages: int, weights: int) -> tuple[int, int]:
    """Return how many variables are told of a model whose metrics, averages and weights have so many numbers."""
    monkeypatch.undo()
    each = [[Metric(np.zeros(size))] for size in (metrics, averages, weights)]
    monkeypatch.setattr(backup, "variables_of", lambda _: {"metrics": each[0]})
    monkeypatch.setattr(shares, "statistics_of", lambda _: each[1])
    model = SimpleNamespace(metrics_variables=(), trainable_variables=each[2])
    told, of_averages = shares.told_of(model, strategy(0, 2))
    return len(told), len(of_averages)


def test_averages_of_tf_keras_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(backup, "variables_of", lambda _: {"metrics": [Metric(0.0)]})
    monkeypatch.setattr(shares, "statistics_of", lambda _: [Metric(0.0)])
    told, averages = shares.told_of(SimpleNamespace(trainable_variables=[]), strategy(0, 2))
    assert (len(told), len(averages)) == (1, 0)


def test_what_is_large_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_size(monkeypatch, 4096, 0, 10) == (1, 1), "64 KiB for two replicas"
    assert of_size(monkeypatch, 4097, 0, 10) == (0, 0)
    assert of_size(monkeypatch, 2, 4094, 10) == (1, 1)
    assert of_size(monkeypatch, 2, 4095, 10) == (1, 0), "the figures are told all the same"
    assert of_size(monkeypatch, 2, 4095, 1_638_800) == (1, 1), "a hundredth of the weights' bytes"
    assert of_size(monkeypatch, 2, 4095, 1_638_700) == (1, 0)


class Trainer:
    """What Keras 3 has in its models."""

    trainable_variables: Any = (SimpleNamespace(dtype="float32"),)

    def __init__(self, *metrics: Any) -> None:
        self.metrics = metrics

    def train_step(self) -> None:
        """Train as Keras does."""

    def compute_metrics(self) -> None:
        """Count as Keras does."""


class OwnStep(Trainer):
    def train_step(self) -> None:
        """Train as the script does."""


class OwnFigures(Trainer):
    def compute_metrics(self) -> None:
        """Count as the script does."""


class Mixed(Trainer):
    trainable_variables = (SimpleNamespace(dtype="float32"), SimpleNamespace(dtype="float16"))


def metric(module: str, **given: Any) -> Any:
    """Return a metric whose class is of this module."""
    return type("Metric", (), {"__module__": module, **given})()


MEAN, OWN = metric("keras.src.metrics"), metric("__main__")
WRAPPED = metric("keras.src.metrics", _fn=metric("__main__"))


@pytest.mark.parametrize(
    ("model", "are"),
    [
        (Trainer(MEAN), True),
        (Trainer(SimpleNamespace(metrics=[MEAN, MEAN])), True),
        (Trainer(MEAN, OWN), False),
        (Trainer(SimpleNamespace(metrics=[MEAN, OWN])), False),
        (Trainer(WRAPPED), False),
        (OwnStep(MEAN), False),
        (OwnFigures(MEAN), False),
        (Mixed(MEAN), False),
        (SimpleNamespace(metrics=[MEAN]), False),
    ],
)
def test_shares_are_told_with_the_gradients_of_kerass_own_step_and_metrics(
    monkeypatch: pytest.MonkeyPatch, model: Any, are: bool
) -> None:
    trainer = SimpleNamespace(TensorFlowTrainer=Trainer)
    monkeypatch.setitem(sys.modules, "keras.src.backend.tensorflow.trainer", trainer)
    assert Shares(strategy(0, 2), lambda: model, list).with_gradients(model) is are
    monkeypatch.delitem(sys.modules, "keras.src.backend.tensorflow.trainer")
    assert not Shares(strategy(0, 2), lambda: model, list).with_gradients(model), "tf_keras"


def test_another_model_within_the_step_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SimpleNamespace(TensorFlowTrainer=Trainer)
    monkeypatch.setitem(sys.modules, "keras.src.backend.tensorflow.trainer", trainer)
    fitted = Trainer(MEAN)
    assert not Shares(strategy(0, 2), lambda: fitted, list).with_gradients(Trainer(MEAN))


@pytest.mark.parametrize(("with_gradients", "averages"), [(True, 1), (True, 0), (False, 1)])
def test_averages_are_known_where_they_are_told_with_the_gradients(
    monkeypatch: pytest.MonkeyPatch, with_gradients: bool, averages: int
) -> None:
    monkeypatch.setattr(Shares, "with_gradients", lambda *_: with_gradients)
    told = Shares(strategy(0, 2), lambda: ([], [Metric(0.0)] * averages), list)
    assert told.has_averages() is (with_gradients and averages == 1)

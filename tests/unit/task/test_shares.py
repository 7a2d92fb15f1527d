"""What each replica has counted for the figures of an epoch, over a restart. The strategy and variables are fakes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent import shares
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
    known = Shares(strategy(worker, len(rows or ())), lambda: metrics)
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


@pytest.mark.parametrize("local", [1, 2])
def test_each_replica_gets_back_what_it_had_counted(local: int) -> None:
    values = {NAME: np.arange(12.0).reshape(4, 3)}
    for worker in range(4 // local):
        again = [Metric(*[0.0] * local), Metric(*[[1.0, 1.0]] * local)]
        assert shares.give_back(strategy(worker, 4), again, values)
        mine = values[NAME][worker * local : (worker + 1) * local]
        assert again[0].now() == mine[:, 0].tolist()
        assert again[1].now() == (mine[:, 1:] + 1.0).tolist(), "tf_keras has counted the first batch by then"


def test_other_replicas_or_metrics_get_the_sum_as_before() -> None:
    metrics, values = [Metric(0.0)], {NAME: np.zeros((2, 1))}
    assert shares.give_back(strategy(0, 2), metrics, values)
    assert not shares.give_back(strategy(0, 3), metrics, values)
    assert not shares.give_back(strategy(0, 2), [*metrics, Metric(0.0)], values)
    assert not shares.give_back(strategy(0, 2), metrics, {})


def test_metrics_that_are_large_are_not_told() -> None:
    matrix = Metric(np.zeros((100, 100)))
    assert shares.of_all(strategy(0, 2), [matrix]) == {}
    assert shares.of_all(strategy(0, 2), []) == {}
    assert shares.of_all(strategy(0, 1), [Metric(4.0), Metric([1.0, 2.0])])[NAME].tolist() == [
        [4.0, 1.0, 2.0]
    ]

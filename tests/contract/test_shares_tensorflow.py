"""What two workers tell each other of their figures, with variables of TensorFlow; the all-reduce is a sum here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent.shares import Shares

pytestmark = pytest.mark.tensorflow

LARGE = 2**24 + 1
"""An integer that a float32 cannot hold."""


def strategy() -> Any:
    """Return one of two workers with a replica in each."""
    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True, _num_workers=2)
    return SimpleNamespace(num_replicas_in_sync=2, extended=extended)


class Worker:
    """What one of them has counted."""

    def __init__(self, place: int, *values: Any) -> None:
        import tensorflow as tf

        self.place, self.asked = place, list[Any]()
        self.variables = [tf.Variable(value, dtype=kind) for value, kind in values]
        self.shares = Shares(strategy(), lambda: None, lambda: self.variables)

    @property
    def replica_id_in_sync_group(self) -> Any:
        import tensorflow as tf

        return tf.constant(self.place)

    def all_reduce(self, _how: Any, value: Any) -> Any:
        """Add nothing: the other worker has an empty part."""
        self.asked.append(value.shape.rank)
        return value

    def told(self) -> Any:
        return self.shares.told.numpy().tolist()


def exchange(*workers: Worker) -> None:
    """Have each tell its row, and hear the sum."""
    rows = [worker.shares.row(worker)[0] for worker in workers]
    for worker in workers:
        worker.shares.tell(sum(rows[1:], rows[0]), worker)


def test_a_number_that_a_gradient_cannot_hold_is_told_whole() -> None:
    workers = [Worker(0, (0.1, "float64"), (LARGE, "int64")), Worker(1, (0.7, "float64"), (3, "int64"))]
    exchange(*workers)
    for worker in workers:
        assert worker.told() == [[pytest.approx(0.1, rel=1e-14), LARGE], [pytest.approx(0.7, rel=1e-14), 3]]


def test_a_figure_that_is_infinite_is_told_as_that() -> None:
    workers = [Worker(0, (float("inf"), "float32")), Worker(1, (2.0, "float32"))]
    exchange(*workers)
    assert [worker.told() for worker in workers] == [[[float("inf")], [2.0]]] * 2


def test_metrics_that_are_made_later_have_a_row_of_their_own_length() -> None:
    workers = [Worker(place, (1.0, "float32")) for place in range(2)]
    exchange(*workers)
    for worker in workers:
        worker.variables += worker.variables
    exchange(*workers)
    assert workers[0].told() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize(("with_gradients", "values"), [(True, 1), (False, 0), (False, 1)])
def test_the_sum_of_examples_takes_the_shares_along_where_no_gradient_will(
    monkeypatch: pytest.MonkeyPatch, with_gradients: bool, values: int
) -> None:
    import tensorflow as tf

    monkeypatch.setattr(Shares, "with_gradients", lambda *_: with_gradients)
    worker = Worker(0, *[(5.0, "float32")] * values)
    summed = worker.shares.sum_of(tf.constant(8, tf.int32), worker)
    assert (int(summed), summed.dtype) == (8, tf.int32)
    takes_along = values == 1 and not with_gradients
    assert (worker.asked, worker.shares.told is not None) == ([1 if takes_along else 0], takes_along)
    if takes_along:
        assert worker.told() == [[5.0], [0.0]]

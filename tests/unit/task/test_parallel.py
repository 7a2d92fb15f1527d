"""What of `make_parallel` needs no TensorFlow."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from orchestrator.task.keras import parallel


class Optimizer: ...


class Metric: ...


def test_whatever_compile_is_given_that_holds_variables_is_mirrored_also_where_each_output_has_its_own() -> (
    None
):
    mirrored: list[object] = []
    optimizer, first, second, third = Optimizer(), Metric(), Metric(), Metric()
    compiled: list[object] = []
    within: Any = parallel._within(lambda *args, **kwargs: compiled.append((args, kwargs)))
    strategy = SimpleNamespace(scope=contextlib.nullcontext)
    within._orch_strategy.append(SimpleNamespace(strategy=strategy, mirror_part=mirrored.append))
    metrics = {"left": first, "right": [second, "accuracy"]}
    within(optimizer, loss={"left": "mse"}, metrics=metrics, weighted_metrics=[third])
    assert mirrored == [optimizer, first, second, third]
    assert compiled == [
        ((optimizer,), {"loss": {"left": "mse"}, "metrics": metrics, "weighted_metrics": [third]})
    ]

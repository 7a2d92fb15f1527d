"""The table "What Keras 3's options do under a strategy" of docs/strategies.md, row by row, with real TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.causes import Cause
from orchestrator.core.diagnosis import matching
from orchestrator.core.ends import Exit
from tests.contract.strategy_harness import Cluster

pytestmark = [pytest.mark.tensorflow, pytest.mark.long, pytest.mark.timeout(180)]

SCRIPT = Path(__file__).parent / "scripts" / "strategies" / "training_options.py"
Train = Callable[[str, str], dict[str, Any]]

EXACT = 1e-5
"""The largest difference of a weight from those of one process, relative to the largest weight: the order of sums."""
ROUNDED = {"mixed_float16": 1e-3, "mixed_bfloat16": 1e-2}
"""With 11 and 8 bits of precision each replica rounds its own part of the batch."""

EQUAL = {
    "mirrored": "mixed_float16,mixed_bfloat16,accumulation,loss_scale,several_optimizers,several_steps",
    "multi_worker_mirrored": "mixed_float16,mixed_bfloat16,accumulation,loss_scale,several_optimizers,"
    "optimizers_not_built,several_steps",
    "central_storage": "mixed_bfloat16,jit_compile,several_optimizers,optimizers_not_built,several_steps",
}

NOT_IN_A_CONDITION = "`transparent: true`"
NOT_COMPILED = "`jit_compile=False`"
FAILS = [
    ("central_storage", "accumulation", NOT_IN_A_CONDITION),
    ("central_storage", "loss_scale", NOT_IN_A_CONDITION),
    ("central_storage", "mixed_float16", NOT_IN_A_CONDITION),
    ("mirrored", "jit_compile", NOT_COMPILED),
    ("multi_worker_mirrored", "jit_compile", NOT_COMPILED),
    ("mirrored", "optimizers_not_built", "`optimizer.build(variables)`"),
]
"""Each in a process of its own: a collective that failed leaves others without an answer."""


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    started: list[Cluster] = []

    def run(strategy: str, cases: str) -> dict[str, Any]:
        several = strategy == "multi_worker_mirrored"
        options: dict[str, Any] = {"strategy": strategy, "keras": 3}
        if not several:
            options["replicas_on_cpu"] = 2
        tasks = {"worker": 2 if several else 1}
        started.append(Cluster(SCRIPT, strategy, cases, tasks=tasks, options=options, directory=tmp_path))
        chief = started[-1]["worker:0"]
        chief.ended()
        lines = chief.task.out.strip().splitlines()
        assert lines, chief.task.err
        found: dict[str, Any] = json.loads(lines[-1])
        assert found["replicas"] == 2
        return dict(found["cases"])

    yield run
    for each in started:
        each.close()


def trains_as_one_process(found: dict[str, Any]) -> None:
    for case, result in found.items():
        assert "error" not in result, (case, result["error"])
        assert result["difference"] < ROUNDED.get(case, EXACT), case
        alone, together = result["steps"]
        updates = 6 if case == "accumulation" else 12
        assert alone == together == [updates] * (2 if "optimizers" in case else 1), case


@pytest.mark.parametrize("strategy", EQUAL)
def test_options_train_as_in_one_process(train: Train, strategy: str) -> None:
    trains_as_one_process(train(strategy, EQUAL[strategy]))


@pytest.mark.parametrize(("strategy", "case", "way_out"), FAILS)
def test_what_tensorflow_refuses_is_known_by_its_words(
    train: Train, strategy: str, case: str, way_out: str
) -> None:
    (result,) = train(strategy, case).values()
    ended = Exit(Cause.SCRIPT, 1, error=result["error"])
    found = matching.signature_of(ended)
    assert found is not None, result["error"]
    assert way_out in matching.explained(ended, host="a", python="python3")[1]

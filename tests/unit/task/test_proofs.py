"""Which steps of a run's fits are proved, by a clock of the test; what a proof finds is in the contract tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.task.transparent import proof
from orchestrator.task.transparent.proof import Proofs
from orchestrator.task.transparent.replay import Course

ALONE = SimpleNamespace(extended=SimpleNamespace(_num_workers=1))
COST_S = 3.0


class Run:
    """A run in which each proof takes COST_S and any other step takes 0.1 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_always: bool = False, known: Any = ()) -> None:
        self.now = 100.0
        monkeypatch.setattr(proof, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(proof, "told_by_chief", lambda _strategy, _chief, number: number)
        self.proofs = Proofs(ALONE, True, is_always, set(known))

    def fit(self, model: float, steps: int) -> list[int]:
        """Return which of its steps are proved."""
        course, proved = Course(0), []
        course.signature = (0.0, model)
        for step in range(1, steps + 1):
            began_at = self.now
            if self.proofs.is_due(course):
                proved.append(step)
                self.now += COST_S
                self.proofs.done(course, began_at)
            else:
                self.now += 0.1
        return proved


def test_the_first_fit_is_proved_in_its_first_step_and_its_model_never_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch)
    assert run.fit(1.0, 5) == [1]
    assert run.fit(1.0, 5000) == []


def test_of_a_search_over_small_models_a_tenth_of_the_time_goes_into_proofs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch)
    proved = sum(len(run.fit(float(model), 20)) for model in range(500))
    took_s = run.now - 100.0
    assert 2 * COST_S < proved * COST_S <= proof.AT_MOST * took_s + COST_S


def test_a_long_fit_that_could_not_be_proved_at_once_is_proved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch)
    run.fit(1.0, 5)
    assert run.fit(2.0, 5000) == [1024], "after 60 s, at the next power of two"


def test_a_model_that_was_proved_before_the_restart_is_not_proved_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch, known=[(0.0, 1.0)])
    assert run.fit(1.0, 5) == []
    assert run.fit(2.0, 5) == [1]


def test_where_the_spec_asks_for_it_each_fit_is_proved_in_its_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run(monkeypatch, is_always=True, known=[(0.0, 1.0)])
    assert [run.fit(1.0, 5) for _ in range(3)] == [[1], [1], [1]]


@pytest.mark.parametrize(
    ("weights_mib", "replicas", "on_gpus", "expected"),
    [(100, 2, False, True), (129, 2, False, False), (64, 2, True, True), (65, 8, True, False)],
)
def test_a_model_that_fills_the_memory_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, weights_mib: int, replicas: int, on_gpus: bool, expected: bool
) -> None:
    monkeypatch.setattr(proof, "free_bytes", lambda **_: 1 << 30)
    assert proof.has_room(weights_mib << 20, replicas, on_gpus=on_gpus) == expected


def test_of_several_gpus_the_fullest_counts_and_memory_that_is_not_known_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proof, "_free_bytes_of_gpus", lambda: [9 << 30, 2 << 30])
    assert proof.free_bytes(on_gpus=True) == 2 << 30

    def tells_nothing() -> list[int]:
        raise ValueError("Failed to get device memory info")

    monkeypatch.setattr(proof, "_free_bytes_of_gpus", tells_nothing)
    assert proof.free_bytes(on_gpus=True) == 0
    assert not proof.has_room(1, 2, on_gpus=True)
    assert proof.free_bytes(on_gpus=False) > 1 << 20, "of this host"


def test_a_proof_that_found_no_memory_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = str(tmp_path / "failed")
    assert Proofs(ALONE, True, True, set(), failed).all_have(True)
    assert Proofs(ALONE, True, True, set(), failed).make_without(lambda: "its figures") == "its figures"
    assert not Proofs(ALONE, True, True, set(), failed).all_have(True)
    monkeypatch.setattr(proof, "workers_of", lambda _: 2)
    with pytest.raises(MemoryError, match="The training begins again, and does without it"):
        Proofs(ALONE, True, True, set(), failed).make_without(
            lambda: pytest.fail("others wait for the proof")
        )

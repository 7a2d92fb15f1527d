"""What a run has spent its time on: the classes are disjoint, and add up to the elapsed time."""

from __future__ import annotations

import pytest

from orchestrator.core.goodput import Account, Event, Moved, account
from orchestrator.core.notes import NoteKind as Kind


def events(*told: tuple[float, Kind, int, dict[str, int]]) -> list[Event]:
    return [Event(at, kind, generation, data) for at, kind, generation, data in told]


A_RESTART = events(
    (100, Kind.SUBMITTED, 0, {}),
    (110, Kind.GENERATION, 1, {}),
    (112, Kind.FROM_START, 1, {}),
    (120, Kind.RUNNING, 1, {}),
    (190, Kind.CHECKPOINT, 1, {"global_step": 50}),
    (225, Kind.STOPPING, 1, {}),
    (230, Kind.BACKOFF, 1, {}),
    (240, Kind.GENERATION, 2, {}),
    (245, Kind.RESUMED, 2, {"global_step": 50, "steps_lost": 50}),
    (250, Kind.RUNNING, 2, {}),
    (300, Kind.SUCCEEDED, 2, {}),
)
MOVED = {1: Moved(125, 225, 1, 100), 2: Moved(260, 300, 51, 90)}


def of(found: Account | None) -> Account:
    assert found is not None
    return found


def test_half_of_a_generation_is_lost_where_the_next_one_resumes_from_half_of_its_steps() -> None:
    found = of(account(A_RESTART, now=1e9, moved=MOVED))
    assert found.is_final
    assert found.elapsed_s == 200
    assert found.kept_s == pytest.approx(50 + 40)
    assert found.value == pytest.approx(0.45)
    assert found.badput == {"connect": 10, "start": 20, "warmup": 15, "lost": 50, "stop": 5, "backoff": 10}
    assert [(s.state, s.begin, s.end) for s in found.generations[1].spans] == [
        ("start", 110, 120),
        ("warmup", 120, 125),
        ("training", 125, 175),
        ("lost", 175, 225),
        ("stop", 225, 230),
        ("backoff", 230, 240),
    ]


@pytest.mark.parametrize("until", range(1, len(A_RESTART) + 1))
def test_the_classes_add_up_to_the_elapsed_time_at_any_moment(until: int) -> None:
    found = of(account(A_RESTART[:until], now=A_RESTART[until - 1].at + 3, moved=MOVED))
    assert found.kept_s + sum(found.badput.values()) == pytest.approx(found.elapsed_s)
    spans = [span for generation in found.generations for span in generation.spans]
    assert [span.end for span in spans[:-1]] == [span.begin for span in spans[1:]]


def test_without_a_history_a_generation_trains_from_its_release() -> None:
    found = of(account(A_RESTART, now=1e9))
    assert found.generations[1].last_step == 100
    assert "warmup" not in found.badput
    assert found.badput["lost"] == pytest.approx(105 / 2)


def test_the_newest_work_of_a_run_that_goes_on_counts_but_is_at_risk() -> None:
    found = of(account(A_RESTART[:5], now=225, moved=MOVED))
    assert not found.is_final
    assert found.generations[1].at_risk
    assert found.badput.get("lost", 0) == 0
    failed = of(account([*A_RESTART[:6], Event(230, Kind.FAILED, 1)], now=1e9, moved=MOVED))
    assert failed.badput["lost"] == pytest.approx(50)  # what no checkpoint holds when it has failed


def test_a_stall_is_no_training() -> None:
    stalled = [*A_RESTART[:4], Event(150, Kind.STALLED, 1), Event(180, Kind.MOVES_AGAIN, 1)]
    found = of(account(stalled, now=200, moved={1: Moved(125, 200, 1, 100)}))
    assert found.badput["stall"] == 30
    assert found.kept_s == 25 + 20


def test_a_run_that_never_trained_has_no_goodput() -> None:
    assert of(account(A_RESTART[:3], now=500)).value is None
    assert account([], now=1) is None

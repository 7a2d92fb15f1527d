"""What a run has spent its time on: the classes are disjoint, and add up to the elapsed time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.notes import NoteKind as Kind
from orchestrator.reporting.goodput import CLASSES, KINDS, Account, Event, Moved, account


def events(*told: tuple[float, Kind, int, dict[str, float]]) -> list[Event]:
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


def test_what_lies_between_the_last_report_and_a_failure_is_training() -> None:
    """It was called stopping, before the failure had happened; longer than between two looks it is a standstill."""
    for silent_s, stop_s in ((1.5, 5.0), (3.0, 5.0), (3.5, 8.5), (20.0, 25.0)):
        found = of(account(A_RESTART, now=1e9, moved={**MOVED, 1: Moved(125, 225 - silent_s, 1, 100)}))
        assert found.badput["stop"] == stop_s


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


def test_a_generation_that_saved_nothing_has_kept_what_it_resumed_from() -> None:
    first = of(account(A_RESTART[:5], now=225, moved=MOVED)).generations[1]
    assert first.resumed_from == 0, "from the start is known, and not unknown"
    resumed = events(
        (100, Kind.SUBMITTED, 0, {}),
        (110, Kind.GENERATION, 1, {}),
        (112, Kind.RESUMED, 1, {"global_step": 50}),
        (120, Kind.RUNNING, 1, {}),
        (200, Kind.FAILED, 1, {}),
    )
    failed = of(account(resumed, now=1e9, moved={1: Moved(125, 200, 51, 90)})).generations[1]
    assert (failed.kept_to, failed.kept_fraction) == (50, 0.0)
    at_once = of(account(resumed, now=1e9, moved={1: Moved(125, 200, 50, 50)}))
    assert at_once.badput.get("lost", 0) == 0, "no step was made that another run would make again"


def without_checkpoints(*more: Event) -> list[Event]:
    """No event says from which step a generation starts: it is step 0."""
    return [*(event for event in A_RESTART[:-1] if event.kind not in (Kind.CHECKPOINT, *_STARTS)), *more]


_STARTS = (Kind.RESUMED, Kind.FROM_START)


def test_without_checkpoints_all_that_was_trained_before_a_restart_is_lost() -> None:
    going = of(account(without_checkpoints(), now=300, moved=MOVED))
    assert (going.badput["lost"], going.kept_s) == (100, 40)
    ended = of(account(without_checkpoints(Event(300, Kind.SUCCEEDED, 2)), now=1e9, moved=MOVED))
    assert (ended.badput["lost"], ended.kept_s) == (100, 40)


def test_what_a_script_went_on_from_by_itself_counts() -> None:
    own = Event(261, Kind.OWN_PLACE, 2, {"global_step": 50})
    found = of(account(without_checkpoints(own), now=300, moved=MOVED))
    assert (found.badput["lost"], found.kept_s) == (50, 50 + 40)


@pytest.mark.parametrize(("second_until", "lost"), [(250, 50), (285, 50 + 30)])
def test_a_second_step_back_loses_more_of_all_generations_before(second_until: float, lost: float) -> None:
    told = events(
        (100, Kind.SUBMITTED, 0, {}),
        (110, Kind.GENERATION, 1, {"gpus": 72}),
        (112, Kind.FROM_START, 1, {}),
        (120, Kind.RUNNING, 1, {}),
        (175, Kind.CHECKPOINT, 1, {"global_step": 50}),
        (205, Kind.CHECKPOINT, 1, {"global_step": 80}),
        (225, Kind.STOPPING, 1, {}),
        (240, Kind.GENERATION, 2, {"gpus": 72}),
        (245, Kind.RESUMED, 2, {"global_step": 80, "steps_lost": 20}),
        (250, Kind.RUNNING, 2, {}),
        (second_until, Kind.STOPPING, 2, {}),
        (290, Kind.GENERATION, 3, {"gpus": 72}),
        (295, Kind.RESUMED, 3, {"global_step": 50, "steps_lost": 30}),
        (300, Kind.RUNNING, 3, {}),
        (420, Kind.SUCCEEDED, 3, {}),
    )
    moved = {1: Moved(125, 225, 1, 100), 3: Moved(300, 420, 51, 170)}
    if second_until > 250:
        moved[2] = Moved(255, 285, 81, 110)
    found = of(account(told, now=1e9, moved=moved))
    assert (found.generations[1].kept_to, found.generations[1].last_step) == (50, 100)
    assert found.badput["lost"] == pytest.approx(lost)
    assert found.lost_gpu_hours == pytest.approx(lost * 72 / 3600)
    assert found.kept_s == pytest.approx(50 + 120)
    assert found.kept_s + sum(found.badput.values()) == pytest.approx(found.elapsed_s)
    before_its_first_step = of(account(told[:-1], now=301, moved={1: moved[1]}))
    assert before_its_first_step.generations[1].kept_to == 80, "nothing below it was trained again yet"


def test_a_start_that_failed_before_its_first_step_loses_no_work_of_generations_long_before() -> None:
    """A script that restores by itself is told to begin at step 0 each time, and says later where it went on."""
    told = events(
        (100, Kind.SUBMITTED, 0, {}),
        (110, Kind.GENERATION, 1, {}),
        (120, Kind.RUNNING, 1, {}),
        (220, Kind.STOPPING, 1, {}),
        (230, Kind.GENERATION, 2, {}),
        (235, Kind.FROM_START, 2, {}),
        (240, Kind.RUNNING, 2, {}),
        (240, Kind.OWN_PLACE, 2, {"global_step": 90}),
        (300, Kind.STOPPING, 2, {}),
        (310, Kind.GENERATION, 3, {}),
        (315, Kind.FROM_START, 3, {}),
        (320, Kind.RUNNING, 3, {}),
        (325, Kind.STOPPING, 3, {}),
        (330, Kind.GENERATION, 4, {}),
        (335, Kind.FROM_START, 4, {}),
        (340, Kind.RUNNING, 4, {}),
        (340, Kind.OWN_PLACE, 4, {"global_step": 140}),
        (400, Kind.SUCCEEDED, 4, {}),
    )
    moved = {1: Moved(120, 220, 1, 100), 2: Moved(240, 300, 91, 150), 4: Moved(340, 400, 141, 200)}
    assert of(account(told, now=1e9, moved=moved)).generations[1].kept_to == 90


def test_a_stall_is_no_training() -> None:
    stalled = [*A_RESTART[:4], Event(150, Kind.STALLED, 1), Event(180, Kind.MOVES_AGAIN, 1)]
    found = of(account(stalled, now=200, moved={1: Moved(125, 200, 1, 100)}))
    assert found.badput["stall"] == 30
    assert found.kept_s == 25 + 20


def test_a_run_that_never_trained_has_no_goodput() -> None:
    assert of(account(A_RESTART[:3], now=500)).value is None
    assert account([], now=1) is None


def test_reading_a_checkpoint_is_neither_the_start_nor_the_warm_up() -> None:
    told = [*A_RESTART[:9], Event(250, Kind.RUNNING, 2, {"seeding_s": 3}), A_RESTART[-1]]
    moved = {**MOVED, 2: Moved(260, 300, 51, 90, began_at=257)}
    found = of(account(told, now=1e9, moved=moved))
    assert [(s.state, s.begin, s.end) for s in found.generations[2].spans] == [
        ("start", 240, 247),
        ("restore", 247, 250),
        ("restore", 250, 257),
        ("warmup", 257, 260),
        ("training", 260, 300),
    ]
    assert found.badput["restore"] == 10
    first = of(account(told, now=1e9, moved={1: Moved(125, 225, 1, 100, began_at=124)}))
    assert "restore" not in {span.state for span in first.generations[1].spans}, "it started from nothing"


def test_without_a_history_the_first_new_step_tells_what_was_restored() -> None:
    again = Event(262, Kind.TRAINS_AGAIN, 2, {"restored_s": 4, "first_step_s": 6})
    found = of(account([*A_RESTART[:10], again, A_RESTART[-1]], now=1e9))
    assert [(s.state, s.begin, s.end) for s in found.generations[2].spans][1:] == [
        ("restore", 250, 254),
        ("warmup", 254, 260),
        ("training", 260, 300),
    ]


def test_a_host_is_waited_for_from_its_silence_and_until_another_is_found() -> None:
    told = [
        *A_RESTART[:5],
        Event(240, Kind.STOPPING, 1),
        Event(300, Kind.HOST_LOST, 1),
        Event(301, Kind.BACKOFF, 1),
        Event(306, Kind.WAITING_FOR_HOST, 1),
        Event(906, Kind.GENERATION, 2),
    ]
    found = of(account(told, now=910, moved=MOVED))
    assert [(s.state, s.begin, s.end) for s in found.generations[1].spans][-5:] == [
        ("stop", 225, 240),
        ("host", 240, 300),
        ("stop", 300, 301),
        ("backoff", 301, 306),
        ("host", 306, 906),
    ]
    silent = [*A_RESTART[:5], Event(285, Kind.HOST_LOST, 1), Event(285, Kind.STOPPING, 1)]
    assert of(account([*silent, Event(290, Kind.FAILED, 1)], now=1e9, moved=MOVED)).badput["host"] == 60


def test_what_a_survivor_took_to_hand_over_its_state_is_a_class_of_its_own() -> None:
    rescued = Event(237, Kind.RESCUED, 1, {"took_s": 3.0, "global_step": 100})
    told = [*A_RESTART[:5], Event(230, Kind.STOPPING, 1), rescued, Event(238, Kind.GENERATION, 2)]
    found = of(account(told, now=240, moved=MOVED))
    assert [(s.state, s.begin, s.end) for s in found.generations[1].spans][-4:] == [
        ("stop", 225, 230),
        ("stop", 230, 234),
        ("rescue", 234, 237),
        ("stop", 237, 238),
    ]


def test_the_time_in_the_queue_after_it_has_made_way_is_neither_stop_nor_unseen() -> None:
    """A coordinator records no times of a run that waits, and another one may have begun meanwhile."""
    told = [
        *A_RESTART[:6],
        Event(230, Kind.QUEUED, 1),
        Event(530, Kind.QUEUED, 1),
        Event(730, Kind.GENERATION, 2),
    ]
    for watched in ([], [(100, 231), (700, 740)]):
        found = of(account(told, now=740, moved=MOVED, watched=watched))
        assert (found.badput["stop"], found.badput["queue"], found.badput.get("unseen")) == (5, 500, None)
    still = of(account(told[:7], now=630, moved=MOVED, watched=[(100, 231)]))
    assert (still.badput["queue"], still.badput.get("unseen")) == (400, None)


def test_the_queue_before_the_first_generation_does_not_count() -> None:
    first = [Event(50, Kind.QUEUED, 0), A_RESTART[0], Event(105, Kind.QUEUED, 0), *A_RESTART[1:]]
    assert account(first, now=1e9, moved=MOVED) == account(A_RESTART, now=1e9, moved=MOVED)
    assert account(first[:1], now=1e9) is None


def test_saves_that_held_the_training_up_are_no_training() -> None:
    moved = {1: Moved(125, 225, 1, 100, saved_s=10), 2: Moved(260, 300, 51, 90, saved_s=4)}
    found = of(account(A_RESTART, now=1e9, moved=moved))
    assert found.badput["save"] == pytest.approx(5 + 4), "half of the first generation is lost anyway"
    assert found.badput["lost"] == pytest.approx(50)
    assert found.kept_s == pytest.approx(45 + 36)


def test_what_nobody_watched_is_unseen_unless_steps_were_made() -> None:
    watched = [(100, 130), (150, 232), (238.5, 270)]  # the second absence is over in a few seconds
    found = of(account(A_RESTART[:10], now=270, moved=MOVED, watched=watched))
    assert "unseen" not in found.badput, "training went on in the first"
    late = of(account(A_RESTART[:10], now=400, moved=MOVED, watched=watched))
    assert late.badput["unseen"] == 130, "nobody knows what became of it"
    assert late.kept_s + sum(late.badput.values()) == pytest.approx(late.elapsed_s)
    away = of(account(A_RESTART, now=1e9, moved=MOVED, watched=[(100, 190), (228, 301)]))
    assert away.badput["unseen"] == 3, "from its last step until somebody looked again"
    assert (away.badput["stop"], away.badput["lost"]) == (2, 50)


def test_what_is_lost_is_told_in_hours_of_a_gpu() -> None:
    told = [Event(e.at, e.kind, e.generation, {**e.data, "gpus": 72}) for e in A_RESTART]
    found = of(account(told, now=1e9, moved=MOVED))
    assert found.lost_gpu_hours == pytest.approx(1.0)
    assert found.as_data()["lost_gpu_hours"] == 1.0
    assert of(account(A_RESTART, now=1e9, moved=MOVED)).lost_gpu_hours is None, "an old journal"
    assert of(account(A_RESTART[:5], now=200, moved=MOVED)).lost_gpu_hours == 0.0
    half = [replace(e, data={**e.data, "global_step": 199}) if e.kind is Kind.RESUMED else e for e in told]
    found = of(account(half, now=1e9, moved={**MOVED, 1: Moved(125, 225, 1, 200)}))
    assert found.badput["lost"] == pytest.approx(0.5)
    assert found.lost_gpu_hours == pytest.approx(0.01)


TIMES = st.floats(0, 1000, allow_nan=False)
SPANS = st.one_of(st.none(), st.floats(0, 300, allow_nan=False))
STEPS = st.one_of(st.none(), st.integers(0, 500))
DATA = st.fixed_dictionaries(
    {
        **dict.fromkeys(("global_step", "steps_lost", "gpus"), STEPS),
        **dict.fromkeys(("restored_s", "first_step_s", "seeding_s"), SPANS),
    }
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Event], dict[int, Moved], list[tuple[float, float]]]:
    """Events in any order of kinds, and a history that need not fit to them."""
    times = sorted(draw(st.lists(TIMES, min_size=1, max_size=30)))
    generation, told = 0, []
    for i, at in enumerate(times):
        kind = draw(st.sampled_from(sorted(KINDS, key=lambda each: each.value))) if i else Kind.SUBMITTED
        generation += kind is Kind.GENERATION
        told.append(Event(at, kind, generation, draw(DATA)))
    moved = {}
    for number in range(generation + 1):
        if draw(st.booleans()):
            first, last = sorted((draw(TIMES), draw(TIMES)))
            began = draw(st.one_of(st.none(), TIMES))
            moved[number] = Moved(first, last, 1, draw(st.integers(1, 500)), began, draw(st.floats(0, 400)))
    marks = sorted(draw(st.lists(TIMES, max_size=8)))
    return told, moved, list(zip(marks[::2], marks[1::2], strict=False))


@given(histories(), TIMES)
def test_whatever_happened_the_classes_are_disjoint_and_add_up(
    history: tuple[list[Event], dict[int, Moved], list[tuple[float, float]]], now: float
) -> None:
    told, moved, watched = history
    found = of(account(told, now=now, moved=moved, watched=watched))
    assert found.kept_s + sum(found.badput.values()) == pytest.approx(found.elapsed_s, abs=1e-6)
    assert found.kept_s >= -1e-9
    assert set(found.badput) <= set(CLASSES)
    assert all(spent > 0 for spent in found.badput.values())
    spans = [span for generation in found.generations for span in generation.spans]
    assert all(span.end >= span.begin for span in spans)
    assert [span.end for span in spans[:-1]] == pytest.approx([span.begin for span in spans[1:]])
    if spans:
        assert (spans[0].begin, spans[-1].end) == pytest.approx((found.begin, found.end))

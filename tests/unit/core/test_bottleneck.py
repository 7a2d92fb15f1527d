"""What limits a run, from the shares that its tasks measure: which kind, when it is told, and when taken back."""

from __future__ import annotations

import pytest

from orchestrator.core.bottleneck import (
    HOLD_S,
    REMEDIES,
    HostReading,
    TaskReading,
    Watched,
    judge,
    sentence,
)


def gang(*waits: tuple[float | None, float | None], gpu: float | None = None) -> list[TaskReading]:
    """Return the readings of workers, each with its share of input and of collectives."""
    return [
        TaskReading(f"worker:{index}", f"host-{index}", own, peers, gpu)
        for index, (own, peers) in enumerate(waits)
    ]


def after(tasks: list[TaskReading], cpu: float | None = None, before: Watched | None = None) -> Watched:
    """Return what is told once these readings have lasted."""
    watched = before or Watched()
    hosts = [HostReading("host-0", cpu)]
    start = (watched.looked_at or 0.0) + 5.0
    for tick in range(5):
        watched = judge(watched, tasks, hosts, start + 5.0 * tick)
    return watched


def told(tasks: list[TaskReading], cpu: float | None = None) -> str | None:
    found = after(tasks, cpu).told
    return sentence(found) if found else None


@pytest.mark.parametrize(
    ("tasks", "cpu", "expected"),
    [
        (gang((None, None), (None, None)), None, None),
        (gang((0.1, 0.2), (0.1, 0.2)), 50.0, None),
        (gang((0.5, 0.2), (0.6, 0.2)), 99.0, "input: 60% of the time goes into waiting for the next batch"),
        (
            gang((0.0, 0.7), (0.0, 0.2), (0.0, 0.6)),
            None,
            "worker:1 on host-1: the others wait for it 45% of the time",
        ),
        (
            gang((0.0, 0.7), (0.6, 0.1)),
            None,
            "input: worker:1 on host-1 waits 60% of the time for its next batch, the others for it",
        ),
        (
            gang((0.0, 0.7), (0.0, 0.6)),
            99.0,
            "communication: even the slowest worker waits 60% of the time until gradients are added up",
        ),
        (gang((0.0, 0.1)), 97.0, "the CPU of host-0: 97% busy"),
        (
            gang((0.0, None), gpu=12.0),
            40.0,
            "idle GPUs: 88% of the time, and no wait was measured that explains it",
        ),
        (gang((0.0, None), gpu=95.0), 40.0, None),
        (gang((0.0, 0.9), (0.0, None)), None, None),
    ],
)
def test_the_kind_that_explains_the_most_is_told(
    tasks: list[TaskReading], cpu: float | None, expected: str | None
) -> None:
    assert told(tasks, cpu) == expected


def test_a_finding_is_told_once_it_has_lasted_and_counts_from_its_beginning() -> None:
    slow_input = gang((0.5, 0.0))
    watched = judge(Watched(), slow_input, [], 100.0)
    assert watched.told is None
    watched = judge(watched, slow_input, [], 100.0 + HOLD_S - 1)
    assert watched.told is None
    watched = judge(watched, slow_input, [], 100.0 + HOLD_S)
    assert watched.told is not None
    assert watched.told.since_at == 100.0


def test_what_is_told_does_not_flicker_between_the_two_limits_nor_for_a_moment() -> None:
    watched = after(gang((0.5, 0.0)))
    at = watched.looked_at or 0.0
    for share in (0.29, 0.21, 0.31, 0.25):
        at += 5.0
        watched = judge(watched, gang((share, 0.0)), [], at)
        assert watched.told is not None
        assert watched.told.share == share
    for share in (0.0, 0.5, 0.0):  # a short pause
        at += 5.0
        watched = judge(watched, gang((share, 0.0)), [], at)
        assert watched.told is not None
    assert after(gang((0.0, 0.0)), before=watched).told is None


def test_another_finding_that_lasts_takes_the_place_of_the_first() -> None:
    watched = after(gang((0.5, 0.0), (0.5, 0.0)))
    assert watched.told is not None
    assert watched.told.kind == "input"
    watched = after(gang((0.0, 0.8), (0.0, 0.1)), before=watched)
    assert watched.told is not None
    assert (watched.told.kind, watched.told.task) == ("slow-task", "worker:1")


def test_a_finding_that_comes_and_goes_is_never_told() -> None:
    watched, at = Watched(), 0.0
    for share in (0.5, 0.5, 0.0) * 6:
        at += 5.0
        watched = judge(watched, gang((share, 0.0)), [], at)
        assert watched.told is None


def test_each_kind_has_a_remedy() -> None:
    assert set(REMEDIES) == {"slow-task", "input", "communication", "cpu", "gpu-idle"}

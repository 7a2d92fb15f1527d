"""What limits a run, from what its hosts measure: which kind, when it is told, and when taken back."""

from __future__ import annotations

import pytest

from orchestrator.core.bottleneck import HOLD_S, REMEDIES, HostReading, Watched, judge, sentence


def after(hosts: list[HostReading], before: Watched | None = None) -> Watched:
    """Return what is told once these readings have lasted."""
    watched = before or Watched()
    start = (watched.looked_at or 0.0) + 5.0
    for tick in range(5):
        watched = judge(watched, hosts, start + 5.0 * tick)
    return watched


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([HostReading("a"), HostReading("b")], None),
        ([HostReading("a", 50.0, 90.0)], None),
        ([HostReading("a", 50.0, 90.0), HostReading("b", 95.0, 90.0)], "the CPU of b: 95% busy"),
        ([HostReading("a", 20.0, 10.0), HostReading("b", 20.0, 20.0)], "idle GPUs: 85% of the time"),
        ([HostReading("a", 99.0, 10.0)], "the CPU of a: 99% busy"),
    ],
)
def test_what_is_measured_is_told_and_the_first_explains_the_others(
    hosts: list[HostReading], expected: str | None
) -> None:
    told = after(hosts).told
    assert (told and sentence(told)) == expected
    assert told is None or REMEDIES[told.kind]


def test_it_must_last_and_must_be_gone_for_as_long() -> None:
    busy, idle = [HostReading("a", 95.0)], [HostReading("a", 10.0)]
    watched = judge(Watched(), busy, 100.0)
    watched = judge(watched, busy, 100.0 + HOLD_S - 1)
    assert watched.told is None
    watched = judge(watched, busy, 100.0 + HOLD_S)
    assert watched.told is not None
    assert watched.told.since_at == 100.0
    below = [HostReading("a", 85.0)]
    watched = judge(watched, below, 130.0)
    assert watched.candidate_at is None, "the limit for taking it back is lower"
    watched = judge(watched, idle, 140.0)
    assert watched.told is not None
    assert judge(watched, idle, 140.0 + HOLD_S).told is None

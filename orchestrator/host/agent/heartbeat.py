"""When an agent reports: all agents of a head do it at the same time."""

from __future__ import annotations


def next_heartbeat_s(heartbeat_s: float, wall_s: float) -> float:
    """Return the seconds until the next heartbeat: half of `heartbeat_s` at least, and one and a half at most.

    Agents report when the time of day is a multiple of the heartbeat. The head then wakes once for all of its hosts,
    which costs it a third less than to wake for each (`python -m benchmarks head`). Clocks that differ, or jump, only
    bring the wakes apart again.

    Args:
        heartbeat_s: what is between two heartbeats.
        wall_s: the time of day, in seconds since the epoch.
    """
    left_s = heartbeat_s - wall_s % heartbeat_s
    return left_s if left_s >= heartbeat_s / 2 else left_s + heartbeat_s

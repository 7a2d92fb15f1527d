"""What the benchmarks must reach: one table. A limit that is not kept makes `make bench` end with 1."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class Limit(float):
    """A limit with the name of its row, by which limits are counted: many figures may be judged by one.

    A row whose limit depends on the machine is made anew with the number that holds here.
    """

    row: str

    def __new__(cls, row: str, most: float) -> Limit:
        """Return the limit of that row."""
        made = super().__new__(cls, most)
        made.row = row
        return made


_ROWS = MappingProxyType(
    {
        "adoption: until all tasks are adopted": 5.0,
        "adoption: CPU": 2.5,
        "agent: CPU": 40.0,
        "agent: resident": 16.0,
        "browser: stream": 10.0,
        "browser: heap": 150.0,
        "browser: DOM": 3000.0,
        "browser: complete": 1.0,
        "comeback: over by hand": 0.0,
        "comeback: with a standby": 1.8,
        "comeback: with a standby, of that without": 0.45,
        "connect: CPU of the head": 6.0,
        "connect: until the first heartbeat, x ssh host true": 1.5,
        "core: heartbeat": 0.15,
        "core: growth": 1.2,
        "core: check of a report": 10.0,
        "doctor: all pairs": 30.0,
        "doctor: the quick part, of connecting": 1.5,
        "frozen: late": 1.0,
        "frozen: too early": 0.0,
        "gpu: overhead of a step": 2.0,
        "gpu: placement": 0.0,
        "gpu: standby": 0.0,
        "gpu: steps lost by a kill": 0.0,
        "head: heartbeat, simulated": 0.35,
        "head: heartbeat, SSH": 0.8,
        "head: growth": 1.2,
        "head: up": 30.0,
        "head: up, over plain ssh": 1.3,
        "head: kill, SSH": 3.0,
        "head: kill, simulated": 10.0,
        "head: status": 0.5,
        "head: resident": 250.0,
        "head: threads a host": 2.0,
        "idle: CPU": 0.3,
        "idle: resident": 90.0,
        "overhead: wall": 2.0,
        "overhead: CPU": 1.0,
        "recovery: until the peers have ended": 150.0,
        "recovery: until the next generation starts": 500.0,
        "spare: late": 0.5,
        "status: whole process": 200.0,
        "transfer: of the time of scp": 100 / 0.7,
    }
)

LIMITS: Mapping[str, Limit] = MappingProxyType({row: Limit(row, most) for row, most in _ROWS.items()})
"""By benchmark and claim; the unit is that of the figure."""

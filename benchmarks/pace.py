"""How fast the machine was meanwhile: the CPU of a Python that does nothing, just before each benchmark.

On a virtual machine the CPU of the same work differs by a factor of two from one quarter of an hour to the next, with
what others do on its host. The load does not show it. A limit in milliseconds may be missed for that alone; one of a
proportion hardly.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from math import inf

from benchmarks.figure import Figure

_TRIES = 5


def now_ms() -> float:
    """Return what it takes at the moment, in milliseconds of CPU: the least of five."""
    return min(bare_ms(sys.executable) for _ in range(_TRIES))


def bare_ms(python: str) -> float:
    """Return the CPU of a Python that does nothing, started as an agent's is, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-I", "-S", "-c", "pass"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def figures(before: Sequence[tuple[str, float]]) -> list[Figure]:
    """Return the row.

    Args:
        before: what was found before each benchmark, with its name.
    """
    slowest = max(before, key=lambda found: found[1])
    return [
        Figure(
            "CPU of a Python that does nothing",
            "ms",
            inf,
            tuple(each_ms for _, each_ms in before),
            f"the most before `{slowest[0]}`",
        )
    ]

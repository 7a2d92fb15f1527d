"""How much the records of runs take on this machine, and from when on a person is told. Nothing is removed for it."""

from __future__ import annotations

import os

from orchestrator.core.words import size
from orchestrator.head.node.paths import Paths

VARIABLE = "ORCH_RECORDS_GB"
DEFAULT_GB = 20.0


def taken(paths: Paths) -> int:
    """Return the bytes of all logs, curves and records."""
    total = 0
    for place, _, names in os.walk(paths.runs):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def warning(bytes_taken: int) -> str | None:
    """Return the sentence for records that are over the budget; None for others."""
    try:
        budget = float(os.environ.get(VARIABLE) or DEFAULT_GB) * (1 << 30)
    except ValueError:
        return f"${VARIABLE} is not a number: {os.environ[VARIABLE]!r}"
    if not bytes_taken > budget:  # nor where it is NaN
        return None
    return (
        f"the records of all runs take {size(bytes_taken)}, more than ${VARIABLE} ({size(int(budget))}); `orch runs` "
        "lists them, and `orch rm` removes those that you name"
    )

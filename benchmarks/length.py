"""How long a benchmark may take: three quarters of an hour for all of them, or as long as `--long` lets them."""

from __future__ import annotations

import os

LONG = "ORCH_BENCH_LONG"


def is_long() -> bool:
    """Return whether `python -m benchmarks --long` was asked for, or its variable is set."""
    return bool(os.environ.get(LONG))

"""A task that does next to nothing, so that many fit on one machine: a step a second, of itself alone."""

from __future__ import annotations

import itertools
import time

from orchestrator import runtime

for step in itertools.count(1):
    time.sleep(1.0)
    runtime.report(step)

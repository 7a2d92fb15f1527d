"""A task that does almost nothing, so that many fit on one machine: one step per second, without any peer."""

from __future__ import annotations

import itertools
import time

from orchestrator import runtime

for step in itertools.count(1):
    time.sleep(1.0)
    runtime.report(step)

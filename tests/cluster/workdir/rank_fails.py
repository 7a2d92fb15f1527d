"""Rank 1 raises at its start; rank 0 trains for a second and ends with 0."""

import os
import time

from orchestrator import runtime

if int(os.environ["RANK"]) == 1:
    raise RuntimeError("rank 1: cannot open /data/shard-1")
for step in range(1, 11):
    time.sleep(0.1)
    runtime.report(step, total=10)

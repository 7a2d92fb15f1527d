"""A loop of its own, whose steps take half as long with two ranks, but for what does not become less."""

import os
import time

from orchestrator import runtime

ranks = int(os.environ["ORCH_WORLD_SIZE"])
for step in range(1, 100_000):
    time.sleep(0.010 / ranks + 0.002)
    runtime.report(step, loss=1 / step)

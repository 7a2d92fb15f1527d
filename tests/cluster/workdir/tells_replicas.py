"""A loop of its own that prints how many replicas train, and what the spec wants where some are missing."""

import time

from orchestrator import runtime

print(f"{runtime.replicas()} of {runtime.replicas_planned()} replicas: {runtime.on_shrink()}", flush=True)
for step in range(1, 100_000):
    time.sleep(0.02)
    runtime.report(step)

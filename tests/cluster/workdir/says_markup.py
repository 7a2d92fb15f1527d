"""A trainer that says what a page must not obey: markup, a change of direction, colours, names of JavaScript's own."""

from __future__ import annotations

import time

from orchestrator import runtime

IMAGE = "<img src=x onerror='window.hacked=1'>"

print(f"{IMAGE} \x1b[31mred\x1b[0m \u202egnp.exe <script>window.hacked=1</script>", flush=True)
for step in range(1, 40):
    metrics = {"loss": 1.0 / step, IMAGE: float(step), "__proto__": 1.0, "constructor": 2.0}
    runtime.report(step, **metrics)
    time.sleep(0.05)
raise ValueError(f"{IMAGE}<script>window.hacked=1</script>")

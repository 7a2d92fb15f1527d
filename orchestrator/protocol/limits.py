"""How much a frame may hold. Whoever sends trims to these; whoever receives refuses what is beyond them.

Plain numbers, for the hosts need them too.
"""

from __future__ import annotations

TEXT_CHARS_MAX = 16 << 10
"""Of any sentence that has no limit of its own."""

NAME_CHARS_MAX = 256
PATH_CHARS_MAX = 4096

SAID_MAX = 20
"""Sentences of a task's runtime in a report, which repeats all that was said: the last of them."""

SAID_CHARS_MAX = 2000
KIND_CHARS_MAX = 64

METRICS_MAX = 64
METRIC_CHARS_MAX = 80

LAST_LINES_MAX = 20
LAST_LINE_CHARS_MAX = 4096

LEFT_MAX = 256
"""Processes that could not be killed, each with why."""

STACKS_CHARS_MAX = 1 << 20

STEP_MAX = 10**15
"""Of `global_step` and the training's epoch. No training gets there; a script that counts nanoseconds does."""

COUNT_MAX = (1 << 63) - 1

"""How much a frame may hold, and which characters. Whoever sends keeps to it; whoever receives refuses the rest.

Plain values, for the hosts need them too.
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

CONTROLS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # lines that are none, and what turns the direction of writing
    "\ud800-\udfff]"  # halves of characters, which no file takes
)
"""A regular expression: characters that act on a terminal and are not shown."""

"""Limits of the content of frames. The sender shortens to them, and the receiver refuses what exceeds them.

Hosts import this module at run time, so it holds plain values only.
"""

from __future__ import annotations

TEXT_CHARS_MAX = 16 << 10
"""The default limit of a text."""

NAME_CHARS_MAX = 256
PATH_CHARS_MAX = 4096
PART_BYTES_MAX = 255
"""The longest name of a file or a directory, on every file system that Linux has."""

SAID_MAX = 20
"""How many of the last sentences of a task's runtime a report repeats."""

SAID_CHARS_MAX = 2000
KIND_CHARS_MAX = 64

METRICS_MAX = 64
METRIC_CHARS_MAX = 80

LAST_LINES_MAX = 20
LAST_LINE_CHARS_MAX = 4096

LEFT_MAX = 256
"""How many processes that could not be killed are named."""

STACKS_CHARS_MAX = 1 << 20

STEP_MAX = 10**15
"""The limit of `global_step` and of the training epoch. Only a script that counts nanoseconds exceeds it."""

SPAN_MAX_S = 1e12
"""The limit of a duration."""

COUNT_MAX = (1 << 63) - 1

CONTROLS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and changes of the writing direction
    "\ud800-\udfff]"  # halves of surrogate pairs, which no file can hold
)
"""A regular expression for the characters that change what a terminal shows instead of being shown."""

PSUTIL_AFTER_S = 60.0
"""How long after its start an agent loads or receives psutil. By then a run has started, even on 256 hosts."""

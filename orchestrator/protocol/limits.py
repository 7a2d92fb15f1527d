"""Limits of the content of frames. The sender shortens to them, and the receiver refuses what exceeds them.

Hosts import this module at run time, so it imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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

METRICS_MAX = 256
"""How many metrics of a task are kept. With 16 tasks, a host still reports less than the head reads of it, and the
curves of a day fit into a run's history. Before, it was 64: an older agent cuts what a report holds after the 64th."""

METRIC_CHARS_MAX = 80


TRAIL_MAX = 1024
"""How many rows of values a report has of one metric, at most."""


def is_kept_first(metric: str) -> bool:
    """Return whether a metric is the loss or one of the validation: all others are left out before it."""
    return metric == "loss" or metric.startswith(("val_", "val/"))


def first_metrics(names: Iterable[str], count: int = METRICS_MAX) -> list[str]:
    """Return the metrics that are kept of these, the same ones each time: the loss and the validation, then by name.

    >>> first_metrics(["norm", "val_mae", "acc", "loss"], 3)
    ['loss', 'val_mae', 'acc']
    """
    return sorted(names, key=lambda name: (not is_kept_first(name), name))[:count]


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

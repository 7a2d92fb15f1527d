"""Durations as people write them: `250ms`, `5s`, `1.5m`, `2h`, `1d`, or a plain number of seconds."""

from __future__ import annotations

import math
import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_WRITTEN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(ms|s|m|h|d|)", re.ASCII)

PATTERN = r"^[0-9]{1,12}(\.[0-9]{1,6})? ?(ms|s|m|h|d)?$"
"""The pattern of a duration that is written as text, for the JSON schema."""


def parse_duration(written: object) -> float:
    """Return a duration in seconds. Raises ValueError if it is no duration.

    >>> parse_duration("1.5m"), parse_duration("250ms"), parse_duration(3)
    (90.0, 0.25, 3.0)
    """
    if isinstance(written, (int, float)) and not isinstance(written, bool):
        if math.isfinite(written) and written >= 0:
            return float(written)
    elif isinstance(written, str) and (match := _WRITTEN.fullmatch(written)):
        return float(match[1]) * _UNITS_S[match[2]]
    raise ValueError("must be a duration: a number with ms, s, m, h or d, such as 500ms, 5s or 1.5m")


def as_written(seconds: float) -> str:
    """Return a duration as text, in the largest unit that represents it exactly: a bound must not be rounded.

    >>> as_written(90), as_written(300), as_written(0.25)
    ('90s', '5m', '250ms')
    """
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit in ("h", "m"):
        if seconds and seconds % _UNITS_S[unit] == 0:
            return f"{seconds / _UNITS_S[unit]:g}{unit}"
    return f"{seconds:g}s"

"""Small forms of speech that several sentences share."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.?)|[\x00-\x1f\x7f-\x9f]+")


def plain(text: str) -> str:
    """A process's words as one line that does nothing to a terminal.

    >>> plain("a\\x1b[31mb\\x1b[0m\\tc\\n")
    'ab c'
    """
    return _CONTROL.sub(lambda found: "" if found[0].startswith("\x1b") else " ", text).strip()


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "host"), counted(2, "host")
    ('1 host', '2 hosts')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """A time that people wait for.

    >>> duration(4.2), duration(200), duration(7500)
    ('4 s', '3 min', '2 h 05 min')
    """
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"

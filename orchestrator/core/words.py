"""Small forms of speech that several sentences share."""

from __future__ import annotations


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

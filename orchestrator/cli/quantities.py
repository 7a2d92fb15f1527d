"""Format times, sizes, rates and counts for people."""

from __future__ import annotations


def clock_time(iso: str) -> str:
    """Format an ISO 8601 time: `2026-11-20 12:00:03`."""
    return iso[:19].replace("T", " ")


def duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, small, name, small_name in (
        (86400, 3600, "d", "h"),
        (3600, 60, "h", "min"),
        (60, 1, "min", "s"),
    ):
        if whole >= unit:
            rest = whole % unit // small
            return f"{whole // unit} {name} {rest} {small_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def size(count: float) -> str:
    """Format a number of bytes: `812 MiB`, `1.2 GiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1000:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value < 10 and unit != "B" else f"{value:.0f} {unit}"


def pace(steps_per_s: float) -> str:
    """Format a rate: `0.042`, `3.4`, `120`."""
    return f"{steps_per_s:.0f}" if steps_per_s >= 99.5 else f"{steps_per_s:.2g}"


def plural(count: int, noun: str) -> str:
    """Format a count: `1 restart`, `2 restarts`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

"""Times as people read and write them: local with the zone, or UTC."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, timezone, tzinfo

from orchestrator.core.errors import UsageError
from orchestrator.spec.durations import parse_duration

_DAYS_AGO = {"today": 0, "yesterday": 1}
_CLOCK = re.compile(r"\d\d:\d\d")


def shown(unix: float, *, utc: bool = False, milliseconds: bool = False) -> str:
    """Return `2026-11-20 13:00:03 CET`."""
    at = datetime.fromtimestamp(unix, timezone.utc)
    at = at if utc else at.astimezone()
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    fraction = f".{at.microsecond // 1000:03d}" if milliseconds else ""
    return f"{text}{fraction} {at.tzname()}"


def event_time(time: object, *, utc: bool = False) -> str:
    """Return the time of an event, which the journal has in UTC, as `shown` does; empty if it is no time."""
    try:
        at = datetime.fromisoformat(str(time))
    except ValueError:
        return ""
    return shown((at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp(), utc=utc)


def parse_since(text: str, now: float, *, utc: bool = False) -> float:
    """Return the Unix time of `5m` (ago), `03:17` (the last time that it was), `yesterday`, or an ISO 8601 time.

    A time without a zone is local, or UTC with `utc`.
    """
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    zone = timezone.utc if utc else None
    if text in _DAYS_AGO:
        day = datetime.fromtimestamp(now, zone).date() - timedelta(days=_DAYS_AGO[text])
        return datetime.combine(day, time(), zone).timestamp()
    try:
        if _CLOCK.match(text):
            return _last_time_that_it_was(time.fromisoformat(text), now, zone)
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r} is neither a duration nor a time",
            hint="examples: 5m (the last five minutes), 03:17, yesterday, 2026-11-20T12:00:00",
        ) from None
    return (at if at.tzinfo is not None or zone is None else at.replace(tzinfo=zone)).timestamp()


def _last_time_that_it_was(clock: time, now: float, zone: tzinfo | None) -> float:
    zone = clock.tzinfo or zone
    today = datetime.fromtimestamp(now, zone).date()
    at = datetime.combine(today, clock.replace(tzinfo=None), zone)
    if at.timestamp() > now:
        at = datetime.combine(today - timedelta(days=1), clock.replace(tzinfo=None), zone)
    return at.timestamp()

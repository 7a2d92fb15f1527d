"""Kinds of options that several commands share."""

from __future__ import annotations

import click


class Duration(click.ParamType):
    """`90s`, `5m`, `2h`, `1d`, `1h30m`, or plain seconds; becomes seconds."""

    name = "DURATION"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        seconds = parse_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is no duration; one reads like 90s, 5m, 2h or 1h30m", param, ctx)
        return seconds


def parse_duration(text: str) -> float | None:
    """Seconds; None where it is no duration."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    total, rest = 0.0, text.strip()
    if not rest:
        return None
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        number, rest = rest[:digits], rest[digits:]
        letters = len(rest) - len(rest.lstrip("abcdefghijklmnopqrstuvwxyz"))
        unit, rest = rest[:letters], rest[letters:]
        try:
            total += float(number) * (units[unit] if unit or rest or total else 1.0)
        except (ValueError, KeyError):
            return None
    return total


DURATION = Duration()

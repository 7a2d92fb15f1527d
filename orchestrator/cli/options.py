"""Types of options that several commands share."""

from __future__ import annotations

import click

from orchestrator.spec.durations import parse_duration


class Duration(click.ParamType[float]):
    """`90s`, `5m`, `2h`, `1d`, or a number of seconds. The value is in seconds."""

    name = "DURATION"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text of the command line, or of a default."""
        try:
            return parse_duration(value)
        except ValueError as e:
            self.fail(f"{value!r} {e}", param, ctx)


DURATION = Duration()

"""Kinds of options that several commands share."""

from __future__ import annotations

import click

from orchestrator.spec.durations import parse_duration


class Duration(click.ParamType[float]):
    """`90s`, `5m`, `2h`, `1d`, or plain seconds; becomes seconds."""

    name = "DURATION"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            # click hands over what comes from the command line as text: "90" is 90 seconds.
            return parse_duration(value)
        except ValueError as e:
            self.fail(f"{value!r} {e}", param, ctx)


DURATION = Duration()

"""Options that several commands share, and types of options."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from orchestrator.core.errors import UsageError
from orchestrator.spec.durations import parse_duration

_Command = TypeVar("_Command", bound=Callable[..., Any])


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


DEFAULT = "127.0.0.1:9464"


def parse_listen(text: str) -> tuple[str, int]:
    """Return the address and port of `127.0.0.1:9464` or `[::1]:9464`. Raises UsageError."""
    address, colon, port = text.rpartition(":")
    try:
        ip = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not colon or not 0 <= number <= 65535:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"--listen {text!r} is no address with a port", hint="for example 127.0.0.1:9464, or [::1]:9464"
        ) from None
    return str(ip), number


def exposure(address: str, *, with_token: bool) -> str | None:
    """Return a warning about who can reach that address, and what they can do; None if nobody can."""
    if not with_token:
        return f"everyone who reaches {address} can read the names and states of runs and hosts, but change nothing"
    if ipaddress.ip_address(address).is_loopback:
        return None
    return f"the bearer token and the numbers go to {address} unencrypted: whoever listens on that network reads both"


def inventory_option(command: _Command) -> _Command:
    """Declare `--inventory FILE`, which holds for all that the command reads."""
    return click.option(
        "--inventory",
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        callback=_choose,
        help="Use the hosts of this file (`hosts:`, `ssh:`, `setup:`) in place of those of the spec.",
    )(command)


def _choose(ctx: click.Context, _param: click.Parameter, file: str | None) -> None:
    if file is not None:
        from orchestrator.spec import own_inventory

        token = own_inventory.chosen.set(os.path.abspath(file))
        ctx.call_on_close(lambda: own_inventory.chosen.reset(token))  # it holds for this command alone

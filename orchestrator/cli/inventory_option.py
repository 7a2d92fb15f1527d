"""The option `--inventory`, of the commands that read a cluster spec."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


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

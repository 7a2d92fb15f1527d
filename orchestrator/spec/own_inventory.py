"""Which file of hosts stands in for those that a spec lacks: that of `--inventory`, or the user's own."""

from __future__ import annotations

import os
from contextvars import ContextVar

chosen: ContextVar[str] = ContextVar("chosen", default="")
"""The file of `--inventory`, absolute. Its hosts stand in place of those of a spec; empty: nobody has chosen one."""


def own() -> str:
    """Return the user's own inventory, for specs that have neither `hosts` nor `inventory`; empty if there is none."""
    xdg = os.environ.get("XDG_CONFIG_HOME", "")
    config = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.config")
    path = os.path.join(config, "orch", "inventory.yaml")
    return path if os.path.lexists(path) else ""

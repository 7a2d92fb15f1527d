"""The environment that all measured processes inherit."""

from __future__ import annotations

import os
import sys

from tests.warm import STARTS_ALONE

KEPT = ("PYTHONPATH", "PYTHONHOME")
"""These say which orch is measured, and where Python is installed."""


def as_users_have_it() -> None:
    """Remove the variables that change how Python works, for this process's children.

    A user's Python has compiled modules. With PYTHONDONTWRITEBYTECODE every `orch` would compile the whole package
    again. Others make Python slower (PYTHONDEVMODE, PYTHONMALLOC) or flush each line (PYTHONUNBUFFERED). No command and
    no coordinator is a fork, as those of the tests are.
    """
    os.environ[STARTS_ALONE] = "1"
    for name in [name for name in os.environ if name.startswith("PYTHON") and name not in KEPT]:
        del os.environ[name]
    sys.dont_write_bytecode = False

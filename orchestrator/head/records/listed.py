"""What a list shows of an ended run, kept beside its record so that the record need not be read again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from orchestrator.both import durable

FILE = "listed.json"
SCHEMA = 2


def read(run_dir: str) -> dict[str, Any] | None:
    """Return what was kept; None if nothing was, or by another version."""
    known = durable.read_object(run_dir, FILE)
    return known if known is not None and known.get("schema") == SCHEMA else None


def keep(run_dir: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what is shown, if the disk takes it, and return it as `read` does."""
    known = {"schema": SCHEMA, **shown}
    with contextlib.suppress(OSError):
        durable.write_json(os.path.join(run_dir, FILE), known, durable=False)
    return known

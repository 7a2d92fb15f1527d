"""The notice that this host will be taken away by whoever lends it.

The keeper writes it down, and every agent reports it.

The file's name is in the environment of what the keeper starts. Times are of the host's monotonic clock, which keeper
and agents share. A host that nobody lends has no such file.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import durable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from orchestrator.protocol.reports import Leaving

VARIABLE = "ORCH_LEAVING"

_WHY_CHARS_MAX = 200


def say(path: str, why: str, in_s: float) -> None:
    """Write down that the host is taken away in so many seconds; 0 where nobody knows. Raises OSError.

    What was said before and comes sooner stays.
    """
    at = time.monotonic() + in_s if in_s else 0.0
    before = durable.read_object(path)
    if before is None or at < before.get("at", at + 1.0):
        durable.write_json(path, {"why": why, "at": at}, durable=False)


def told() -> Leaving | None:
    """Return what was written down; None where the host stays, as far as is known."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    found = durable.read_object(path)
    if found is None:
        return None
    why, at = found.get("why"), found.get("at")
    if not isinstance(why, str) or not isinstance(at, int | float):
        return None
    return {"why": why[:_WHY_CHARS_MAX], "in_s": round(max(0.0, at - time.monotonic()), 1)}

"""The notice that this host will be taken away by the engine that lends it.

The keeper writes it to a file, and every agent reports it. The file's name is in the environment of the processes that
the keeper starts. Times are of the host's monotonic clock. A host that no engine lends has no such file.
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


def write(path: str, why: str, in_s: float) -> None:
    """Write that the host is taken away in `in_s` seconds; 0 if unknown. Raises OSError.

    An earlier notice with a sooner time stays.
    """
    at = time.monotonic() + in_s if in_s else 0.0
    before = durable.read_object(path)
    if before is None or at < before.get("at", at + 1.0):
        durable.write_json(path, {"why": why, "at": at}, durable=False)


def read() -> Leaving | None:
    """Return the notice; None if the host stays, as far as is known."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    notice = durable.read_object(path)
    if notice is None:
        return None
    why, at = notice.get("why"), notice.get("at")
    if not isinstance(why, str) or not isinstance(at, int | float):
        return None
    return {"why": why[:_WHY_CHARS_MAX], "in_s": round(max(0.0, at - time.monotonic()), 1)}

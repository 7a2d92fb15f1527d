"""Files beside a run's logs that say what ended its generations, so that `orch logs` needs no coordinator.

They are copies; the journal is the authority.

first_cause.json    the first cause of the last generation that failed; null if the run succeeded in the end
first_causes.json   the first causes of all generations that failed, oldest first, each with its `time` (Unix)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orchestrator.both import durable


def put(directory: str, newest_cause: Mapping[str, Any] | None, *, now: float) -> None:
    """Record what ended the newest generation; None: the run succeeded. Raises OSError if the disk refuses.

    `now` is the Unix time to record where no host's clock says when the generation ended.
    """
    # They are not synced: after a power cut they are written again from the journal.
    durable.write_json(os.path.join(directory, "first_cause.json"), newest_cause, durable=False)
    if newest_cause is None:
        return
    causes = {cause.get("generation"): cause for cause in read(directory)}
    before = causes.pop(newest_cause.get("generation"), {})
    time = newest_cause.get("ended_time") or before.get("time") or now
    known = [*causes.values(), {**newest_cause, "time": time}]
    durable.write_json(os.path.join(directory, "first_causes.json"), known, durable=False)


def newest(directory: str) -> dict[str, Any] | None:
    """Return what ended the last generation; None if it did not fail."""
    return durable.read_object(directory, "first_cause.json")


def read(directory: str) -> list[dict[str, Any]]:
    """Return what ended each generation that failed, oldest first."""
    content = durable.read_json(directory, "first_causes.json")
    return [cause for cause in content if isinstance(cause, dict)] if isinstance(content, list) else []

"""Files beside a run's logs that say what ended its generations, so that `orch logs` needs no coordinator.

They are copies; the journal is the authority.

first_cause.json    the first cause of the last generation that failed; null if the run succeeded in the end
first_causes.json   the first causes of all generations that failed, oldest first, each with its `time` (Unix)
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any


def put(directory: str, found: Mapping[str, Any] | None, *, now: float) -> None:
    """Write down what ended the newest generation; None: the run succeeded. Raises OSError where the disk refuses.

    `now` is the Unix time to record where no host's clock says when the generation ended.
    """
    _write_json(os.path.join(directory, "first_cause.json"), found)
    if found is None:
        return
    causes = {cause.get("generation"): cause for cause in read(directory)}
    before = causes.pop(found.get("generation"), {})
    time = found.get("ended_time") or before.get("time") or now
    _write_json(os.path.join(directory, "first_causes.json"), [*causes.values(), {**found, "time": time}])


def newest(directory: str) -> dict[str, Any] | None:
    """Return what ended the last generation; None where it did not fail."""
    document = _read_json(os.path.join(directory, "first_cause.json"))
    return document if isinstance(document, dict) else None


def read(directory: str) -> list[dict[str, Any]]:
    """Return what ended each generation that failed, oldest first."""
    found = _read_json(os.path.join(directory, "first_causes.json"))
    return [cause for cause in found if isinstance(cause, dict)] if isinstance(found, list) else []


def _read_json(path: str) -> object:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def _write_json(path: str, document: object) -> None:
    with open(
        os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        json.dump(document, file)
    os.replace(path + ".new", path)

"""The runtime's options from the plan: ORCH_RUNTIME, a JSON object in the task's environment; it may be absent."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def read(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the options. Anything but a JSON object counts as no options, with a message on stderr."""
    text = environment.get("ORCH_RUNTIME", "")
    if not text:
        return {}
    import json

    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        print("orch: ORCH_RUNTIME is no JSON object; it counts as {}", file=sys.stderr)
        return {}
    return options


def choose_keras(options: Mapping[str, Any]) -> None:
    """Set TensorFlow's own switch for `keras: 2`. TensorFlow reads it when `tf.keras` is first used."""
    if options.get("keras") == 2:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"


def task_of(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Return task type and index from TF_CONFIG, or before the release from ORCH_TASK; None without both."""
    import json

    try:
        task = json.loads(environment.get("TF_CONFIG") or "{}").get("task") or {}
        if "type" in task:
            return str(task["type"]), int(task.get("index", 0))
        kind, _, index = environment.get("ORCH_TASK", "").partition(":")
        return (kind, int(index)) if kind else None
    except (ValueError, TypeError, AttributeError):
        return None

"""What the plan asks of the runtime: ORCH_RUNTIME, a JSON object in the task's environment; absent: nothing."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def read(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The options as they were given; what is no JSON object counts as none, and that is said."""
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
    """`keras: 2` is tf_keras, by TensorFlow's own switch, which it reads when `tf.keras` is first touched."""
    if options.get("keras") == 2:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"


def task_of(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """Task type and index: from TF_CONFIG, before the release from ORCH_TASK; None where neither says."""
    import json

    try:
        task = json.loads(environment.get("TF_CONFIG") or "{}").get("task") or {}
        if "type" in task:
            return str(task["type"]), int(task.get("index", 0))
        kind, _, index = environment.get("ORCH_TASK", "").partition(":")
        return (kind, int(index)) if kind else None
    except (ValueError, TypeError, AttributeError):
        return None

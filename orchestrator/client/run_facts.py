"""Short facts about a run: its position in the training, and its chief's metrics. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.client.choice import is_active
from orchestrator.core.words import counted, pace

_FOR_SCALE = "measured/"
"""The prefix of metrics for `orch scale`, which shows them in its own table."""


def position(run: Mapping[str, Any]) -> list[str]:
    """Return `generation 2`, `1 restart`, `step 120 of 400` and `3.4 steps/s`, as far as known."""
    facts = []
    if run.get("generation"):
        facts.append(f"generation {run['generation']}")
    if run.get("restarts"):
        facts.append(counted(run["restarts"], "restart"))
    if run.get("global_step") is not None:
        total = f" of {run['steps_total']}" if run.get("steps_total") else ""
        facts.append(f"step {run['global_step']}{total}")
    if is_active(run) and run.get("steps_per_s") is not None:
        facts.append(f"{pace(run['steps_per_s'])} steps/s")
    return facts


def metrics(run: Mapping[str, Any]) -> list[str]:
    """Return `epoch 2`, `loss 0.1234` and the chief's other metrics. Epochs count from 1, as Keras prints them."""
    epoch = run.get("training_epoch")
    shown = [] if epoch is None else [f"epoch {epoch + 1}"]
    reported = run.get("metrics") or {}
    return shown + [
        f"{name} {value:.4g}"
        for name, value in reported.items()
        if isinstance(value, (int, float)) and not name.startswith(_FOR_SCALE)
    ]

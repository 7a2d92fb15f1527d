"""The module for Keras scripts: `from orchestrator.keras import Checkpoint`. It imports nothing until it is used."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.keras.parallel import make_parallel, multi_gpu_model
    from orchestrator.task.transparent.checkpoint import Checkpoint

__all__ = ["Checkpoint", "make_parallel", "multi_gpu_model"]

_HOMES = {
    "Checkpoint": "transparent.checkpoint",
    "make_parallel": "keras.parallel",
    "multi_gpu_model": "keras.parallel",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"orchestrator.task.{_HOMES[name]}"), name)

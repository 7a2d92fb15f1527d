"""The module for Keras scripts: `from orchestrator.keras import make_parallel`. It imports nothing until it is used."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.parallel import make_parallel, multi_gpu_model

__all__ = ["make_parallel", "multi_gpu_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.runtime import parallel

    return getattr(parallel, name)

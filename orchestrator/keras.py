"""The module for Keras scripts: `from orchestrator.keras import make_parallel`. It imports nothing until it is used."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.parallel import make_parallel

__all__ = ["make_parallel"]


def __getattr__(name: str) -> Any:
    if name == "make_parallel":
        from orchestrator.runtime.parallel import make_parallel

        return make_parallel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

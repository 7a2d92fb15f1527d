"""What hosts measure, as the core reads it: by name, and mypy knows the names and the type of each.

The rows are those of `protocol/measures.py`. A fact that is unknown is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.protocol.measures import GpuMeasures, HostMeasures, TaskMeasures
else:
    # The journal's reader refuses a TypedDict under Python 3.11. What it reads was checked by its rows before.
    GpuMeasures = HostMeasures = TaskMeasures = dict[str, float | str | bool]

__all__ = ["GpuMeasures", "HostMeasures", "TaskMeasures"]

"""What a strategy means: its task types, who leads, who shares whose fate. One table, no `if` elsewhere.

Source: TensorFlow's distribute documentation, and what was seen when processes were killed: a mirrored gang
never takes a worker back, so one death restarts all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.core.plan import TaskId, TaskPlan


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table."""

    name: str
    task_types: tuple[str, ...]
    """Which task types it knows."""
    required_types: tuple[tuple[str, ...], ...]
    """Of each inner tuple, one type must be present."""
    equal_gpus: bool
    """Mirrored replicas: with unequal GPU counts "the behavior is undefined" (TensorFlow's own words)."""
    tf_config: bool
    """Whether its tasks are given a TF_CONFIG."""
    reason: str
    """Why its tasks share one fate, for people."""


_ROWS = (
    Strategy(
        name="multi_worker_mirrored",
        task_types=("chief", "worker", "evaluator"),
        required_types=(("chief", "worker"),),
        equal_gpus=True,
        tf_config=True,
        reason="one worker cannot rejoin a mirrored gang, so all start again together",
    ),
)

STRATEGIES = MappingProxyType({row.name: row for row in _ROWS})


def chief_of(tasks: Iterable[TaskPlan]) -> TaskId:
    """The task whose checkpoints and exit code stand for the run: the chief, else worker:0."""
    return min(task.id for task in tasks)

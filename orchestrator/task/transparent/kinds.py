"""Kinds of tensors: how a tensor in a replica's step depends on the examples of the replica's part of the batch.

A replica sees only its part of the batch. The kind says how to get the value of the whole batch from the replicas'
values: add them up if the value is a sum over examples, take the weighted mean if it is a mean, or take any if it
depends on no example. Other values cannot be combined: they are OTHER, or CROSS if they compare examples of the batch
with each other. `rules.py` finds the kinds from the graph of the step.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Kind:
    """How a tensor depends on the examples. `axis` is the axis of the examples, if there is one."""

    def __init__(self, name: str, axis: int = 0, ragged: bool = False, count: Any = None) -> None:
        self.name = name
        self.axis = axis
        self.ragged = ragged
        """Whether the axis may have more or fewer entries than there are examples."""
        self.count = count
        """For a mean: the tensor with the number of summands; None if that is the number of the replica's examples."""

    def like(self, other: Kind) -> bool:
        return self.name == other.name and self.count is other.count

    def __repr__(self) -> str:
        return f"Kind({self.name})"


SAME = Kind("same")
"""It depends on no example, so it is equal on all replicas."""
COUNT = Kind("count")
"""The number of examples, or a shape that contains it."""
PER_COUNT = Kind("per count")
"""The inverse of the number of examples."""
PART = Kind("part")
"""A value for each example, divided by the number of examples. Their sum is a mean."""
SUM = Kind("sum")
MEAN = Kind("mean")
DIVISOR = Kind("divisor")
"""A sum with a lower bound, such as `maximum(sum, 1)`, used as a divisor."""
MIXED = Kind("mixed")
"""A linear combination of sums, means and values that depend on no example."""
OTHER = Kind("other")
CROSS = Kind("cross")


def each(axis: int = 0, ragged: bool = False) -> Kind:
    """Return the kind of a tensor with an entry for each example, along this axis."""
    return Kind("each", axis, ragged)


EACH = "each"

"""Says how a tensor of a replica's step depends on the examples of its part of the batch.

A replica computes with its part of the batch only. What a single process would have computed from the whole batch is
the sum of the replicas' values where a value is a sum over examples, their weighted mean where it is a mean, and the
value itself where it depends on no example. A value that cannot be combined in these ways is OTHER, or CROSS where
examples of the batch are compared with each other. The graph of the step tells which (see `rules.py`).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Kind:
    """How a tensor depends on the examples. `axis` is that of the examples where there is one."""

    def __init__(self, name: str, axis: int = 0, ragged: bool = False, count: Any = None) -> None:
        self.name = name
        self.axis = axis
        self.ragged = ragged
        """Whether the axis holds another number of entries than there are examples."""
        self.count = count
        """For a mean: the tensor that holds the number of its summands; None: the number of the replica's examples."""

    def like(self, other: Kind) -> bool:
        return self.name == other.name and self.count is other.count

    def __repr__(self) -> str:
        return f"Kind({self.name})"


SAME = Kind("same")
"""Depends on no example: equal on all replicas."""
COUNT = Kind("count")
"""The number of examples, or a shape that holds it."""
PER_COUNT = Kind("per count")
"""One by the number of examples."""
PART = Kind("part")
"""A value for each example, divided by the number of examples: their sum is a mean."""
SUM = Kind("sum")
MEAN = Kind("mean")
DIVISOR = Kind("divisor")
"""A sum that is kept above a bound, so that one may divide by it."""
MIXED = Kind("mixed")
"""A linear combination of sums, means and values that depend on no example."""
OTHER = Kind("other")
CROSS = Kind("cross")


def each(axis: int = 0, ragged: bool = False) -> Kind:
    """Return the kind of a tensor that holds something for each example, along this axis."""
    return Kind("each", axis, ragged)


EACH = "each"

"""Kinds of tensors: how a tensor in a replica's step depends on the examples of the replica's part of the batch.

A replica sees only its part of the batch. The kind says how to get the value of the whole batch from the replicas'
values: add them up if the value is a sum over examples, take the weighted mean if it is a mean, put their rows
together if it has one for each example, or take any if it depends on no example. All else is OTHER: `whole.py`
computes it from values that can be combined. `rules.py` finds the kinds from the graph of the step.
"""

from __future__ import annotations


class Kind:
    """How a tensor depends on the examples."""

    def __init__(self, name: str, axis: int = 0, blocks: int = 1) -> None:
        self.name = name
        self.axis = axis
        """The axis of the examples; for a shape, the entry that is their number."""
        self.blocks = blocks
        """How many entries the axis has for each example, all first ones first; below 0: so many, each one's together;
        0: several, each one's together.
        """

    def like(self, other: Kind) -> bool:
        return (self.name, self.axis, self.blocks) == (other.name, other.axis, other.blocks)


SAME = Kind("same")
"""It depends on no example, so it is equal on all replicas."""
COUNT = Kind("count")
"""The number of examples, or a multiple of it."""
LOOSE = Kind("loose")
"""A part of a ragged or sparse tensor: its rows are not those of the examples."""
SUM = Kind("sum")
MEAN = Kind("mean")
MIXED = Kind("mixed")
"""A linear combination of sums, means and values that depend on no example."""
OTHER = Kind("other")
DRAWN = Kind("drawn")
"""The rows of the replica's part in a random order."""
PLACE = Kind("place")
"""The numbers of the replica's own examples, from 0 on."""

EACH, SHAPE = "each", "shape"
"""An entry for each example; a shape that has their number."""


def each(axis: int = 0, blocks: int = 1) -> Kind:
    """Return the kind of a tensor with an entry for each example, along this axis."""
    return Kind(EACH, axis, blocks)

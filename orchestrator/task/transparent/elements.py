"""Rules for functions of elements, which keep the examples along their axis, and for unknown operations.

A rule takes an operation, the kinds of its inputs and the index of an output, and returns the kind of that output.
"""

from __future__ import annotations

from orchestrator.task.transparent.kinds import COUNT, CROSS, EACH, OTHER, Kind, each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def first_of(kinds: Iterable[Kind], name: str) -> Kind | None:
    return next((kind for kind in kinds if kind.name == name), None)


def rank_of(tensor: Any) -> int | None:
    rank: int | None = tensor.shape.rank
    return rank


def constant_of(tensor: Any) -> Any:
    from tensorflow.python.framework import tensor_util

    return tensor_util.constant_value(tensor)


def of_unknown(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of an operation that nothing is known of: it may keep the axis of the examples."""
    ranks = [rank_of(output) for output in op.outputs]
    rank = max((9 if each_rank is None else each_rank for each_rank in ranks), default=0)
    found = [kind for kind in kinds if kind.name in (EACH, "part")]
    variant = any(output.dtype.name == "variant" for output in op.outputs)
    if found:
        if rank == 0 and not variant:
            return OTHER
        axis = found[0].axis if found[0].axis < rank or variant else 0
        ragged = op.type in _SELECTING or any(kind.ragged for kind in found)
        return each(axis if variant else settled_axis(op.outputs[0], axis), ragged)
    names = {kind.name for kind in kinds}
    if names <= {"same", "count", "per count"}:
        return each() if rank > 0 and op.type not in _OF_SHAPES else COUNT
    return OTHER


_SELECTING = frozenset({"Where", "GatherNd", "DynamicPartition", "Unique", "UniqueV2"})
_OF_SHAPES = frozenset({"Pack", "ConcatV2", "Prod", "Maximum", "Minimum", "FloorDiv", "Floor", "GatherV2"})


def settled_axis(tensor: Any, axis: int) -> int:
    """Return the axis of the examples after a change of shape: their number is not known, as other sizes mostly are."""
    rank = rank_of(tensor)
    if rank is None or axis >= rank or tensor.shape[axis] is None:
        return axis
    unknown = [place for place, size in enumerate(tensor.shape) if size is None]
    return unknown[0] if unknown else axis


def elementwise(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a function of elements that is not linear."""
    found = [(kind, tensor) for kind, tensor in zip(kinds, op.inputs, strict=True) if kind.name == EACH]
    found += [(kind, tensor) for kind, tensor in zip(kinds, op.inputs, strict=True) if kind.name == "part"]
    if not found:
        return of_unknown(op, kinds, 0)
    return _aligned(op, found)


def _aligned(op: Any, found: list[tuple[Kind, Any]]) -> Kind:
    """Return the kind of what broadcasts: CROSS where two tensors have their examples along different axes."""
    rank = rank_of(op.outputs[0])
    places = set()
    for kind, tensor in found:
        own = rank_of(tensor)
        if rank is None or own is None:
            return each(found[0][0].axis, any(kind.ragged for kind, _ in found))
        places.add(kind.axis + rank - own)
    unknown = [place for place in places if 0 <= place < (rank or 0) and op.outputs[0].shape[place] is None]
    if len(unknown) > 1:
        return CROSS
    return each(max(0, (unknown or list(places))[0]), any(kind.ragged for kind, _ in found))

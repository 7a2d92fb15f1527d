"""Rules for operations that move elements only: along which axis the examples lie afterwards."""

from __future__ import annotations

from orchestrator.task.transparent.elements import constant_of, first_of, of_unknown, rank_of, settled_axis
from orchestrator.task.transparent.kinds import COUNT, EACH, OTHER, SAME, Kind, each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def same_kind(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind = kinds[0]
    rank = rank_of(op.outputs[0])
    if kind.name in (EACH, "part") and rank:
        return Kind(kind.name, settled_axis(op.outputs[0], min(kind.axis, rank - 1)), kind.ragged)
    return kind if kind.name != "same" else of_unknown(op, kinds, 0)


def identities(op: Any, kinds: list[Kind], index: int) -> Kind:
    del op
    return kinds[index]


def transpose(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, order = kinds[0], constant_of(op.inputs[1])
    if kind.name not in (EACH, "part") or order is None:
        return same_kind(op, kinds, 0)
    return Kind(kind.name, [int(axis) for axis in order].index(kind.axis), kind.ragged)


def expand_dims(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, axis = kinds[0], constant_of(op.inputs[1])
    if kind.name not in (EACH, "part") or axis is None:
        return same_kind(op, kinds, 0)
    at = int(axis) if int(axis) >= 0 else int(axis) + (rank_of(op.outputs[0]) or 0)
    return Kind(kind.name, kind.axis + (at <= kind.axis), kind.ragged)


def squeeze(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind = kinds[0]
    gone = [
        axis if axis >= 0 else axis + (rank_of(op.inputs[0]) or 0) for axis in op.get_attr("squeeze_dims")
    ]
    if kind.name in (EACH, "part") and gone:
        return Kind(kind.name, kind.axis - sum(axis < kind.axis for axis in gone), kind.ragged)
    return same_kind(op, kinds, 0)


def unstack(op: Any, kinds: list[Kind], index: int) -> Kind:
    kind = kinds[0]
    if kind.name == "count":
        return COUNT if index == 0 else SAME
    return of_unknown(op, kinds, 0) if kind.name == EACH else kind


def strided_slice(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a slice: of a shape, only its first entry holds the number of examples."""
    kind = kinds[0]
    if kind.name == "count" and rank_of(op.inputs[0]) == 1:
        begin = constant_of(op.inputs[1])
        if begin is not None and int(begin[0]) != 0 and not op.get_attr("begin_mask"):
            return SAME
        return COUNT
    if kind.name != EACH:
        return kind if kind.name in ("sum", "mean") else of_unknown(op, kinds, 0)
    shrunk = int(op.get_attr("shrink_axis_mask"))
    if shrunk >> kind.axis & 1:
        return OTHER  # a single example
    new = int(op.get_attr("new_axis_mask"))
    places = [place for place in range(16) if not new >> place & 1]
    place = places[kind.axis]
    before = sum(shrunk >> p & 1 for p in range(place))
    return each(place - before, kind.ragged)


def stacked_list(op: Any, kinds: list[Kind], _index: int) -> Kind:
    return each(1) if first_of(kinds, EACH) is not None else of_unknown(op, kinds, 0)

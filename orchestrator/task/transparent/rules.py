"""Rules that find the kinds of a graph's tensors: an operation's output gets its kind from the kinds of its inputs.

The tables at the end are a white list. Whatever is not in them, or is used along the axis of the examples, is OTHER.
"""

from __future__ import annotations

import math
import operator

from orchestrator.task.transparent.kinds import (
    COUNT,
    DRAWN,
    EACH,
    LOOSE,
    MEAN,
    MIXED,
    OTHER,
    PLACE,
    SAME,
    SHAPE,
    SUM,
    Kind,
    each,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Rule = Callable[[Any, list[Kind], int], Kind]
    """Takes an operation, the kinds of its inputs and the index of an output; returns the kind of that output."""

_LINEAR = ("sum", "mean", "mixed")


class Kinds:
    """The kinds of the tensors of all replicas. Each is set or computed once."""

    def __init__(self) -> None:
        self._known: dict[Any, Kind] = {}

    def set(self, tensor: Any, kind: Kind) -> None:
        self._known[tensor.ref()] = kind

    def kind_of(self, tensor: Any) -> Kind:
        """Return the kind of a tensor. It is computed without recursion, since a graph may be deep."""
        waiting = [tensor]
        while waiting:
            top = waiting[-1]
            if top.ref() in self._known:
                waiting.pop()
                continue
            inputs = _captured(top) if top.op.type == "Placeholder" else list(top.op.inputs)
            if inputs is None:
                self._known[top.ref()] = OTHER
                continue
            missing = [each_input for each_input in inputs if each_input.ref() not in self._known]
            if missing:
                waiting.extend(missing)
                continue
            kinds = [self._known[each_input.ref()] for each_input in inputs]
            self._known[top.ref()] = _kind(top, kinds)
            waiting.pop()
        return self._known[tensor.ref()]


def _captured(placeholder: Any) -> list[Any] | None:
    """Return the tensor that an inner graph takes from around it; none for one of the process; None: it is unknown."""
    for outside, inside in getattr(placeholder.graph, "captures", ()):
        if inside is placeholder:
            return [] if hasattr(outside, "numpy") else [outside]
    return [] if placeholder.dtype.name == "resource" else None


def _kind(tensor: Any, kinds: list[Kind]) -> Kind:
    op = tensor.op
    if op.type == "Placeholder":
        return kinds[0] if kinds else SAME
    if all(kind.name == "same" for kind in kinds) or op.type == "Rank":
        return SAME
    if op.type in _MOVES and all(kind.name == "same" or kind is kinds[_MOVES[op.type]] for kind in kinds):
        moved = kinds[_MOVES[op.type]]
        if moved.name in _LINEAR:
            return moved
    rule = _RULES.get(op.type)
    return OTHER if rule is None else rule(op, kinds, tensor.value_index)


_MOVES = {
    "Split": 1,
    **dict.fromkeys(("ExpandDims", "Reshape", "SplitV", "Squeeze", "StridedSlice", "Transpose", "Unpack"), 0),
}
"""Operations that only move elements, so that of a sum they make sums; and which of their inputs has these."""


def rank_of(tensor: Any) -> int | None:
    rank: int | None = tensor.shape.rank
    return rank


def constant_of(tensor: Any) -> Any:
    import numpy as np
    from tensorflow.python.framework import tensor_util

    found = tensor_util.constant_value(tensor)
    if found is None and tensor.op.type in _COMPUTED:
        parts = [constant_of(part) for part in tensor.op.inputs]
        found = None if any(part is None for part in parts) else _COMPUTED[tensor.op.type](*parts)
    elif found is None and tensor.op.type == "Pack" and tensor.shape.rank == 1:
        entries = [constant_of(entry) for entry in tensor.op.inputs]
        found = None if any(entry is None for entry in entries) else np.array(entries)
    elif found is None and tensor.op.type == "StridedSlice" and tensor.shape.rank == 0:
        whole, begin = map(constant_of, tensor.op.inputs[:2])
        found = whole[begin[0]] if whole is not None and begin is not None and whole.ndim == 1 else None
    return found


_COMPUTED = {"AddV2": operator.add, "FloorMod": operator.mod, "Sub": operator.sub}
"""Operations on constants that TensorFlow does not look through, as in the axis `rank - 1`."""


def _axes_of(tensor: Any, rank: int | None) -> list[int] | None:
    """Return the axes in a constant tensor, counted from the front; None if they are unknown."""
    if tensor.op.type == "Range" and tensor.op.inputs[1].op.type == "Rank":
        return list(range(99 if rank is None else rank))
    found = constant_of(tensor)
    if found is None or (rank is None and (found < 0).any()):
        return None
    return [int(axis) + (rank or 0) if axis < 0 else int(axis) for axis in found.reshape(-1)]


def _at(kind: Kind, axis: int) -> Kind:
    return Kind(kind.name, axis, kind.blocks)


def _alike(kinds: list[Kind]) -> Kind:
    return kinds[0] if all(kind.like(kinds[0]) for kind in kinds) else OTHER


# Element by element: examples stay apart where all inputs have them along one axis


def _elementwise(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a function of each element, which may broadcast its inputs."""
    names = {kind.name for kind in kinds}
    if op.type == "Greater" and kinds[0].name == "count" and constant_of(op.inputs[1]) == 0:
        return SAME
    if names <= {"same", "loose"}:
        return LOOSE
    if not names <= {"same", EACH}:
        return OTHER
    batched = [(kind, tensor) for kind, tensor in zip(kinds, op.inputs, strict=True) if kind.name == EACH]
    if len(kinds) == 1:
        return kinds[0]
    rank = rank_of(op.outputs[0])
    if rank is None or any(rank_of(tensor) is None for _, tensor in batched):
        return OTHER
    places = {(kind.axis + rank - (rank_of(tensor) or 0), kind.blocks) for kind, tensor in batched}
    return each(*places.pop()) if len(places) == 1 else OTHER


def _linear(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a linear function of each element of one tensor."""
    kind = kinds[0]
    before, after = op.inputs[0].dtype.is_floating, op.outputs[0].dtype.is_floating
    if kind.name in _LINEAR:
        return kind if before and after else OTHER
    is_cut = op.type == "Neg" or (before and not after)
    return OTHER if is_cut and kind.name in ("count", SHAPE) else kind


def _stitch(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a shape some of whose entries are replaced."""
    half = len(kinds) // 2
    places = [constant_of(tensor) for tensor in op.inputs[:half]]
    at = [place for place, kind in enumerate(kinds[half:]) if kind.name == SHAPE]
    if (
        len(at) != 1
        or any(place is None for place in places)
        or any(kind.name != "same" for kind in kinds[:half])
    ):
        return OTHER
    kind = kinds[half + at[0]]
    place = int(places[at[0]].reshape(-1)[kind.axis])
    is_replaced = any(place in after.reshape(-1) for after in places[at[0] + 1 :])
    return SAME if is_replaced else Kind(SHAPE, place, kind.blocks)


def _add(op: Any, kinds: list[Kind], _index: int) -> Kind:
    names = {kind.name for kind in kinds}
    if names & {EACH, "loose"}:
        return _elementwise(op, kinds, 0)
    if not names <= {"same", *_LINEAR}:
        return OTHER
    return _alike(kinds) if len(names) == 1 else MIXED


def _multiply(op: Any, kinds: list[Kind], _index: int) -> Kind:
    a, b = kinds
    names = {a.name, b.name}
    if names <= {"same", EACH, "loose"}:
        return _elementwise(op, kinds, 0)
    if "same" in names:
        other, factor = (b, op.inputs[0]) if a.name == "same" else (a, op.inputs[1])
        is_multiple = other.name in (*_LINEAR, "count") or (other.name == SHAPE and rank_of(factor) == 0)
        is_once = other.name in _LINEAR or constant_of(factor) == 1
        return Kind(other.name, other.axis, other.blocks if is_once else 0) if is_multiple else OTHER
    return SUM if names == {"mean", "count"} else OTHER


def _divide(op: Any, kinds: list[Kind], _index: int) -> Kind:
    a, b = kinds
    if a.name == "same" and b.name in (*_LINEAR, "count", SHAPE):
        return OTHER
    if b.name == "same" or {a.name, b.name} <= {"same", EACH, "loose"}:
        return _multiply(op, kinds, 0)
    if b.name == "count" and rank_of(op.inputs[1]) == 0:
        return {"sum": MEAN, "count": SAME}.get(a.name, OTHER)
    return OTHER


def _floor_divide(op: Any, kinds: list[Kind], _index: int) -> Kind:
    return SAME if {kind.name for kind in kinds} == {"count"} else _elementwise(op, kinds, 0)


def _maximum(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of the larger one. A number of examples that is kept above 1 is one."""
    if all(kind.like(COUNT) for kind in kinds):
        return COUNT
    for place, kind in enumerate(kinds):
        least = constant_of(op.inputs[1 - place])
        if kind.name == "count" and least is not None and (least <= 1).all():
            return kind
    return _elementwise(op, kinds, 0)


def _reduce(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, tensor = kinds[0], op.inputs[0]
    if kinds[1].name != "same":
        return OTHER
    if kind.name in _LINEAR:
        return kind if op.type in ("Sum", "Mean") else OTHER
    rank = rank_of(tensor)
    over = _axes_of(op.inputs[1], rank)
    if kind.name == SHAPE:
        is_one = op.inputs[0].shape.num_elements() == 1
        return Kind("count", 0, kind.blocks if is_one else 0) if is_one or op.type == "Prod" else OTHER
    if kind.name == "count":
        return kind if rank == 0 else OTHER
    if kind.name == "loose":
        return SUM if op.type == "Sum" and over is not None and 0 in over else OTHER
    if kind.name != EACH or over is None:
        return OTHER
    if kind.axis in over:
        return {"Sum": SUM, "Mean": MEAN}.get(op.type, OTHER)
    return kind if op.get_attr("keep_dims") else _at(kind, kind.axis - sum(axis < kind.axis for axis in over))


# Where the axis of the examples goes


def _transpose(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, order = kinds[0], constant_of(op.inputs[1])
    if kind.name != EACH or order is None:
        return OTHER
    return _at(kind, [int(axis) for axis in order].index(kind.axis))


def _expand_dims(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, axes = kinds[0], _axes_of(op.inputs[1], rank_of(op.outputs[0]))
    if kind.name == "count":
        return Kind(SHAPE, 0, kind.blocks)
    return OTHER if kind.name != EACH or axes is None else _at(kind, kind.axis + (axes[0] <= kind.axis))


def _squeeze(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, rank = kinds[0], rank_of(op.inputs[0])
    gone = [axis + (rank or 0) if axis < 0 else axis for axis in op.get_attr("squeeze_dims")]
    if kind.name != EACH or not gone or kind.axis in gone:
        return OTHER
    return _at(kind, kind.axis - sum(axis < kind.axis for axis in gone))


def _reshape(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, shape = kinds[0], kinds[1]
    if kind.name in ("same", "count"):
        if kind.name == "count" and rank_of(op.outputs[0]) == 0:
            return kind
        return _filled(op, kinds[::-1], 0) if kind.name == "same" else Kind(SHAPE, 0, kind.blocks)
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if shape.name not in ("same", SHAPE) or kind.name != EACH:
        return OTHER
    if before.rank is not None and kind.axis and list(before[: kind.axis]) == [1] * kind.axis:
        before, kind = before[kind.axis :], _at(kind, 0)
    is_given = shape.name == SHAPE and shape.axis == kind.axis and kind.blocks <= 1
    if before.rank is None or after.rank is None:
        return each(0, shape.blocks) if is_given and kind.axis == 0 else OTHER
    if kind.axis:
        ahead = list(before[: kind.axis])
        if None in ahead or list(after[: kind.axis]) != ahead:
            return OTHER
    if is_given:
        return each(kind.axis, shape.blocks)
    inner, outer = list(before[kind.axis + 1 :]), list(after[kind.axis + 1 :])
    if None in outer:
        outer = (_dimensions(op.inputs[1]) or list(after))[kind.axis + 1 :]
    had, has = (math.prod(size for size in sizes if size is not None) for sizes in (inner, outer))
    entries = abs(kind.blocks) if kind.blocks <= 1 else 0
    if after.rank <= kind.axis or not has or had * (entries or 1) % has:
        return OTHER  # several examples may make one row
    if None in outer:
        is_kept = had == has and inner.count(None) == outer.count(None)
        return kind if is_kept and _dimensions(op.inputs[1]) is not None else OTHER
    if kind.blocks > 1:
        return kind if had == has and None not in inner else OTHER
    entries = 0 if None in inner else entries * had // has
    return each(kind.axis, 1 if entries == 1 else -entries)


def _dimensions(shape: Any) -> list[int | None] | None:
    """Return the entries of a shape, without a number where it is a dimension that is not known yet."""
    op, found = shape.op, constant_of(shape)
    if found is not None:
        return [int(size) if size >= 0 else None for size in found.reshape(-1)]
    if op.type == "Shape":
        return list(op.inputs[0].shape) if op.inputs[0].shape.rank is not None else None
    if op.type in ("Slice", "StridedSlice"):
        begin, end = constant_of(op.inputs[1]), constant_of(op.inputs[2])
        sizes = _dimensions(op.inputs[0])
        if sizes is None or begin is None or end is None or begin.size > 1:
            return None
        first, length = int(begin[0]), shape.shape.num_elements() or 1
        return (sizes + sizes[:length])[first % len(sizes) :][:length] if sizes else None
    if op.type in ("Pack", "ConcatV2"):
        parts = [_dimensions(part) for part in op.inputs[: len(op.inputs) - (op.type == "ConcatV2")]]
        return None if None in parts else [size for part in parts for size in part or ()]
    return _dimensions(op.inputs[0]) if op.type in ("Cast", "Identity") else None


def _range(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of the numbers of this replica's examples, from 0 on."""
    start, step = constant_of(op.inputs[0]), constant_of(op.inputs[2])
    return PLACE if start == 0 and step == 1 and kinds[1].name == "count" and kinds[1].blocks == 1 else OTHER


def _pack(op: Any, kinds: list[Kind], _index: int) -> Kind:
    names, axis = {kind.name for kind in kinds}, op.get_attr("axis")
    if names == {EACH}:
        kind, rank = _alike(kinds), rank_of(op.outputs[0])
        axis += (rank or 0) if axis < 0 else 0
        return kind if kind is OTHER else _at(kind, kind.axis + (axis <= kind.axis))
    if names <= {"same", "count"}:
        places = [place for place, kind in enumerate(kinds) if kind.name == "count"]
        if len(places) > 1 or rank_of(op.outputs[0]) != 1:
            return OTHER
        return Kind(SHAPE, places[0], kinds[places[0]].blocks)
    return _add(op, kinds, 0)


def _unpack(op: Any, kinds: list[Kind], index: int) -> Kind:
    kind, axis = kinds[0], op.get_attr("axis")
    axis += (rank_of(op.inputs[0]) or 0) if axis < 0 else 0
    if kind.name == SHAPE:
        return _entries(kind, [index], is_shape=False)
    if kind.name != EACH or axis == kind.axis:
        return OTHER
    return _at(kind, kind.axis - (axis < kind.axis))


def _strided_slice(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind = kinds[0]
    begin, strides = constant_of(op.inputs[1]), constant_of(op.inputs[3])
    if kinds[1].name != "same" or kinds[2].name not in ("same", SHAPE) or kinds[3].name != "same":
        return OTHER
    if kind.name == SHAPE:
        return _slice_of_shape(op, kind)
    rank, entries = rank_of(op.inputs[0]), op.inputs[1].shape.num_elements()
    if kind.name != EACH or rank is None or entries is None:
        return OTHER
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = {name: int(op.get_attr(f"{name}_mask")) for name in names}
    spans = masks["new_axis"] | masks["ellipsis"]
    left_out = rank - sum(not spans >> place & 1 for place in range(entries))
    dim, out = 0, 0
    for place in range(entries):
        if masks["ellipsis"] >> place & 1:
            if dim <= kind.axis < dim + left_out:
                return _at(kind, out + kind.axis - dim)
            dim, out = dim + left_out, out + left_out
        elif masks["new_axis"] >> place & 1:
            out += 1
        elif dim == kind.axis:
            is_first = masks["begin"] >> place & 1 or (begin is not None and begin[place] == 0)
            is_end = masks["end"] >> place & 1 or kinds[2].like(Kind(SHAPE, place, kind.blocks))
            is_all = is_first and is_end and strides is not None and strides[place] == 1
            return _at(kind, out) if is_all and not masks["shrink_axis"] >> place & 1 else OTHER
        else:
            dim, out = dim + 1, out + (not masks["shrink_axis"] >> place & 1)
    return _at(kind, out + kind.axis - dim)


def _slice(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, begin, size = kinds[0], constant_of(op.inputs[1]), constant_of(op.inputs[2])
    if kind.name == SHAPE and begin is not None and size is not None:
        length = op.inputs[0].shape.num_elements()
        end = begin[0] + size[0] if size[0] >= 0 else length
        return OTHER if end is None else _entries(kind, list(range(int(begin[0]), int(end))))
    if kind.name != EACH or begin is None or begin[kind.axis]:
        return OTHER
    is_given = kinds[2].name == SHAPE and (kinds[2].axis, kinds[2].blocks) == (kind.axis, kind.blocks)
    return kind if is_given or (size is not None and size[kind.axis] == -1) else OTHER


def _slice_of_shape(op: Any, kind: Kind) -> Kind:
    size = op.inputs[0].shape.num_elements()
    bounds = [constant_of(op.inputs[place]) for place in (1, 2, 3)]
    if size is None or any(bound is None or len(bound) != 1 for bound in bounds):
        return OTHER
    begin, end, stride = (int(bound[0]) for bound in bounds)
    if op.get_attr("shrink_axis_mask"):
        return _entries(kind, [range(size)[begin]], is_shape=False)
    first, last = (
        None if op.get_attr(mask) else at for mask, at in (("begin_mask", begin), ("end_mask", end))
    )
    return _entries(kind, list(range(size)[first:last:stride]))


def _entries(kind: Kind, places: list[int], is_shape: bool = True) -> Kind:
    """Return the kind of some entries of a shape: the number of examples is among them or not."""
    found = [at for at, place in enumerate(places) if place == kind.axis]
    if len(found) != 1:
        return OTHER if found else SAME
    return Kind(SHAPE, found[0], kind.blocks) if is_shape else Kind("count", 0, kind.blocks)


def _pad(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, added = kinds[0], constant_of(op.inputs[1])
    return OTHER if kind.name != EACH or added is None or added[kind.axis].any() else kind


def _tile(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a tensor that is repeated along its axes, or broadcast to a shape."""
    kind, shape = kinds
    if kind.name == "same":
        rank, own = rank_of(op.outputs[0]), rank_of(op.inputs[0])
        if rank is None or own is None or shape.name != SHAPE:
            return OTHER
        place = shape.axis - rank + own
        return each(shape.axis, shape.blocks) if place < 0 or op.inputs[0].shape[place] == 1 else OTHER
    if op.type == "BroadcastTo":
        rank, own = rank_of(op.outputs[0]), rank_of(op.inputs[0])
        at = each(kind.axis + rank - own, kind.blocks) if rank is not None and own is not None else OTHER
        return at if kind.name == EACH and shape.like(Kind(SHAPE, at.axis, at.blocks)) else OTHER
    times = constant_of(op.inputs[1])
    if times is None and op.inputs[1].op.type == "Pack":
        times = [constant_of(entry) for entry in op.inputs[1].op.inputs]  # others may be unknown
    return kind if kind.name == EACH and times is not None and times[kind.axis] == 1 else OTHER


def _batch_of_blocks(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of what a dilated convolution works on: all examples' first pixels, then all second ones."""
    kind, sizes = kinds[0], constant_of(op.inputs[1])
    if kind.name != EACH or kind.axis or sizes is None or any(other.name != "same" for other in kinds[1:]):
        return OTHER
    blocks = math.prod(int(size) for size in sizes.reshape(-1))
    before, after = (1, blocks) if op.type.startswith("Space") else (blocks, 1)
    return each(0, after) if kind.blocks == before else OTHER


def _if(op: Any, kinds: list[Kind], index: int) -> Kind:
    """Return the kind of what both branches of a condition return."""
    from tensorflow.python.ops import cond_v2

    then, other = (_outputs_of(graph, kinds[1:])[index] for graph in cond_v2.get_func_graphs(op)[:2])
    return then if kinds[0].name == "same" and then.like(other) else OTHER


def _filled(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of what is made, or drawn, in a shape."""
    del op
    shape, *others = kinds
    made = each(shape.axis, shape.blocks)
    is_of_shape = shape.name == SHAPE and all(kind.name == "same" or kind.like(made) for kind in others)
    return made if is_of_shape else OTHER


def _concat(op: Any, kinds: list[Kind], _index: int) -> Kind:
    parts, names = kinds[:-1], {kind.name for kind in kinds[:-1]}
    if names <= {"same", SHAPE} and rank_of(op.outputs[0]) == 1:
        sizes = [tensor.shape.num_elements() for tensor in op.inputs[:-1]]
        at = [place for place, kind in enumerate(parts) if kind.name == SHAPE]
        if len(at) != 1 or None in sizes[: at[0]]:
            return OTHER
        return _at(parts[at[0]], sum(sizes[: at[0]]) + parts[at[0]].axis)
    axes = _axes_of(op.inputs[-1], rank_of(op.outputs[0]))
    if names != {EACH} or axes is None or len({kind.axis for kind in parts}) > 1:
        return OTHER
    if axes[0] != parts[0].axis:
        return _alike(parts)
    blocks = [kind.blocks for kind in parts]
    return each(axes[0], sum(blocks)) if min(blocks) > 0 else OTHER


def _split(op: Any, kinds: list[Kind], index: int) -> Kind:
    place, of = (0, 1) if op.type == "Split" else (2, 0)
    kind, axes = kinds[of], _axes_of(op.inputs[place], rank_of(op.inputs[of]))
    sizes = [output.shape.num_elements() for output in op.outputs]
    if kind.name == SHAPE and None not in sizes:
        return _entries(kind, list(range(sum(sizes[:index]), sum(sizes[: index + 1]))))
    if kind.name != EACH or axes is None or (op.type == "SplitV" and kinds[1].name != "same"):
        return OTHER
    if axes[0] != kind.axis:
        return kind
    # The parts of what was put together have an entry for each example again
    is_taken_apart = op.type == "Split" and kind.blocks > 1 and len(op.outputs) == kind.blocks
    return each(kind.axis) if is_taken_apart and index < kind.blocks else OTHER


def _gather(op: Any, kinds: list[Kind], _index: int) -> Kind:
    params, indices, axis_kind = kinds
    axes, rank = _axes_of(op.inputs[2], rank_of(op.inputs[0])), rank_of(op.inputs[1])
    if axes is None or rank is None or axis_kind.name != "same":
        return OTHER
    if op.get_attr("batch_dims"):
        is_apart = params.name == EACH and params.like(indices) and params.axis < op.get_attr("batch_dims")
        return params if is_apart else OTHER
    if params.name == SHAPE and indices.name == "same":
        at = constant_of(op.inputs[1])
        if at is None or at.ndim > 1:
            return OTHER
        return _entries(params, [int(entry) for entry in at.reshape(-1)], at.ndim == 1)
    if params.name == "same" and indices.name in (EACH, "loose"):
        return _at(indices, indices.axis + axes[0]) if indices.name == EACH else LOOSE
    if params.name == EACH and indices in (DRAWN, PLACE) and axes[0] == params.axis:
        return params
    if params.name == EACH and indices.name == "same" and axes[0] != params.axis:
        return _at(params, params.axis + (rank - 1 if axes[0] < params.axis else 0))
    return OTHER


def _shuffled(_op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a random order. It is noise: each replica draws that of its own part."""
    kind = kinds[0]
    return DRAWN if kind is PLACE else kind if kind.name == EACH and kind.axis == 0 else OTHER


def _one_hot(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, axis = kinds[0], op.get_attr("axis")
    if kind.name != EACH or any(each_kind.name != "same" for each_kind in kinds[1:]):
        return OTHER
    return _at(kind, kind.axis + (axis != -1 and axis <= kind.axis))


# Operations that work along some axes only: those must not be that of the examples


def _along_the_last(count: int) -> Rule:
    """Return the rule for what works along so many last axes of a tensor, or of several alike ones."""

    def rule(op: Any, kinds: list[Kind], _index: int) -> Kind:
        pairs = zip(kinds, op.inputs, strict=True)
        batched = [(kind, rank_of(tensor)) for kind, tensor in pairs if kind.name != "same"]
        kind = _alike([kind for kind, _ in batched])
        is_apart = all(rank is not None and kind.axis < rank - count for _, rank in batched)
        return kind if kind.name == EACH and is_apart else OTHER

    return rule


def _along_given_axes(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind, axes = kinds[0], _axes_of(op.inputs[-1], rank_of(op.inputs[0]))
    is_alone = all(other.name == "same" for other in kinds[1:])
    if kind.name != EACH or axes is None or kind.axis in axes or not is_alone:
        return OTHER
    return _at(kind, kind.axis - (axes[0] < kind.axis)) if op.type.startswith("Arg") else kind


def _rows(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a convolution and the like: its first axis is that of the examples."""
    batched = [kind for kind in kinds if kind.name != "same"]
    if "BackpropInput" in op.type:
        batched = [kind for kind in batched if kind.name != SHAPE]
        if kinds[1].name != "same":
            return OTHER
    if op.type.startswith("FusedBatchNorm") and op.get_attr("is_training"):
        return OTHER
    if op.type == "ReverseSequence" and op.get_attr("batch_dim"):
        return OTHER
    if op.type in _WITH_WEIGHTS and kinds[1].name != "same":
        return OTHER
    kind = _alike(batched)
    return kind if kind.name == EACH and kind.axis == 0 else OTHER


def _sparse_rows(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of what a ragged or sparse tensor becomes: a row for each example."""
    is_loose = all(kind.name in ("loose", "same", SHAPE, "count") for kind in kinds)
    rank = rank_of(op.outputs[0])
    return each() if is_loose and rank is not None and rank > 0 else OTHER


def _matmul(op: Any, kinds: list[Kind], _index: int) -> Kind:
    a, b = kinds[:2]
    first, second = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    ranks = [rank_of(tensor) for tensor in (*op.inputs[:2], op.outputs[0])]
    if None in ranks or not {a.name, b.name} <= {"same", EACH}:
        return OTHER
    rank_a, rank_b, rank = (found or 0 for found in ranks)
    # Where the examples are: in a place of the product's leading axes, in its rows (-2), its columns (-1), or summed up
    place_a = a.axis - rank_a
    if place_a >= -2 and op.get_attr(first):
        place_a = -3 - place_a
    place_b = b.axis - rank_b
    if place_b >= -2 and op.get_attr(second):
        place_b = -3 - place_b
    if a.name == EACH and b.name == EACH:
        if place_a == -1 and place_b == -2:
            return SUM if rank_a == rank_b == 2 and a.blocks == b.blocks else OTHER
        is_apart = place_a == place_b and place_a < -2 and a.blocks == b.blocks
        return each(rank + place_a, a.blocks) if is_apart else OTHER
    if a.name == EACH:
        return each(rank + place_a, a.blocks) if place_a != -1 else OTHER
    return each(rank + place_b, b.blocks) if place_b != -2 else OTHER


def _einsum(op: Any, kinds: list[Kind], _index: int) -> Kind:
    left, _, out = op.get_attr("equation").decode().partition("->")
    terms = left.split(",")
    if not {kind.name for kind in kinds} <= {"same", EACH}:
        return OTHER
    if "." in left:
        ranks = [rank_of(tensor) for tensor in op.inputs]
        if None in ranks:
            return OTHER
        spare = [(rank or 0) - len(term) + 3 for rank, term in zip(ranks, terms, strict=True)]
        most = max(count for count, term in zip(spare, terms, strict=True) if "." in term)
        # Digits stand for what the dots do, the last axes by the last digits
        terms = [
            term.replace("...", "0123456789"[most - n : most]) for n, term in zip(spare, terms, strict=True)
        ]
        out = out.replace("...", "0123456789"[:most])
    places = {
        (term[kind.axis], kind.blocks) for kind, term in zip(kinds, terms, strict=True) if kind.name == EACH
    }
    if len(places) > 1:
        return OTHER
    letter, blocks = places.pop()
    return each(out.index(letter), blocks) if letter in out else OTHER


def _shape(op: Any, kinds: list[Kind], index: int) -> Kind:
    kind, tensor = kinds[index if op.type == "ShapeN" else 0], op.inputs[index if op.type == "ShapeN" else 0]
    if kind is PLACE:
        kind = each()
    if op.type == "Size":
        return (
            Kind("count", 0, 0) if kind.name == EACH else SAME if tensor.shape.is_fully_defined() else OTHER
        )
    if kind.name == EACH:
        return Kind(SHAPE, kind.axis, kind.blocks)
    is_known = tensor.shape.is_fully_defined() or kind.name in (*_LINEAR, "same", "count", SHAPE)
    return SAME if is_known else OTHER


def _outputs_of(graph: Any, kinds: list[Kind]) -> list[Kind]:
    known = Kinds()
    for tensor, kind in zip(graph.inputs, kinds, strict=True):
        known.set(tensor, kind)
    return [known.kind_of(tensor) for tensor in graph.outputs]


def _while(op: Any, kinds: list[Kind], index: int) -> Kind:
    """Return the kind of what a loop ends with: one that it has before and after each turn."""
    from tensorflow.python.ops import while_v2

    body, cond = (while_v2._get_graph(op, name, f"_{name}_graph") for name in ("body", "cond"))
    for _ in range(5):
        after = [
            _joined(before, found, tensor)
            for before, found, tensor in zip(kinds, _outputs_of(body, kinds), body.inputs, strict=True)
        ]
        if all(a.like(b) for a, b in zip(after, kinds, strict=True)):
            break
        kinds = after
    else:
        return OTHER
    return kinds[index] if _outputs_of(cond, kinds)[0].name == "same" else OTHER


def _joined(a: Kind, b: Kind, tensor: Any) -> Kind:
    """Return the kind of what is one or the other, such as a list to which values of examples are added."""
    if a.like(b):
        return a
    known = b if a.name == "same" else a
    return known if {a.name, b.name} == {"same", EACH} and tensor.dtype.name == "variant" else OTHER


def _list_of(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a list that is made of a tensor's entries along its first axis, or of nothing."""
    if op.type != "TensorListFromTensor":
        if kinds[1].name != "same":
            return OTHER  # a list of the examples
        return each(kinds[0].axis, kinds[0].blocks) if kinds[0].name == SHAPE else OTHER
    return _at(kinds[0], kinds[0].axis - 1) if kinds[0].name == EACH and kinds[0].axis else OTHER


def _list_changed(op: Any, kinds: list[Kind], _index: int) -> Kind:
    if op.type == "TensorListSetItem" and kinds[1].name != "same":
        return OTHER
    return _joined(kinds[0], kinds[-1], op.inputs[0])


def _list_read(op: Any, kinds: list[Kind], _index: int) -> Kind:
    if kinds[0].name != EACH or (op.type == "TensorListGetItem" and kinds[1].name != "same"):
        return OTHER
    return _at(kinds[0], kinds[0].axis + (op.type == "TensorListStack"))


def _table(*rows: tuple[str, Rule]) -> dict[str, Rule]:
    return {name: rule for names, rule in rows for name in names.split()}


_WITH_WEIGHTS = frozenset({"Conv2D", "Conv3D", "DepthwiseConv2dNative", "BiasAdd", "Dilation2D"})

_RULES = _table(
    (
        "Abs Acos Acosh Asin Asinh Atan Atanh Atan2 Ceil ClipByValue Cos Cosh Digamma Elu EluGrad "
        "Equal Erf Erfc Erfinv Exp Expm1 Floor FloorMod Greater GreaterEqual Imag Inv InvGrad IsFinite IsInf "
        "IsNan LeakyRelu LeakyReluGrad Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Minimum "
        "Mod NextAfter NotEqual OnesLike Pow Real Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rint Round "
        "Rsqrt RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign "
        "SoftsignGrad AsString Bucketize Complex ComplexAbs Conj LeftShift RightShift StringToHashBucketFast "
        "Select Sqrt SqrtGrad Square SquaredDifference Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy Xlog1py "
        "Xlogy ZerosLike BitwiseAnd BitwiseOr BitwiseXor Zeta Polygamma Igamma Igammac Betainc",
        _elementwise,
    ),
    ("Bitcast Cast CheckNumerics DeepCopy EnsureShape Identity Neg PlaceholderWithDefault Snapshot", _linear),
    (
        "PreventGradient StopGradient",
        lambda _op, kinds, _index: OTHER if kinds[0].name == "mixed" else kinds[0],
    ),
    ("IdentityN", lambda _op, kinds, index: kinds[index]),
    ("Add AddN AddV2 Sub", _add),
    ("Mul MulNoNan", _multiply),
    ("Div DivNoNan RealDiv", _divide),
    ("FloorDiv", _floor_divide),
    ("Maximum", _maximum),
    ("DynamicStitch", _stitch),
    ("All Any EuclideanNorm Max Mean Min Prod Sum", _reduce),
    ("Transpose ConjugateTranspose", _transpose),
    ("ExpandDims", _expand_dims),
    ("Squeeze", _squeeze),
    ("Reshape", _reshape),
    ("Pack", _pack),
    ("Unpack", _unpack),
    ("StridedSlice", _strided_slice),
    ("Slice", _slice),
    ("Range", _range),
    ("MirrorPad Pad PadV2", _pad),
    (
        "Fill StatelessRandomBinomial StatelessRandomGammaV3 "
        "RandomStandardNormal RandomUniform RandomUniformInt StatelessRandomNormalV2 StatelessRandomUniformV2 "
        "StatelessRandomUniformFullIntV2 StatelessRandomUniformIntV2 StatelessTruncatedNormalV2 TruncatedNormal",
        _filled,
    ),
    ("ConcatV2", _concat),
    ("Split SplitV", _split),
    ("GatherV2", _gather),
    ("ResourceGather", lambda _op, kinds, _index: kinds[1] if kinds[1].name in (EACH, "loose") else OTHER),
    ("LookupTableFindV2", lambda _op, kinds, _index: kinds[1] if kinds[2].name == "same" else OTHER),
    ("RandomShuffle", _shuffled),
    ("OneHot", _one_hot),
    ("BroadcastTo Tile", _tile),
    ("BatchToSpaceND SpaceToBatchND", _batch_of_blocks),
    ("If StatelessIf", _if),
    (
        "Cholesky FFT2D IFFT2D IRFFT2D MatrixBandPart MatrixDeterminant MatrixDiagPartV3 MatrixInverse MatrixSolve "
        "MatrixTriangularSolve Qr RFFT2D SelfAdjointEigV2 Svd",
        _along_the_last(2),
    ),
    (
        "FFT IFFT IRFFT LogSoftmax MatrixDiagV3 Multinomial RFFT Softmax StatelessMultinomial TopKV2",
        _along_the_last(1),
    ),
    ("Cumprod Cumsum CumulativeLogsumexp ReverseV2 Roll", _along_given_axes),
    ("ArgMax ArgMin", _along_given_axes),
    (
        "AvgPool AvgPool3D BiasAdd Conv2D Conv2DBackpropInput Conv3D Conv3DBackpropInputV2 DepthToSpace "
        "DepthwiseConv2dNative DepthwiseConv2dNativeBackpropInput Dilation2D ExtractImagePatches FusedBatchNorm "
        "ImageProjectiveTransformV3 "
        "FusedBatchNormV2 FusedBatchNormV3 InTopK InTopKV2 LRN LowerBound MaxPool MaxPool3D MaxPoolGrad "
        "MaxPoolWithArgmax ReverseSequence UpperBound "
        "ResizeArea ResizeBicubic ResizeBilinear ResizeNearestNeighbor SoftmaxCrossEntropyWithLogits SpaceToDepth "
        "SparseSoftmaxCrossEntropyWithLogits AdjustContrastv2 AdjustHue AdjustSaturation HSVToRGB RGBToHSV",
        _rows,
    ),
    ("RaggedTensorToTensor SparseTensorDenseMatMul SparseToDense", _sparse_rows),
    ("BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul", _matmul),
    ("Einsum", _einsum),
    ("L2Loss", lambda _op, kinds, _index: SUM if kinds[0].name == EACH else OTHER),
    ("Shape ShapeN Size", _shape),
    (
        "PartitionedCall StatefulPartitionedCall",
        lambda op, kinds, i: _outputs_of(op.graph._get_function(op.get_attr("f").name).graph, kinds)[i],
    ),
    ("StatelessWhile While", _while),
    ("EmptyTensorList TensorListFromTensor TensorListReserve", _list_of),
    ("TensorListPushBack TensorListSetItem", _list_changed),
    ("TensorListGetItem TensorListStack", _list_read),
)

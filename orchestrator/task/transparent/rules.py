"""Rules that find the kinds of a graph's tensors: an operation's output gets its kind from the kinds of its inputs.

The table at the end has the rule for each TensorFlow operation.
"""

from __future__ import annotations

from orchestrator.task.transparent.kinds import (
    COUNT,
    CROSS,
    DIVISOR,
    EACH,
    MEAN,
    MIXED,
    OTHER,
    PART,
    PER_COUNT,
    SAME,
    SUM,
    Kind,
    each,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Rule = Callable[[Any, list[Kind], int], Kind]
    from collections.abc import Iterable


# Rules for operations that only move elements: they find the new axis of the examples


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
    """Return the kind of a slice. If the input is a shape, only its first entry is the number of examples."""
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


# Rules for element-wise functions, which keep the axis of the examples, and for unknown operations. A rule takes
# an operation, the kinds of its inputs and the index of an output, and returns the kind of that output.


def first_of(kinds: Iterable[Kind], name: str) -> Kind | None:
    return next((kind for kind in kinds if kind.name == name), None)


def rank_of(tensor: Any) -> int | None:
    rank: int | None = tensor.shape.rank
    return rank


def constant_of(tensor: Any) -> Any:
    from tensorflow.python.framework import tensor_util

    return tensor_util.constant_value(tensor)


def of_unknown(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of an unknown operation's output, which may still have the axis of the examples."""
    ranks = [rank_of(output) for output in op.outputs]
    rank = max((9 if each_rank is None else each_rank for each_rank in ranks), default=0)
    of_batch = [kind for kind in kinds if kind.name in (EACH, "part")]
    variant = any(output.dtype.name == "variant" for output in op.outputs)
    if of_batch:
        if rank == 0 and not variant:
            return OTHER
        axis = of_batch[0].axis if of_batch[0].axis < rank or variant else 0
        ragged = op.type in _SELECTING or any(kind.ragged for kind in of_batch)
        return each(axis if variant else settled_axis(op.outputs[0], axis), ragged)
    names = {kind.name for kind in kinds}
    if names <= {"same", "count", "per count"}:
        return each() if rank > 0 and op.type not in _OF_SHAPES else COUNT
    return OTHER


_SELECTING = frozenset({"Where", "GatherNd", "DynamicPartition", "Unique", "UniqueV2"})
_OF_SHAPES = frozenset({"Pack", "ConcatV2", "Prod", "Maximum", "Minimum", "FloorDiv", "Floor", "GatherV2"})


def settled_axis(tensor: Any, axis: int) -> int:
    """Return the axis of the examples after a reshape: it has an unknown size, and other axes mostly have not."""
    rank = rank_of(tensor)
    if rank is None or axis >= rank or tensor.shape[axis] is None:
        return axis
    unknown = [place for place, size in enumerate(tensor.shape) if size is None]
    return unknown[0] if unknown else axis


def elementwise(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Return the kind of a nonlinear element-wise function."""
    of_batch = [(kind, tensor) for kind, tensor in zip(kinds, op.inputs, strict=True) if kind.name == EACH]
    of_batch += [(kind, tensor) for kind, tensor in zip(kinds, op.inputs, strict=True) if kind.name == "part"]
    if not of_batch:
        return of_unknown(op, kinds, 0)
    # Broadcasting compares examples with each other (CROSS) if two inputs have them along different axes
    rank = rank_of(op.outputs[0])
    places = set()
    for kind, tensor in of_batch:
        own = rank_of(tensor)
        if rank is None or own is None:
            return each(of_batch[0][0].axis, any(kind.ragged for kind, _ in of_batch))
        places.add(kind.axis + rank - own)
    unknown = [place for place in places if 0 <= place < (rank or 0) and op.outputs[0].shape[place] is None]
    if len(unknown) > 1:
        return CROSS
    return each(max(0, (unknown or list(places))[0]), any(kind.ragged for kind, _ in of_batch))


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
            missing = [each_input for each_input in top.op.inputs if each_input.ref() not in self._known]
            if missing:
                waiting.extend(missing)
                continue
            kinds = [self._known[each_input.ref()] for each_input in top.op.inputs]
            self._known[top.ref()] = _kind(top, kinds)
            waiting.pop()
        return self._known[tensor.ref()]


def _kind(tensor: Any, kinds: list[Kind]) -> Kind:
    op = tensor.op
    names = {kind.name for kind in kinds}
    if op.type in _SHAPES:
        return COUNT if "each" in names or "part" in names else SAME
    if names <= {"same"}:
        return SAME
    if "cross" in names:
        return CROSS
    rule: Rule = _RULES.get(op.type, of_unknown)
    return rule(op, kinds, tensor.value_index)


_SHAPES = frozenset({"Shape", "Size", "ShapeN"})


def _add(op: Any, kinds: list[Kind], _index: int) -> Kind:
    names = {kind.name for kind in kinds}
    if names == {"part"}:
        return PART
    if EACH in names or "part" in names:
        return elementwise(op, kinds, 0)
    if "other" in names or "divisor" in names:
        return OTHER
    if names <= {"same", "count"}:
        return COUNT
    if "per count" in names or "count" in names:
        return OTHER
    return kinds[0] if all(kind.like(kinds[0]) for kind in kinds) else MIXED


def _multiply(op: Any, kinds: list[Kind], _index: int) -> Kind:
    a, b = kinds
    names = {a.name, b.name}
    if "same" in names:
        other = b if a.name == "same" else a
        return elementwise(op, kinds, 0) if other.name == EACH else other
    if names == {"sum", "per count"}:
        return MEAN
    if names == {EACH, "per count"}:
        return PART
    if names == {"mean", "count"}:
        mean = first_of(kinds, "mean")
        return SUM if mean is not None and mean.count is None else OTHER
    if EACH in names or "part" in names:
        return elementwise(op, kinds, 0)
    return COUNT if names == {"count"} else OTHER


def _divide(op: Any, kinds: list[Kind], _index: int) -> Kind:
    a, b = kinds
    if b.name == "same":
        return elementwise(op, kinds, 0) if a.name == EACH else a
    if a.name == "same" and b.name == "count":
        return PER_COUNT
    if a.name == "sum" and b.name == "count":
        return MEAN
    if a.name in ("sum", "count") and b.name in ("sum", "divisor") and not _is_learned(op.inputs[1]):
        return Kind("mean", count=op.inputs[1])
    if a.name == EACH and b.name == "count":
        return PART
    if a.name == "count" and b.name == "count":
        return SAME
    return elementwise(op, kinds, 0)


def _is_learned(tensor: Any) -> bool:
    """Return whether a tensor depends on a variable. Dividing by it is no mean, since the divisor has a gradient."""
    seen, waiting = set(), [tensor]
    while waiting:
        op = waiting.pop().op
        if op.type in ("ReadVariableOp", "ResourceGather"):
            return True
        if op.name not in seen and op.type != "StopGradient":
            seen.add(op.name)
            waiting.extend(op.inputs)
    return False


def _maximum(op: Any, kinds: list[Kind], _index: int) -> Kind:
    """Recognize a divisor with a lower bound: `maximum(sum, 1)`."""
    names = {kind.name for kind in kinds}
    if names == {"same", "count"}:
        return COUNT
    if names == {"same", "sum"}:
        return DIVISOR
    return elementwise(op, kinds, 0)


def _reduce(op: Any, kinds: list[Kind], _index: int) -> Kind:
    kind = kinds[0]
    linear = op.type in ("Sum", "Mean")
    if kind.name == "same":
        return of_unknown(op, kinds, 0)
    if kind.name in ("count", "per count"):
        return kind
    if kind.name not in (EACH, "part"):
        return kind if linear and kind.name in _LINEAR else OTHER
    rank, axes = rank_of(op.inputs[0]), constant_of(op.inputs[1])
    if axes is None:
        reduced = rank_of(op.outputs[0]) == 0
        return _reduced(op, kind) if reduced else each(kind.axis, kind.ragged)
    flat = [int(axis) for axis in axes.reshape(-1)]
    over = {axis + (rank or 0) if axis < 0 else axis for axis in flat}
    if kind.axis in over:
        return _reduced(op, kind)
    if op.get_attr("keep_dims"):
        return kind
    left = kind.axis - sum(axis < kind.axis for axis in over)
    return Kind(kind.name, left, kind.ragged)


def _reduced(op: Any, kind: Kind) -> Kind:
    if kind.name == "part":
        return MEAN if op.type == "Sum" else OTHER
    if op.type == "Sum":
        return SUM
    if op.type != "Mean":
        return OTHER
    return Kind("mean", count=("size", op.inputs[0], kind.axis)) if kind.ragged else MEAN


def _pack(op: Any, kinds: list[Kind], _index: int) -> Kind:
    batched = first_of(kinds, EACH)
    if batched is not None:
        return each(batched.axis + (op.get_attr("axis") <= batched.axis), batched.ragged)
    names = {kind.name for kind in kinds}
    if names <= {"same", "count"}:
        return COUNT
    return _add(op, kinds, 0)


def _matmul(op: Any, kinds: list[Kind], _index: int) -> Kind:
    a, b = kinds[:2]
    if a.name != EACH or b.name != EACH or rank_of(op.inputs[0]) != 2:
        return _product_of_batches(op, a, b) if a.name == b.name == EACH else of_unknown(op, kinds, 0)
    first, second = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    inner_a = a.axis == (0 if op.get_attr(first) else 1)
    inner_b = b.axis == (1 if op.get_attr(second) else 0)
    if inner_a and inner_b:
        return SUM
    return CROSS if list(op.outputs[0].shape) == [None, None] else each()


def _product_of_batches(op: Any, a: Kind, b: Kind) -> Kind:
    rank = rank_of(op.outputs[0])
    if a.axis == b.axis and rank is not None and a.axis < rank - 2:
        return each(a.axis)
    return CROSS if rank == 2 else each()


def _einsum(op: Any, kinds: list[Kind], _index: int) -> Kind:
    equation = op.get_attr("equation").decode()
    left, _, out = equation.partition("->")
    letters = set()
    for kind, term in zip(kinds, left.split(","), strict=True):
        if kind.name == EACH:
            if "." in term:
                return each()
            letters.add(term[kind.axis])
    if not letters:
        return of_unknown(op, kinds, 0)
    if len(letters) > 1:
        return CROSS if len(letters & set(out)) > 1 else OTHER
    letter = letters.pop()
    return each(out.index(letter)) if letter in out else SUM


def _concat(op: Any, kinds: list[Kind], index: int) -> Kind:
    kind, axis = of_unknown(op, kinds, index), constant_of(op.inputs[-1])
    is_longer = (
        kind.name == EACH and axis is not None and int(axis) % (rank_of(op.outputs[0]) or 1) == kind.axis
    )
    return each(kind.axis, ragged=True) if is_longer else kind


def _split(op: Any, kinds: list[Kind], index: int) -> Kind:
    """Return the kind of a part. Parts of the batch itself, such as triplets, are others on each replica."""
    place = 0 if op.type == "Split" else 2
    kind, axis = kinds[1 if op.type == "Split" else 0], constant_of(op.inputs[place])
    if kind.name == EACH and axis is not None:
        if int(axis) % (rank_of(op.outputs[0]) or 1) != kind.axis:
            return kind
        return of_unknown(op, kinds, index) if kind.ragged else CROSS
    return of_unknown(op, kinds, index)


def _squared_sum(op: Any, kinds: list[Kind], _index: int) -> Kind:
    return SUM if kinds[0].name == EACH else of_unknown(op, kinds, 0)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "Identity",
            "StopGradient",
            "PreventGradient",
            "Cast",
            "Reshape",
            "Snapshot",
            "CheckNumerics",
            "Neg",
        ),
        same_kind,
    ),
    **dict.fromkeys(("PlaceholderWithDefault", "EnsureShape", "DeepCopy", "BroadcastTo"), same_kind),
    "IdentityN": identities,
    **dict.fromkeys(("AddV2", "Add", "Sub", "AddN"), _add),
    "Mul": _multiply,
    "MulNoNan": _multiply,
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan"), _divide),
    "Maximum": _maximum,
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm"), _reduce),
    "Transpose": transpose,
    "ExpandDims": expand_dims,
    "Squeeze": squeeze,
    "Pack": _pack,
    "Unpack": unstack,
    "StridedSlice": strided_slice,
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "BatchMatMulV3", "BatchMatMul"), _matmul),
    "Einsum": _einsum,
    "L2Loss": _squared_sum,
    "ConcatV2": _concat,
    **dict.fromkeys(("Split", "SplitV"), _split),
    "TensorListStack": stacked_list,
    **dict.fromkeys(
        ("SquaredDifference", "Minimum", "Pow", "SelectV2", "Select", "Less", "Equal"), elementwise
    ),
    **dict.fromkeys(
        ("Greater", "GreaterEqual", "LessEqual", "NotEqual", "LogicalAnd", "LogicalOr"), elementwise
    ),
}

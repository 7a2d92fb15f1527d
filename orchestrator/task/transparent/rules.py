"""Find the kinds of a graph's tensors: the kind of each operation's output follows from the kinds of its inputs.

The table at the end names the rule of each operation of TensorFlow. The rules of arithmetic, reductions and products
are here; `axes` has those that move elements only, `elements` those for functions of elements.
"""

from __future__ import annotations

from orchestrator.task.transparent.axes import (
    expand_dims,
    identities,
    same_kind,
    squeeze,
    stacked_list,
    strided_slice,
    transpose,
    unstack,
)
from orchestrator.task.transparent.elements import constant_of, elementwise, first_of, of_unknown, rank_of
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

_LINEAR = ("sum", "mean", "mixed")


class Kinds:
    """The kinds of the tensors of all replicas. A kind is set or found once."""

    def __init__(self) -> None:
        self._known: dict[Any, Kind] = {}

    def set(self, tensor: Any, kind: Kind) -> None:
        self._known[tensor.ref()] = kind

    def of(self, tensor: Any) -> Kind:
        """Return the kind of a tensor. Nothing is called recursively, since a graph may be deep."""
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
    """Return whether a tensor depends on a variable: a quotient by it is no mean, since it has a gradient too."""
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
    """Recognize a divisor that is kept from zero: `maximum(sum, 1)`."""
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
    found = first_of(kinds, EACH)
    if found is not None:
        return each(found.axis + (op.get_attr("axis") <= found.axis), found.ragged)
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
    "TensorListStack": stacked_list,
    **dict.fromkeys(
        ("SquaredDifference", "Minimum", "Pow", "SelectV2", "Select", "Less", "Equal"), elementwise
    ),
    **dict.fromkeys(
        ("Greater", "GreaterEqual", "LessEqual", "NotEqual", "LogicalAnd", "LogicalOr"), elementwise
    ),
}

"""The identity of a fit: what must be the same for a backup to be restored, and on all workers.

The order of the calls says nothing: a script that skips what is done calls `fit` fewer times after a restart. So a fit
is known by the function that calls it, by the model and how it is compiled, by its data, and by its starting weights.
Names and paths are left out: Keras counts its layers, and a temporary directory has another name each time. Numbers
with a fraction are compared by what they sum up to, since another processor may round them differently. Where the
number of replicas has changed, the batch, the steps of an epoch and the learning rate may have followed it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import types
import zlib

from orchestrator.both.script import is_of_script
from orchestrator.task.keras.optimizers import weights_of
from orchestrator.task.transparent.backup import variables_of
from orchestrator.task.transparent.data import sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SAMPLE_BYTES = 1 << 24
"""How much of an array is looked at: evenly spaced rows of a larger one, and its last one."""

CALLER, MODEL = "the function that calls fit", "the model or how it is compiled"
DATA, WEIGHTS = "the data", "the starting weights"
_PLACES = (CALLER, MODEL, *[DATA] * 4, *[WEIGHTS] * 4)
"""What each number of an identity is of. Behind these are those that compare fits of other numbers of replicas."""
_MODEL_AT_ANY_SIZE, _DATA_AT_ANY_SIZE, _SIZES = 10, 11, slice(12, 15)
"""Places 1 and 2 without what may follow the number of replicas, and the batch, the steps and the learning rate."""
_POWERS = (0.0, 0.5, 1.0, -1.0)
"""How these may follow it: not at all, by its root, as it, or (the steps of an epoch) the other way round."""
_EXACT = (0, 1, 2, 6)
_ROUNDING = 1e-4
_SETTINGS = ("batch_size", "class_weight", "initial_epoch", "shuffle", "steps_per_epoch", "validation_split")
_OF_SIZE = ("batch_size", "steps_per_epoch")
_BETWEEN = ("orchestrator", "keras", "tf_keras", "tensorflow", "contextlib", "functools")
"""Whose functions are called between `fit` and what it calls back."""
_UNSTABLE = frozenset({"name", "build_config", "shared_object_id", "built", "stop_training"})
"""Attributes and settings that may differ in another process, or after a fit."""


def identity(model: Any, given: dict[str, Any], first_batch: Any, folder: str) -> tuple[list[float], float]:
    """Return the identity of a fit whose model is built, and what its second number would be without callbacks.

    The workers need not have the same callbacks: the chief alone may save and write tables.

    Args:
        model: the model, with its starting weights.
        given: the arguments of `fit`, by name.
        first_batch: the first batch, of data that can be read only once; else None.
        folder: the folder of the script.
    """
    callbacks = getattr(given.get("callbacks"), "callbacks", given.get("callbacks")) or []
    names = [
        type(each).__name__ for each in (callbacks if isinstance(callbacks, (list, tuple)) else [callbacks])
    ]
    layers = [each for each in model._flatten_layers() if not getattr(each, "layers", None)]
    weights = [[str(each.shape), str(each.dtype), bool(each.trainable)] for each in weights_of(model)]
    compiled = [getattr(model, name, None) for name in ("optimizer", "loss")]
    settings = [given.get(name) for name in _SETTINGS]
    made = [described(each) for each in (type(model).__name__, _plain_attributes(model), layers, weights)]
    of_size = [described(each) for each in (compiled, settings)]
    at_any_size = [
        described(compiled, _UNSTABLE | {"learning_rate"}),
        described([given.get(name) for name in _SETTINGS if name not in _OF_SIZE]),
    ]
    data = [given.get(name) for name in ("x", "y", "sample_weight", "validation_data")]
    exact, data_at_any_size, *sums = _summed([*data, first_batch])
    return [
        _crc(_caller(folder)),
        _crc(str([*made, *of_size, described(names)])),
        exact,
        *sums,
        *summed_up(variables_of(model)["model"]),
        _crc(str([*made, *at_any_size, described(names)])),
        data_at_any_size,
        *(float(given.get(name) or 0.0) for name in _OF_SIZE),
        _rate(model),
    ], _crc(str([*made, *of_size]))


def _crc(text: str) -> float:
    return float(zlib.crc32(text.encode()))


def _rate(model: Any) -> float:
    """Return the learning rate that a model begins with; 0 where it has none, or several."""
    rate: Any = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    try:
        return float(rate.numpy() if hasattr(rate, "numpy") else rate or 0.0)
    except (TypeError, ValueError):
        return 0.0


def signature(identity: list[float]) -> tuple[float, ...]:
    """Return what fits of one model, as it is compiled, have in common, whatever data they train."""
    return tuple(identity[:2])


def difference(one: list[float], other: list[float]) -> str:
    """Return in what two identities differ first; empty if they are the same."""
    return next(iter(differences(one, other)), "")


def differences(one: list[float], other: list[float], growth: float = 1.0) -> list[str]:
    """Return in what two identities differ.

    Args:
        growth: how many times as many replicas the other has; what follows their number is then the same.
    """
    if min(len(one), len(other)) < len(_PLACES):
        return ["what is known of it", CALLER, DATA]
    if growth != 1.0 and len(one) == len(other) > len(_PLACES):
        one = _grown(one, other, growth)
    pairs = enumerate(zip(_PLACES, one, other, strict=False))
    return [what for place, (what, a, b) in pairs if abs(a - b) > (0.1 if place in _EXACT else _ROUNDING)]


def _grown(one: list[float], other: list[float], growth: float) -> list[float]:
    """Return an identity with the other's numbers where the two differ by what followed the number of replicas."""
    found = list(one)
    follow = all(map(functools.partial(_follows, growth), one[_SIZES], other[_SIZES], (1.0, 1.0, 0.0)))
    if follow and one[_MODEL_AT_ANY_SIZE] == other[_MODEL_AT_ANY_SIZE]:
        found[1] = other[1]
    if one[_DATA_AT_ANY_SIZE] == other[_DATA_AT_ANY_SIZE]:
        found[2] = other[2]
    return found


def _follows(growth: float, before: float, now: float, rounding: float) -> bool:
    return any(abs(now - before * growth**power) <= rounding + 1e-3 * abs(now) for power in _POWERS)


def difference_of_sums(one: list[float], other: list[float]) -> bool:
    """Return whether two results of `summed_up` are of different values."""
    pairs = enumerate(zip(one, other, strict=True))
    return any(abs(a - b) > (_ROUNDING if place else 0.1) for place, (a, b) in pairs)


def is_called_by_script(folder: str) -> bool:
    """Return whether the script itself called `fit`: a tuner, say, calls it for models that it draws."""
    frame: Any = sys._getframe()
    while frame is not None and not is_of_script(frame.f_code.co_filename, folder):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _BETWEEN:
            return False
        frame = frame.f_back
    return frame is not None


def described(value: Any, left_out: frozenset[str] = _UNSTABLE) -> str:
    """Return settings as a text that is the same in every process. What is not understood has its class only."""
    inner = functools.partial(described, left_out=left_out)
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return inner(value.item())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return str([(str(key), inner(value[key])) for key in sorted(value, key=str) if key not in left_out])
    if isinstance(value, (list, tuple)):
        return str([inner(each) for each in value])
    if isinstance(value, functools.partial):
        return inner([value.func, value.args, value.keywords])
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = [each.cell_contents for each in value.__closure__ or () if each != types.CellType()]
        cells = [each for each in cells if _is_plain(each)]
        body = [code.co_code.hex(), *filter(_is_plain, code.co_consts)] if code.co_name == "<lambda>" else []
        return inner([value.__qualname__, cells, value.__defaults__, body])
    own = _plain_attributes(value)
    with contextlib.suppress(Exception):  # it has none, or a class of the script did not write one
        own.update(value.get_config())
    return f"{type(value).__name__} {inner(own)}"


def _plain_attributes(value: Any) -> dict[str, Any]:
    """Return the plain attributes that a class of the script has set: they may be what two models differ in."""
    if type(value).__module__.partition(".")[0] in ("keras", "tf_keras"):
        return {}
    attributes = getattr(value, "__dict__", {})
    return {name: each for name, each in attributes.items() if name[0] != "_" and _is_plain(each)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, bytes))


def _caller(folder: str) -> str:
    frame: Any = sys._getframe()
    while frame is not None and not (folder and is_of_script(frame.f_code.co_filename, folder)):
        frame = frame.f_back
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)} {frame.f_code.co_name}"


def summed_up(values: list[Any]) -> list[float]:
    """Return a checksum of what must be exactly equal, and three sums over all numbers with a fraction."""
    exact, _, *sums = _summed(values)
    return [exact, *sums]


def _summed(values: list[Any]) -> list[float]:
    """Return the same, with a second checksum behind the first: without the sizes of batches."""
    import numpy as np

    base = np.random.Generator(np.random.PCG64(1)).standard_normal((2, 65521))
    exact, at_any_size, sums = 0, 0, [0.0, 0.0, 0.0]
    for place, leaf in enumerate(leaf for value in values for leaf in _leaves(value)):
        array = leaf if isinstance(leaf, str) else _sample(leaf)
        if isinstance(array, str):
            exact = zlib.crc32(array.encode(), exact)
            if not isinstance(array, _Batches):
                at_any_size = zlib.crc32(array.encode(), at_any_size)
            continue
        known = getattr(leaf, "shape", array.shape)
        is_open = getattr(known, "rank", 0) is None or None in tuple(known)
        shape = [int(size) for size in (array.shape if is_open else known)]
        parts: list[Any] = [f"{shape} {array.dtype.kind}".encode()]
        if array.dtype.kind in "OSU":
            parts.append(_texts(array))
        elif array.dtype.kind in "biu":
            parts.append(np.ascontiguousarray(array).data)
        else:
            numbers = np.nan_to_num(np.ravel(array).view(array.real.dtype).astype(np.float64))
            length = float(np.linalg.norm(numbers))
            weight = math.cos(place + 1)
            for row in (0, 1):
                along = np.resize(base[row, place * 7919 % 50_000 :], numbers.size)
                sums[row] += weight * float(numbers @ along) / (length + 1e-12)
            sums[2] += weight * math.log(length + 1e-12)
        for part in parts:
            exact, at_any_size = zlib.crc32(part, exact), zlib.crc32(part, at_any_size)
    return [float(exact), float(at_any_size), *sums]


class _Batches(str):
    """What is known of the batches of a tf.data: their shape, and how many there are."""

    __slots__ = ()


def _leaves(value: Any) -> Iterator[Any]:
    import tensorflow as tf

    if value is None:
        return
    if isinstance(value, tf.data.Dataset):
        yield _Batches(f"{value.element_spec} {int(value.cardinality())}")
        for source in sources(value):
            names = getattr(source, "_filenames", None)
            yield from getattr(source, "_tensors", ())
            if names is not None and not isinstance(names, tf.data.Dataset):
                yield names
        return
    if hasattr(value, "to_numpy"):  # of pandas
        yield value.to_numpy()
        return
    try:
        yield from tf.nest.flatten(value)
    except (TypeError, ValueError):
        yield type(value).__name__


def _sample(leaf: Any) -> Any:
    """Return an array of what is looked at; of what is no array, the name of its class."""
    import numpy as np

    if not hasattr(leaf, "shape") and not _is_plain(leaf):
        return type(leaf).__name__  # a Sequence, say: to make an array of it would read it
    try:
        if hasattr(leaf, "aggregation"):  # a variable: all workers read it
            leaf = leaf.numpy()
        size = math.prod(map(int, np.shape(leaf))) * (
            getattr(getattr(leaf, "dtype", None), "itemsize", 0) or 8
        )
        stride = 1 + size // SAMPLE_BYTES
        if stride > 1 and len(leaf.shape):
            array = np.concatenate([np.asarray(leaf[::stride]), np.asarray(leaf[-1:])])
        else:
            array = np.asarray(leaf)
    except Exception:  # ragged, sparse, a variant: whatever it is, it is no array
        return type(leaf).__name__
    return array if array.dtype.kind in "biufcOSU" else array.astype(np.float32)


def _texts(array: Any) -> bytes:
    """Return the texts of an array without the directory that all paths among them share."""
    items = [
        each.decode(errors="replace") if isinstance(each, bytes) else each for each in array.ravel().tolist()
    ]
    texts = [str(each) if _is_plain(each) else type(each).__name__ for each in items]
    shared = os.path.commonprefix(texts).rpartition("/")[0]  # noqa: RUF071 - they may be no paths
    return "\0".join(each[len(shared) :] for each in texts).encode(errors="replace")

"""Keeps the state of callbacks over a restart: numbers, texts, arrays, and lists, sets and dicts of them.

It keeps those attributes of each callback that have changed since the fit began, such as the best loss and the best
weights that EarlyStopping saw, or a count of the script's own. What cannot be kept (a file, a model) is reported.
"""

from __future__ import annotations

import json
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from orchestrator.task.transparent.reporter import Reporter

    Arrays = dict[str, Any]

GROUP = "callbacks"
"""The group of the arrays in a backup."""

_GIVEN = frozenset({"model", "_model", "params", "_params", "validation_data"})
"""What Keras itself gives a callback."""

_OF_KERAS = frozenset(
    {"best", "best_epoch", "best_weights", "cooldown_counter", "epoch", "epochs_since_last_save", "history"}
    | {
        "stopped_epoch",
        "wait",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
        "_ema_weights_in_model",
    }
)
"""What Keras's own callbacks remember. Their other attributes are settings, or of a process, as a profile is."""

_COLLECTIONS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class _Unkept(Exception):
    """A value that cannot be kept."""


class Memory:
    """The script's callbacks of one fit."""

    def __init__(self, callbacks: list[Any], library: str, report: Reporter) -> None:
        """Call it when training has begun: what the callbacks hold then is made again by a restart."""
        self._callbacks = [(f"{place} {type(each).__name__}", each) for place, each in enumerate(callbacks)]
        """With a name: two of one class must not share what they remember."""
        self._library, self._report = library, report
        self._at_first = {
            name: {attribute: _digest(value) for attribute, value in self._attributes(callback)}
            for name, callback in self._callbacks
        }

    def keep(self) -> tuple[dict[str, dict[str, Any]], Arrays]:
        """Return what has changed, for JSON, and the arrays that belong to it."""
        kept: dict[str, dict[str, Any]] = {}
        arrays: Arrays = {}
        for name, callback in self._callbacks:
            for attribute, value in self._attributes(callback):
                if _digest(value) == self._at_first[name].get(attribute):
                    continue
                try:
                    kept.setdefault(name, {})[attribute] = _encoded(value, arrays)
                except _Unkept:
                    if not self._is_keras(type(callback)):
                        self._report(
                            "callback",
                            f"{type(callback).__name__}.{attribute} is a {type(value).__name__}, which a restart "
                            "cannot bring back: numbers, texts, arrays, and lists, sets and dicts of them can be kept",
                        )
        # The training goes on while they are written.
        return kept, {name: array.copy() for name, array in arrays.items()}

    def recall(self, kept: dict[str, dict[str, Any]], arrays: Arrays) -> None:
        for name, callback in self._callbacks:
            for attribute, code in kept.get(name, {}).items():
                value, now = _decoded(code, arrays), vars(callback).get(attribute)
                if isinstance(now, (list, dict, set)) and type(now) is type(value):
                    now.clear()  # the script may hold the same list by another name
                    (now.extend if isinstance(now, list) else now.update)(value)
                else:
                    setattr(callback, attribute, value)

    def _attributes(self, callback: Any) -> Iterator[tuple[str, Any]]:
        of_keras = [base for base in type(callback).__mro__ if self._is_keras(base)]
        codes = [getattr(each, "__code__", None) for base in of_keras for each in vars(base).values()]
        used = {name for code in codes if code is not None for name in code.co_names}
        for attribute, value in vars(callback).items():
            if attribute in _OF_KERAS or attribute not in used | _GIVEN:
                yield attribute, value

    def _is_keras(self, owner: type) -> bool:
        return owner.__module__.partition(".")[0] == self._library


def _encoded(value: Any, arrays: Arrays) -> Any:
    """Return a value for JSON: itself, or [what it is, what it holds]. Arrays are put into `arrays`, not copied."""
    import numpy as np

    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value).__name__
    if type(value) is dict:
        return [kind, [[_encoded(item, arrays) for item in pair] for pair in value.items()]]
    if _COLLECTIONS.get(kind) is type(value):
        return [kind, [_encoded(each, arrays) for each in value]]
    if kind == "EagerTensor":
        value = value.numpy()
    if not isinstance(value, (np.ndarray, np.generic)):
        raise _Unkept
    if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
        raise _Unkept
    name = f"{GROUP}/{len(arrays):05d}"
    arrays[name] = np.asarray(value)
    return ["array", name]


def _decoded(code: Any, arrays: Arrays) -> Any:
    if not isinstance(code, list):
        return code
    kind, inner = code
    if kind == "array":
        return arrays[inner][()]  # one without an axis becomes a number
    if kind == "dict":
        return {_decoded(key, arrays): _decoded(value, arrays) for key, value in inner}
    return _COLLECTIONS[kind](_decoded(each, arrays) for each in inner)


def _digest(value: Any) -> Any:
    """Return a digest that differs when the value has changed; for a value that cannot be kept, its identity.

    Nothing is copied: a callback may hold a data set.
    """
    import numpy as np

    arrays: Arrays = {}
    try:
        text = json.dumps(_encoded(value, arrays))
    except (_Unkept, RecursionError):
        return id(value)
    return text, [
        (str(each.dtype), each.shape, zlib.crc32(np.ravel(each).view(np.uint8).data))
        for each in arrays.values()
    ]

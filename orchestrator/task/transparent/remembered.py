"""Keeps the state of callbacks over a restart: numbers, texts, arrays, and lists, sets and dicts of them.

It keeps those attributes of each callback that have changed since the fit began, such as the best loss and the best
weights that EarlyStopping saw, or a count of the script's own. What cannot be kept (a file, a model) is reported.
"""

from __future__ import annotations

import json
import zlib

from orchestrator.task import this_task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
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


class Unkept(Exception):
    """A value that cannot be kept; the message is its type."""


class Protected:
    """A part of the script's state that it gave to `runtime.protect`: a callback that remembers what `save` returns."""

    def __init__(self, save: Callable[[], Any], restore: Callable[[Any], object]) -> None:
        self._save, self._restore = save, restore

    @property
    def state(self) -> Any:
        return self._save()

    @state.setter
    def state(self, value: Any) -> None:
        self._restore(value)

    def on_train_batch_begin(self, *_: Any, **_logs: Any) -> None:
        """Do nothing: for this method, the state is held before each step, which may not come to its end."""

    def on_train_batch_end(self, *_: Any, **_logs: Any) -> None:
        """Do nothing."""


class Memory:
    """The script's callbacks of one fit. Each is known by its class and its place among those of that class."""

    def __init__(self, callbacks: list[Any], library: str, report: Reporter) -> None:
        """Call it when training has begun: what the callbacks hold then is made again by a restart."""
        self.protected = {f"runtime.protect {name} 0": each for name, each in this_task.protected.items()}
        self.callbacks = named(callbacks) | self.protected
        self._library, self._report = library, report
        self._at_first = {
            name: {attribute: _digest(value) for attribute, value in self._attributes(callback)}
            for name, callback in self.callbacks.items()
        }
        self.shared = set(self.callbacks)
        """Those of them that the task which has saved had too."""

    def implementing(self, *hooks: str) -> list[str]:
        """Return which callbacks do something in one of these hooks."""
        return [
            name
            for name, callback in self.callbacks.items()
            if any(hook in vars(callback) or _is_overridden(callback, hook) for hook in hooks)
        ]

    def changing(self, *hooks: str) -> list[str]:
        """Return which callbacks may change weights in one of these hooks: the script's, and those of Keras that do."""
        kinds = {name: type(self.callbacks[name]) for name in self.implementing(*hooks)}
        return [
            name
            for name, kind in kinds.items()
            if kind.__name__ in ("LambdaCallback", "SwapEMAWeights")
            or not (self._is_keras(kind) or kind.__module__.startswith("orchestrator."))
        ]

    def freeze(self, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return what these callbacks hold now, all of them if not given, for `keep`."""
        return {
            name: {
                attribute: frozen_copy(value) for attribute, value in self._attributes(self.callbacks[name])
            }
            for name in (self.callbacks if names is None else names)
        }

    def keep(
        self, frozen: dict[str, dict[str, Any]] | None = None
    ) -> tuple[dict[str, dict[str, Any]], Arrays]:
        """Return what has changed, for JSON, and the arrays that belong to it. Of those in `frozen`, what is there."""
        kept: dict[str, dict[str, Any]] = {}
        arrays: Arrays = {}
        for name, callback in self.callbacks.items():
            kept[name] = {}
            held = (frozen or {}).get(name)
            for attribute, value in self._attributes(callback) if held is None else held.items():
                if _digest(value) == self._at_first[name].get(attribute):
                    continue
                try:
                    kept[name][attribute] = encoded(value, arrays)
                except Unkept:
                    if not self._is_keras(type(callback)):
                        self._report(
                            "callback",
                            f"{_class(name)}.{attribute} is a {type(value).__name__}, which a restart "
                            "cannot bring back: numbers, texts, arrays, and lists, sets and dicts of them can be kept",
                        )
        # The training goes on while they are written.
        return kept, {name: array.copy() for name, array in arrays.items()}

    def recall(
        self, kept: dict[str, dict[str, Any]], arrays: Arrays, own: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Give the callbacks what was kept; `own` is what this task held itself, where tasks have different ones."""
        if any(name[0].isdecimal() for name in kept):  # of the version before: by the place among all
            places = enumerate(self.callbacks.items())
            kept = {
                name: kept.get(f"{place} {type(callback).__name__}", {}) for place, (name, callback) in places
            }
        mine, theirs = _by_class(self.callbacks), _by_class(kept)
        self.shared = {name for name in self.callbacks if mine[_class(name)] == theirs.get(_class(name))}
        for name, callback in self.callbacks.items():
            codes = kept[name] if name in self.shared else (own or {}).get(name)
            if codes is None:
                self._report(
                    "callback",
                    f"nothing was kept of {_class(name)}, which the task that saved had {theirs.get(_class(name), 0)} "
                    f"times among its callbacks and this one {mine[_class(name)]} times: it begins anew here",
                )
                continue
            for attribute, code in codes.items():
                try:
                    value, now = decoded(code, arrays), vars(callback).get(attribute)
                except KeyError:
                    said = f"{_class(name)}.{attribute} was another array here than in the task that saved"
                    self._report("callback", f"{said}: it begins anew")
                    continue
                if isinstance(now, (list, dict, set)) and type(now) is type(value):
                    now.clear()  # the script may hold the same list by another name
                    (now.extend if isinstance(now, list) else now.update)(value)
                else:
                    setattr(callback, attribute, value)
        missing = {} if own is not None else theirs.keys() - mine.keys()
        for each in sorted(missing):
            if any(codes for name, codes in kept.items() if _class(name) == each):
                self._report(
                    "callback", f"what {each} remembered is left out: this task has none among its callbacks"
                )

    def _attributes(self, callback: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(callback, Protected):
            yield "state", callback.state
            return
        of_keras = [base for base in type(callback).__mro__ if self._is_keras(base)]
        codes = [getattr(each, "__code__", None) for base in of_keras for each in vars(base).values()]
        used = {name for code in codes if code is not None for name in code.co_names}
        for attribute, value in vars(callback).items():
            if attribute in _OF_KERAS or attribute not in used | _GIVEN:
                yield attribute, value

    def _is_keras(self, owner: type) -> bool:
        return owner.__module__.partition(".")[0] == self._library


def encoded(value: Any, arrays: Arrays) -> Any:
    """Return a value for JSON: itself, or [what it is, what it holds]. Arrays are put into `arrays`, not copied."""
    import numpy as np

    value = value.thawed() if isinstance(value, _Grown) else value
    if value is None or type(value) in (bool, int, float, str):
        return value
    kind = type(value).__name__
    if type(value) is bytes:
        return [kind, encoded(np.frombuffer(value, np.uint8), arrays)]
    if type(value) is dict:
        return [kind, [[encoded(item, arrays) for item in pair] for pair in value.items()]]
    if _COLLECTIONS.get(kind) is type(value):
        return [kind, [encoded(each, arrays) for each in value]]
    if kind == "EagerTensor":
        value = value.numpy()
    if not isinstance(value, (np.ndarray, np.generic)):
        raise Unkept(kind)
    if value.dtype.kind not in "biufc" and value.dtype.name != "bfloat16":
        raise Unkept(f"array of {value.dtype}")
    array = np.asarray(value)
    crc = zlib.crc32(np.ravel(array).view(np.uint8).data, zlib.crc32(f"{array.dtype} {array.shape}".encode()))
    name = f"{GROUP}/{crc:08x}-{array.nbytes}"  # by its content: tasks that hold the same array name it alike
    arrays[name] = array
    return ["array", name]


def decoded(code: Any, arrays: Arrays) -> Any:
    if not isinstance(code, list):
        return code
    kind, inner = code
    if kind == "array":
        return arrays[inner][()]  # one without an axis becomes a number
    if kind == "bytes":
        return decoded(inner, arrays).tobytes()
    if kind == "dict":
        return {decoded(key, arrays): decoded(value, arrays) for key, value in inner}
    return _COLLECTIONS[kind](decoded(each, arrays) for each in inner)


def _digest(value: Any) -> Any:
    """Return a digest that differs when the value has changed; for a value that cannot be kept, its identity.

    Nothing is copied: a callback may hold a data set.
    """
    try:
        return json.dumps(encoded(value, {}))
    except (Unkept, RecursionError):
        return id(value)


def named(callbacks: list[Any]) -> dict[str, Any]:
    """Return the callbacks by name: two of one class must not share what they remember."""
    counts: dict[str, int] = {}
    named = {}
    for each in callbacks:
        kind = type(each).__name__
        counts[kind] = counts.get(kind, -1) + 1
        named[f"{kind} {counts[kind]}"] = each
    return named


def _class(name: str) -> str:
    return name.rpartition(" ")[0]


def _by_class(names: Iterable[str]) -> dict[str, int]:
    """Return how many callbacks there are of each class."""
    kinds = [_class(name) for name in names]
    return {kind: kinds.count(kind) for kind in kinds}


def _is_overridden(callback: Any, hook: str) -> bool:
    """Return whether a class below Keras's `Callback` has this hook."""
    owner = next((each for each in type(callback).__mro__ if hook in vars(each)), None)
    return owner is not None and owner.__name__ != "Callback"


_COPIED_MAX = 256
"""Longer lists are not copied in each step: they are taken to grow at their end only."""


class _Grown:
    """A long list, as it was."""

    def __init__(self, items: list[Any]) -> None:
        self._items, self._length = items, len(items)

    def thawed(self) -> list[Any]:
        return self._items[: self._length]


def frozen_copy(value: Any) -> Any:
    """Return a value that does not change with the callback; large arrays and dicts are the callback's own."""
    if type(value) is list and len(value) > _COPIED_MAX:
        return _Grown(value)
    if type(value) in (list, tuple, set, frozenset) and len(value) <= _COPIED_MAX:
        return type(value)(
            frozen_copy(each) if isinstance(each, (list, dict, set)) else each for each in value
        )
    if type(value) is dict and len(value) <= _COPIED_MAX:
        return {key: frozen_copy(each) for key, each in value.items()}
    return value.copy() if getattr(value, "nbytes", 1 << 20) <= 1 << 16 and hasattr(value, "copy") else value

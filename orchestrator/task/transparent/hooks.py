"""Says what the callbacks of a fit have done when it is interrupted: for whole steps, and for whole callbacks.

What a callback does at the beginning of a step that is then not done, or of an evaluation, is taken back: what it held
before is kept. Weights that it has changed are not handed over, as those that Keras's SwapEMAWeights has swapped.
The end of a step, and that of an epoch, go through the callbacks one after the other. Where one of them fails, those
before it are done, and after a restart the others follow; none is called twice.
"""

from __future__ import annotations

import math
import os
import sys
import zlib

from orchestrator.both import durable
from orchestrator.task.transparent.atomic import NotAtomic, of_tensorflow, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from orchestrator.task.transparent.backup import Position
    from orchestrator.task.transparent.remembered import Memory

_PARTS = {
    "model": "the weights",
    "noise": "random numbers",
    "metrics": "",
    "rates": "the learning rate",
    "variables": "",
}
"""By the first word of a group of variables: what it is of. Others are of an optimizer; what is empty may differ among
replicas."""

STEP_END, EPOCH_END = "on_train_batch_end", "on_epoch_end"


class Hooks:
    """Where the callbacks of one fit are."""

    def __init__(
        self,
        memory: Memory,
        groups: Callable[[], dict[str, list[Any]]],
        checksum: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Take what returns a checksum of the weights, which takes time; None where nothing is handed over."""
        self.memory = memory
        self._checksum = checksum
        self._changing: list[str] = []
        """The callbacks that may change weights in what they have begun."""
        self._weights: int | None = None
        """The checksum of the weights before, where there are such."""
        self._groups = groups
        """Returns the variables of the model and its optimizers, which may be made late."""
        self._rates: list[Any] = []
        self._at_step_begin = memory.implementing("on_train_batch_begin", "on_batch_begin")
        self._ending = ""
        self._done: list[str] = []
        self._logs: dict[str, Any] = {}
        self._before: dict[str, dict[str, Any]] | None = None
        self._rates_before: list[tuple[Any, Any]] = []
        self._hidden: dict[Any, Any] = {}
        self._at_end: dict[str, int] | None = None
        """What the fit has ended with, in digests."""

    def may_be_taken_back(self, *hooks: str, of_step: bool = False) -> None:
        """Keep what the callbacks hold, before they begin what may not come to its end: a step, or these hooks."""
        if self._ending or (of_step and not self._at_step_begin):
            return
        self._before = self.memory.freeze(self._at_step_begin if of_step else None)
        self._rates_before = self._rates_now()
        self._changing = self.memory.changing(*hooks)
        self._weights = self._checksum() if self._changing else None

    def is_done(self) -> None:
        """Note that what had begun, or was ending, has ended."""
        self._ending, self._before, self._rates_before, self._weights = "", None, [], None

    def has_tested(self) -> None:
        """Note that an evaluation has ended, which a callback may also make while a step or an epoch ends."""
        if not self._ending:
            self.is_done()

    def has_ended(self) -> None:
        """Note that the fit has ended: what is changed from now on is no part of it."""
        self.may_be_taken_back()
        self._at_end = self.digests()

    def ends(self, hook: str, logs: Any) -> None:
        """Note that a step or an epoch is done, and that the callbacks are told so, one after the other."""
        self.is_done()
        self._done, self._logs = [], dict(logs or {}) if hook == EPOCH_END else {}
        if hook == EPOCH_END:
            self.may_be_taken_back(EPOCH_END)
        self._ending = hook

    def passed(self, name: str, logs: Any = None) -> None:
        """Note that this callback has been told, and may have added figures of its own to those of an epoch."""
        self._done.append(name)
        if self._ending == EPOCH_END:
            self._logs = dict(logs or {})
            self._rates_before = self._rates_now()
            self._before = (self._before or {}) | self.memory.freeze(self.memory.protected)
            if name in self._changing:
                self._weights = self._checksum()

    def keep(self, position: Position, steps_told: int, stops: bool) -> dict[str, Any]:
        """Put into a position what the callbacks hold there. Return the arrays, and variables that are taken back.

        Raises NotAtomic where a callback, or the script after the fit, has changed what is not taken back.

        Args:
            position: where the fit was interrupted.
            steps_told: how many steps of its epoch all callbacks were told of.
            stops: whether the fit is to end.
        """
        if self._weights is not None and self._weights != self._checksum():
            raise NotAtomic("a callback has changed the weights")
        if self._at_end is not None and (changed := self._at_end.items() ^ self.digests().items()):
            raise NotAtomic(f"the script has changed {', '.join(sorted(dict(changed)))} since its fit ended")
        before, rates = self._before, self._rates_before
        ending = self._ending
        if not ending and position.begun and position.batch == steps_told + 1:
            ending, self._done, before, rates = STEP_END, [], None, []  # it failed behind its last update
        if ending:
            before = {name: held for name, held in (before or {}).items() if name not in self._done}
            logs = {name: float(value) for name, value in self._logs.items() if _is_number(value)}
            position.unfinished = {"hook": ending, "done": self._done, "logs": logs, "stops": stops}
        position.callbacks, arrays = self.memory.keep(before)
        # An optimizer that was built meanwhile may have its rate at another place.
        names = {id(variable): name for name, variable in self._variables()}
        return {**arrays, **{names[id(each)]: value for each, value in rates if id(each) in names}}

    def finish_step(self, unfinished: dict[str, Any], batch: int, logs: dict[str, float]) -> None:
        """Tell the callbacks of a step that had not been told of it."""
        for name, callback in self.memory.callbacks.items():
            if not self._was_told(name, unfinished):
                callback.on_train_batch_end(batch, logs)

    def finish_epoch(self, unfinished: dict[str, Any], logs: Any) -> None:
        """Hide the end of an epoch from the callbacks that were told of it. The others see the figures of then."""
        if isinstance(logs, dict):
            logs.update(unfinished["logs"])
        for name, callback in self.memory.callbacks.items():
            if self._was_told(name, unfinished):
                self._hidden[name] = vars(callback).get(EPOCH_END)
                callback.on_epoch_end = _tell_nothing

    def show_again(self) -> None:
        for name, method in self._hidden.items():
            callback = self.memory.callbacks[name]
            del callback.on_epoch_end
            if method is not None:
                callback.on_epoch_end = method
        self._hidden = {}

    def _was_told(self, name: str, unfinished: dict[str, Any]) -> bool:
        return name in unfinished["done"] and name in self.memory.shared

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """Yield the variables with their names in a backup."""
        for group, variables in self._groups().items():
            for place, variable in enumerate(variables):
                yield f"{group}/{place:05d}", variable

    def _rates_now(self) -> list[tuple[Any, Any]]:
        """Return what callbacks change of an optimizer: its single numbers, such as the learning rate."""
        if not self._rates:
            self._rates = [
                variable
                for name, variable in self._variables()
                if name.startswith(("optimizer", "rates/"))
                and not len(variable.shape)
                and not str(variable.name).startswith("iteration")
            ]
        return [(variable, own(variable).numpy()) for variable in self._rates]

    def digests(self, *, in_training: bool = False) -> dict[str, int]:
        """Return a CRC-32 of each part of what goes on from a backup, as this process's replica has it.

        `in_training` leaves out what each replica has of its own, as the moving averages of BatchNormalization.
        """
        import numpy as np

        rates = {id(variable) for variable, _ in self._rates_now()}
        parts: dict[str, int] = {}
        for name, variable in self._variables():
            if in_training and _is_own(variable):
                continue
            of_group = _PARTS.get(name.partition("/")[0].partition(".")[0], "the optimizer")
            part = "the learning rate" if id(variable) in rates else of_group
            value = np.ravel(own(variable).numpy())
            parts[part] = zlib.crc32(value.view(np.uint8).data, parts.get(part, 0))
        parts.pop("", None)
        return parts


class Comparison:
    """At which epochs the workers compare what they hold: as often as takes a thousandth of the time, at most."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._at = self._took_s = 0.0
        self._next = 0

    def is_due(self, epoch: int, now: float) -> bool:
        """Return whether to compare now, which follows from the epoch alone, once the first one has begun."""
        if self._epoch is None:
            self._epoch, self._at, self._next = epoch, now, epoch + 1
            return False
        return epoch >= self._next

    def numbers(self, epoch: int, now: float) -> list[float]:
        """Return how long the last comparison took here, and how long an epoch takes, to be told to all workers."""
        return [self._took_s, (now - self._at) / max(1, epoch - (self._epoch or 0))]

    def done(self, epoch: int, began_at: float, now: float, rows: list[list[float]]) -> None:
        """Choose the next epoch from the `numbers` of all workers; without any, none.

        The worker that came last has not waited in the last comparison, so its time counts.
        """
        if not rows:
            self._next = sys.maxsize
            return
        took_s, epoch_s = (min(row[place] for row in rows) for place in (-2, -1))
        self._next = epoch + max(1, math.ceil(took_s / max(1e-6, epoch_s * SHARE_MAX)))
        self._epoch, self._at, self._took_s = epoch, now, now - began_at


SHARE_MAX = 0.001
"""The share of the time that comparing may take."""


def _is_own(variable: Any) -> bool:
    return getattr(getattr(of_tensorflow(variable), "synchronization", None), "name", "") == "ON_READ"


def said_apart(names: list[str], rows: list[list[float]], parts: list[str]) -> str:
    """Say which workers have something else than the first one; empty if none has."""
    apart = []
    for name, row in zip(names, rows, strict=True):
        pairs = zip(parts, row, rows[0], strict=False)  # rows may have more
        if differing := [part for part, mine, first in pairs if mine != first]:
            apart.append(f"{name} differs from {names[0]} in {', '.join(differing)}")
    return " and ".join(apart)


def marker(base: Any, saver: Any, name: str) -> Any:
    """Return a callback that follows the one of this name, and notes what that one was told."""

    class OrchMark(base):  # type: ignore[misc]
        _supports_tf_logs = True

        def on_train_batch_end(self, *_: Any, **_logs: Any) -> None:
            saver.hooks.passed(name)

        def on_epoch_end(self, _epoch: int, logs: Any = None) -> None:
            saver.hooks.passed(name, logs)

    return OrchMark()


def lines_of(path: Any) -> list[bytes]:
    """Return the lines of a CSVLogger's file; none where there is no file."""
    if not os.path.isfile(path):
        return []
    with open(path, "rb") as file:
        return list(file)


def trim(path: Any, separator: str, epochs: int, before: int) -> int:
    """Leave the rows of a CSVLogger's file that are of these epochs: those behind them are trained again.

    The lines before the fit are of other fits, and stay. Return how many these are: another host's file may have fewer.
    """

    def stays(line: bytes) -> bool:
        epoch = line.partition(separator.encode())[0].strip(b'"')
        return line.endswith(b"\n") and (not epoch.isdigit() or int(epoch) < epochs)

    lines = lines_of(path)
    kept = lines[:before] + [line for line in lines[before:] if stays(line)]
    if len(kept) < len(lines):
        durable.write(os.fspath(path), b"".join(kept), mode=os.stat(path).st_mode & 0o777)
    return min(before, len(lines))


def _tell_nothing(*_: Any, **_logs: Any) -> None:
    """Stand for a hook that has run already."""


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True

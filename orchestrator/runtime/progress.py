"""How far training is, told a few times a second and for next to nothing in between."""

from __future__ import annotations

import math
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.runtime.link import Link

INTERVAL_S = 0.25
"""At most four messages a second: a heartbeat carries one, and a person reads no faster."""

_PACE_WEIGHT = 0.4
"""Of the newest interval in the pace shown; the rest is what went before, so that it does not flicker."""

METRICS_MAX = 32


class Progress:
    """Throttles reports and knows the pace. Safe from any thread; never raises."""

    def __init__(self, link: Link, interval_s: float = INTERVAL_S) -> None:
        self._link = link
        self._interval_s = interval_s
        self._due_at = 0.0
        self._latest: tuple[int, Mapping[str, Any], int | None, float] | None = None
        self._lock = threading.Lock()
        self._pace_step: int | None = None
        self._pace_at = 0.0
        self._pace: float | None = None

    def report(self, step: int, metrics: Mapping[str, Any], epoch: int | None = None) -> None:
        """Note the step, and send it when a message is due."""
        at = time.monotonic()
        self._latest = (step, metrics, epoch, at)
        if at >= self._due_at:
            self.flush()

    def due(self) -> bool:
        """Whether a report would leave now. Lets a caller spare itself the reading of tensors."""
        return time.monotonic() >= self._due_at

    def flush(self) -> None:
        """Send what was noted last, if it has not left yet."""
        try:
            with self._lock:
                latest, self._latest = self._latest, None
                self._due_at = time.monotonic() + self._interval_s
                if latest is not None:
                    self._send(*latest)
        except Exception:  # a number that cannot be told must not end a training
            return

    def catch_up(self) -> None:
        """From another thread: send what was held back, once it is due, and before a pause hides it.

        Of plain numbers only: to read a variable of a strategy may be a collective, which is the script's to order.
        """
        latest = self._latest
        if latest is not None and self.due() and all(map(is_plain, (latest[0], *latest[1].values()))):
            self.flush()

    def _send(self, step: Any, metrics: Mapping[str, Any], epoch: int | None, at: float) -> None:
        message: dict[str, Any] = {"step": int(step), "age_s": round(time.monotonic() - at, 3)}
        if epoch is not None:
            message["epoch"] = int(epoch)
        values = {}
        for name, value in list(metrics.items())[:METRICS_MAX]:
            number = as_number(value)
            if number is not None:
                values[str(name)[:80]] = number
        message["metrics"] = values
        pace = self._measure(int(step))
        if pace is not None:
            message["steps_per_s"] = round(pace, 4)
        self._link.send(message)

    def _measure(self, step: int) -> float | None:
        now = time.monotonic()
        if self._pace_step is None or step < self._pace_step:
            self._pace_step, self._pace_at, self._pace = step, now, None
        elif now - self._pace_at >= self._interval_s and step > self._pace_step:
            newest = (step - self._pace_step) / (now - self._pace_at)
            self._pace = newest if self._pace is None else self._pace + _PACE_WEIGHT * (newest - self._pace)
            self._pace_step, self._pace_at = step, now
        return self._pace


def is_plain(value: Any) -> bool:
    """Whether it is a number of Python's or NumPy's."""
    return type(value).__module__ in ("builtins", "numpy")


def as_number(value: Any) -> float | None:
    """A float of what Keras, TensorFlow, NumPy or a person call a metric. None: it is no finite number."""
    try:
        number = float(value)
    except Exception:  # whatever a foreign type raises, it is no number
        return None
    return number if math.isfinite(number) else None

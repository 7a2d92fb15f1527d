"""Progress reports, sent a few times per second. A report in between costs almost nothing."""

from __future__ import annotations

import math
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.protocol.frames import StepLine
    from orchestrator.runtime.link import Link

INTERVAL_S = 0.25
"""The time between two messages. More would be useless: a heartbeat carries one, and people do not read faster."""

_PACE_WEIGHT = 0.4
"""The weight of the newest interval in the pace. The average keeps the number that people see from flickering."""

METRICS_MAX = 32


class Progress:
    """Throttles reports and measures the pace. Any thread may call it, and it never raises."""

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
        """Remember the step, and send it if a message is due."""
        at = time.monotonic()
        self._latest = (step, metrics, epoch, at)
        if at >= self._due_at:
            self.flush()

    def due(self) -> bool:
        """Return whether a report would be sent now. If not, a caller need not read tensors."""
        return time.monotonic() >= self._due_at

    def flush(self) -> None:
        """Send the last report if it was not sent yet."""
        try:
            with self._lock:
                latest, self._latest = self._latest, None
                self._due_at = time.monotonic() + self._interval_s
                if latest is not None:
                    self._send(*latest)
        except Exception:  # a value that cannot be reported must not end the training
            return

    def catch_up(self) -> None:
        """Send a report that was held back, once it is due. Another thread calls this, since the script may pause.

        It sends plain numbers only. Reading a strategy's variable may be a collective, and only the script may decide
        when to run one.
        """
        latest = self._latest
        if latest is not None and self.due() and all(map(is_plain, (latest[0], *latest[1].values()))):
            self.flush()

    def _send(self, step: Any, metrics: Mapping[str, Any], epoch: int | None, at: float) -> None:
        message: StepLine = {"step": int(step), "age_s": round(time.monotonic() - at, 3)}
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
    """Return whether the value is of a type of Python or NumPy."""
    return type(value).__module__ in ("builtins", "numpy")


def as_number(value: Any) -> float | None:
    """Return a metric of any type (Keras, TensorFlow, NumPy, Python) as a float. None: it is no finite number."""
    try:
        number = float(value)
    except Exception:  # a foreign type may raise anything; then it is no number
        return None
    return number if math.isfinite(number) else None

"""Progress reports, sent a few times per second. A report in between costs almost nothing."""

from __future__ import annotations

import itertools
import math
import threading
import time

from orchestrator.both import stretches
from orchestrator.protocol.limits import METRIC_CHARS_MAX, METRICS_MAX, first_metrics

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.protocol.reports import NotFinite, Saving
    from orchestrator.protocol.runtime_lines import StepLine
    from orchestrator.task.link import Link
    from orchestrator.task.trials.dying import Dying

INTERVAL_S = 0.25
"""The time between two messages. More would be useless: a heartbeat carries one, and people do not read faster."""

_HELD_MAX = 256
"""How many values of a metric are held between two messages; if there are more, neighbours are joined."""

_ROWS_MAX = 128
"""How many rows of all metrics a message has."""

_TENSORS = ("EagerTensor", "ArrayImpl")
"""The types of TensorFlow and JAX whose values no later step changes, as it does those of a variable."""

_PACE_WEIGHT = 0.4
"""The weight of the newest interval in the pace. The average keeps the number that people see from flickering."""


class Progress:
    """Throttles reports and measures the pace. Any thread may call it, and it never raises."""

    def __init__(self, link: Link, interval_s: float = INTERVAL_S) -> None:
        self._link = link
        self._interval_s = interval_s
        self._due_at = 0.0
        self._latest: tuple[int, Mapping[str, Any], int | None, float] | None = None
        self._earlier: Mapping[str, tuple[int, Any]] = {}
        """Of metrics that wait to be sent, and are not in the latest report: the step and the value."""
        self._odd: dict[str, tuple[Any, NotFinite]] = {}
        """Of metrics that were not finite since the last message: the first step of that, and the value."""
        self._held: dict[str, list[list[Any]]] = {}
        """By metric, all values since the last message, as rows of `both/stretches.py`; a tensor is not read yet."""
        self._kept: set[str] = set()
        """The metrics that are sent. Once there are more than METRICS_MAX, the others are left out."""
        self._is_cut = False
        self._lock = threading.Lock()
        self._pace_step: int | None = None
        self._pace_at = 0.0
        self._pace: float | None = None
        self._is_lost = False
        self.dying: Dying | None = None
        """Ends the task after some steps, in a trial."""
        self.has_stepped = False
        """Whether a step was made, and not only told from which one the training goes on."""
        self.total: Any = None
        """The step at which the training ends; None if nobody has said so."""
        self.epochs: int | None = None
        self.saving: Saving | None = None
        """How often it saves; sent with each step once it is decided."""
        self.could_rescue: Callable[[], bool] | None = None
        """Returns whether the state could be handed over now; sent with each step."""
        self.rescue = ""
        """What could be handed over, once that was tried; sent with each step."""
        self._began: tuple[int, int] | None = None
        """Where training began, and how many steps that may be off; sent with each step."""
        self._first: int | None = None
        """The first step that was reported."""
        self.count_steps: Callable[[], int] | None = None
        """Counts the steps of a script in the place of its optimizers, which may be several, one after the other."""

    def report(self, step: int, metrics: Mapping[str, Any], epoch: int | None = None) -> None:
        """Remember the step, and send it if a message is due."""
        at = time.monotonic()
        if self._began is None:
            self._follow(step)
        before = self._latest
        if before is not None and (rest := before[1].keys() - metrics.keys()):
            self._earlier = {**self._earlier, **{name: (before[0], before[1][name]) for name in rest}}
        number = self.hold(step, metrics)
        self._latest = (step, metrics, epoch, at)
        if at >= self._due_at:
            self.flush()
        if self.dying is not None and number is not None:
            self.dying.stepped(number)

    def hold(self, step: Any, metrics: Mapping[str, Any]) -> int | None:
        """Keep the values of a step for the next message, and return the step; None if it is not known."""
        number = _plain_step(step)
        for name, value in metrics.items():
            self._hold(name, step if number is None else number, value, is_told=number is not None)
        return number

    def _hold(self, name: str, step: Any, value: Any, *, is_told: bool) -> None:
        """Keep a value for the next message. A tensor is read then, for it costs a wait; a variable would change.

        `is_told`: whether the step is known; if not, it is only noted whether the value is finite.
        """
        if is_plain(value):
            value = self._finite(name, step, value)
        elif type(value).__name__ not in _TENSORS:
            return
        if value is None or not is_told:
            return
        held = self._held.setdefault(name, [])
        held.append([step, value])
        if len(held) > _HELD_MAX:
            self._held[name] = stretches.halved(self._rows(name, held))

    def _finite(self, name: str, step: int, value: Any) -> float | None:
        """Return the value as a number; note the first one that is not finite."""
        number = as_number(value)
        if number is None and (odd := not_finite(value)) is not None:
            # A finite value may follow before the next message.
            self._odd.setdefault(name, (step, odd))
        return number if number is None or abs(number) <= stretches.VALUE_MAX else None

    def _rows(self, name: str, held: list[list[Any]]) -> list[list[Any]]:
        """Return the held values of a metric as rows, with the tensors among them read."""
        rows = [row if is_plain(row[-1]) else [row[0], self._finite(name, *row)] for row in held]
        return [row for row in rows if row[-1] is not None]

    def began(self, step: Any) -> None:
        """Record at which step training begins, if it is not known yet. Raises what reading the step raises."""
        if self._began is None:
            self._began = (int(step), 0)

    def _follow(self, step: Any) -> None:
        """Infer from the first two reports where training began: the first report comes some steps later."""
        number = _plain_step(step)
        if self._first is None:
            self._first = number
        elif number is not None and number > self._first:
            stride = number - self._first
            self._began = (max(0, self._first - stride), stride)

    def due(self) -> bool:
        """Return whether a report would be sent now. If not, a caller need not read tensors."""
        return time.monotonic() >= self._due_at

    def flush(self) -> None:
        """Send the last report if it was not sent yet."""
        latest = None
        try:
            with self._lock:
                latest, self._latest = self._latest, None
                earlier, self._earlier = self._earlier, {}
                self._due_at = time.monotonic() + self._interval_s
                if latest is not None:
                    self._send(*latest, earlier)
        except Exception as e:  # a value that cannot be reported must not end the training
            self.lost(latest[0] if latest is not None else None, e)

    def lost(self, step: Any, error: Exception) -> None:
        """Report, once, that a position could not be read or sent, since it may happen at every step."""
        if self._is_lost:
            return
        self._is_lost = True
        what = f"the position {step!r:.80}" if step is not None else "a position of the training"
        self._link.say(
            "progress-lost",
            f"{what} cannot be reported ({type(error).__name__}: {str(error)[:200]}): no progress is seen while "
            "that lasts, so a standstill cannot be told from it",
        )

    def catch_up(self) -> None:
        """Send a report that was held back, once it is due. Another thread calls this, since the script may pause.

        It sends plain numbers only. Reading a strategy's variable may be a collective, and only the script may decide
        when to run one.
        """
        latest, old = self._latest, itertools.chain(*self._earlier.values())
        held = (row[-1] for rows in list(self._held.values()) for row in list(rows))
        if (
            latest is not None
            and self.due()
            and all(map(is_plain, (latest[0], *latest[1].values(), *old, *held)))
        ):
            self.flush()

    def _send(
        self,
        step: Any,
        metrics: Mapping[str, Any],
        epoch: int | None,
        at: float,
        earlier: Mapping[str, tuple[int, Any]],
    ) -> None:
        message = self._line(int(step), epoch, at)
        values: dict[str, float] = {}
        held, self._held = self._held, {}
        rows = {name: self._rows(name, values) for name, values in held.items()}
        first_odd, self._odd = self._odd, {}
        odd: dict[str, NotFinite] = {_name(name): value for name, (_, value) in first_odd.items()}
        past = {name: value for name, (_, value) in earlier.items() if name not in metrics}
        steps = {name: earlier[name][0] for name in past} | {name: at for name, (at, _) in first_odd.items()}
        kept = self._choose({_name(name) for name in (*metrics, *past, *rows, *first_odd)})
        for name, value in (*metrics.items(), *past.items()):
            if name in first_odd or _name(name) not in kept:
                continue
            number = as_number(value)
            if number is not None:
                values[_name(name)] = number
                rows.setdefault(name, [[int(steps.get(name, step)), number]])
            elif (odd_value := not_finite(value)) is not None:
                odd[_name(name)] = odd_value
        message["metrics"] = values
        if odd := {name: value for name, value in odd.items() if name in kept}:
            message["nonfinite"] = odd
        if own_steps := {_name(name): int(at) for name, at in steps.items() if _name(name) in kept}:
            message["metric_steps"] = own_steps
        if rows := {name: told for name, told in rows.items() if told and _name(name) in kept}:
            message["stretches"] = {_name(name): _shortened(told, len(rows)) for name, told in rows.items()}
        if not self._link.send(message) and self._link.attached:
            # It is told with the next message: no value may be missing from the sums, and no NaN.
            self._held = {name: told + self._held.get(name, []) for name, told in rows.items()}
            self._odd = {**self._odd, **first_odd}

    def _line(self, step: int, epoch: int | None, at: float) -> StepLine:
        """Return what is told of a step beside its metrics."""
        message: StepLine = {"step": step, "age_s": round(time.monotonic() - at, 3)}
        self.has_stepped |= self._began is None or self._began[1] > 0 or message["step"] > self._began[0]
        if self._began is not None:
            message["began"] = {"step": self._began[0], "stride": self._began[1]}
        if epoch is not None:
            message["epoch"] = int(epoch)
        if self.total is not None:
            message["total"] = int(self.total)
        if self.saving is not None:
            message["saving"] = self.saving
        if self.could_rescue is not None:
            message["rescues"] = self.could_rescue()
        if self.rescue:
            message["rescue"] = self.rescue
        if self.epochs is not None:
            message["epochs"] = self.epochs
        now = time.monotonic()
        if self._pace_step is None or step < self._pace_step:
            self._pace_step, self._pace_at, self._pace = step, now, None
        elif now - self._pace_at >= self._interval_s and step > self._pace_step:
            newest = (step - self._pace_step) / (now - self._pace_at)
            self._pace = newest if self._pace is None else self._pace + _PACE_WEIGHT * (newest - self._pace)
            self._pace_step, self._pace_at = step, now
        pace = self._pace
        if pace is not None:
            message["steps_per_s"] = round(pace, 4)
        return message

    def _choose(self, names: set[str]) -> set[str]:
        """Return the metrics that are sent. Say, once, that others are left out."""
        if not names <= self._kept:
            seen = names | self._kept
            self._kept = set(first_metrics(seen))
            if len(seen) > METRICS_MAX and not self._is_cut:
                self._is_cut = True
                self._link.say(
                    "metrics-dropped",
                    f"the script reports {len(seen):,} metrics; {METRICS_MAX} are kept: the loss and val_*, then the "
                    "first by name; report fewer, or join them, to see the others",
                )
        return self._kept


def _shortened(rows: list[list[Any]], metrics: int) -> list[list[Any]]:
    while len(rows) > max(1, _ROWS_MAX // metrics):
        rows = stretches.halved(rows)
    return rows


def _plain_step(step: Any) -> int | None:
    """Return the step; None if it is no number, or must not be read here: a strategy's variable may be a collective."""
    try:
        return int(step) if is_plain(step) else None
    except (TypeError, ValueError, OverflowError):
        return None  # it is said when it is sent


def _name(metric: object) -> str:
    return str(metric)[:METRIC_CHARS_MAX]


def is_plain(value: Any) -> bool:
    """Return whether the value is of a type of Python or NumPy."""
    return type(value).__module__ in ("builtins", "numpy")


def may_wait(value: Any) -> bool:
    """Return whether a value may be read later: it is one number, or a tensor of one."""
    return (is_plain(value) or type(value).__name__ in _TENSORS) and not getattr(value, "ndim", 0)


def as_number(value: Any) -> float | None:
    """Return a metric of any type (Keras, TensorFlow, NumPy, Python) as a float. None: it is no finite number."""
    try:
        number = float(value)
    except Exception:  # a foreign type may raise anything; then it is no number
        return None
    return number if math.isfinite(number) else None


def not_finite(value: Any) -> NotFinite | None:
    """Return the name of a number that JSON cannot express; None for finite numbers and other values."""
    try:
        number = float(value)
    except Exception:  # as above
        return None
    if math.isfinite(number):
        return None
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"

"""What a shim knows of its task's progress, and how it puts it into a report."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SAID_MAX = 20
"""A report is a level and repeats all that was said: the last of it, then."""

PACE_WINDOW_S = 20.0
_POINTS_MAX = 128
_TEXT_MAX = 2000
_HELD_BACK_MAX_S = 2.0


class Progress:
    """What the runtime has said. Never trusts it: any script may write to that socket."""

    def __init__(self) -> None:
        self.global_step: int | None = None
        self.epoch: int | None = None
        self.metrics: dict[str, float] = {}
        self.error: dict[str, str] | None = None
        self.said: deque[dict[str, str]] = deque(maxlen=SAID_MAX)
        self.heartbeat_at: float | None = None
        self.moved_at: float | None = None
        self._points: deque[tuple[float, int]] = deque(maxlen=_POINTS_MAX)

    def heard(self, message: dict[str, Any], at: float) -> str:
        """Takes in a line of the runtime's. How soon the agents must know: `now`, `soon`, or "" for never."""
        if "heartbeat" in message or self.heartbeat_at is not None:
            self.heartbeat_at = at  # once it beats, any word is a sign of life
        if "step" in message:
            return self._step(message, at)
        if "error" in message:
            self.error = self.error or _said(message["error"])
            return "now"
        if "say" in message:
            said = _said(message["say"])
            if said not in self.said:
                self.said.append(said)
                return "soon"
        return ""

    def _step(self, message: dict[str, Any], at: float) -> str:
        step = message["step"]
        if not isinstance(step, int) or isinstance(step, bool):
            return ""
        first = self.global_step is None
        if self._points and step < self._points[-1][1]:
            self._points.clear()  # it went back, after a restore: the pace begins anew
        if not self._points or at - self._points[-1][0] >= PACE_WINDOW_S / _POINTS_MAX:
            self._points.append((at, step))
        while len(self._points) > 2 and at - self._points[0][0] > PACE_WINDOW_S:
            self._points.popleft()
        if step != self.global_step:
            self.moved_at = at - _age_s(message)
        self.global_step = step
        epoch, metrics = message.get("epoch"), message.get("metrics")
        self.epoch = epoch if isinstance(epoch, int) else self.epoch
        if isinstance(metrics, dict):
            self.metrics.update(
                {
                    str(name): value
                    for name, value in list(metrics.items())[:64]
                    if isinstance(value, (int, float))
                }
            )
        return "now" if first else "soon"

    def steps_per_s(self, at: float) -> float | None:
        """The pace of the last seconds; it falls while nothing comes. None before two reports of a step."""
        if len(self._points) < 2 or self.global_step is None:
            return None
        begun_at, begun = self._points[0]
        return round((self.global_step - begun) / max(at - begun_at, 1e-3), 3)

    def to_task(self, at: float, *, attached: bool = True) -> dict[str, Any]:
        """Its part of a TASK. A runtime that has left (`attached` is false) is not silent: it is not there."""
        heartbeat_at = self.heartbeat_at if attached else None
        return {
            "global_step": self.global_step,
            "epoch": self.epoch,
            "metrics": dict(self.metrics),
            "step_age_s": None if self.moved_at is None else round(at - self.moved_at, 3),
            "steps_per_s": self.steps_per_s(at),
            "error": self.error,
            "said": list(self.said),
            "runtime_age_s": None if heartbeat_at is None else round(at - heartbeat_at, 3),
        }


def _age_s(message: dict[str, Any]) -> float:
    """How long the runtime held the message back, within reason."""
    age_s = message.get("age_s")
    return age_s if isinstance(age_s, float) and 0.0 <= age_s <= _HELD_BACK_MAX_S else 0.0


def _said(value: Any) -> dict[str, str]:
    value = value if isinstance(value, dict) else {"message": value}
    return {
        "kind": str(value.get("kind", "exception"))[:64],
        "message": str(value.get("message", ""))[:_TEXT_MAX],
    }

"""The TASK of a shim's reports: what it knows of its task's progress and end, in a report that is not too long."""

from __future__ import annotations

from collections import deque

from orchestrator.protocol.limits import (
    KIND_CHARS_MAX,
    LAST_LINE_CHARS_MAX,
    LAST_LINES_MAX,
    LEFT_MAX,
    METRIC_CHARS_MAX,
    METRICS_MAX,
    SAID_CHARS_MAX,
    SAID_MAX,
    SPAN_MAX_S,
    STEP_MAX,
    TEXT_CHARS_MAX,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.protocol.reports import (
        Began,
        ExitCause,
        Holds,
        Left,
        NonFinite,
        Rescued,
        Said,
        Saving,
        Stage,
        SweptBy,
        Task,
        TaskExit,
    )

STAGES = (None, "importing", "connecting", "building", "compiling", "training", "evaluating", "saving")

PACE_WINDOW_S = 20.0
_POINTS_MAX = 128
_HELD_BACK_MAX_S = 2.0

_CUTS = (
    (METRICS_MAX, SAID_MAX, SAID_CHARS_MAX, LAST_LINES_MAX, LAST_LINE_CHARS_MAX, LEFT_MAX),
    (8, 4, 300, 5, 300, 16),
    (0, 0, 300, 1, 200, 4),
)
"""The limits of each cut: metrics, sentences, characters of a sentence, last lines, characters of one, processes."""

CUTS = len(_CUTS)
"""The first cut is to the limits of the protocol. The others are for frames that are too long even so."""

TRIMMED: Said = {
    "kind": "report-trimmed",
    "message": "what this task says is too long for a report: metrics, sentences and last lines were left out",
}

_TOO_MANY: Said = {
    "kind": "metrics-dropped",
    "message": f"the script reports more than {METRICS_MAX} metrics: the first of them are shown",
}

_NO_STEP: Said = {
    "kind": "progress-lost",
    "message": f"the script reports a step that is no whole number from 0 to {STEP_MAX}: while that lasts, no progress "
    "is seen, and a standstill is not noticed",
}


def blank_task(start: dict[str, Any]) -> Task:
    """Return a TASK of which only its `start` order is known."""
    return {
        "task": start.get("task", ""),
        "generation": start.get("generation", 0),
        "phase": "starting",
        "pid": None,
        "port": None,
        "global_step": None,
        "step_age_s": None,
        "began": None,
        "began_age_s": None,
        "saving": None,
        "rescues": False,
        "holds": None,
        "rescued": None,
        "epoch": None,
        "steps_total": None,
        "epochs": None,
        "metrics": {},
        "metric_steps": {},
        "nonfinite": {},
        "peak_rss_bytes": None,
        "heartbeat_age_s": 0.0,
        "runtime_age_s": None,
        "stage": None,
        "stage_age_s": None,
        "peers": [],
        "error": None,
        "said": [],
        "exit": None,
    }


def ended_task(
    task: Task,
    cause: ExitCause,
    *,
    swept: SweptBy,
    left: list[Left],
    ended_at: float,
    code: int | None = None,
    signal: int | None = None,
    ago_s: float | None = 0.0,
    ordered: bool = False,
    released: bool = False,
    last_lines: list[str],
) -> Task:
    """Return the TASK with its EXIT. `ended_at` is Unix time."""
    ended: TaskExit = {
        "code": code,
        "signal": signal,
        "ago_s": ago_s,
        "ended_at": ended_at,
        "ordered": ordered,
        "released": released,
        "cause": cause,
        "last_lines": last_lines,
        "peak_rss_bytes": task.get("peak_rss_bytes"),
        "swept": swept,
        "left": left,
    }
    return {**task, "phase": "exited", "exit": ended}


class Progress:
    """What the runtime has said, checked: any script may write to that socket."""

    def __init__(self) -> None:
        self.global_step: int | None = None
        self.began: Began | None = None
        self.began_at: float | None = None
        self.saving: Saving | None = None
        self.rescues = False
        self.holds: Holds | None = None
        self.rescued: Rescued | None = None
        self.epoch: int | None = None
        self.steps_total: int | None = None
        self.epochs: int | None = None
        self.metrics: dict[str, float | None] = {}
        self.metric_steps: dict[str, int] = {}
        """At which step each was reported."""
        self.nonfinite: dict[str, NonFinite] = {}
        self.error: Said | None = None
        self.said: deque[Said] = deque(maxlen=SAID_MAX)
        self.heartbeat_at: float | None = None
        self.stage: Stage | None = None
        self.stage_at = 0.0
        self.has_stepped = False
        """Whether a step was made; a report of where the training goes on is none."""
        self.moved_at: float | None = None
        self._points: deque[tuple[float, int]] = deque(maxlen=_POINTS_MAX)

    def heard(self, message: dict[str, Any], at: float) -> str:
        """Process a line of the runtime. Return how soon to report it: `now`, `soon`, or "" for not at all."""
        if "heartbeat" in message or self.heartbeat_at is not None:
            # Once the runtime has sent a heartbeat, every message of it is a sign of life
            self.heartbeat_at = at
        if "heartbeat" in message:
            heartbeat = message["heartbeat"]
            stage = heartbeat.get("stage", self.stage) if isinstance(heartbeat, dict) else self.stage
            if stage not in STAGES or stage == self.stage:
                return ""
            self.stage, self.stage_at = stage, at
            return "soon"
        if "step" in message:
            return self._step(message, at)
        if "error" in message:
            self.error = self.error or _said(message["error"])
            return "now"
        if "holds" in message:
            self.holds = _holds(message["holds"]) or self.holds
            return "now"
        if "rescued" in message:
            self.rescued = self.rescued or _rescued(message["rescued"])
            return "now"
        if "say" in message:
            return self._say(_said(message["say"]))
        return ""

    def _say(self, message: Said) -> str:
        if message in self.said:
            return ""
        self.said.append(message)
        return "soon"

    def _step(self, message: dict[str, Any], at: float) -> str:
        step = message["step"]
        if not _is_step(step):
            return self._say(_NO_STEP)
        first = self.global_step is None
        if self._points and step < self._points[-1][1]:
            self._points.clear()  # the step went back after a restore, so the pace is measured from here
        if not self._points or at - self._points[-1][0] >= PACE_WINDOW_S / _POINTS_MAX:
            self._points.append((at, step))
        while len(self._points) > 2 and at - self._points[0][0] > PACE_WINDOW_S:
            self._points.popleft()
        if step != self.global_step:
            self.moved_at = at - _age_s(message)
        self.global_step = step
        if self.began is None:
            self.began = _began(message.get("began"))
            self.began_at = at - _age_s(message) if self.began and not self.began["stride"] else None
        self.saving = _saving(message.get("saving")) or self.saving
        self.rescues = message.get("rescues") is True
        epoch, metrics = message.get("epoch"), message.get("metrics")
        self.epoch = epoch if _is_step(epoch) else self.epoch
        total, epochs = message.get("total"), message.get("epochs")
        self.steps_total = total if _is_step(total) else self.steps_total
        self.epochs = epochs if _is_step(epochs) else self.epochs
        told = message.get("metric_steps")
        steps = told if isinstance(told, dict) else {}
        for name, value in metrics.items() if isinstance(metrics, dict) else ():
            self._measure(name[:METRIC_CHARS_MAX], value, _step_of(steps.get(name), step))
        odd = message.get("nonfinite")
        for name, value in odd.items() if isinstance(odd, dict) else ():
            self._not_finite(name[:METRIC_CHARS_MAX], value, _step_of(steps.get(name), step))
        if not self.has_stepped and (self.began is None or self.began["stride"] or step > self.began["step"]):
            self.has_stepped, self.stage, self.stage_at = True, "training", at
            return "now"
        return "now" if first else "soon"

    def _measure(self, name: str, value: Any, step: int) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return
        if name in self.metrics or len(self.metrics) < METRICS_MAX:
            self.metrics[name], self.metric_steps[name] = _finite(value), step
        else:
            self._say(_TOO_MANY)

    def _not_finite(self, name: str, value: Any, step: int) -> None:
        """Remember when a metric was first not finite. Its earlier value is not shown any more."""
        if value not in ("nan", "inf", "-inf"):
            return
        if name in self.metrics or len(self.metrics) < METRICS_MAX:
            self.metrics[name], self.metric_steps[name] = None, step
            self.nonfinite.setdefault(name, {"step": step, "value": value})
        else:
            self._say(_TOO_MANY)

    def steps_per_s(self, at: float) -> float | None:
        """Return the pace of the last seconds; it falls while nothing comes. None before two reports of a step."""
        if len(self._points) < 2 or self.global_step is None:
            return None
        begun_at, begun = self._points[0]
        return round((self.global_step - begun) / max(at - begun_at, 1e-3), 3)

    def put_into(self, task: Task, at: float, *, attached: bool = True) -> None:
        """Fill its part of a TASK. A runtime that has left (`attached` is false) does not count as silent."""
        heartbeat_at = self.heartbeat_at if attached else None
        task["global_step"] = self.global_step
        task["began"] = self.began
        task["began_age_s"] = None if self.began_at is None else round(at - self.began_at, 3)
        task["saving"] = self.saving
        task["stage"] = self.stage
        task["stage_age_s"] = None if self.stage is None else round(at - self.stage_at, 3)
        task["rescues"] = self.rescues
        task["holds"] = self.holds
        task["rescued"] = self.rescued
        task["epoch"] = self.epoch
        task["steps_total"] = self.steps_total
        task["epochs"] = self.epochs
        task["metrics"] = dict(self.metrics)
        task["metric_steps"] = {n: step for n, step in self.metric_steps.items() if step != self.global_step}
        task["nonfinite"] = dict(self.nonfinite)
        task["step_age_s"] = None if self.moved_at is None else round(at - self.moved_at, 3)
        task["steps_per_s"] = self.steps_per_s(at)
        task["error"] = self.error
        task["said"] = list(self.said)
        task["runtime_age_s"] = None if heartbeat_at is None else round(at - heartbeat_at, 3)


def _step_of(value: Any, step: int) -> int:
    return int(value) if _is_step(value) else step


def cut(task: Task, cuts: int) -> Task:
    """Return the TASK shortened for a report. If something was left out, a sentence in it says so.

    Args:
        task: The TASK as its shim knows it, or as an older shim has written it to the disk.
        cuts: How often it is cut, at most CUTS.
    """
    shown = task
    for limits in _CUTS[:cuts]:
        shown = _cut(shown, *limits)
    if shown == task:
        return task
    kept = [sentence for sentence in shown.get("said", []) if sentence != TRIMMED]
    shown["said"] = [*kept[: SAID_MAX - 1], TRIMMED]
    return shown


def _cut(
    task: Task, metrics: int, messages: int, said_chars: int, lines: int, line_chars: int, left: int
) -> Task:
    shown = task.copy()
    if task.get("metrics"):
        kept = list(task["metrics"].items())[:metrics]
        shown["metrics"] = {name[:METRIC_CHARS_MAX]: value for name, value in kept}
        if steps := task.get("metric_steps"):
            shown["metric_steps"] = {
                name[:METRIC_CHARS_MAX]: steps[name] for name, _ in kept if name in steps
            }
    if task.get("nonfinite"):
        first = list(task["nonfinite"].items())[:metrics]
        shown["nonfinite"] = {name[:METRIC_CHARS_MAX]: value for name, value in first}
    if task.get("said"):
        shown["said"] = [_short(entry, said_chars) for entry in _last(task["said"], messages)]
    if (error := task.get("error")) is not None:
        shown["error"] = _short(error, said_chars)
    if (ended := task.get("exit")) is not None:
        shown["exit"] = ended = ended.copy()
        if ended.get("last_lines"):
            ended["last_lines"] = [line[:line_chars] for line in _last(ended["last_lines"], lines)]
        if ended.get("left"):
            named = ended["left"][:left]
            ended["left"] = [{"pid": entry["pid"], "why": entry["why"][:TEXT_CHARS_MAX]} for entry in named]
    return shown


def _last(entries: list[Any], count: int) -> list[Any]:
    return entries[len(entries) - count :] if len(entries) > count else entries


def _short(message: Said, chars: int) -> Said:
    return {"kind": message["kind"][:KIND_CHARS_MAX], "message": message["message"][:chars]}


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= STEP_MAX


def _finite(value: float) -> float | None:
    """Return the number as a float; None if it is not finite."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if number - number == 0 else None


def _age_s(message: dict[str, Any]) -> float:
    """Return how long the runtime held the message back, within reason."""
    age_s = message.get("age_s")
    return age_s if isinstance(age_s, float) and 0.0 <= age_s <= _HELD_BACK_MAX_S else 0.0


def _began(value: Any) -> Began | None:
    """Return where training began; None if the runtime's value is malformed."""
    if not isinstance(value, dict) or not _is_step(value.get("step")) or not _is_step(value.get("stride")):
        return None
    return {"step": value["step"], "stride": value["stride"]}


def _saving(value: Any) -> Saving | None:
    """Return how often the task saves; None if the runtime's value is malformed."""
    if (
        not isinstance(value, dict)
        or not _is_step(value.get("every_steps"))
        or not _is_span(value.get("failure_s"))
    ):
        return None
    saving: Saving = {
        "every_steps": value["every_steps"],
        "failure_s": value["failure_s"],
        "why": str(value.get("why", ""))[:KIND_CHARS_MAX],
    }
    if _is_span(value.get("every_s")):
        saving["every_s"] = value["every_s"]
    if _is_span(value.get("cost_s")):
        saving["cost_s"] = value["cost_s"]
    if _is_span(value.get("spent_s")):
        saving["spent_s"] = value["spent_s"]
    if _is_step(value.get("saved_step")):
        saving["saved_step"] = value["saved_step"]
    return saving


def _holds(value: Any) -> Holds | None:
    if not isinstance(value, dict) or not _is_step(value.get("step")) or not _is_step(value.get("checksum")):
        return None
    return {"step": value["step"], "checksum": value["checksum"] & 0xFFFFFFFF}


def _rescued(value: Any) -> Rescued:
    value = value if isinstance(value, dict) else {}
    step, took_s = value.get("step"), value.get("took_s")
    return {
        "step": step if _is_step(step) else None,
        "took_s": took_s if _is_span(took_s) else 0.0,
        "why": str(value.get("why", ""))[:SAID_CHARS_MAX],
    }


def _is_span(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= SPAN_MAX_S


def _said(value: Any) -> Said:
    value = value if isinstance(value, dict) else {"message": value}
    return {
        "kind": str(value.get("kind", "exception"))[:KIND_CHARS_MAX],
        "message": str(value.get("message", ""))[:SAID_CHARS_MAX],
    }

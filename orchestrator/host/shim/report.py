"""The TASK of a shim's reports: what it knows of its task's progress and end, in a report that is not too long."""

from __future__ import annotations

from collections import deque

from orchestrator.both import stretches
from orchestrator.protocol.limits import (
    KIND_CHARS_MAX,
    LAST_LINE_CHARS_MAX,
    LAST_LINES_MAX,
    LEFT_MAX,
    METRIC_CHARS_MAX,
    METRICS_MAX,
    PATH_CHARS_MAX,
    SAID_CHARS_MAX,
    SAID_MAX,
    SPAN_MAX_S,
    STEP_MAX,
    TEXT_CHARS_MAX,
    first_metrics,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from orchestrator.protocol.reports import NonFinite, Said, Task, TaskExit

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

_CHIEFS = ("chief:0", "worker:0")
"""The tasks whose every value is reported: only the chief's are kept."""

CUTS = len(_CUTS)
"""The first cut is to the limits of the protocol. The others are for frames that are too long even so."""

TRIMMED: Said = {
    "kind": "report-trimmed",
    "message": "what this task says is too long for a report: metrics, sentences and last lines were left out",
}

_TOO_MANY: Said = {
    "kind": "metrics-dropped",
    "message": f"the script reports more than {METRICS_MAX} metrics: the loss and val_* stay, then the first by name",
}

_NO_STEP: Said = {
    "kind": "progress-lost",
    "message": f"the script reports a step that is no whole number from 0 to {STEP_MAX}: while that lasts, no progress "
    "is seen, and a standstill is not noticed",
}


def blank_task(start: dict[str, Any]) -> Task:
    """Return a TASK of which only its `start` order is known. A field that is missing is not known."""
    return {"task": start.get("task", ""), "generation": start.get("generation", 0), "phase": "starting"}


def ended_task(task: Task, ended: TaskExit) -> Task:
    """Return the TASK with its EXIT. A code or signal that is missing is not known."""
    unknown: TaskExit = {"code": None, "signal": None, "ago_s": 0.0, "cause": ended["cause"]}
    return {**task, "phase": "exited", "exit": {**unknown, **ended}}


class Progress:
    """What the runtime has said, checked: any script may write to that socket."""

    def __init__(self, task: str = "") -> None:
        self._has_trails = task in _CHIEFS
        self._trails: dict[str, stretches.Trail] = {}
        self._told: dict[str, Any] = {}
        """The fields of a TASK as the runtime has said them. One that is missing was not said."""
        self._since_at: dict[str, float] = {}
        """By the field of a TASK with an age: since when it counts."""
        self._metrics: dict[str, tuple[float | None, int]] = {}
        """The value of each and the step at which it was reported, in the order of `first_metrics`."""
        self._nonfinite: dict[str, NonFinite] = {}
        self._said: deque[Said] = deque(maxlen=SAID_MAX)
        self.has_stepped = False
        """Whether a step was made; a report of where the training goes on is none."""
        self._points: deque[tuple[float, int]] = deque(maxlen=_POINTS_MAX)

    def heard(self, message: dict[str, Any], at: float) -> str:
        """Process a line of the runtime. Return how soon to report it: `now`, `soon`, or "" for not at all."""
        if "heartbeat" in message or "runtime_age_s" in self._since_at:
            # Once the runtime has sent a heartbeat, every message of it is a sign of life
            self._since_at["runtime_age_s"] = at
        if "heartbeat" in message:
            heartbeat, before = _object(message["heartbeat"]), self._told.get("stage")
            stage = heartbeat.get("stage", before)
            self._told.pop("passing", None)
            self._tell("passing", _read("passing", heartbeat.get("passing")))
            if stage not in STAGES or stage == before:
                return ""
            self._enter(stage, at)
            return "soon"
        if "step" in message:
            return self._step(message, at)
        if "error" in message:
            self._told.setdefault("error", _said(message["error"]))
            return "now"
        for name, urgency, is_last in _WORDS:
            if name in message:
                if is_last or name not in self._told:
                    self._tell(name, _read(name, message[name]))
                return urgency
        return self._say(_said(message["say"])) if "say" in message else ""

    def fail(self, error: Said) -> None:
        """Keep what ended the script, in place of what the runtime has said."""
        self._told["error"] = error

    def _tell(self, name: str, value: object) -> None:
        """Keep a field; one that was malformed leaves the value before."""
        if value is not None:
            self._told[name] = value

    def _enter(self, stage: str | None, at: float) -> None:
        self._told["stage"], self._since_at["stage_age_s"] = stage, at

    def _say(self, message: Said) -> str:
        if message in self._said:
            return ""
        self._said.append(message)
        return "soon"

    def _step(self, message: dict[str, Any], at: float) -> str:
        step = _step_of(message["step"])
        if step is None:
            return self._say(_NO_STEP)
        before, made_at = self._told.get("global_step"), at - _age_s(message)
        if self._points and step < self._points[-1][1]:
            self._points.clear()  # the step went back after a restore, so the pace is measured from here
        if not self._points or at - self._points[-1][0] >= PACE_WINDOW_S / _POINTS_MAX:
            self._points.append((at, step))
        while len(self._points) > 2 and at - self._points[0][0] > PACE_WINDOW_S:
            self._points.popleft()
        if step != before:
            self._told["global_step"], self._since_at["step_age_s"] = step, made_at
        if "began" not in self._told:
            self._tell("began", _read("began", message.get("began")))
            if self._told.get("began", {}).get("stride") == 0:
                self._since_at["began_age_s"] = made_at
        self._told["rescues"] = message.get("rescues") is True
        self._tell("rescue", _sentence(message.get("rescue")))
        self._tell("saving", _read("saving", message.get("saving")))
        for name, word in (("epoch", "epoch"), ("steps_total", "total"), ("epochs", "epochs")):
            self._tell(name, _step_of(message.get(word)))
        steps = _object(message.get("metric_steps"))
        told: dict[str, tuple[float | None, int]] = {}
        odd: dict[str, NonFinite] = {}
        for name, value in _object(message.get("metrics")).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                told[name[:METRIC_CHARS_MAX]] = _finite(value), _or(_step_of(steps.get(name)), step)
        for name, value in _object(message.get("nonfinite")).items():
            if value in ("nan", "inf", "-inf"):
                first = _or(_step_of(steps.get(name)), step)
                told[name[:METRIC_CHARS_MAX]] = None, first  # its earlier value is not shown any more
                odd.setdefault(name[:METRIC_CHARS_MAX], {"step": first, "value": value})
        self._measure(told, odd)
        if self._has_trails:
            self._follow(_object(message.get("stretches")), at)
        began = self._told.get("began")
        if not self.has_stepped and (began is None or began["stride"] or step > began["step"]):
            self.has_stepped = True
            self._enter("training", at)
            return "now"
        return "now" if before is None else "soon"

    def _measure(self, told: dict[str, tuple[float | None, int]], odd: dict[str, NonFinite]) -> None:
        """Keep the metrics for which there is room, and of each when it was first not finite."""
        are_known = told.keys() <= self._metrics.keys()
        known, self._nonfinite = {**self._metrics, **told}, {**self._nonfinite, **odd, **self._nonfinite}
        if are_known:
            self._metrics = known
            return
        self._metrics = {name: known[name] for name in first_metrics(known)}
        self._nonfinite = {name: self._nonfinite[name] for name in self._metrics if name in self._nonfinite}
        # The runtime says it too, with their number; what any other program writes to the socket is cut all the same.
        if len(known) > METRICS_MAX and all(said["kind"] != _TOO_MANY["kind"] for said in self._said):
            self._say(_TOO_MANY)

    def _follow(self, told: dict[str, Any], at: float) -> None:
        """Add what was reported since the last message to the trails of the metrics that are kept."""
        self._trails = {name: trail for name, trail in self._trails.items() if name in self._metrics}
        for name, rows in told.items():
            if name in self._metrics and isinstance(rows, list):
                read = [stretches.read(row, lambda step: _step_of(step) is not None) for row in rows]
                trail = self._trails.setdefault(name, stretches.Trail())
                trail.add([row for row in read if row is not None], at, len(self._metrics))

    def told(self) -> None:
        """Note that a report of all this is on its way."""
        for trail in self._trails.values():
            trail.told()

    def steps_per_s(self, at: float) -> float | None:
        """Return the pace of the last seconds; it falls while nothing comes. None before two reports of a step."""
        if len(self._points) < 2:
            return None
        begun_at, begun = self._points[0]
        step: int = self._told["global_step"]
        return round((step - begun) / max(at - begun_at, 1e-3), 3)

    def put_into(self, task: Any, at: float, *, attached: bool = True) -> None:
        """Fill its part of a TASK. `attached`: whether the runtime has not left."""
        step = self._told.get("global_step")
        task.update(
            self._told,
            metrics={name: value for name, (value, _) in self._metrics.items()},
            metric_steps={name: at for name, (_, at) in self._metrics.items() if at != step},
            nonfinite=dict(self._nonfinite),
            stretches={name: trail.content() for name, trail in self._trails.items()},
            said=list(self._said),
            steps_per_s=self.steps_per_s(at),
            **{
                name: round(at - since_at, 3)
                for name, since_at in self._since_at.items()
                if attached or name != "runtime_age_s"  # a runtime that has left is not silent
            },
        )


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
        kept = first_metrics(task["metrics"], metrics)
        shown["metrics"] = {name[:METRIC_CHARS_MAX]: task["metrics"][name] for name in kept}
        if steps := task.get("metric_steps"):
            shown["metric_steps"] = {name[:METRIC_CHARS_MAX]: steps[name] for name in kept if name in steps}
    if task.get("stretches") and metrics < METRICS_MAX:
        del shown["stretches"]
    if odd := task.get("nonfinite"):
        shown["nonfinite"] = {name[:METRIC_CHARS_MAX]: odd[name] for name in first_metrics(odd, metrics)}
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


def _or(step: int | None, other: int) -> int:
    return other if step is None else step


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------- the words of a runtime; None for a malformed one


def _step_of(value: Any) -> int | None:
    is_step = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= STEP_MAX
    return value if is_step else None


def _span(value: Any) -> float | None:
    is_span = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= SPAN_MAX_S
    return value if is_span else None


def _unix_time(value: Any) -> float | None:
    return value if isinstance(value, float) and 0 <= value <= 1e11 else None


def _checksum(value: Any) -> int | None:
    number = _step_of(value)
    return None if number is None else number & 0xFFFFFFFF


def _file(value: Any) -> str | None:
    is_name = isinstance(value, str) and value.isprintable() and len(value) <= PATH_CHARS_MAX
    return value if is_name else None


def _kind(value: Any) -> str | None:
    return None if value is None else str(value)[:KIND_CHARS_MAX]


def _sentence(value: Any) -> str | None:
    return None if value is None else str(value)[:SAID_CHARS_MAX]


def _said(value: Any) -> Said:
    value = value if isinstance(value, dict) else {"message": value}
    return {"kind": _kind(value.get("kind")) or "exception", "message": _sentence(value.get("message")) or ""}


_NEEDED, _LEFT_OUT = object(), object()

_FORMS: dict[str, dict[str, tuple[Callable[[Any], Any], object]]] = {
    "began": {"step": (_step_of, _NEEDED), "stride": (_step_of, _NEEDED)},
    "saving": {
        "every_steps": (_step_of, _NEEDED),
        "failure_s": (_span, _NEEDED),
        "why": (_kind, ""),
        "every_s": (_span, _LEFT_OUT),
        "cost_s": (_span, _LEFT_OUT),
        "spent_s": (_span, _LEFT_OUT),
        "saved_step": (_step_of, _LEFT_OUT),
    },
    "passing": {"done": (_step_of, _NEEDED), "total": (_step_of, 0)},
    "holds": {"step": (_step_of, _NEEDED), "checksum": (_checksum, _NEEDED)},
    "rescued": {"step": (_step_of, None), "took_s": (_span, 0.0), "why": (_sentence, "")},
    "loaded": {"number": (_step_of, _NEEDED), "file": (_file, _NEEDED), "checksum": (_checksum, _NEEDED)},
    "restored": {
        "file": (_file, _NEEDED),
        "step": (_step_of, None),
        "saved_at": (_unix_time, _NEEDED),
        "bytes": (_step_of, _NEEDED),
        "why": (_sentence, ""),
    },
}
"""By field of a TASK: how each key of it is read, and what a malformed one counts as."""

_WORDS = (
    ("holds", "now", True),
    ("rescued", "now", False),
    ("restored", "soon", True),
    ("loaded", "soon", True),
)
"""The fields that have a line of their own: how soon they are reported; whether the last one counts, or the first."""


def _read(name: str, value: Any) -> dict[str, Any] | None:
    """Return a field as it stands in a TASK; None if the runtime's value is malformed."""
    told, read = _object(value), {}
    for key, (read_key, otherwise) in _FORMS[name].items():
        known = read_key(told.get(key))
        if known is None and otherwise is _NEEDED:
            return None
        if known is not None or otherwise is not _LEFT_OUT:
            read[key] = otherwise if known is None else known
    return read

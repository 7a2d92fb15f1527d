"""What the end of a task means to Kubernetes, and when its progress stands still. No clock, file or process."""

from __future__ import annotations

from orchestrator.both.newest import is_further
from orchestrator.both.value import Value
from orchestrator.protocol import pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.protocol.reports import Task

_HOPELESS_KINDS = ("syntax", "import", "unsupported", "other-shapes")
"""Errors of a script that every restart would repeat: the code and the image stay the same."""

TERM, STALL, PEERS = "term", "stall", "peers"
"""Why the entry itself stops a task."""


class Outcome(Value):
    """The exit code of the container, its class, and a sentence for people."""

    code: int
    kind: str
    sentence: str
    counts: bool
    """Whether it is a failure that counts: too many in a row without a newer checkpoint end the run."""


def judge(task: Task, stopped: str | None) -> Outcome:
    """Return what the last TASK of a shim means. `stopped` is why the entry stopped it, if it did."""
    ended: Any = task.get("exit") or {}
    code, signal, name = ended.get("code"), ended.get("signal"), task["task"]
    step = task.get("global_step")
    at = "" if step is None else f" at step {step}"
    if code == 0:
        return Outcome(pod.DONE, "done", f"{name} is done{at}", False)
    if code == pod.SAVED:
        return Outcome(pod.SAVED, "saved", f"{name} has saved{at} and asks to be started again", False)
    if stopped == TERM:
        return Outcome(pod.STOPPED, "stopped", f"{name} was asked to end{at}", False)
    if stopped == PEERS:
        return Outcome(pod.SUPERSEDED, "superseded", f"{name} ends{at}: its generation is over", False)
    if stopped == STALL:
        return Outcome(pod.STALLED, "stalled", f"{name} has made no progress{at}", True)
    error: Any = task.get("error") or {}
    lines = [line for line in ended.get("last_lines", ()) if line.strip()]
    message = error.get("message") or (lines[-1] if lines else "")
    why = f": {message}" if message else ""
    if ended.get("cause") == "start-failed" or error.get("kind") in _HOPELESS_KINDS:
        return Outcome(pod.HOPELESS, "hopeless", f"{name} cannot run{why}", True)
    if ended.get("cause") == "oom":
        return Outcome(137, "out of memory", f"{name} was killed{at}: out of memory", True)
    if code is not None and code > 0:
        shown = 1 if code in (*pod.RESERVED, pod.STOPPED) else code
        return Outcome(shown, "failed", f"{name} failed with exit code {code}{at}{why}", True)
    number = signal or 0
    return Outcome(128 + number, "signal", f"{name} was killed by signal {number}{at}{why}", True)


class Pace:
    """When the global step last moved, and the longest pause so far, by which the next one is judged."""

    def __init__(self, timing: dict[str, Any]) -> None:
        self._given = timing.get("stall_after_s")
        self._floor_s = float(timing["stall_floor_s"])
        self._factor = float(timing["stall_factor"])
        self._step: int | None = None
        self._moved_at = 0.0
        self._longest_s = 0.0

    def heard(self, step: int | None, at: float) -> None:
        """Note the global step of a report."""
        if step is None or step == self._step:
            return
        if self._step is not None:
            self._longest_s = max(self._longest_s, at - self._moved_at)
        self._step, self._moved_at = step, at

    def limit_s(self) -> float:
        """Return how long the global step may stand still."""
        return (
            float(self._given)
            if self._given is not None
            else max(self._floor_s, self._factor * self._longest_s)
        )

    def standstill_s(self, at: float) -> float | None:
        """Return how long the step has stood still where that is too long; else None. Before the first step: None."""
        still_s = at - self._moved_at
        return still_s if self._step is not None and still_s > self.limit_s() else None


def give_up(
    before: dict[str, Any], failed: dict[str, Any] | None, started: dict[str, Any], most: int
) -> tuple[int, str, str | None]:
    """Return the failures in a row without a newer checkpoint, this failure's mark, and why to give up, if so.

    Args:
        before: the entry of the generation before: its `count`, `mark`, `global_step` and `saved_at`.
        failed: the first end in that generation; None if no failure counts.
        started: `global_step` and `saved_at` of the checkpoint that the next generation starts from, if there is one.
        most: how many failures in a row end the run.
    """
    known = {"global_step": before.get("global_step"), "saved_at": before.get("saved_at") or 0.0}
    newer = started["saved_at"] is not None and is_further(started, known)
    if failed is None:
        return (0 if newer else int(before.get("count", 0))), "", None
    mark = f"{failed.get('sentence')}"
    if newer:
        return 0, mark, None
    count = int(before.get("count", 0)) + 1
    if mark and mark == before.get("mark"):
        return count, mark, f"the same failure twice, and no newer checkpoint: {mark}"
    if count >= max(1, most):
        return count, mark, f"{count} failures without a newer checkpoint; the last: {mark}"
    return count, mark, None

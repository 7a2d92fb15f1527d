"""What a failure costs: the time from it to the first new step, and where that time went.

It begins with the first end of a generation that trained, and ends with the chief's first step beyond what was resumed
from. Generations that fail in between belong to the same downtime. It is followed wherever the run enters a phase.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from orchestrator.core.state.instants import Instant
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.words import counted, duration


@dataclass(frozen=True, slots=True)
class Downtime:
    """When each thing happened since training ended."""

    failed_at: Instant
    """Where a task has ended: when, by the host's clock, converted to ours. Else when its host was last heard."""
    noticed_at: Instant
    step: int | None
    """The highest that was reached since the restart before."""
    steps_per_s: float | None
    """The chief's last pace."""
    ended_at: Instant | None = None
    """When no task of the generation could live any more."""
    started_at: Instant | None = None
    """When the newest generation was ordered to start."""
    released_at: Instant | None = None
    """When all its tasks had joined, and the checkpoint was in place."""

    def entering(self, phase: Phase, at: Instant) -> Downtime | None:
        """Return the downtime after the run enters that phase; None if the run ends."""
        match phase:
            case Phase.BACKOFF:
                return replace(self, ended_at=self.ended_at if self.ended_at is not None else at)
            case Phase.RENDEZVOUS:
                return replace(self, started_at=at)
            case Phase.RUNNING:
                return replace(self, released_at=at)
            case Phase.STOPPING:
                return self
        return None

    def cost(self, stepped_at: Instant, resumed_from: int | None, restored_at: Instant | None = None) -> Cost:
        """Return the cost, which is known once the first new step is made. Its parts add up to the whole.

        Args:
            stepped_at: when that step was made.
            resumed_from: the step that training went on from.
            restored_at: when training began, if that is known exactly: the checkpoint is restored then.

        >>> down = Downtime(10.0, 10.5, 120, 2.0, ended_at=11.0, started_at=11.5, released_at=15.0)
        >>> found = down.cost(18.0, 100, restored_at=16.0)
        >>> found.detected_s, found.ended_s, found.waited_s, found.started_s, found.restored_s, found.first_step_s
        (0.5, 0.5, 0.5, 3.5, 1.0, 2.0)
        >>> found.total_s, found.decided_s, found.steps_lost, found.lost_s, found.training_s
        (8.0, 1.0, 20, 10.0, 18.0)
        """
        ended_at = self.ended_at if self.ended_at is not None else self.noticed_at
        started_at = self.started_at if self.started_at is not None else ended_at
        released_at = self.released_at if self.released_at is not None else started_at
        instants = [self.failed_at, self.noticed_at, ended_at, started_at, released_at, stepped_at]
        # The instants come from two clocks, the host's and ours, so a difference could be negative: it counts as 0.
        spans = [round(max(0.0, later - earlier), 3) for earlier, later in pairwise(instants)]
        detected_s, ended_s, waited_s, started_s, rest_s = spans
        restored_s = None
        if restored_at is not None:
            restored_s = round(min(max(0.0, restored_at - released_at), rest_s), 3)
        steps = None if self.step is None else max(0, self.step - (resumed_from or 0))
        return Cost(
            detected_s=detected_s,
            ended_s=ended_s,
            waited_s=waited_s,
            started_s=started_s,
            restored_s=restored_s,
            first_step_s=round(rest_s - (restored_s or 0.0), 3),
            steps_lost=steps,
            lost_s=round(steps / self.steps_per_s, 3) if steps is not None and self.steps_per_s else None,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a failure has cost: seconds in which nothing was trained, and steps that are trained again."""

    detected_s: float
    """Until the coordinator knew."""
    ended_s: float
    """Until no task of the generation could live any more."""
    waited_s: float
    """Until the next generation was ordered to start: a backoff, a host, room on a disk."""
    started_s: float
    """Until all its tasks had joined, and the checkpoint was in place."""
    restored_s: float | None
    """Until training began, with what was restored; None if the script does not show that: then in the next one."""
    first_step_s: float
    """Until the first new step."""
    steps_lost: int | None
    """How many steps are trained a second time; None if unknown."""
    lost_s: float | None
    """How long those took, at the pace before the failure."""

    @property
    def decided_s(self) -> float:
        """Return the time from when the coordinator knew of the failure until it ordered the next start."""
        return round(self.ended_s + self.waited_s, 3)

    @property
    def total_s(self) -> float:
        """Return the time without training."""
        spans = (self.detected_s, self.decided_s, self.started_s, self.restored_s or 0.0, self.first_step_s)
        return round(sum(spans), 3)

    @property
    def training_s(self) -> float:
        """Return the whole cost in seconds of training: the downtime, and the steps that are trained again."""
        return round(self.total_s + (self.lost_s or 0.0), 3)

    def as_data(self) -> dict[str, float | int | None]:
        """Return all of it, as events, status and `orch why --json` carry it."""
        sums = {"decided_s": self.decided_s, "training_s": self.training_s}
        return {"total_s": self.total_s, **asdict(self), **sums}

    def sentence(self) -> str:
        """Return a sentence that says where the time went.

        >>> text = Cost(0.5, 0.5, 5.0, 4.0, 1.0, 2.0, 20, 10.0).sentence()
        >>> text[:70]
        '13 s: detected in 0.5 s, decided in 5.5 s (5 s of it waiting), started'
        >>> text[70:]
        ' in 4 s, restored in 1 s, first new step in 2 s; 20 steps (10 s) are trained again: 23 s in all'
        """
        waited = f" ({duration(self.waited_s)} of it waiting)" if self.waited_s >= 0.05 else ""
        parts = [
            f"detected in {duration(self.detected_s)}",
            f"decided in {duration(self.decided_s)}{waited}",
            f"started in {duration(self.started_s)}",
            *([f"restored in {duration(self.restored_s)}"] if self.restored_s is not None else []),
            f"first new step in {duration(self.first_step_s)}",
        ]
        text = f"{duration(self.total_s)}: {', '.join(parts)}"
        if not self.steps_lost:
            return text
        worth, in_all = "", ""
        if self.lost_s is not None:
            worth, in_all = f" ({duration(self.lost_s)})", f": {duration(self.training_s)} in all"
        verb = "is" if self.steps_lost == 1 else "are"
        return f"{text}; {counted(self.steps_lost, 'step')}{worth} {verb} trained again{in_all}"

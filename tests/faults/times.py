"""What a test of a fault has measured: when the fault came, when it was noticed, when training was on again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster


class FaultTimes:
    """Filled by the test, read by `make faults`. All in seconds since the fault, by this machine's clock."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._generation = 0
        self.measured: dict[str, float] = {}

    def inject(self, generation: int = 0, *, at: float | None = None) -> None:
        """Remember the moment, now or that Unix time, of the fault, and the generation that it hits."""
        self._at, self._generation = time.time() if at is None else at, generation

    def noticed(self, at: float | None = None) -> None:
        """Say that it was noticed, now or at that Unix time: what the user would have seen first."""
        self.measured["noticed_s"] = self._since(at)

    def noticed_by(self, events: Sequence[dict[str, Any]]) -> None:
        """Say that it was noticed by the first of these events after the fault."""
        assert self._at is not None
        times = [unix_time(event) for event in events]
        self.noticed(min(at for at in times if at >= self._at - 0.05))

    def goes_on(self, at: float | None = None) -> None:
        """Say that training goes on since just now, or that Unix time."""
        self.measured["again_s"] = self._since(at)

    def wait_again(self, cluster: Cluster, *, timeout: float = 60.0) -> dict[str, Any]:
        """Wait for the first step of a later generation, and return the run as it is then.

        A run that has trained and ended between two looks at it, trained at its end at the latest.
        """
        run = cluster.wait(self._trains_again, timeout=timeout)
        self.goes_on(run["ended_at"])
        resumed = [
            e
            for e in cluster.events(kind="resumed")
            if (e["run"], e["generation"]) == (run["run_id"], run["generation"])
        ]
        if resumed and resumed[-1]["data"].get("steps_lost") is not None:
            self.measured["steps_lost"] = int(resumed[-1]["data"]["steps_lost"])
        return run

    def ended(self, at: float | None = None) -> None:
        """Say that the run has ended, now or at that Unix time, where that is what must happen."""
        self.measured["ended_s"] = self._since(at)

    def over_by_hand(self, under_orch: Sequence[float], by_hand: Sequence[float]) -> None:
        """Keep the medians of two ways to the first new step, which took turns, and how far the turns lie apart."""
        more = [mine - theirs for mine, theirs in zip(under_orch, by_hand, strict=True)]
        for key, values in (("under_orch_s", under_orch), ("by_hand_s", by_hand), ("over_by_hand_s", more)):
            self.measured[key] = round(median(values), 2)
        self.measured |= {"least_over_s": round(min(more), 2), "most_over_s": round(max(more), 2)}

    def _trains_again(self, run: dict[str, Any]) -> bool:
        return (
            run["phase"] in ("RUNNING", "SUCCEEDED")
            and run["generation"] > self._generation
            and run["global_step"] is not None
        )

    def _since(self, at: float | None) -> float:
        assert self._at is not None, "inject() comes first"
        return round((time.time() if at is None else at) - self._at, 2)


def unix_time(event: dict[str, Any]) -> float:
    """Return when an event of `orch events --json` happened."""
    return datetime.fromisoformat(event["time"]).timestamp()

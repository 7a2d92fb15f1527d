"""What a test of a fault has measured: when the fault came, when it was noticed, when training was on again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster


class FaultTimes:
    """Filled by the test, read by `make faults`. All in seconds since the fault, by this machine's clock."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._generation = 0
        self.measured: dict[str, float | int] = {}

    def inject(self, generation: int = 0) -> None:
        """Now, just before the fault. `generation` is the one that it hits."""
        self._at, self._generation = time.time(), generation

    def noticed(self, at: float | None = None) -> None:
        """Now, or at that Unix time: what the user would have seen first."""
        self.measured["noticed_s"] = self._since(at)

    def noticed_by(self, events: Sequence[dict[str, Any]]) -> None:
        """By the first of these events after the fault."""
        assert self._at is not None
        times = [datetime.fromisoformat(event["time"]).timestamp() for event in events]
        self.noticed(min(at for at in times if at >= self._at - 0.05))

    def wait_again(self, cluster: Cluster, *, timeout: float = 60.0) -> dict[str, Any]:
        """Wait for the first step of a later generation; the run as it is then."""
        run = cluster.wait(self._trains_again, timeout=timeout)
        self.measured["again_s"] = self._since(None)
        resumed = [e for e in cluster.events(kind="resumed") if e["generation"] == run["generation"]]
        if resumed and resumed[-1]["data"].get("steps_lost") is not None:
            self.measured["steps_lost"] = int(resumed[-1]["data"]["steps_lost"])
        return run

    def _trains_again(self, run: dict[str, Any]) -> bool:
        return (
            run["phase"] == "RUNNING"
            and run["generation"] > self._generation
            and run["global_step"] is not None
        )

    def _since(self, at: float | None) -> float:
        assert self._at is not None, "inject() comes first"
        return round((time.time() if at is None else at) - self._at, 2)

"""Fold what gRPC repeats: a chief whose worker has died prints the same error hundreds of times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.both.repetition import repeated
from orchestrator.head.records.log_file import LogLine

QUIET_S = 10.0
"""A burst ends when its task has printed nothing of the kind for so long."""


@dataclass(slots=True)
class _Burst:
    began: LogLine
    last_at: float
    kinds: set[str] = field(default_factory=set)
    left_out: int = 0


class GrpcFolder:
    """Passes lines on in their order; of a burst of repeated lines, the first of each kind, and how many followed."""

    def __init__(self, put: Callable[[LogLine], None]) -> None:
        self._put = put
        self._bursts: dict[tuple[str, int], _Burst] = {}

    def add(self, line: LogLine) -> None:
        """Take the next line, by time."""
        self.flush(line.time)
        kind = repeated(line.text)
        if kind is None:
            self._put(line)
            return
        burst = self._bursts.setdefault((line.task, line.generation), _Burst(line, line.time))
        burst.last_at = line.time
        if kind in burst.kinds:
            burst.left_out += 1
            return
        burst.kinds.add(kind)
        self._put(line)

    def flush(self, now: float = float("inf")) -> None:
        """Say how many lines were left out of each burst that has ended by now."""
        for key, burst in list(self._bursts.items()):
            if now - burst.last_at <= QUIET_S:
                continue
            del self._bursts[key]
            if burst.left_out:
                more = "1 more line" if burst.left_out == 1 else f"{burst.left_out} more lines"
                text = f"[orch: {more} of gRPC like those above; `orch logs --raw` shows all]"
                self._put(burst.began._replace(time=burst.last_at, stream="g", text=text))

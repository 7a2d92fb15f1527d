"""What comes over one connection, from the hello on: frames are made of it, and it is counted against its allowance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.head.links.allowance import Intake
from orchestrator.protocol.channel import Decoder

Frames = Sequence[tuple[Mapping[str, Any], bytes]]


class Reception:
    """Takes what a channel feeds; one thread at a time.

    Args:
        decoder: Holds what came of an unfinished frame.
        intake: What the host may send unasked.
        heard: Hands frames on. Returns whether there was a report, and how many bytes of them had been asked for.
        flooded: Is told once that the host is read more slowly.
        ended: Is told once of the end, and what was wrong with what had come.
    """

    def __init__(
        self,
        decoder: Decoder,
        intake: Intake,
        *,
        heard: Callable[[Frames], tuple[bool, int]],
        flooded: Callable[[], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._decoder = decoder
        self._intake = intake
        self._heard = heard
        self._flooded = flooded
        self._ended = ended
        self._is_over = False

    def receive(self, data: bytes) -> float:
        """Take what has come, `b""` for the end. Return for how long to read nothing. See `transport.Receiver`."""
        if self._is_over:
            return 0.0
        if not data:
            self._end(None)
            return 0.0
        try:
            reported, asked_bytes = self._heard(self._decoder.feed(data))
            wait_s = self._intake.spend(reported, len(data) - asked_bytes, time.monotonic())
            if self._intake.is_flood():
                self._flooded()
        except Exception as e:  # what the host did wrong, or a fault of ours: of this connection in any case
            self._end(e)
            return 0.0
        return wait_s

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._ended(error)

"""Decodes what one connection receives after the hello into frames, and counts it against the host's allowance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.head.links.allowance import Intake
from orchestrator.protocol.channel import Decoder

Frames = Sequence[tuple[Mapping[str, Any], bytes]]


class Reception:
    """Receives what a channel reads; one thread at a time.

    Args:
        decoder: Holds the received part of an unfinished frame.
        intake: The allowance for what the host sends unasked.
        heard: Handles frames. Returns whether there was a report, and how many bytes of them had been asked for.
        flooded: Called once, when the host is read more slowly.
        ended: Called once at the end, with the error if there was one.
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
        """Handle received bytes, `b""` for the end. Return for how long to read nothing. See `transport.Receiver`."""
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
        except (
            Exception
        ) as e:  # the host broke the protocol, or orch has a fault: either ends only this connection
            self._end(e)
            return 0.0
        return wait_s

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._ended(error)

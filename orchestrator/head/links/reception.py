"""Decodes what one connection receives after the hello into frames, and counts it against the host's allowances."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.head.links.allowance import Allowance
from orchestrator.protocol.channel import Decoder

BURST_S = 10.0
"""An allowance can save up what it grants in this time."""

FLOOD_S = 10.0
"""A connection that was slowed down for so long in all is reported as a flood."""

Frames = Sequence[tuple[Mapping[str, Any], bytes]]


class Reception:
    """Receives what a channel reads; one thread at a time.

    Args:
        decoder: Holds the received part of an unfinished frame.
        reports_per_s: How often it may report. Several in one piece count as one, since only the newest is used.
        bytes_per_s: How much it may send unasked.
        heard: Handles frames. Returns whether there was a report, and how many bytes of them had been asked for.
        flooded: Called once, when the host was read more slowly for FLOOD_S.
        ended: Called once at the end, with the error if there was one.
    """

    def __init__(
        self,
        decoder: Decoder,
        reports_per_s: float,
        bytes_per_s: float,
        *,
        heard: Callable[[Frames], tuple[bool, int]],
        flooded: Callable[[], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self._decoder = decoder
        now = time.monotonic()
        self._reports = Allowance(reports_per_s, reports_per_s * BURST_S, now)
        self._bytes = Allowance(bytes_per_s, bytes_per_s * BURST_S, now)
        self._waited_s = 0.0
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
            # An answer that is complete gives back what its first parts have spent.
            now, unasked_bytes = time.monotonic(), len(data) - asked_bytes
            wait_s = max(self._reports.spend(int(reported), now), self._bytes.spend(unasked_bytes, now))
            was_flood, self._waited_s = self._waited_s >= FLOOD_S, self._waited_s + wait_s
            if self._waited_s >= FLOOD_S and not was_flood:
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

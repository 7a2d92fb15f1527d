"""The record of a run that each host keeps, so that the run can be rebuilt if the journal is lost."""

from __future__ import annotations

import json
import logging
from typing import Any

from orchestrator.core.state.host import HostState
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.head.journal.states import packed_run, read_run, unpacked
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import LinkDown, OrderRefused, Reply
from orchestrator.head.links.link import HostLink
from orchestrator.protocol.channel import FrameError
from orchestrator.protocol.check import cleaned_json
from orchestrator.protocol.orders.base import Nothing, Order
from orchestrator.protocol.orders.driving import KEEP, Record

log = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0

LAST_REVISION = 1 << 53
"""The revision of the record of a run that has ended: none comes after it."""


class Records:
    """Remembers which record each host has. Only the deciding thread uses it."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], tuple[int, Phase, tuple[HostState, ...]]] = {}
        self._revision = 0
        """Counts the records that this coordinator has sent, so that the later of two records of one epoch is known."""

    def give(self, link: HostLink, run: Run, host: str, *, now: float) -> None:
        """Send the run as it is now, unless the host has a record with the same generation, phase and drains.

        It is sent after the orders themselves, since the record matters only if a journal is lost.
        """
        mark = _mark(run)
        if self._given.get((run.run_id, host)) == mark:
            return
        self._given[run.run_id, host] = mark

        def on_reply(reply: Reply[Nothing]) -> None:
            if reply.error is not None:
                log.warning("%s: %s keeps no record of it: %s", run.run_id, host, reply.error["message"])

        try:
            self._revision += 1
            link.send(_order(run, now, self._revision), on_reply=on_reply)
        except FrameError as e:
            log.warning("%s: its record does not fit in a frame: %s", run.run_id, e)

    def is_behind(self, run: Run, host: str) -> bool:
        """Return whether a host has an older record from this coordinator: it was away when the newest was sent."""
        return self._given.get((run.run_id, host), _mark(run)) != _mark(run)

    def forget(self, run: Run, host: str) -> None:
        """Forget what a host has of a run that has ended."""
        self._given.pop((run.run_id, host), None)


def _mark(run: Run) -> tuple[int, Phase, tuple[HostState, ...]]:
    return (run.generation_last, run.phase, tuple(host.state for host in run.hosts))


def give_end(link: HostLink, run: Run, host: str, *, now: float) -> None:
    """Send how the run has ended, and wait for the reply, since the link is then closed. Any thread may call it."""
    try:
        link.ask(_order(run, now, LAST_REVISION), timeout_s=END_TIMEOUT_S)
    except (LinkDown, OrderRefused, FrameError) as e:
        log.warning("%s: %s does not remember how it ended: %s", run.run_id, host, e)


def _order(run: Run, now: float, revision: int) -> Order[Nothing]:
    record: Record = {
        "written_at": now,
        "epoch": run.epoch,
        "revision": revision,
        "state": packed_run(run),
    }
    return KEEP({**orders.run_fields(run), "record": record})


def read(record: Any) -> tuple[tuple[int, int], float, Run] | None:
    """Return ((epoch, revision), written_at, run) of a host's record; None if this orch does not understand it."""
    try:
        # The state is JSON as a text within a JSON text, and `edge` has cleaned only the outer one.
        state = json.dumps(cleaned_json(json.loads(unpacked(record["state"]))))
        version = int(record["epoch"]), int(record.get("revision", 0))
        return version, float(record["written_at"]), read_run(state)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None

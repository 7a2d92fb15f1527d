"""The record of a run that each host keeps, so that the run can be rebuilt if the journal is lost."""

from __future__ import annotations

import json
import logging
from typing import Any

from orchestrator.adapters.channel import FrameError
from orchestrator.adapters.head.journal_states import dump_run, read_run
from orchestrator.core.model import Phase, Run
from orchestrator.daemon.connection import orders
from orchestrator.daemon.connection.conversation import LinkDown, OrderRefused, Reply
from orchestrator.daemon.connection.link import HostLink
from orchestrator.protocol.check import cleaned_json
from orchestrator.protocol.orders import Nothing, Record
from orchestrator.protocol.table import KEEP, Order

log = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0


class Records:
    """Remembers which record each host has. Only the deciding thread uses it."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], tuple[int, Phase]] = {}

    def give(self, link: HostLink, run: Run, host: str, *, now: float) -> None:
        """Send the run as it is now, at the start of a generation and again at its release.

        It is sent after the orders themselves, since the record matters only if a journal is lost.
        """
        mark = (run.generation_last, run.phase)
        if self._given.get((run.run_id, host)) == mark:
            return
        self._given[run.run_id, host] = mark

        def on_reply(reply: Reply[Nothing]) -> None:
            if reply.error is not None:
                log.warning("%s: %s keeps no record of it: %s", run.run_id, host, reply.error["message"])

        try:
            link.send(_order(run, now), on_reply=on_reply)
        except FrameError as e:
            log.warning("%s: its record does not fit in a frame: %s", run.run_id, e)

    def forget(self, run: Run, host: str) -> None:
        """Forget what a host has of a run that has ended."""
        self._given.pop((run.run_id, host), None)


def give_end(link: HostLink, run: Run, host: str, *, now: float) -> None:
    """Send how the run has ended, and wait for the reply, since the link is then closed. Any thread may call it."""
    try:
        link.ask(_order(run, now), timeout_s=END_TIMEOUT_S)
    except (LinkDown, OrderRefused, FrameError) as e:
        log.warning("%s: %s does not remember how it ended: %s", run.run_id, host, e)


def _order(run: Run, now: float) -> Order[Nothing]:
    record: Record = {"written_at": now, "epoch": run.epoch, "state": dump_run(run)}
    return KEEP({**orders.of_run(run), "record": record})


def read(record: Any) -> tuple[int, float, Run] | None:
    """Return (epoch, written_at, run) of a host's record; None where this version does not understand it."""
    try:
        state = json.dumps(
            cleaned_json(json.loads(record["state"]))
        )  # a text within a text: `edge` saw the outer one
        return int(record["epoch"]), float(record["written_at"]), read_run(state)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None

"""How a run returns to the queue: no process of it is left on any host, and it keeps its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

from orchestrator.core.actions import CloseHost
from orchestrator.core.notes import NoteKind
from orchestrator.core.state.host import Link
from orchestrator.core.state.phase_states import Queued
from orchestrator.core.turn import Turn

RETRY_S = 30.0
"""About how long a run that has returned to the queue stays there, once it has waited for longer than that twice."""

_RETRY_MIN_S = 4.0


def wait_again(turn: Turn, waited: Queued, *, others: str = "", why: str = "") -> None:
    """Return a run to the queue whose turn came in vain: somebody else holds what it needs, or as `why` says.

    Two that want the same GPUs of several hosts, and hold some of them each, let go and come back at different times.
    """
    differs = crc32(f"{turn.run.run_id}/{turn.at}".encode()) / 2**32
    stays_s = min(RETRY_S, max(_RETRY_MIN_S, (turn.at - waited.since_at) / 2))
    retry_at = turn.at + stays_s * (0.75 + 0.5 * differs)
    is_known = (others, why) == (waited.others, waited.why)
    waits = replace(waited, others=others, why=why, in_vain_at=turn.at, retry_at=retry_at)
    _return(turn, waits, "" if is_known else others or why)


def has_made_way(turn: Turn, waited: Queued, why: str) -> None:
    """Return a run to the queue that made way for one of a higher priority, which is before it there."""
    _return(turn, replace(waited, others="", why=why), why)


def _return(turn: Turn, waits: Queued, why: str) -> None:
    if why:
        turn.note(NoteKind.QUEUED, f"{turn.run.run_id} waits in the queue: {why}")
    turn.do(*(CloseHost(host=host.name) for host in turn.run.hosts))
    turn.enter(waits, "waits in the queue", planned_end=None, rank=None)
    for host in turn.run.hosts:
        turn.set_host(host, link=Link.CONNECTING, heard_at=None, facts=None, problem=None, retry_at=None)

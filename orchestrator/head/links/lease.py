"""A link to a host for one question, for a run that has ended and whose own links are closed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from orchestrator.core.plan import HostPlan
from orchestrator.core.state.run import Problem
from orchestrator.core.words import duration
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.links.conversation import LinkDown, OrderRefused
from orchestrator.head.links.crew import Crew
from orchestrator.head.links.link import PACE, HostLink, Pace, Watch
from orchestrator.head.reach.transport import Transport
from orchestrator.protocol.hello import Greeting
from orchestrator.protocol.reports import Report

CONNECT_TIMEOUT_S = 30.0

_CREW = Crew()
"""The crew of all leased links. A crew for each would leave threads behind."""


class _Awaited:
    """Waits until the host is up, or for the reason why it is not."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.why: str | None = None
        self.problem: Problem | None = None

    def up(self, run_id: str, host: str, hello: Greeting) -> None:  # noqa: ARG002 (a Listener's signature)
        self.why = None
        self.answered.set()

    def down(self, run_id: str, host: str, problem: str) -> None:  # noqa: ARG002
        self.why = problem
        self.answered.set()

    def refused(self, run_id: str, host: str, problem: Problem) -> None:  # noqa: ARG002
        self.problem = problem
        self.answered.set()

    def reported(self, run_id: str, host: str, report: Report, link: HostLink) -> None:
        """Ignore it: the tasks' end is known already."""

    def flooded(self, run_id: str, host: str, problem: str) -> None:
        """Ignore it: the link is closed soon."""


@contextlib.contextmanager
def leased(
    host: HostPlan,
    transport: Transport,
    bundle: Callable[[], Bundle],
    run_id: str,
    watch: Watch,
    fence: int = 0,
    pace: Pace = PACE,
) -> Iterator[HostLink]:
    """Give a connected link for the time of a `with`.

    Raises:
        LinkDown: the host cannot be reached now, and why.
        OrderRefused: the host cannot be reached before a person acts: keys, a missing Python.
    """
    awaited = _Awaited()
    link = HostLink(host, transport, bundle, awaited, pace, _CREW)
    link.fence(run_id, fence)
    link.attach(run_id, watch)
    try:
        if not awaited.answered.wait(CONNECT_TIMEOUT_S):
            raise LinkDown(f"{host.name} did not answer within {duration(CONNECT_TIMEOUT_S)}")
        if awaited.problem is not None:
            raise OrderRefused(awaited.problem)
        if awaited.why is not None:
            raise LinkDown(awaited.why)
        yield link
    finally:
        link.close()

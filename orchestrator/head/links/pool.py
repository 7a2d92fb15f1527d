"""The links that are open now. Runs that reach a host in the same way share one.

A link is closed once no run needs it and no call leases it: `orch fetch` right after a run's end needs its answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from orchestrator.core import conflicts
from orchestrator.core.plan import HostPlan
from orchestrator.core.state.run import Run
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.links import requests as orders
from orchestrator.head.links.conversation import Asks
from orchestrator.head.links.lease import leased
from orchestrator.head.links.link import HostLink, Listener, Pace, Watch
from orchestrator.head.reach.transport import Transport

Connect = Callable[[HostPlan, Transport, Callable[[], Bundle], Listener, Pace], HostLink]

_T = TypeVar("_T")


class ConnectionPool:
    """Opens a link for the first run that needs it, and closes it after the last. Any thread may call it."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        bundle: Callable[[], Bundle],
        listener: Listener,
        pace: Pace,
        connect: Connect,
    ) -> None:
        self._transports = transports
        self._bundle = bundle
        self._listener = listener
        self._pace = pace
        self._connect = connect
        self._links: dict[HostPlan, HostLink] = {}
        self._leases: Counter[HostPlan] = Counter()
        """How many calls use a link that is there."""
        self._lock = threading.Lock()

    def attach(self, run: Run, names: list[str]) -> None:
        """Connect these hosts of the run, or let it share the links that are there."""
        for name in names:
            host = run.plan.host(name)
            with self._lock:
                link = self._links.get(host.connection)
                if link is None:
                    transport = self._transports[host.transport]
                    link = self._connect(host, transport, self._bundle, self._listener, self._pace)
                    self._links[host.connection] = link
                link.fence(run.run_id, run.host(name).fence)
                watch = _watch(run)._replace(gpus=tuple(conflicts.leased_gpus(run, name)))
                link.attach(run.run_id, watch)  # within the lock: the last run of the link may be leaving it

    def detach(self, run: Run, name: str) -> None:
        """Release a host that the run needs no more."""
        key = run.plan.host(name).connection
        with self._lock:
            link = self._links.get(key)
            if link is not None:
                link.detach(run.run_id)
                self._close_unused(key)

    def link(self, run: Run, name: str) -> HostLink | None:
        """Return the link to a host of the run, if it is open."""
        return self._links.get(run.plan.host(name).connection)

    def lease(self, run: Run, name: str, use: Callable[[Asks], _T]) -> _T:
        """Call `use` with a link to that host, the run's own or one for this call, and return what it returns. Blocks.

        Raises LinkDown if the host cannot be reached.
        """
        host = run.plan.host(name)
        link = self._begin_lease(host.connection)
        fence = next((known.fence for known in run.hosts if known.name == name), 0)
        if link is not None:
            link.fence(run.run_id, fence)
            try:
                return use(link)
            finally:
                self._end_lease(host.connection)
        # Who asks one question drives nothing
        watch = _watch(run)._replace(claim=None)
        with leased(host, self._transports[host.transport], self._bundle, run.run_id, watch, fence) as own:
            return use(own)

    def _begin_lease(self, key: HostPlan) -> HostLink | None:
        """Return the link that is there, if it is connected. It stays there until `_end_lease`."""
        with self._lock:
            link = self._links.get(key)
            if link is None or not link.is_connected:
                return None
            self._leases[key] += 1
            return link

    def _end_lease(self, key: HostPlan) -> None:
        with self._lock:
            self._leases[key] -= 1
            self._close_unused(key)

    def _close_unused(self, key: HostPlan) -> None:
        """Close a link that neither a run nor a lease needs. The lock is held."""
        if not self._leases[key]:
            del self._leases[key]
            if not self._links[key].is_needed:
                self._links.pop(key).close()

    @property
    def hosts(self) -> dict[str, bool]:
        """Return which hosts are linked, and whether they are connected now."""
        return {link.host.name: link.is_connected for link in list(self._links.values())}

    def close(self) -> None:
        """End all links; what runs on the hosts goes on."""
        for link in list(self._links.values()):
            link.close()


def _watch(run: Run) -> Watch:
    timing = run.plan.timing
    silence_max_s = max(timing.unreachable_after_s, 3 * timing.heartbeat_s)
    return Watch(run.epoch, timing.heartbeat_s, silence_max_s, orders.claim(run))

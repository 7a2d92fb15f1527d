"""Hosts that an engine (Slurm, Kubernetes) lends. A host that leaves is drained; those of ended runs are given back.

Drains are requests like those of a person. When the host is there again, after another boot, it may have tasks again.
The hosts of ended runs are given back once their logs, outputs and proofs are here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from orchestrator.core.errors import JournalError, OrchestratorError
from orchestrator.core.hosts.slots import why_not_drained
from orchestrator.core.phases.stopping import unproven
from orchestrator.core.state.host import Host, HostState
from orchestrator.core.state.phase_states import Phase
from orchestrator.core.state.run import Run
from orchestrator.head.effects.lookout import Lookout

log = logging.getLogger(__name__)

POLL_S = 3.0
PATIENCE_S = 60.0
"""How long after a run's end, or its last fetch, hosts are kept for logs, outputs and proofs that do not come."""


class Lender(Protocol):
    """An engine whose hosts this coordinator holds."""

    def held(self) -> list[str]:
        """Return the names of the allocations that are not given back."""

    def hosts(self, allocation: str) -> Mapping[str, tuple[str, str]]:
        """Return by name each present host's identity, and why it leaves, if it does. Empty if that is unknown."""

    def give_back(self, allocation: str) -> None:
        """Give the hosts back. Raises OrchestratorError."""


class Drains(Protocol):
    """The methods of a coordinator that are used here."""

    def drain(self, name: str, host: str, *, now: bool, why: str = "") -> Run:
        """See Coordinator."""

    def undrain(self, name: str, host: str) -> Run:
        """See Coordinator."""

    def let_go(self, run: Run, host: str) -> None:
        """See Coordinator."""


class LentHosts:
    """Checks the lent hosts every few seconds."""

    def __init__(
        self,
        lender: Lender,
        runs: Callable[[], Mapping[str, Run]],
        drains: Drains,
        owes: Callable[[Run], bool],
        fetches: Callable[[Run], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owes`: whether something of an ended run is still on its hosts; `fetches`: whether it is on its way."""
        self._lender = lender
        self._runs = runs
        self._drains = drains
        self._owes = owes
        self._fetches = fetches
        self._now = now
        self._patient_since: dict[str, float] = {}
        self._left: dict[tuple[str, str], str] = {}
        """By run and host, the identity that was drained last. Each is drained once, even if the drain is refused."""
        self._warned: dict[str, str] = {}
        self._ending = False
        self._lookout = Lookout(self.check, POLL_S, name="lent-hosts", gap="lent hosts were not checked")

    def start(self) -> None:
        """Start the thread."""
        self._lookout.start()

    def close(self) -> None:
        """End. What is lent stays lent."""
        self._ending = True
        self._lookout.close(wait_s=1.0)

    def check(self) -> None:
        """Check once all that is lent."""
        if self._ending:
            return
        runs = list(self._runs().values())
        for allocation in self._lender.held():
            using = [run for run in runs if any(host.allocation == allocation for host in run.plan.hosts)]
            active = [run for run in using if not run.phase.is_terminal]
            if active:
                self._patient_since.pop(allocation, None)
                self._follow(allocation, active)
            elif using and self._may_go(allocation, using):
                try:
                    self._lender.give_back(allocation)
                    log.info("what was lent as %s is given back", allocation)
                except OrchestratorError as e:
                    if self._warned.get(allocation) != e.message:
                        log.warning("%s is not given back: %s", allocation, e.message)
                        self._warned[allocation] = e.message

    def _may_go(self, allocation: str, runs: list[Run]) -> bool:
        """Wait for a fetch as long as it takes: it ends by itself, at the latest when its host does not answer."""
        if any(map(self._fetches, runs)):
            self._patient_since[allocation] = self._now()
            return False
        since = self._patient_since.setdefault(allocation, self._now())
        if self._now() - since > PATIENCE_S:
            return True
        return not any(unproven(run) or self._owes(run) for run in runs)

    def _follow(self, allocation: str, runs: list[Run]) -> None:
        there = self._lender.hosts(allocation)
        for run in runs:
            for host in run.hosts:
                if host.name not in there or run.plan.host(host.name).allocation != allocation:
                    continue
                which, leaves = there[host.name]
                key = (run.run_id, host.name)
                if leaves and (self._left.get(key) != which or _has_room_now(run, host)):
                    if self._order(run, host.name, taken=f"{_TAKEN}{leaves}; its id is {which}"):
                        self._left[key] = which
                elif leaves and _may_end(runs, host):
                    self._drains.let_go(run, host.name)
                elif not leaves and _was_taken(host) and not host.state_why.endswith(which):
                    self._order(run, host.name)

    def _order(self, run: Run, host: str, *, taken: str = "") -> bool:
        """Return whether it was decided. It was not if the journal cannot be written, or the loop was busy."""
        try:
            if taken:
                self._drains.drain(run.run_id, host, now=False, why=taken)
            else:
                self._drains.undrain(run.run_id, host)
        except (OrchestratorError, TimeoutError) as e:
            what = "leaves" if taken else "is back"
            log.info("%s: %s %s: %s", run.run_id, host, what, str(e) or "the coordinator is busy")
            return not isinstance(e, JournalError | TimeoutError)
        return True


_TAKEN = "its engine takes it away: "
"""The beginning of the reason of a drain by this module. It shows the next coordinator which hosts to undrain."""


def _was_taken(host: Host) -> bool:
    return host.state is HostState.DRAINED and host.state_why.startswith(_TAKEN)


def _may_end(runs: list[Run], host: Host) -> bool:
    """Whether a host that leaves may end before its time: the run trains, and has nothing on it any more."""
    return _was_taken(host) and all(
        run.phase is Phase.RUNNING and not run.tasks_on(host.name) for run in runs
    )


def _has_room_now(run: Run, host: Host) -> bool:
    """Whether a host that leaves, and whose tasks had nowhere to go, can be drained now, since a spare has come."""
    is_leaving = host.state is HostState.OPEN and host.state_why.startswith(_TAKEN)
    return is_leaving and why_not_drained(run, host.name) is None

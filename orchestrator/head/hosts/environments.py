"""Makes the environment of a spec on its hosts: all at once, each in a thread, without a coordinator."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.plan import HostPlan, Plan
from orchestrator.core.state.run import Problem, new_run
from orchestrator.core.words import size
from orchestrator.head.code.bundle import Bundle
from orchestrator.head.hosts.examination import RUN_ID
from orchestrator.head.hosts.preparation import named, send_file
from orchestrator.head.hosts.wheels import Wheels
from orchestrator.head.links.conversation import Asks, LinkDown, OrderRefused
from orchestrator.head.links.lease import leased
from orchestrator.head.links.link import Watch
from orchestrator.head.reach.transport import Transport
from orchestrator.protocol.orders.preparation import ENVIRONMENT, EnvironmentState
from orchestrator.spec.setup import Environment

ASK_S = 150.0
POLL_S = 0.3
SHOW_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class SetUp:
    """The result for one host."""

    host: str
    python: str
    """The path of the environment's Python."""
    state: Literal["made", "there", "failed"]
    version: str = ""
    by: str = ""
    seconds: float = 0.0
    problem: Problem | None = None


class Maker:
    """Makes one environment on all hosts. `progress` is called from all threads."""

    def __init__(
        self,
        environment: Environment,
        transports: Mapping[str, Transport],
        bundle: Callable[[], Bundle],
        wheels: Wheels,
        progress: Callable[[str], None],
        keep: Collection[str],
    ) -> None:
        self._environment = environment
        self._transports = transports
        self._bundle = bundle
        self._wheels = wheels
        self._progress = progress
        self._keep = list(keep)

    def make(self, hosts: Sequence[HostPlan]) -> list[SetUp]:
        """Make it on these hosts, each with the Python that the host names. Blocks until the last has ended."""
        futures: list[Future[SetUp]] = [Future() for _ in hosts]
        for host, future in zip(hosts, futures, strict=True):
            # Daemon threads: Ctrl-C closes the connections, and the hosts then stop their work.
            threading.Thread(
                target=self._into, args=(future, host), name=f"setup-{host.name}", daemon=True
            ).start()
        while wait(futures, 0.2).not_done:  # one long wait would hold up Ctrl-C
            pass
        return [future.result() for future in futures]

    def _into(self, future: Future[SetUp], host: HostPlan) -> None:
        try:
            future.set_result(self._one(host))
        except BaseException as e:  # the thread that waits raises it
            future.set_exception(e)

    def _one(self, host: HostPlan) -> SetUp:
        began_at = time.monotonic()
        python = self._environment.python(host)
        try:
            with leased(
                host, self._transports[host.transport], self._bundle, RUN_ID, Watch(1, 5.0, 120.0)
            ) as link:
                was, state = self._made(link, host)
        except LinkDown as e:
            problem = Problem("unreachable", str(e), exit_code=4)
            return SetUp(host.name, python, "failed", problem=named(host.name, problem))
        except OrderRefused as e:
            return SetUp(host.name, python, "failed", problem=named(host.name, e.problem))
        taken_s = time.monotonic() - began_at
        return SetUp(host.name, python, "there" if was else "made", state["python"], state["by"], taken_s)

    def _made(self, link: Asks, host: HostPlan) -> tuple[bool, EnvironmentState]:
        """Return whether the environment existed already, and its state now."""
        state = self._ask(link, host, {}, begin=False)
        if state["state"] == "ready":
            return True, state
        wheels = self._wheels.fitting(state) if self._environment.offline else {}
        self._progress(f"{host.name}: makes an environment by {state['by']}, Python {state['python']} …")
        shown, shown_at = "", time.monotonic()
        state = self._ask(link, host, wheels, begin=True)
        while state["state"] != "ready":
            if state["missing"]:
                self._push(link, host, wheels, state["missing"])
                state = self._ask(link, host, wheels, begin=True)
                continue
            if state["line"] != shown and time.monotonic() - shown_at > SHOW_EVERY_S:
                shown, shown_at = state["line"], time.monotonic()
                self._progress(f"{host.name}: {shown}")
            time.sleep(POLL_S)
            state = self._ask(link, host, wheels, begin=False)
        return False, state

    def _ask(
        self, link: Asks, host: HostPlan, wheels: Mapping[str, tuple[str, str]], *, begin: bool
    ) -> EnvironmentState:
        order = ENVIRONMENT(
            {
                "key": self._environment.key(host.python),
                "version": self._environment.version,
                "requirements": self._environment.installed,
                "constraints": self._environment.constraints,
                "offline": self._environment.offline,
                "wheels": [(name, digest) for name, (_, digest) in wheels.items()],
                "keep": self._keep,
                "begin": begin,
            }
        )
        return link.ask(order, timeout_s=ASK_S).ok

    def _push(
        self, link: Asks, host: HostPlan, wheels: Mapping[str, tuple[str, str]], missing: Collection[str]
    ) -> None:
        run = new_run(RUN_ID, Plan("setup", "default", (host,), (), ""), epoch=1, at=0.0)
        wanted = [(path, digest) for path, digest in wheels.values() if digest in missing]
        if not wanted:
            raise OrderRefused(
                Problem("setup-failed", "it asks for wheels that nobody has offered", "try again")
            )
        bytes_ = sum(os.path.getsize(path) for path, _ in wanted)
        self._progress(f"{host.name}: gets {len(wanted)} wheels, {size(bytes_)} …")
        for path, digest in wanted:
            send_file(link, run, path, digest)

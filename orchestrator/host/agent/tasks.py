"""The tasks of the watched runs, as their shims report them: which live, what they report, how they ended.

The agent keeps no state of its own: everything here comes from the disk and the shims.
"""

from __future__ import annotations

import os
import time

from orchestrator.both import hostdir, process
from orchestrator.both.hostdir import HostFault
from orchestrator.host.agent import state as agent_state
from orchestrator.host.agent.jobs import Jobs, Result, answer_of
from orchestrator.host.agent.runs import Watched
from orchestrator.host.agent.streams import READ, WRITE, Loop
from orchestrator.host.shim import record as shim_record
from orchestrator.protocol.channel import Decoder, FrameError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from typing import Any

    from orchestrator.protocol.orders.base import OfTask
    from orchestrator.protocol.orders.watching import Claim
    from orchestrator.protocol.reports import Task

    Key = tuple[str, str, int]
    """(run, task, generation)"""

SETTLE_S = 0.05
"""The delay after a shim has closed its socket, before its exit record is looked for."""

RECOVER_S = 30.0
_STARTING_S = 10.0
"""How long a shim may take from its start.json to its shim.json before it counts as dead."""


class Link:
    """A generation of a task. It has a socket while its shim lives; `task` is the last report."""

    __slots__ = (
        "decoder",
        "deferred",
        "directory",
        "key",
        "out",
        "pending",
        "received_at",
        "recovering",
        "socket",
        "task",
    )

    def __init__(self, key: Key, directory: str) -> None:
        self.key = key
        self.directory = directory
        self.socket: socket.socket | None = None
        self.decoder = Decoder()
        self.out = bytearray()
        self.pending: dict[int, str] = {}
        """The verbs of the orders that the shim has not answered, by id."""
        self.deferred: list[OfTask] = []
        """The orders that came while the shim was starting."""
        self.task: Task | None = None
        self.received_at = 0.0
        self.recovering = False

    @property
    def ended(self) -> bool:
        """Whether its exit is known, so that nothing will change any more."""
        return self.task is not None and self.task.get("exit") is not None and self.socket is None


class Tasks:
    """The links of this agent. It calls `changed` when a report must not wait for the next heartbeat."""

    def __init__(
        self,
        loop: Loop,
        jobs: Jobs,
        host_dir: str,
        changed: Callable[[], None],
        send: Callable[[Mapping[str, Any], bytes], None],
    ) -> None:
        self._loop = loop
        self._jobs = jobs
        self._host_dir = host_dir
        self._changed = changed
        self._send = send
        self._links: dict[Key, Link] = {}
        self._starting: set[str] = set()
        self._strays: dict[str, list[process.Mark]] = {}
        """Processes of watched runs of which nothing is recorded here, by run."""
        self._mark = Watched(host_dir)
        self.watched: dict[str, float] = {}
        """The heartbeat of each watched run in seconds, by run id."""
        self._claims: dict[str, Claim] = {}

    def watch(self, run: str, heartbeat_s: float, claim: Claim | None) -> None:
        """Include the run in the reports from now on. `claim` says who drives it."""
        self.watched[run] = heartbeat_s
        self._mark.rewrite(run)
        if claim is not None:
            self._claims[run] = claim
        self.scan()
        # What lives is known, also if its directory was removed. Whatever this agent starts is recorded.
        if all(key[0] != run for key in self._links):
            self._strays[run] = process.marks(self._host_dir, run=run)
        for key, link in self._links.items():
            if key[0] == run:
                self._send_order(link, {"order": "watch", "heartbeat_s": heartbeat_s})

    def unwatch(self, run: str) -> None:
        """Leave the run out of the reports from now on."""
        self.watched.pop(run, None)
        self._claims.pop(run, None)
        self._strays.pop(run, None)
        self._mark.release(run)
        for key in [key for key in self._links if key[0] == run]:
            self._drop(self._links.pop(key))

    def scan(self) -> None:
        """Look for generations that this agent has not seen, and connect to those without a connection."""
        self._mark.renew(self._claims)
        for run in list(self.watched):
            for task, generation, directory in hostdir.generations(self._host_dir, run):
                key = (run, task, generation)
                if key not in self._links:
                    self._links[key] = Link(key, directory)
        for link in list(self._links.values()):
            self._settle(link)

    def starting(self, directory: str, *, over: bool = False) -> None:
        """Mark a generation whose shim we are starting, so that the shim does not count as dead."""
        if over:
            self._starting.discard(directory)
        else:
            self._starting.add(directory)

    def lives(self, run: str) -> bool:
        """Return whether a shim of the run lives, or is starting."""
        return any(
            key[0] == run and (link.socket is not None or link.directory in self._starting)
            for key, link in self._links.items()
        )

    def strays(self, run: str) -> dict[tuple[str, int], list[process.Identity]]:
        """Return the living processes of tasks of which nothing is recorded here, by task and generation."""
        found: dict[tuple[str, int], list[process.Identity]] = {}
        for mark in self._strays.get(run, ()):
            if (run, mark.task, mark.generation) not in self._links and process.alive(mark.who):
                found.setdefault((mark.task, mark.generation), []).append(mark.who)
        return found

    def link(self, run: str, task: str, generation: int) -> Link:
        """Return the link to that generation. Raises HostFault `no-task` where it was never started here."""
        directory = hostdir.generation_dir(self._host_dir, run, task, generation)
        if not os.path.isdir(directory):
            raise HostFault("no-task", f"{task} of generation {generation} was never started on this host")
        key = (run, task, generation)
        link = self._links.setdefault(key, Link(key, directory))
        self._settle(link)
        return link

    def links(self, run: str, generation_max: int) -> list[Link]:
        """Return the links to all generations of a run on the host, up to that one."""
        return [
            self.link(run, task, generation)
            for task, generation, _ in list(hostdir.generations(self._host_dir, run))
            if generation <= generation_max
        ]

    def forward(self, link: Link, order: OfTask) -> None:
        """Forward an order to the shim, which answers with the order's id. Raises HostFault `gone` if it has ended.

        A shim that is still starting gets the order later: a stop that overtakes the start must not be lost.
        """
        if link.socket is None:
            if link.ended:
                raise HostFault("gone", f"{link.key[1]} of generation {link.key[2]} has ended")
            link.deferred.append(order)
            return
        if order.get("id") is not None:
            link.pending[order["id"]] = order["order"]
        self._send_order(link, order)

    def report(self, run: str) -> list[Task]:
        """Return the newest generation of each task, and every older one that still lives."""
        now = time.monotonic()
        links = {key[1:]: link for key, link in self._links.items() if key[0] == run}
        keys = agent_state.shown(
            {key: agent_state.known(link.task, ended=link.ended) for key, link in links.items()}
        )
        return [
            agent_state.as_of(links[key].task or agent_state.unknown(*key), now - links[key].received_at)
            for key in keys
        ] + [agent_state.unknown(*key) for key in sorted(self.strays(run))]

    def _settle(self, link: Link) -> None:
        """Connect to the shim, or find out how it ended."""
        if link.socket is not None or link.ended or link.directory in self._starting:
            return
        try:
            link.socket = shim_record.connect(link.directory, timeout_s=0.0)
        except OSError:
            self._find_end(link)
            return
        link.decoder = Decoder()
        link.out.clear()
        self._loop.watch(link.socket.fileno(), READ, lambda events: self._ready(link, events))
        heartbeat_s = self.watched.get(link.key[0])
        if heartbeat_s is not None:
            self._send_order(link, {"order": "watch", "heartbeat_s": heartbeat_s})
        deferred, link.deferred = link.deferred, []
        for order in deferred:
            self.forward(link, order)

    def _find_end(self, link: Link) -> None:
        task = shim_record.read_exit(link.directory)
        if task is not None:
            self._learn(link, task)
        elif (
            not link.recovering and not shim_record.shim_alive(link.directory) and not _young(link.directory)
        ):
            # The recovery kills what the dead shim left behind and waits for that, so it runs in a job.
            try:
                self._jobs.function(
                    lambda: {"task": shim_record.recover(link.directory)},
                    lambda result: self._recovered(link, result),
                    deadline_s=RECOVER_S,
                )
            except OSError:
                return  # the host has no process or descriptor left; the next scan tries again
            link.recovering = True

    def _recovered(self, link: Link, result: Result) -> None:
        link.recovering = False
        try:
            task = answer_of(result, f"the recovery of {link.key[1]}")["task"]
        except HostFault:
            return  # the disk may be full; the next scan tries again
        if task is not None:
            self._learn(link, task)

    def _learn(self, link: Link, report: Task | None) -> None:
        task = agent_state.own_report(report, *link.key[1:])
        if task is None:
            return  # the report cannot be read, so what was known of the task stays
        before, link.task, link.received_at = link.task, task, time.monotonic()
        if link.ended:
            self._answer_for(link)
        if before is None or any(before.get(name) != task.get(name) for name in ("phase", "error", "said")):
            self._changed()

    def _send_order(self, link: Link, order: Mapping[str, Any]) -> None:
        if link.socket is not None:
            link.out += encode(order)
            self._flush(link)

    def _flush(self, link: Link) -> None:
        if link.socket is None:
            return
        try:
            while link.out:
                del link.out[: link.socket.send(link.out)]
        except BlockingIOError:
            pass  # a frozen shim reads nothing; the rest is sent once it continues
        except OSError:
            link.out.clear()  # the end of the stream will be noticed when it is read
        events = READ | WRITE if link.out else READ
        self._loop.watch(link.socket.fileno(), events, lambda events: self._ready(link, events))

    def _ready(self, link: Link, events: int) -> None:
        if events & WRITE:
            self._flush(link)
        if events & ~WRITE and link.socket is not None:
            try:
                data = link.socket.recv(256 << 10)
                frames = link.decoder.feed(data)
            except BlockingIOError:
                return
            except (OSError, FrameError):
                data, frames = b"", []
            for message, blob in frames:
                if "report" in message:
                    self._learn(link, message["report"])
                elif message.get("reply") is not None:
                    link.pending.pop(message["reply"], None)
                    self._send(message, blob)
            if not data:
                self._drop(link)
                self._loop.after(SETTLE_S, lambda: self._again(link))

    def _again(self, link: Link) -> None:
        """Try again to settle a link whose socket has closed, until it is known how it ended."""
        self._settle(link)
        if link.socket is None and not link.ended and not link.recovering and link.key in self._links:
            self._loop.after(SETTLE_S, lambda: self._again(link))

    def _drop(self, link: Link) -> None:
        if link.socket is not None:
            self._loop.forget(link.socket.fileno())
            link.socket.close()
            link.socket = None
        self._answer_for(link)

    def _answer_for(self, link: Link) -> None:
        """Answer pending orders in place of a shim that is gone."""
        unanswered = [(o["id"], o["order"]) for o in link.deferred if o.get("id") is not None]
        link.deferred.clear()
        for order_id, verb in [*link.pending.items(), *unanswered]:
            if verb == "stop":  # the task has ended, as ordered
                self._send({"reply": order_id, "ok": {}}, b"")
            else:
                error = {"code": "gone", "message": f"{link.key[1]} ended before it answered", "hint": None}
                self._send({"reply": order_id, "error": error}, b"")
        link.pending.clear()


def _young(directory: str) -> bool:
    """Return whether a shim may still be starting: ordered a moment ago, and without a shim.json."""
    if os.path.exists(os.path.join(directory, "shim.json")):
        return False
    try:
        # If the clock was set back, the age is negative and must not count as young. The shim's lock still protects it.
        return 0.0 <= time.time() - os.stat(directory).st_mtime < _STARTING_S
    except FileNotFoundError:
        return False

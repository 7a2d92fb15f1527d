"""The agent: a go-between of coordinator and shims. One per host and connection; it keeps nothing.

One thread. It says hello, then reports at every heartbeat and at once where a task's phase changes, and does
what it is told. When its stdin ends, it ends; the shims do not notice.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from orchestrator.host.agent import state as agent_state
from orchestrator.host.agent.context import Context
from orchestrator.host.agent.directories import Directories
from orchestrator.host.agent.handlers import Orders
from orchestrator.host.agent.host import Host
from orchestrator.host.agent.jobs import Jobs
from orchestrator.host.agent.leases import GpuLeases
from orchestrator.host.agent.reply import Reply, too_large
from orchestrator.host.agent.streams import QUEUE_BYTES_MAX, READ, Loop, Output
from orchestrator.host.agent.tasks import Tasks
from orchestrator.host.system import leaving, unkillable
from orchestrator.host.system.presence import EVERY_S, Presence
from orchestrator.protocol.channel import Decoder, FrameError, encode
from orchestrator.protocol.limits import PSUTIL_AFTER_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from orchestrator.protocol.hello import BootRequest
    from orchestrator.protocol.reports import HostSample, Report, Sampled


_STDIN, _STDOUT = 0, 1
_READ_BYTES = 256 << 10
_FULL_AGAIN_S = 0.05

LAST_ORDERS_S = 5.0
"""How long an agent that nobody hears still reads: a head that leaves says so last, and sshd may bring that later than
the end of its listening. Without that word the run counts as driven."""


class Agent:
    """The parts, and what connects them."""

    def __init__(self, host_dir: str, bundle: str, request: BootRequest) -> None:
        self._loop = Loop()
        self._jobs = Jobs(self._loop)
        self._output = Output(self._loop, _STDOUT)
        self._host = Host(host_dir, bundle, request)
        self._presence = Presence(host_dir)
        self._tasks = Tasks(self._loop, self._jobs, host_dir, self._mark, self._forward)
        self._directories = Directories(self._loop, self._jobs, host_dir)
        leases = GpuLeases(self._loop, host_dir, self._tasks.lives)
        context = Context(self._loop, self._host, self._jobs, self._tasks, self._directories, leases)
        self._orders = Orders(context, self._output)
        self._decoder = Decoder()
        self._heartbeat_s = float(request["heartbeat_s"])
        self._rhythm = 0
        self._changed = False
        self._sampled: Sampled
        self._ended = False
        self._is_left = False
        """Whether nobody reads what it says any more."""

    def run(self) -> None:
        """Serve until stdin ends."""
        os.set_blocking(_STDIN, False)
        self._loop.watch(_STDIN, READ, self._hear)
        hello = self._host.hello()
        self._output.send({"hello": hello})
        self._heartbeat(self._rhythm)
        self._show_presence()
        # It comes after the hello, since it would keep the head waiting for it.
        self._loop.after(0.0, self._host.listen_to_gpus)
        if not hello["psutil_wanted"]:  # else it is loaded after it was pushed
            self._loop.after(PSUTIL_AFTER_S, self._host.load_psutil)
        while not self._ended:
            self._loop.turn()
            if self._changed:
                self._report()
            if self._output.broken and not self._is_left:
                self._is_left = True
                self._loop.after(LAST_ORDERS_S, self._end)
        self._jobs.end()
        self._orders.end()

    def _end(self) -> None:
        self._ended = True

    def _show_presence(self) -> None:
        """End where another machine has taken the directory: the head connects again, and finds the one for here."""
        if self._presence.show():
            self._loop.after(EVERY_S, self._show_presence)
        else:
            _complain(
                Exception("this machine was silent for long, and another one has taken its orch directory")
            )
            self._ended = True

    def _heartbeat(self, rhythm: int) -> None:
        if rhythm != self._rhythm:
            return  # another rhythm was ordered meanwhile
        self._jobs.reap()
        self._tasks.scan()
        dirs = self._directories.report()
        self._sampled = {**self._host.sample(), "checkpoint_dirs": dirs, "leaving": leaving.read()}
        self._report()
        heartbeat_s = min(self._tasks.watched.values(), default=self._heartbeat_s)
        self._loop.after(next_heartbeat_s(heartbeat_s, time.time()), lambda: self._heartbeat(rhythm))

    def _mark(self) -> None:
        self._changed = True

    def _report(self) -> None:
        self._changed = False
        runs = {run: self._tasks.report(run) for run in self._tasks.watched}
        # This is read for each report, not kept from the last heartbeat: a report that a task has ended must also say
        # what is left of it.
        host: HostSample = {**self._sampled, "unkillable": unkillable.known(self._host.host_dir)}
        try:
            self._output.report(_frame({"host": host, "runs": runs}))
        except FrameError as e:  # if the agent ended here, the next agent would end at its first report
            _complain(e)

    def _forward(self, message: Mapping[str, Any], blob: bytes) -> None:
        """Forward the reply of a shim."""
        try:
            self._output.send(message, blob)
        except FrameError as e:
            Reply(self._output, message["reply"]).fault(too_large(e))

    def _hear(self, _events: int) -> None:
        if self._output.queued_bytes > QUEUE_BYTES_MAX:
            self._loop.forget(_STDIN)
            self._loop.after(_FULL_AGAIN_S, lambda: self._loop.watch(_STDIN, READ, self._hear))
            return
        try:
            data = os.read(_STDIN, _READ_BYTES)
            frames = self._decoder.feed(data)
        except BlockingIOError:
            return
        except OSError:
            data, frames = b"", []
        except FrameError as e:
            # The stream cannot be followed any more; a new connection starts a new one.
            _complain(e)
            data, frames = b"", []
        self._ended = self._ended or not data
        for order, blob in frames:
            self._orders.handle(order, blob)
            if order.get("order") in ("watch", "unwatch"):
                # The new rhythm begins now, and with all that is known.
                self._rhythm += 1
                self._heartbeat(self._rhythm)


def _frame(report: Report) -> bytes:
    """Return the frame of a report, shortened if it is too long. Raises FrameError if that does not suffice."""
    try:
        return encode({"report": report})
    except FrameError as e:
        error = e
    for shorter in agent_state.shorter(report):
        try:
            return encode({"report": shorter})
        except FrameError:
            continue
    raise error


def _complain(error: Exception) -> None:
    """Write to stderr, which the head quotes when the connection has ended."""
    sys.stderr.write(f"orch agent: {error}\n")
    sys.stderr.flush()


def main(host_dir: str, bundle: str, request: BootRequest) -> None:
    """Serve the channel on stdin and stdout. Called by the bootstrap, in its process."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # sshd sends SIGHUP when the connection breaks. It is ignored, since the end of stdin says the same after all that
    # was sent.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ["ORCH_UMASK"] = f"{os.umask(0o077):o}"  # the tasks get that of the login
    if os.access(bundle, os.W_OK):  # the disk may have become read-only
        os.utime(bundle)  # this marks the bundle as in use, since old ones are removed
    Agent(host_dir, bundle, request).run()
    # What is left to do at a normal exit is to close a stdout that may be broken.
    os._exit(0)


def next_heartbeat_s(heartbeat_s: float, wall_s: float) -> float:
    """Return the seconds until the next heartbeat: half of `heartbeat_s` at least, and one and a half at most.

    Agents report when the time of day is a multiple of the heartbeat. The head then wakes once for all of its hosts,
    which costs it a third less than to wake for each (`python -m benchmarks head`). Clocks that differ, or jump, only
    bring the wakes apart again.

    Args:
        heartbeat_s: what is between two heartbeats.
        wall_s: the time of day, in seconds since the epoch.
    """
    left_s = heartbeat_s - wall_s % heartbeat_s
    return left_s if left_s >= heartbeat_s / 2 else left_s + heartbeat_s

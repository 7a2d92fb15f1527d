"""The task's process: starts, measures and kills it, and finds out why it ended."""

from __future__ import annotations

import os
import signal
import socket
import time

from orchestrator.both import process
from orchestrator.host.shim import sweep
from orchestrator.host.shim.spawn import Spawned, spawn, task_argv, task_env, work_dir
from orchestrator.host.shim.state import Ended, StopBy, cause_of
from orchestrator.host.system import cgroup, oom, unkillable, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.protocol.measures import TaskMeasures
    from orchestrator.protocol.reports import ExitCause, Left, SweptBy


_KILLED_S = 4.0
"""Two samples: the kernel counts at the time of the kill, and a process with much memory ends some time later."""
_CHILD_KILLED_S = 60.0


class TaskProcess:
    """The process of a task, before its start, while it runs, and after its end."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._start = start
        self._run = str(start["run"])
        self._task = str(start["task"])
        self._generation = int(start["generation"])
        self._host_dir = str(start["host_dir"])
        self._spawned: Spawned | None = None
        self._group: cgroup.Cgroup | None = None
        self._sampler: usage.Sampler | None = None
        self._oom_kills = oom.OomKills()
        self._own_kills = oom.OwnKills()
        self.measured: TaskMeasures = {}
        self.peak_rss_bytes: int | None = None

    @property
    def pid(self) -> int | None:
        """Its pid; None before it was started."""
        return None if self._spawned is None else self._spawned.pid

    @property
    def identity(self) -> process.Identity | None:
        """Its identity; None before it was started."""
        return None if self._spawned is None else self._spawned.identity

    @property
    def group_path(self) -> str | None:
        """The path of its control group; None if it has none."""
        return None if self._group is None else self._group.path

    @property
    def swept_by(self) -> SweptBy:
        """How all its processes are found: by `cgroup` or by `marker`."""
        return "marker" if self._group is None else "cgroup"

    def start(
        self, generation_dir: str, secrets: dict[str, str], release_env: dict[str, str]
    ) -> tuple[socket.socket, dict[int, str]]:
        """Start it. Return the socket to its runtime, and its output descriptors with the letter of their stream.

        Raises StartFailed or OSError if it cannot be started.
        """
        env = task_env(self._start, dict(os.environ), secrets, release_env, generation_dir)
        ours, theirs = socket.socketpair()
        env["ORCH_FD"] = str(theirs.fileno())
        name = cgroup.name_of(self._host_dir, self._run, self._task, self._generation)
        group = cgroup.create(name) if self._start.get("cgroup", True) else None
        try:
            spawned = spawn(task_argv(self._start), env, work_dir(self._start), theirs.fileno(), group)
        except BaseException:
            ours.close()
            if group is not None:
                group.remove()
            raise
        finally:
            theirs.close()
        if group is not None and not spawned.grouped:
            group.remove()
            group = None
        self._spawned, self._group = spawned, group
        self._oom_kills.sample(spawned.pid)
        return ours, {spawned.stdout: "o", spawned.stderr: "e"}

    def is_stopped(self) -> bool:
        """Return whether SIGSTOP has frozen it: then its runtime will not answer, and the caller need not wait."""
        who = self.identity
        return who is not None and process.state(who) == "T"

    def terminate(self, runtime_asked: bool) -> None:
        """Send SIGTERM to the main process. If the runtime was asked to stop, do so only if the script handles it.

        Without a handler, the signal would end the process at once, while the runtime is stopping it properly.
        """
        who = self.identity
        if who is not None and (not runtime_asked or process.catches(who.pid, signal.SIGTERM)):
            process.signal(who, signal.SIGTERM)

    def kill(self) -> bool:
        """Send SIGKILL to all its processes. Return whether any was there: it may have forked before it died."""
        if self._group is not None:
            self._group.kill()
        living = self._living()
        sweep.kill(living)
        return bool(living)

    def left(self) -> list[Left]:
        """Return its processes that still live, each with the reason."""
        return sweep.name_left(self._living())

    def remember_left(self) -> None:
        """Record its processes that cannot be killed, for all later runs on this host."""
        unkillable.remember(self._host_dir, self._run, self._living())

    def _living(self) -> set[process.Identity]:
        """Find its processes by descent, since we adopt orphans; and by group, or by marker if there is none."""
        living = set(process.descendants(os.getpid()))
        if self._group is not None:
            living.update(who for who in map(process.identity, self._group.pids()) if who is not None)
        else:
            living.update(
                process.marked(self._run, {self._generation}, host_dir=self._host_dir, task=self._task)
            )
        return living

    def reap(self) -> Ended | None:
        """Reap all children that have ended, including adopted orphans. Return how the task ended, if it did."""
        ended = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            if pid == self.pid:
                self.peak_rss_bytes = max(self.peak_rss_bytes or 0, usage.ru_maxrss * 1024)
                code = os.waitstatus_to_exitcode(status)
                at = time.monotonic()
                ended = Ended(at, code) if code >= 0 else Ended(at, signal=-code)

    def sample(self, at: float) -> None:
        """Measure CPU and memory."""
        self._oom_kills.sample(self.pid)
        if self.pid is None:
            return
        if self._group is not None:
            self._own_kills.sample(at, self._group.oom_kills() or 0)
        if self._sampler is None:
            self._sampler = usage.Sampler()
        self.measured = {**self._sampler.sample(self.pid, at)}
        resident = self.measured["rss_bytes"] or 0
        peak = max(self.peak_rss_bytes or 0, process.peak_rss_bytes(self.pid) or 0, resident)
        self.peak_rss_bytes = peak or None

    def cause(self, ended: Ended, stop_by: StopBy) -> ExitCause:
        """Return why it ended, by the OOM kills in its own group, or in the one that it shares."""
        group_oom = None
        if self._group is not None:
            kills = self._group.oom_kills()
            if kills is not None:
                self._own_kills.sample(ended.at, kills)
                # One that was killed ends at once; one whose child was killed may wait for it first.
                lately_s = _KILLED_S if ended.code is None else _CHILD_KILLED_S
                group_oom = self._own_kills.since(ended.at - lately_s)
            self.peak_rss_bytes = max(self.peak_rss_bytes or 0, self._group.peak_bytes() or 0) or None
        is_one = self._oom_kills.is_one(self.pid, self.peak_rss_bytes)
        return cause_of(ended, stop_by, group_oom, self._oom_kills.recent(), is_one=is_one)

    def remove_group(self, wait_s: float) -> None:
        """Remove the control group. For up to `wait_s` it tries again, since a reaped process may still be counted."""
        give_up_at = time.monotonic() + wait_s
        while self._group is not None and not self._group.remove() and time.monotonic() < give_up_at:
            time.sleep(0.005)

"""`python orch.pyz pod`: the first process of a pod. It runs one task of one generation, and ends with its outcome.

For one task it does what agent and coordinator do over SSH: seed, gate, stall watch, log, exit class. Kubernetes starts
it again, by its exit code.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time

from orchestrator.both.hostdir import HostFault
from orchestrator.both.newest import is_further
from orchestrator.host.pod import generation, outcome, settings, shim
from orchestrator.host.pod.outcome import PEERS, STALL, TERM, Outcome, Pace
from orchestrator.host.pod.settings import Unfit
from orchestrator.protocol import pod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.host.pod.generation import Generation
    from orchestrator.host.pod.settings import Settings
    from orchestrator.host.pod.shim import ShimLink
    from orchestrator.protocol.reports import Task


_VERIFY_EVERY_S = 1.0


class Leaving:
    """The wait for one more checkpoint before the task is stopped. A process of its own verifies what was saved."""

    def __init__(self, directory: str | None, wait_s: float, at: float) -> None:
        self._directory = directory
        self._until_at = at + (wait_s if directory is not None else 0.0)
        self._verification: subprocess.Popen[bytes] | None = None
        self._verify_at = at
        self._took_s = 0.0
        self._first: dict[str, Any] | None = None
        """The newest checkpoint of the first verification."""

    def is_over(self, at: float) -> bool:
        """Return whether the task is to be stopped now: a newer checkpoint reads whole, or no time is left."""
        if at >= self._until_at:
            return True
        if self._verification is None and at >= self._verify_at:
            words = [sys.executable, "-I", "-S", "-X", "utf8", os.path.abspath(sys.argv[0])]
            words += ["checkpoints", "verify", json.dumps({"directory": self._directory})]
            self._verify_at, self._verification = at, subprocess.Popen(words, stdout=subprocess.PIPE)
        elif self._verification is not None and self._verification.poll() is not None:
            out, _ = self._verification.communicate()
            self._took_s, self._verification = at - self._verify_at, None
            self._verify_at = at + max(_VERIFY_EVERY_S, self._took_s)
            try:
                newest = json.loads(out).get("checkpoint") or {"global_step": None, "saved_at": 0.0}
            except ValueError:
                return False
            self._first = self._first or newest
            return is_further(newest, self._first)
        return False

    def close(self) -> None:
        """End a verification that is under way."""
        if self._verification is not None:
            self._verification.kill()
            self._verification.wait()


TURN_S = 0.25
PEERS_CHECK_EVERY_S = 2.0
STACKS_WAIT_S = 6.0
_MESSAGE = "/dev/termination-log"
"""What Kubernetes shows in `kubectl describe pod`."""
_MESSAGE_CHARS_MAX = 2000

_asked_to_end: list[float] = []


def main(argv: list[str]) -> int:
    """Run this pod's task, and return the exit code of the container."""
    path = argv[0] if argv else pod.SETTINGS
    signal.signal(signal.SIGTERM, _on_term)
    signal.signal(signal.SIGINT, _on_term)
    try:
        wish = settings.read(path, os.environ)
        begun = generation.begin_or_join(wish, say, lambda: bool(_asked_to_end))
        if begun is None:
            return _end(
                Outcome(pod.STOPPED, "stopped", f"{wish.task} was asked to end before it began", False)
            )
        return _end(Attempt(wish, begun).run())
    except Unfit as e:
        return _end(Outcome(pod.HOPELESS, "hopeless", str(e), True))
    except HostFault as e:
        return _end(Outcome(pod.HOPELESS, "hopeless", e.message, True))


def say(sentence: str) -> None:
    """Say something in the pod's log."""
    print(f"orch: {sentence}", file=sys.stderr, flush=True)


def _on_term(_number: int, _frame: object) -> None:
    _asked_to_end.append(time.monotonic())


def _end(result: Outcome) -> int:
    say(f"{result.sentence} [{result.kind}, exit code {result.code}]")
    try:
        with open(_MESSAGE, "w", encoding="utf-8") as file:
            file.write(f"{result.sentence} [{result.kind}]"[:_MESSAGE_CHARS_MAX])
    except OSError:
        pass  # outside of Kubernetes there is no such file
    return result.code


class Attempt:
    """One task of one generation, from its start to its end."""

    def __init__(self, wish: Settings, begun: Generation) -> None:
        self._wish = wish
        self._generation = begun
        self._timing: dict[str, Any] = wish.document["timing"]
        self._pace = Pace(self._timing)
        self._released = False
        self._stopped: str | None = None
        self._stopped_at = 0.0
        """By the wall clock, as the ends of tasks."""
        self._leaving: Leaving | None = None
        self._stalled_at: float | None = None
        self._peers_at = 0.0

    def run(self) -> Outcome:
        """Run it. Raises Unfit where it cannot be started."""
        wish = self._wish
        host_dir = shim.document_host_dir(wish)
        tree = shim.place(host_dir, wish.run, wish.document.get("code_dir"))
        env = {**wish.own["env"], **self._generation.environment(wish)}
        has_scratch = bool(wish.own["scratch"]) and self._generation.path is not None
        link = shim.start(wish, self._generation.number, tree, env, scratch=has_scratch)
        if has_scratch:
            self._generation.fill(os.path.join(link.directory, "scratch"))
        link.order("watch", heartbeat_s=1.0)
        ended = None
        while ended is None:
            # Wait for a message of the shim. A signal is seen at the next turn, which is soon.
            if link.sock is None:
                time.sleep(TURN_S)
            else:
                select.select([link.sock], [], [], TURN_S)
            link.hear()
            link.relay()
            self._turn(link, time.monotonic())
            ended = link.ended()
            # As the first process of the pod we are the parent of all orphans: reap them once the shim has gone
            if os.getpid() != 1 or link.sock is not None:
                continue
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                continue
        link.relay()
        return self._outcome(ended)

    def _turn(self, link: ShimLink, at: float) -> None:
        task = link.task
        if task is not None:
            self._pace.heard(task.get("global_step"), at)
            if not self._released and task["phase"] == "ready":
                self._released = True
                link.order("release", env=self._wish.wiring(self._generation.number))
        if self._stopped is not None:
            return
        if _asked_to_end:
            if self._leaving is None:
                saves = self._generation.path if self._released and self._wish.own["trains"] else None
                self._leaving = Leaving(saves, float(self._timing["save_wait_s"]), at)
                if saves is not None:
                    say(f"{self._wish.task} was asked to end, and goes on until the next checkpoint is there")
            if self._leaving.is_over(at):
                self._leaving.close()
                self._stop(link, TERM)
        elif self._stalled_at is not None:
            assert self._stalled_at is not None
            if link.stacks is None and at < self._stalled_at + STACKS_WAIT_S:
                return
            say(link.stacks or link.refused or "it does not answer")
            link.stacks, self._stalled_at = None, None
            if self._timing["on_stall"] == "restart":
                self._stop(link, STALL)
            else:
                self._pace = Pace(self._timing)
        elif self._is_stalled(at):
            self._stalled_at = at
            link.order("stacks")
        elif at >= self._peers_at:
            self._peers_at = at + PEERS_CHECK_EVERY_S
            if (why := self._generation.over()) is not None:
                say(f"{self._wish.task} ends: {why}")
                self._stop(link, PEERS)

    def _is_stalled(self, at: float) -> bool:
        still_s = self._pace.standstill_s(at)
        if still_s is not None:
            say(f"{self._wish.task} has made no progress for {still_s:.0f} s; its stacks follow")
        return still_s is not None

    def _stop(self, link: ShimLink, why: str) -> None:
        self._stopped, self._stopped_at = why, time.time()
        link.order("stop", grace_s=float(self._timing["kill_grace_s"]))

    def _outcome(self, task: Task) -> Outcome:
        result = outcome.judge(task, self._stopped)
        if self._generation.roll is not None:
            ended: Any = task.get("exit") or {}
            end = {
                "kind": result.kind,
                "counts": result.counts,
                "sentence": result.sentence,
                "code": result.code,
                # Its peers fail as soon as it goes, and may be faster than its own end.
                "ended_at": self._stopped_at if self._stopped == TERM else ended.get("ended_at"),
                "global_step": task.get("global_step"),
                "last_lines": ended.get("last_lines", []),
            }
            self._generation.roll.record_end(self._generation.number, self._wish.task, end)
        return result

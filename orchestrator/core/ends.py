"""Ends: how a task's process ended, and the first cause of a generation's end. Immutable values."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.causes import Blame, Cause
from orchestrator.core.plan import TaskId
from orchestrator.core.state.instants import Instant, ToldInstant


@dataclass(frozen=True, slots=True)
class Injected:
    """The fault that `orch chaos` last injected into a task."""

    fault: str
    """As the user asked for it: `kill worker:1`."""
    at: Instant
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a task's process ended."""

    cause: Cause
    code: int | None = None
    signal: int | None = None
    ordered: bool = False
    """It was asked to end before it did, whatever its code says."""
    at: ToldInstant = 0.0
    """By the host's clock, carried over: when it ended, not when we heard of it."""
    ended_time: float | None = None
    error: str | None = None
    """The exception's last line, where the runtime could tell."""
    error_kind: str | None = None
    """What the runtime calls that error: `exception`, or a word for one of its own, which signatures know."""
    last_lines: tuple[str, ...] = ()
    peak_rss_bytes: int | None = None
    swept: str | None = None
    left: tuple[str, ...] = ()
    """What could not be killed: `pid 4242: D state`."""

    @property
    def last_line(self) -> str:
        """Return the line that says most: the exception, else the last line that was printed."""
        return self.error or next((line for line in reversed(self.last_lines) if line.strip()), "")


@dataclass(frozen=True, slots=True)
class Follower:
    """A task that died because another had gone."""

    task: TaskId
    host: str
    after_s: float | None = None
    """After the first, by the hosts' clocks; None if unknown."""


@dataclass(frozen=True, slots=True)
class FirstCause:
    """What ended a generation: which task went first, why, and what became of it."""

    task: TaskId | None
    generation: int
    cause: Cause
    sentence: str
    last_lines: tuple[str, ...] = ()
    """Of a stalled task: its stack."""
    followers: int = 0
    host: str | None = None
    exit_code: int | None = None
    """Of the task's own end; None if it ended by a signal, or by our hand, or has not ended."""
    signal: int | None = None
    global_step: int | None = None
    ended_time: float | None = None
    """Unix time, by the head's clock."""
    means: str = ""
    """What it means, in a plain sentence."""
    advice: str = ""
    """What a person can do."""
    followed: tuple[Follower, ...] = ()
    alike: tuple[TaskId, ...] = ()
    """The others that failed in the same way by themselves."""
    stopped: int = 0
    """How many tasks were stopped because of it."""
    rescued: str = ""
    """What a survivor has handed over, or why nothing was; empty if none was asked to."""
    done: str = ""
    """What was done: started again, from where; or given up, and why."""
    cost: str = ""
    """How long no step was made, and where that time went; empty until the training goes on."""

    @property
    def is_failure(self) -> bool:
        """Return whether something failed: not where tasks were only moved, or their host left as announced."""
        return self.cause.row.blame is not Blame.NOBODY

"""First cause: which task went first, and what its end means.

When one process of a gang dies, the others die of it within seconds, with errors that look like their own. So:
the order of the ends by the hosts' own clocks, and a table of what followers say.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from orchestrator.core.model import Cause, Exit, FirstCause, Run, Task

SAVED_CODE = 42
"""TensorFlow's PreemptionCheckpointHandler: "saved, start me again"."""

_PATTERNS: tuple[tuple[str, Cause], ...] = (
    ("Could not start gRPC server", Cause.PORT),
    ("Address already in use", Cause.PORT),
    ("UnavailableError", Cause.FOLLOWER),
    ("UNAVAILABLE:", Cause.FOLLOWER),
    ("DeadlineExceededError", Cause.FOLLOWER),
    ("Collective ops is aborted by", Cause.FOLLOWER),
    ("Restart your program to reset", Cause.FOLLOWER),
)
"""What TensorFlow prints, and what it means. First match wins: a port that was taken also aborts the peers."""


def classify(ended: Exit) -> Exit:
    """The same end with its cause sharpened by code and last lines."""
    if ended.cause is not Cause.SCRIPT:
        return ended
    if ended.code == 0:
        return replace(ended, cause=Cause.FINISHED)
    if ended.code == SAVED_CODE:
        return replace(ended, cause=Cause.PREEMPTED)
    text = "\n".join((*ended.last_lines, ended.error or ""))
    for pattern, cause in _PATTERNS:
        if pattern in text:
            return replace(ended, cause=cause)
    return ended


def how(ended: Exit) -> str:
    """How it ended, as the end of a sentence that starts with the task."""
    match ended.cause:
        case Cause.OOM:
            peak = f" (peak {ended.peak_rss_bytes / 2**30:.1f} GiB)" if ended.peak_rss_bytes else ""
            return f"was killed by the kernel: out of memory{peak}"
        case Cause.SIGNAL:
            return f"was killed by {_signal_name(ended.signal)}"
        case Cause.PREEMPTED:
            return f"saved and asked to be started again (exit {SAVED_CODE})"
        case Cause.SHIM:
            return "died with its shim, which was killed"
        case Cause.REBOOTED:
            return "is gone: its host was rebooted"
        case Cause.HOST_LOST:
            return "is lost with its host"
        case Cause.PORT:
            return "found its port taken"
        case Cause.START:
            return f"could not be started: {ended.last_line}"
        case Cause.FINISHED:
            return "ended with exit code 0"
        case Cause.ORDERED:
            return "was stopped"
        case _:
            said = f": {ended.last_line}" if ended.last_line else ""
            return f"failed with exit code {ended.code}{said}"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


def first_of(tasks: Sequence[Task]) -> Task | None:
    """The task that went first of those that ended by themselves; a follower only where all are."""
    ended = [t for t in tasks if t.exit and t.exit.cause not in (Cause.ORDERED, Cause.FINISHED)]
    culprits = [t for t in ended if t.exit and t.exit.cause is not Cause.FOLLOWER] or ended
    return min(culprits, key=lambda t: (t.exit.at if t.exit else 0.0, t.id), default=None)


def first_cause(run: Run) -> FirstCause | None:
    """Why this generation ended; None where no task ended badly by itself."""
    task = first_of(run.tasks)
    if task is None or task.exit is None:
        return None
    followers = sum(1 for t in run.tasks if t.exit and t.exit.cause is Cause.FOLLOWER and t.id != task.id)
    step = task.progress.global_step
    when = f" at step {step}" if step is not None else ""
    return FirstCause(
        task=task.id,
        generation=task.generation,
        cause=task.exit.cause,
        sentence=f"{task.id} on {task.host} {how(task.exit)}{when}",
        last_lines=task.exit.last_lines,
        followers=followers,
    )


def common_failure(run: Run) -> str | None:
    """The one line with which all tasks failed before any step, else None: silence is no evidence."""
    failed = [
        t.exit.last_line
        for t in run.tasks
        if t.exit
        and t.exit.cause in (Cause.SCRIPT, Cause.START)
        and t.exit.code != 0
        and t.first_step is None
    ]
    alike = len(failed) == len(run.tasks) and len(set(failed)) == 1
    return failed[0] or None if alike else None

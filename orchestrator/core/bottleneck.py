"""What limits a run now, from what its tasks and hosts measure. Pure, and silent where nothing is known.

A task's runtime measures two waits: for the next batch, and in collectives, for the other workers. All workers of a
gang have the same pace, so their pace does not show a slow one. The slow worker is the one that waits least in
collectives, since the others wait for it. The time that even this worker waits there is communication.

A finding must last before it is told, and must be gone for as long before it is taken back. The threshold for telling
it is higher than the one for taking it back, so that what is told does not flicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from orchestrator.core.state.instants import Instant

HOLD_S = 15.0
"""How long a finding must last, and be gone."""

INPUT_EXPLAINS = 0.5
"""A worker's own wait for input explains that the others wait for it if it is at least this part of their wait."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The share of the time from which on a finding is told, and the share below which it is taken back."""

    on: float
    off: float


LIMITS = {
    "slow-task": Limits(0.25, 0.15),
    "input": Limits(0.30, 0.20),
    "communication": Limits(0.50, 0.40),
    "cpu": Limits(0.90, 0.80),
    "gpu-idle": Limits(0.70, 0.60),
}
"""The kinds. Of several, the first is told: a slow worker explains the waits of all others."""


@dataclass(frozen=True, slots=True)
class TaskReading:
    """What one task measures; None: not known. Shares of the time."""

    task: str
    host: str
    input_share: float | None = None
    peers_share: float | None = None
    gpu_percent: float | None = None
    """How busy its GPUs are, on average."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """What one host measures."""

    host: str
    cpu_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits the run, and since when."""

    kind: str
    share: float
    since_at: Instant
    task: str | None = None
    host: str | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        """Return what tells this bottleneck from another.

        It leaves out which worker waits for input: that changes from step to step.
        """
        return (self.kind, None, None) if self.kind == "input" else (self.kind, self.task, self.host)


@dataclass(frozen=True, slots=True)
class Watched:
    """What is told, and what may be told next."""

    told: Bottleneck | None = None
    candidate: Bottleneck | None = None
    candidate_at: Instant | None = None
    """Since when the candidate (or that nothing limits the run) has been found, where that differs from what is
    told."""
    looked_at: Instant | None = None


def judge(
    before: Watched, tasks: Sequence[TaskReading], hosts: Sequence[HostReading], at: Instant
) -> Watched:
    """Return what limits the run after another look."""
    found = _found(tasks, hosts, before.told, at)
    told = before.told
    looked = replace(before, looked_at=at)
    if (found and found.key) == (told and told.key):
        kept = replace(found, since_at=told.since_at) if found and told else None
        return replace(looked, told=kept, candidate=None, candidate_at=None)
    if before.candidate_at is None or (found and found.key) != (before.candidate and before.candidate.key):
        return replace(looked, candidate=found, candidate_at=at)
    since_at = before.candidate_at
    candidate = replace(found, since_at=since_at) if found else None
    if at - since_at < HOLD_S:
        return replace(looked, candidate=candidate)
    return replace(looked, told=candidate, candidate=None, candidate_at=None)


def _found(
    tasks: Sequence[TaskReading], hosts: Sequence[HostReading], told: Bottleneck | None, at: Instant
) -> Bottleneck | None:
    """Return the first kind that is above its limit. For the kind that is told already, that is the lower limit."""
    for one in _measured(tasks, hosts, at):
        limits = LIMITS[one.kind]
        same = told is not None and told.key == one.key
        if one.share >= (limits.off if same else limits.on):
            return one
    return None


def _measured(tasks: Sequence[TaskReading], hosts: Sequence[HostReading], at: Instant) -> list[Bottleneck]:
    """Return the share of each kind that can be told."""
    found = []
    waiting = [(task.peers_share, task) for task in tasks if task.peers_share is not None]
    inputs = [(task.input_share, task) for task in tasks if task.input_share is not None]
    least = None
    if len(waiting) > 1 and len(waiting) == len(tasks):
        least, slow = min(waiting, key=lambda each: each[0])
        waited = median(share for share, task in waiting if task is not slow) - least
        if (slow.input_share or 0.0) < INPUT_EXPLAINS * waited:
            found.append(Bottleneck("slow-task", waited, at, slow.task, slow.host))
    if inputs:
        # Where all are equally slow, the last one waits for its batch and the others wait for the last: their own batch
        # has come by then.
        most, task = max(inputs, key=lambda each: each[0])
        only = len(inputs) > 1 and median(share for share, other in inputs if other is not task) < most / 2
        found.append(Bottleneck("input", most, at, task.task if only else None, task.host if only else None))
    if least is not None:
        found.append(Bottleneck("communication", least, at))
    gpus = [task.gpu_percent for task in tasks if task.gpu_percent is not None]
    busy = [(host.cpu_percent, host.host) for host in hosts if host.cpu_percent is not None]
    if busy:
        cpu_percent, name = max(busy)
        found.append(Bottleneck("cpu", cpu_percent / 100, at, host=name))
    if gpus:
        found.append(Bottleneck("gpu-idle", 1 - median(gpus) / 100, at))
    return found


def sentence(one: Bottleneck) -> str:
    """Say what limits the run, in words that follow on `limited by`."""
    share = f"{one.share:.0%}"
    match one.kind:
        case "slow-task":
            return f"{one.task} on {one.host}: the others wait for it {share} of the time"
        case "input" if one.task:
            return f"input: {one.task} on {one.host} waits {share} of the time for its next batch, the others for it"
        case "input":
            return f"input: {share} of the time goes into waiting for the next batch"
        case "communication":
            return f"communication: even the slowest worker waits {share} of the time until gradients are added up"
        case "cpu":
            return f"the CPU of {one.host}: {share} busy"
        case _:
            return f"idle GPUs: {share} of the time, and no wait was measured that explains it"


REMEDIES = {
    "slow-task": "look at its host: `orch hosts`, `orch stacks`; `orch drain HOST` moves it",
    "input": "cache() after what is slow to read, map(…, num_parallel_calls=tf.data.AUTOTUNE), and prefetch() last",
    "communication": "raise the batch, or train on fewer workers: `orch scale` says on how many",
    "cpu": "other work on it, too many tasks, or a model that computes there: `orch hosts` shows who uses it",
    "gpu-idle": "raise the batch; what runs in Python between the steps (callbacks, a loop) keeps GPUs waiting",
}
"""What a person can do, by kind."""

"""What limits a run now, from what its tasks and hosts measure. Pure, and silent if nothing is known.

What the processors of hosts do is read beside the training. How long a step waits for its next batch or for its peers
is known within TensorFlow's graph only, and is not measured: a clock in it changes what is trained (TensorFlow refuses
it where a script asks for determinism).

A bottleneck is reported once it has lasted for `HOLD_S`, and withdrawn once it has been gone for as long. The
threshold for reporting is higher than the one for withdrawing, so that the report does not flicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from orchestrator.core.state.instants import Instant

HOLD_S = 15.0
"""How long a finding must last, and be gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The share of the time from which on a finding is told, and the share below which it is taken back."""

    on: float
    off: float


LIMITS = {"cpu": Limits(0.90, 0.80), "gpu-idle": Limits(0.70, 0.60)}
"""The kinds. Of several, the first is told: a busy processor explains why GPUs are idle."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """What one host measures; None: not known."""

    host: str
    cpu_percent: float | None = None
    gpu_percent: float | None = None
    """How busy the GPUs of this run's tasks are, on average."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits the run, and since when."""

    kind: str
    share: float
    since_at: Instant
    host: str | None = None

    @property
    def key(self) -> tuple[str, str | None]:
        """Return what tells this bottleneck from another."""
        return self.kind, self.host


@dataclass(frozen=True, slots=True)
class Watched:
    """The bottleneck that is reported (`told`), and the candidate that may be reported next."""

    told: Bottleneck | None = None
    candidate: Bottleneck | None = None
    candidate_at: Instant | None = None
    """Since when the candidate (or that nothing limits the run) has been found, where that differs from what is
    told."""
    looked_at: Instant | None = None


def judge(before: Watched, hosts: Sequence[HostReading], at: Instant) -> Watched:
    """Return what limits the run, given new readings of its hosts."""
    limit = _first_above_limit(hosts, before.told, at)
    shown = before.told
    looked = replace(before, looked_at=at)
    if (limit and limit.key) == (shown and shown.key):
        kept = replace(limit, since_at=shown.since_at) if limit and shown else None
        return replace(looked, told=kept, candidate=None, candidate_at=None)
    if before.candidate_at is None or (limit and limit.key) != (before.candidate and before.candidate.key):
        return replace(looked, candidate=limit, candidate_at=at)
    since_at = before.candidate_at
    candidate = replace(limit, since_at=since_at) if limit else None
    if at - since_at < HOLD_S:
        return replace(looked, candidate=candidate)
    return replace(looked, told=candidate, candidate=None, candidate_at=None)


def _first_above_limit(
    hosts: Sequence[HostReading], shown: Bottleneck | None, at: Instant
) -> Bottleneck | None:
    """Return the first kind that is above its limit. The lower limit holds for the kind that is shown already."""
    # The share of each kind that was measured
    readings = []
    busy = [(host.cpu_percent, host.host) for host in hosts if host.cpu_percent is not None]
    gpus = [host.gpu_percent for host in hosts if host.gpu_percent is not None]
    if busy:
        cpu_percent, name = max(busy)
        readings.append(Bottleneck("cpu", cpu_percent / 100, at, host=name))
    if gpus:
        readings.append(Bottleneck("gpu-idle", 1 - median(gpus) / 100, at))
    for reading in readings:
        limits = LIMITS[reading.kind]
        same = shown is not None and shown.key == reading.key
        if reading.share >= (limits.off if same else limits.on):
            return reading
    return None


def sentence(limit: Bottleneck) -> str:
    """Say what limits the run, in words that follow on `limited by`."""
    share = f"{limit.share:.0%}"
    if limit.kind == "cpu":
        return f"the CPU of {limit.host}: {share} busy"
    return f"idle GPUs: {share} of the time"


REMEDIES = {
    "cpu": "other work on it, too many tasks, an input that is prepared there, or a model that computes there",
    "gpu-idle": "a slow input (cache(), prefetch()), a small batch, or Python between the steps keeps GPUs waiting",
}
"""What a person can look for, by kind."""

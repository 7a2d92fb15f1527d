"""How often a failure is expected, and how often a run saves, as sentences.

The interval is computed where a save is measured, in the task (`task/cadence.py`); how often failures come only the
coordinator has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.words import duration

HOST_FAILURE_S = 7 * 86400.0
"""The prior: how often a host is expected to end a generation, before anything was seen of this run. Machines that
nobody watches are rebooted, run out of memory and lose their network more often than their hardware fails."""

PRIOR_WEIGHT = 0.1
"""The prior counts as much as a tenth of a failure: the first one that is seen says more than it."""

_WHY = {
    "share": "more often would take more than 1 % of the time",
    "writing": "more often would keep the disk busy",
    "shortest": "more often would gain nothing",
    "longest": "less often would risk too much",
}


@dataclass(frozen=True, slots=True)
class Holds:
    """What a task holds after its peer's death, which it has not handed over yet."""

    step: int
    checksum: int
    """Of its weights: replicas have the same at the same step."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Which weights a script has loaded last."""

    number: int
    """Which load it is: where in the script, and how many there were before at that place. Others are not compared."""
    file: str
    checksum: int


@dataclass(frozen=True, slots=True)
class Rescued:
    """The state that a task has handed over before it was stopped, or why it handed over none."""

    step: int | None = None
    took_s: float = 0.0
    why: str = ""

    def sentence(self, task: str) -> str:
        """Say it.

        >>> Rescued(4012, 0.31).sentence("worker:1")
        'rescued at step 4012 by worker:1 in 0.3 s'
        >>> Rescued(why="no fit is going on").sentence("worker:1")
        'nothing was rescued by worker:1: no fit is going on'
        """
        if self.step is None:
            return f"nothing was rescued by {task}: {self.why}"
        return f"rescued at step {self.step} by {task} in {duration(self.took_s)}"


@dataclass(frozen=True, slots=True)
class Restored:
    """The checkpoint of ours that a task went on from, or could not restore. A file is known by name, time and size."""

    file: str
    """Its path within the generation's directory."""
    saved_time: float
    bytes: int
    step: int | None = None
    why: str = ""
    """Why it could not be restored; empty if it was."""


@dataclass(frozen=True, slots=True)
class Saving:
    """How often a task saves, and why."""

    every_steps: int
    failure_s: float
    """The mean time between failures that is expected."""
    why: str
    """`least`, or the limit that was met, or `spec`."""
    every_s: float | None = None
    cost_s: float | None = None
    """How long a save holds the training up."""
    spent_s: float | None = None
    """How long all saves of this process have."""
    saved_step: int | None = None
    """Of the last save, which nobody may have verified yet."""

    def sentence(self) -> str:
        """Say how often, and why.

        >>> Saving(240, 302400.0, "least", 55.0, 0.005).sentence()
        'every 240 steps (about 55 s): a save holds the training up for 5 ms, and a failure is expected every 3 d 12 h'
        >>> Saving(500, 302400.0, "spec", None, 0.5).sentence()
        'every 500 steps, as the spec says; a save holds the training up for 0.5 s'
        """
        about = f" (about {duration(self.every_s)})" if self.every_s is not None else ""
        steps = "every step" if self.every_steps == 1 else f"every {self.every_steps} steps"
        cost = ""
        if self.cost_s is not None:
            shown = duration(self.cost_s) if self.cost_s >= 0.1 else f"{self.cost_s * 1000:.2g} ms"
            cost = f"a save holds the training up for {shown}"
        if self.why == "spec":
            return f"{steps}{about}, as the spec says" + (f"; {cost}" if cost else "")
        because = f", and a failure is expected every {duration(self.failure_s)}"
        limit = f"; {_WHY[self.why]}" if self.why in _WHY else ""
        return f"{steps}{about}: {cost}{because}{limit}"


def failure_s(trained_s: float, failures: int, hosts: int, rescued: int = 0) -> float:
    """Return the mean time between failures that is expected of a run, but for those whose survivors hand over.

    Args:
        trained_s: how long it has trained, in all generations.
        failures: how many it has seen.
        hosts: how many hosts hold its tasks.
        rescued: after how many failures a survivor has handed over. Where one has, a host that fails alone costs no
            step, and checkpoints are for what ends all at once.

    >>> [round(failure_s(0.0, 0, hosts) / 86400, 1) for hosts in (1, 2, 64)]
    [7.0, 3.5, 0.1]
    >>> round(failure_s(3600.0, 4, 2) / 3600, 1)
    2.3
    >>> [round(failure_s(3600.0, 4, 2, rescued) / 3600, 1) for rescued in (0, 3, 4)]
    [2.3, 16.2, 178.0]
    """
    prior_s = HOST_FAILURE_S / (1 if rescued else max(hosts, 1))
    return (PRIOR_WEIGHT * prior_s + trained_s) / (PRIOR_WEIGHT + max(0, failures - rescued))

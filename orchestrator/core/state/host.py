"""A host of a run: its connection, what may be done with it, and what it last said. Immutable values.

How its state changes: `hosts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from orchestrator.core.measured import GpuMeasures, HostMeasures
from orchestrator.core.state.instants import Deadline, Instant


class Link(Enum):
    """The state of the connection to a host. It says nothing about the host's tasks."""

    CONNECTING = "CONNECTING"
    CONNECTED = "CONNECTED"
    UNREACHABLE = "UNREACHABLE"


class HostState(Enum):
    """Whether a host may be given tasks. It says nothing about the connection."""

    OPEN = "open"
    LOST = "lost"
    """Silent for longer than `lost_after_s`: its tasks count as dead. Ends when it is heard and holds none of them."""
    QUARANTINED = "quarantined"
    """Ended generation after generation by its own fault. Given tasks only where nobody else can take them."""
    DRAINED = "drained"
    """By the user's word."""
    STUCK = "stuck"
    """Holds a process that cannot be killed, of this run or another: no task beside it, until it is gone."""
    LEAVING = "leaving"
    """About to be taken away by whoever lends it. Ends with a new boot, or when it says so no more."""


@dataclass(frozen=True, slots=True)
class Unkillable:
    """A process on a host, of any run, that SIGKILL did not end."""

    pid: int
    run: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the probe of a host found."""

    python: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    code: str = ""
    """The digest of the pushed tree: the same on all hosts."""
    highest_generation: int = 0
    """The highest generation that has a directory in the checkpoint directory, as this host sees it."""
    checkpoint_share: str = ""
    """What the run found written in the checkpoint directory: the same on all hosts, or they do not share it."""
    unkillable: tuple[Unkillable, ...] = ()
    activated: Mapping[str, str] = field(default_factory=dict)
    """The variables that `activate` has changed: the same on all hosts."""
    gpus: tuple[str, ...] = ()
    """Their UUIDs, in the driver's order."""
    executable: str = ""
    """What starts the Python that was probed; empty if an older orch probed it."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """The load of a GPU when its host was last heard."""

    index: int
    name: str = ""
    measured: GpuMeasures = field(default_factory=GpuMeasures)
    """What the driver does not report is missing."""


@dataclass(frozen=True, slots=True)
class GpuFault:
    """A fault of a GPU, and the generation in which it was first reported."""

    index: int
    xid: int | None
    """None: it has disappeared."""
    generation: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """The announcement of a host's provider that the host will be taken away."""

    why: str
    in_s: float
    """When, counted from the report; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the coordinator believes about a host of this run."""

    name: str
    link: Link = Link.CONNECTING
    since_at: Instant = 0.0
    heard_at: Instant | None = None
    boot_id: str | None = None
    before: str = ""
    """How what ran under its name before this boot has ended, as its engine says; empty if it says nothing."""
    facts: Facts | None = None
    """None until it is prepared; None again after a reboot."""
    problem: str | None = None
    """Why it is unreachable or being connected for long."""
    warning: str | None = None
    """What may end tasks on this host although nothing is wrong with them."""
    retry_at: Deadline | None = None
    """When a host that could not be prepared is asked again: what it lacked (a mount, a disk) may come."""
    measured: HostMeasures = field(default_factory=HostMeasures)
    silent_at: Instant | None = None
    """When it was last heard before it became unreachable, the last time that it was."""
    back_at: Instant | None = None
    """When it was last heard again after it had been unreachable."""
    state: HostState = HostState.OPEN
    state_why: str = ""
    unkillable: tuple[Unkillable, ...] = ()
    """What the host last said of processes that cannot be killed."""
    gone: str = ""
    """When the user said that it is gone for good, for people. It owes no proof; empty once it is heard after all."""
    faults: int = 0
    """Generations in a row that this host ended, by its own fault and without progress."""
    moves_now: bool = False
    """Whether the user who drains it does not want to wait for a checkpoint."""
    leave_at: Deadline | None = None
    """When its tasks are asked to end, at the latest, since it will be taken away; None of a host that stays."""
    leave_why: str = ""
    fence: int = 0
    """The epoch that the host said it had obeyed, where that is too high to be believed of others: orders to this host
    carry so much more than the run's epoch."""
    untouched: bool = False
    """A spare that was never given a task: nothing of the run can be left there."""
    dir_silent_s: float = 0.0
    """How long the checkpoint directory has not answered there."""
    dir_missing: bool = False
    """Whether the checkpoint directory there is not the one that the run shares: it is not mounted."""
    dir_free_bytes: int | None = None
    """What is free in the checkpoint directory as that host sees it; None if it does not say so."""
    dir_low_at: Instant | None = None
    """Since when its disk has been full; None if it is not."""
    gpu_loads: tuple[GpuLoad, ...] = ()
    gpu_faults: tuple[GpuFault, ...] = ()
    noted_since_at: Instant | None = None
    noted: int = 0
    """How many notes that may repeat it has caused since then."""

    def gpu_uuid(self, number: int) -> str | None:
        """Return the UUID of its GPU of that number; None if unknown."""
        return self.facts.gpus[number] if self.facts is not None and number < len(self.facts.gpus) else None

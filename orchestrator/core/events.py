"""What can happen to a run. Each event carries `at`, an instant of the coordinator's monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.ends import Exit
from orchestrator.core.faults import Fault
from orchestrator.core.plan import TaskId
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts, GpuLoad, Leaving, Unkillable
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import Swept
from orchestrator.core.state.run import Problem
from orchestrator.core.state.task import Progress


@dataclass(frozen=True, slots=True)
class Submitted:
    """A person asked for the run."""

    at: Instant


@dataclass(frozen=True, slots=True)
class EpochBegan:
    """A coordinator took the journal; nothing is known of the hosts yet."""

    at: Instant
    epoch: int
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class HostUp:
    """The agent on the host has said hello."""

    at: Instant
    host: str
    boot_id: str
    warning: str | None = None
    """What on this host may end tasks although nothing is wrong with them."""
    slow: str | None = None
    """What took longer than it should on the way, for people."""
    before: str = ""
    """What the engine says about the end of the host's predecessor, for people; empty: nothing."""


@dataclass(frozen=True, slots=True)
class HostDown:
    """The connection could not be made, or broke; it is being tried again."""

    at: Instant
    host: str
    problem: str


@dataclass(frozen=True, slots=True)
class HostRefused:
    """The host cannot serve the run until a person acts: keys, Python, space."""

    at: Instant
    host: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class HostPrepared:
    """The host was probed and holds the code."""

    at: Instant
    host: str
    facts: Facts


@dataclass(frozen=True, slots=True)
class TaskReport:
    """All that a host knows about a task: its current state (a level), not a change (an edge)."""

    task: TaskId
    generation: int
    phase: str
    """`starting`, `ready`, `running`, `exited`; or `unknown` for a task that was started and has not reported yet."""
    pid: int | None = None
    port: int | None = None
    progress: Progress = field(default_factory=Progress)
    exit: Exit | None = None
    said: tuple[tuple[str, str], ...] = ()
    """(kind, sentence) of its runtime."""


@dataclass(frozen=True, slots=True)
class HostReported:
    """A heartbeat: all tasks of the run on that host."""

    at: Instant
    host: str
    tasks: tuple[TaskReport, ...]
    measured: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str | bool] = field(default_factory=dict)
    dir_silent_s: float = 0.0
    dir_missing: bool | None = None
    """Whether the checkpoint directory is not the one that the run shares; None: it was not looked at."""
    """How long the checkpoint directory has been asked and has not answered."""
    dir_free_bytes: int | None = None
    unkillable: tuple[Unkillable, ...] = ()
    gpu_loads: tuple[GpuLoad, ...] = ()
    gpu_faults: tuple[tuple[int, int | None], ...] = ()
    """(index, Xid) of the GPUs that have gone wrong since the agent began; no Xid: it has disappeared."""
    leaving: Leaving | None = None
    """That the host will be taken away; None of one that stays, as far as it knows."""


@dataclass(frozen=True, slots=True)
class LimitReached:
    """A host sends more than is accepted: the rest is dropped, or read more slowly."""

    at: Instant
    host: str
    message: str
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class ClockDiffers:
    """A host's clock is not the head's, as `message` says."""

    at: Instant
    host: str
    message: str
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class NoticeFailed:
    """A message of `notify:` did not reach its recipient; `problem` says why, without the recipient's address."""

    at: Instant
    recipient: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointSeeded:
    """The generation's directory holds the newest checkpoint that could be read as a whole."""

    at: Instant
    seed: Seed


@dataclass(frozen=True, slots=True)
class SeedProgressed:
    """The copy of a checkpoint between hosts that share no directory has progressed."""

    at: Instant
    generation: int
    sentence: str


@dataclass(frozen=True, slots=True)
class CheckpointVerified:
    """The newest checkpoint of the generation was read; `path` is empty if there is none yet."""

    at: Instant
    generation: int
    global_step: int | None
    path: str
    saved_time: float | None = None
    rejected: tuple[tuple[str, str], ...] = ()
    took_s: float = 0.0
    bytes: int | None = None
    verified: bool = True
    """False: nothing could read it, and it seems complete."""


@dataclass(frozen=True, slots=True)
class OrderFailed:
    """A host could not carry out an order. `order` is its verb."""

    at: Instant
    host: str
    order: str
    generation: int
    problem: Problem
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class HostSwept:
    """The host was searched for processes of the run: none is left, or those that are left are named."""

    at: Instant
    host: str
    swept: Swept
    generation: int | None = None
    """Up to which generation was looked; None in a journal that did not keep it."""


@dataclass(frozen=True, slots=True)
class StacksCollected:
    """Where in its code every task of a stalled run is; or why that is not known."""

    at: Instant
    generation: int
    stacks: tuple[tuple[TaskId, str], ...]


@dataclass(frozen=True, slots=True)
class TurnCame:
    """A run that waited in the queue begins."""

    at: Instant
    rank: int = 0
    """The priority that it has by now."""


@dataclass(frozen=True, slots=True)
class WayAsked:
    """A run of a higher priority needs what this one holds."""

    at: Instant
    by: str
    """Its id."""


@dataclass(frozen=True, slots=True)
class KillRequested:
    """The user wants the run to end."""

    at: Instant
    force: bool = False
    at_checkpoint: bool = False
    """Of a run that trains: not before the next verified checkpoint, if one comes soon."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The user wants a host free of the run's tasks: at the next verified checkpoint, or at once."""

    at: Instant
    host: str
    now: bool = False
    why: str = ""
    """Why, where it is not the user who wants it."""
    gone: str = ""
    """When the user said that the host is gone for good, for people; empty if nobody did."""


@dataclass(frozen=True, slots=True)
class UndrainRequested:
    """The user lets a host in again that was drained, quarantined or stuck."""

    at: Instant
    host: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The run goes back to an older checkpoint: all that is newer is set aside in the checkpoint directory."""

    at: Instant
    generation: int
    """Of that checkpoint."""
    global_step: int | None
    path: str
    set_aside: tuple[int, ...] = ()
    """The generations that count no more."""
    verified: bool = True
    why: str = ""
    """What GoBack was for; empty if a person has asked."""


@dataclass(frozen=True, slots=True)
class NotGoneBack:
    """GoBack found nothing to go back to, or its host did not answer."""

    at: Instant
    generation: int
    problem: str


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """`orch chaos` is about to inject a fault. The journal records this before it happens."""

    at: Instant
    fault: Fault


@dataclass(frozen=True, slots=True)
class Ticked:
    """A deadline of the state has come."""

    at: Instant


Event = (
    Submitted
    | TurnCame
    | WayAsked
    | EpochBegan
    | HostUp
    | HostDown
    | HostRefused
    | HostPrepared
    | HostReported
    | LimitReached
    | ClockDiffers
    | NoticeFailed
    | CheckpointSeeded
    | SeedProgressed
    | CheckpointVerified
    | OrderFailed
    | HostSwept
    | StacksCollected
    | KillRequested
    | DrainRequested
    | UndrainRequested
    | RolledBack
    | NotGoneBack
    | FaultInjected
    | Ticked
)

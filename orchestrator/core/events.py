"""What can happen to a run. Each event carries `at`, an instant of the coordinator's monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.ends import Exit
from orchestrator.core.faults import Fault
from orchestrator.core.measured import HostMeasures
from orchestrator.core.plan import HostPlan, TaskId
from orchestrator.core.pool import Placed
from orchestrator.core.state.checkpoint import Seed
from orchestrator.core.state.host import Facts, GpuLoad, Leaving, Unkillable
from orchestrator.core.state.instants import Instant
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import Swept
from orchestrator.core.state.run import Problem
from orchestrator.core.state.task import Progress


@dataclass(frozen=True, slots=True)
class Event:
    """What has happened, and when."""

    at: Instant


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    """A person asked for the run."""

    against: tuple[tuple[str, str], ...] = ()
    """By host where it was not placed: why not."""


@dataclass(frozen=True, slots=True)
class EpochBegan(Event):
    """A coordinator took the journal; nothing is known of the hosts yet."""

    epoch: int
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class HostUp(Event):
    """The agent on the host has said hello."""

    host: str
    boot_id: str
    warning: str | None = None
    """What on this host may end tasks although nothing is wrong with them."""
    slow: str | None = None
    """What took longer than it should on the way, for people."""
    before: str = ""
    """What the engine says about the end of the host's predecessor, for people; empty: nothing."""


@dataclass(frozen=True, slots=True)
class HostDown(Event):
    """The connection could not be made, or broke; it is being tried again."""

    host: str
    problem: str


@dataclass(frozen=True, slots=True)
class HostRefused(Event):
    """The host cannot serve the run until a person acts: keys, Python, space."""

    host: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class HostPrepared(Event):
    """The host was probed and holds the code."""

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
class HostReported(Event):
    """A heartbeat: all tasks of the run on that host."""

    host: str
    tasks: tuple[TaskReport, ...]
    measured: HostMeasures = field(default_factory=HostMeasures)
    dir_silent_s: float = 0.0
    """How long the checkpoint directory has been asked and has not answered."""
    dir_missing: bool | None = None
    """Whether the checkpoint directory is not the one that the run shares; None: it was not looked at."""
    dir_free_bytes: int | None = None
    unkillable: tuple[Unkillable, ...] = ()
    gpu_loads: tuple[GpuLoad, ...] = ()
    gpu_faults: tuple[tuple[int, int | None], ...] = ()
    """(index, Xid) of the GPUs that have gone wrong since the agent began; no Xid: it has disappeared."""
    leaving: Leaving | None = None
    """That the host will be taken away; None of one that stays, as far as it knows."""


@dataclass(frozen=True, slots=True)
class LimitReached(Event):
    """A host sends more than is accepted: the rest is dropped, or read more slowly."""

    host: str
    message: str
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class ClockDiffers(Event):
    """A host's clock is not the head's, as `message` says."""

    host: str
    message: str
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class NoticeFailed(Event):
    """A message of `notify:` did not reach its recipient; `problem` says why, without the recipient's address."""

    recipient: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointSeeded(Event):
    """The generation's directory holds the newest checkpoint that could be read as a whole."""

    seed: Seed


@dataclass(frozen=True, slots=True)
class SeedProgressed(Event):
    """The copy of a checkpoint between hosts that share no directory has progressed."""

    generation: int
    sentence: str


@dataclass(frozen=True, slots=True)
class CheckpointVerified(Event):
    """The newest checkpoint of the generation was read; `path` is empty if there is none yet."""

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
class OrderFailed(Event):
    """A host could not carry out an order. `order` is its verb."""

    host: str
    order: str
    generation: int
    problem: Problem
    task: TaskId | None = None


@dataclass(frozen=True, slots=True)
class HostSwept(Event):
    """The host was searched for processes of the run: none is left, or those that are left are named."""

    host: str
    swept: Swept
    generation: int | None = None
    """Up to which generation was looked; None in a journal that did not keep it."""


@dataclass(frozen=True, slots=True)
class StacksCollected(Event):
    """Where in its code every task of a stalled run is; or why that is not known."""

    generation: int
    stacks: tuple[tuple[TaskId, str], ...]


@dataclass(frozen=True, slots=True)
class Admitted(Event):
    """A run that waited in the queue begins."""

    rank: int = 0
    """The priority that it has by now."""
    place: Placed | None = None
    """Where it goes; None: where it was to go."""


@dataclass(frozen=True, slots=True)
class NoPlaceFound(Event):
    """A run that does not wait has lost its place, and no other is free."""

    why: str


@dataclass(frozen=True, slots=True)
class HostLent(Event):
    """A host of the pool may take the tasks of one that the run has lost."""

    lent: HostPlan
    """With the GPUs and slots that the run gets of it, as a spare."""
    slot: str
    """Whose tasks it is for."""


@dataclass(frozen=True, slots=True)
class PreemptionRequested(Event):
    """A run of a higher priority needs what this one holds."""

    by: str
    """Its id."""


@dataclass(frozen=True, slots=True)
class KillRequested(Event):
    """The user wants the run to end."""

    force: bool = False
    at_checkpoint: bool = False
    """Of a run that trains: not before the next verified checkpoint, if one comes soon."""


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    """The user wants a host free of the run's tasks: at the next verified checkpoint, or at once."""

    host: str
    now: bool = False
    why: str = ""
    """Why, where it is not the user who wants it."""
    gone: str = ""
    """When the user said that the host is gone for good, for people; empty if nobody did."""


@dataclass(frozen=True, slots=True)
class UndrainRequested(Event):
    """The user lets a host in again that was drained, quarantined or stuck."""

    host: str


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """The run goes back to an older checkpoint: all that is newer is set aside in the checkpoint directory."""

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
class NotGoneBack(Event):
    """GoBack found nothing to go back to, or its host did not answer."""

    generation: int
    problem: str


@dataclass(frozen=True, slots=True)
class FaultInjected(Event):
    """`orch chaos` is about to inject a fault. The journal records this before it happens."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Ticked(Event):
    """A deadline of the state has come."""


EVENTS: Mapping[str, type[Event]] = {
    kind.__name__: kind
    for kind in [*globals().values()]
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
} | {"TurnCame": Admitted, "WayAsked": PreemptionRequested}
"""All kinds of events, by the names that the journal has; two have other names in journals of older versions."""

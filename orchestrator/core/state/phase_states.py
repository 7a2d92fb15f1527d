"""The phases of a run, and the state that belongs to each: it is made when the phase begins, and gone when it ends.

`transitions` says which phase may follow which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Literal

from orchestrator.core.bottleneck import Watched
from orchestrator.core.plan import TaskId
from orchestrator.core.state.instants import Deadline, Instant


class Phase(StrEnum):
    """The phase of a group of tasks that share one fate.

    It is a string, so that JSON shows which phase a state belongs to.
    """

    QUEUED = "QUEUED"
    """It waits until what it needs is free. Nothing of it is anywhere yet."""
    PENDING = "PENDING"
    """Hosts are connected, checked and given the code."""
    RENDEZVOUS = "RENDEZVOUS"
    """Every task must have joined before any is released."""
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    """All tasks are ending; the intent says what comes after."""
    BACKOFF = "BACKOFF"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    KILLED = "KILLED"

    @property
    def is_terminal(self) -> bool:
        """Return whether no other phase can follow."""
        return self in _TERMINAL


_TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.KILLED})

EndPhase = Literal[Phase.SUCCEEDED, Phase.FAILED, Phase.KILLED]


class Intent(Enum):
    """What follows STOPPING."""

    RESTART = "restart"
    SUCCEED = "succeed"
    FAIL = "fail"
    KILL = "kill"
    REQUEUE = "requeue"
    """Nothing failed: it makes way for another run, and goes on later."""
    RESCHEDULE = "reschedule"
    """Nothing failed: the gang goes on in other places, or grows back. Asked gently; no budget is charged."""


@dataclass(frozen=True, slots=True)
class Swept:
    """The proof of a host: the processes of the run that are left there."""

    left: tuple[str, ...] = ()
    ports_busy: tuple[int, ...] = ()
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The run waits for its turn."""

    phase: Literal[Phase.QUEUED] = Phase.QUEUED
    priority: int = 0
    since_at: Instant
    give_up_at: Deadline | None = None
    """When it has waited for too long; None: never."""
    others: str = ""
    """The resources it needs that others held when a host was last asked; empty if none."""
    why: str = ""
    """Why it has returned to the queue otherwise: it has made way, or a host that it needs was not ready."""
    in_vain_at: Instant | None = None
    """When its turn has last come in vain."""
    retry_at: Deadline | None = None
    """When that is asked again; None: when its turn comes."""
    proof: Mapping[str, Swept] | None = None
    """Of a run that has trained before: by host, that nothing of it is left there."""
    is_patient: bool = True
    """Whether it waits. Else it ends where no other place is free at once: its problem says why it lost the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The hosts are prepared for the first generation."""

    phase: Literal[Phase.PENDING] = Phase.PENDING
    deadline_at: Deadline | None = None
    """By when the hosts must be ready; None until the run is submitted."""
    waited: Queued | None = None
    """How it waited in the queue, to which it returns where somebody else holds its GPUs; None: it never did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """A generation is being started."""

    phase: Literal[Phase.RENDEZVOUS] = Phase.RENDEZVOUS
    deadline_at: Deadline
    """By when all must have joined."""
    seeding: str = ""
    """How far the checkpoint is on its way between hosts that share no directory."""
    seeding_at: Instant | None = None
    """When it last got further."""
    joined_at: Instant | None = None
    """Since when all tasks wait at their gates for the checkpoint."""


@dataclass(frozen=True, slots=True)
class GoingBack:
    """The run goes back to the newest checkpoint from before that step, and why."""

    before_step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """All tasks were released."""

    phase: Literal[Phase.RUNNING] = Phase.RUNNING
    progress_at: Instant
    """When the gang last made a step, also one that was made before; at first, when it was released."""
    verify_at: Deadline | None = None
    """When the newest checkpoint is next looked at; None while it is, and where there are none."""
    answered_at: Instant | None = None
    """When the checkpoint directory last answered again after it had hung."""
    position: int | None = None
    """The chief's global_step in this generation, for the judgement of stalls."""
    position_at: Instant | None = None
    """Since when it stands there."""
    evidence_at: Deadline | None = None
    """The instant until which a stalled run waits for its tasks' stacks."""
    nonfinite_said: bool = False
    """Whether it has been said that a metric is NaN or infinite."""
    going_back: GoingBack | None = None
    """GoBack was ordered and is not known to be done."""
    watched: Watched = field(default_factory=Watched)
    """What limits its pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A generation is being ended; of a run that ends for ever, its hosts are looked at too."""

    phase: Literal[Phase.STOPPING] = Phase.STOPPING
    intent: Intent
    deadline_at: Deadline
    """When a task that has not ended counts as lost, or as one that cannot be killed."""
    force_at: Deadline | None = None
    """When tasks that may end by themselves are killed, and servers whose chief may save; None if none may live on."""
    chief_is_done: bool = False
    """Whether it began with the chief's exit 0, so that the others had time to end by themselves."""
    survivors: tuple[TaskId, ...] = ()
    """Those that are asked at which step they are, where there are several."""
    compare_ends_at: Deadline | None = None
    """When one of those that have answered is chosen; None once that is done."""
    rescuer: TaskId | None = None
    """The task that was asked to hand over its state before it ends."""
    rescue_ends_at: Deadline | None = None
    """When all of them are killed; None if nobody was asked, or that has come."""
    proof: Mapping[str, Swept] | None = None
    """By host. None until the hosts are asked to look that nothing is left."""
    final_verification_asked_at: Instant | None = None
    """Besides the proof: since when the final verification of the newest checkpoint has been unanswered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The wait between two generations."""

    phase: Literal[Phase.BACKOFF] = Phase.BACKOFF
    start_at: Deadline | None
    """When the next one starts; None once that has come, and hosts are waited for."""
    full_host: str = ""
    """Where the checkpoint directory has no room, which is waited for; empty if nobody waits for that."""
    needed_bytes: int | None = None
    """What must be free there; None if unknown: then it is tried again at `start_at`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The run has ended, for ever."""

    phase: EndPhase
    proof: Mapping[str, Swept] | None = None
    """By host that was reached; None of a run of which no process was ever started."""


PhaseState = Queued | Pending | Rendezvous | Running | Stopping | Backoff | Ended

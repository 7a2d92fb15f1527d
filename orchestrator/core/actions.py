"""What to do. Each ends as an event; each may be repeated without harm, since a generation is started once.

An order to a host that is not connected is dropped: when the host is up again, `group.step` asks anew for all
that is outstanding there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId


@dataclass(frozen=True, slots=True)
class PrepareHost:
    """Probe the host, push the code. Ends as HostPrepared or HostRefused."""

    host: str


@dataclass(frozen=True, slots=True)
class SeedCheckpoint:
    """Copy the newest checkpoint that reads whole into the generation's directory. Ends as CheckpointSeeded."""

    host: str
    generation: int


@dataclass(frozen=True, slots=True)
class VerifyCheckpoint:
    """Read the newest checkpoint of the generation. Ends as CheckpointVerified."""

    host: str
    generation: int


@dataclass(frozen=True, slots=True)
class GoBack:
    """Go back to the newest checkpoint from before that step which reads whole. Ends as RolledBack or NotGoneBack."""

    host: str
    generation: int
    before_step: int
    why: str


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start the process, up to its wait for the release. Ends as a report, or OrderFailed."""

    host: str
    task: TaskId
    generation: int
    port: int | None = None
    """Of a task that is restarted alone: its peers know it by this port."""
    standby: bool = False
    """Whether it is started in advance, while another generation trains."""


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """Let it go, with the addresses of all."""

    host: str
    task: TaskId
    generation: int
    addresses: Mapping[TaskId, str]
    """`host:port` of each task, for TF_CONFIG."""
    port: int | None = None
    """Of a task that is restarted alone: as in StartTask. One that was started in advance has waited with another."""


@dataclass(frozen=True, slots=True)
class StopTask:
    """Ask, wait `grace_s` seconds, kill. 0 kills at once. Ends as a report."""

    host: str
    task: TaskId
    generation: int
    grace_s: float
    rescue: bool = False
    """Whether it hands over its state meanwhile."""


@dataclass(frozen=True, slots=True)
class CollectStacks:
    """Ask every task where it is. Ends as StacksCollected."""

    generation: int


@dataclass(frozen=True, slots=True)
class SweepHost:
    """Look that nothing of the run is left, and kill what is. Ends as HostSwept."""

    host: str
    generation: int


@dataclass(frozen=True, slots=True)
class CloseHost:
    """The run needs the host no more."""

    host: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something for `orch events`: what happened, in one sentence."""

    kind: NoteKind
    message: str
    task: TaskId | None = None
    data: Mapping[str, object] = field(default_factory=dict)


Action = (
    PrepareHost
    | SeedCheckpoint
    | VerifyCheckpoint
    | GoBack
    | StartTask
    | ReleaseTask
    | StopTask
    | SweepHost
    | CollectStacks
    | CloseHost
    | Note
)

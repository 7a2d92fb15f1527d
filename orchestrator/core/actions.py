"""What `step` orders. Each action leads to an event. Repeating one does no harm: a generation is started only once.

An order to a host that is not connected is dropped. When the host is up again, `concerns.outstanding` repeats every
order that it has not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from orchestrator.core.notes import NoteKind
from orchestrator.core.plan import TaskId


@dataclass(frozen=True, slots=True)
class PrepareHost:
    """Probe the host, push the code. Ends as HostPrepared or HostRefused."""

    host: str


@dataclass(frozen=True, slots=True)
class SeedCheckpoint:
    """Copy the newest whole checkpoint into the generation's directory. Ends as CheckpointSeeded."""

    order: ClassVar[str] = "seed"
    host: str
    generation: int


@dataclass(frozen=True, slots=True)
class VerifyCheckpoint:
    """Read the newest checkpoint of the generation. Ends as CheckpointVerified."""

    order: ClassVar[str] = "verify"
    host: str
    generation: int


@dataclass(frozen=True, slots=True)
class GoBack:
    """Go back to the newest whole checkpoint from before that step. Ends as RolledBack or NotGoneBack."""

    host: str
    generation: int
    before_step: int
    why: str


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start the process up to its gate, where it waits to be released. Ends as a report, or OrderFailed."""

    order: ClassVar[str] = "start"
    host: str
    task: TaskId
    generation: int
    port: int | None = None
    """Of a task that is restarted alone: its peers know it by this port."""
    standby: bool = False
    """Whether it is started in advance, while another generation trains."""


@dataclass(frozen=True, slots=True)
class ReleaseTask:
    """Open the task's gate, and give it the addresses of all tasks."""

    order: ClassVar[str] = "release"
    host: str
    task: TaskId
    generation: int
    addresses: Mapping[TaskId, str]
    """`host:port` of each task, for TF_CONFIG."""
    port: int | None = None
    """Of a task that is restarted alone: as in StartTask. One that was started in advance has waited with another."""


@dataclass(frozen=True, slots=True)
class StopTask:
    """Ask the task to end, wait `grace_s` seconds, then kill it. 0 kills at once. Ends as a report."""

    order: ClassVar[str] = "stop"
    host: str
    task: TaskId
    generation: int
    grace_s: float
    rescue: bool = False
    """Whether it hands over its state meanwhile."""
    compare: bool = False
    """Whether it first says what it holds, and waits to be chosen."""


@dataclass(frozen=True, slots=True)
class CollectStacks:
    """Ask every task where it is. Ends as StacksCollected."""

    generation: int


@dataclass(frozen=True, slots=True)
class SweepHost:
    """Search the host for processes of the run, and kill those that are left. Ends as HostSwept."""

    order: ClassVar[str] = "sweep"
    host: str
    generation: int


@dataclass(frozen=True, slots=True)
class CloseHost:
    """The run needs the host no more."""

    host: str


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for `orch events`: what happened, in one sentence."""

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

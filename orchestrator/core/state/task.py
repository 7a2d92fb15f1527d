"""A task of a run in one generation, and the tasks of the standby. Immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from orchestrator.core.ends import Exit, FirstCause, Injected
from orchestrator.core.measured import TaskMeasures
from orchestrator.core.plan import TaskId
from orchestrator.core.saving import Holds, Loaded, Rescued, Restored, Saving
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.instants import Deadline, Instant
from orchestrator.core.state.roster import Roster


class TaskPhase(Enum):
    """The phase of one task in one generation."""

    WAITING = "WAITING"
    """Not ordered yet."""
    STARTING = "STARTING"
    """Ordered; its process imports, or the order is on its way."""
    READY = "READY"
    """Has joined; waits for its release."""
    RELEASED = "RELEASED"
    """The release is on its way."""
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    LOST = "LOST"
    """Known or judged dead, without an exit record."""

    @property
    def is_gone(self) -> bool:
        """Return whether no process of the task is left, as far as anybody can know."""
        return self in _GONE

    @property
    def may_live(self) -> bool:
        """Return whether the task has, or may have, a process."""
        return self not in _WITHOUT_PROCESS


_GONE = (TaskPhase.EXITED, TaskPhase.LOST)


_WITHOUT_PROCESS = (TaskPhase.WAITING, *_GONE)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the last heartbeat said about a task.

    A field means what its name means in `protocol/reports.py:Task`, and has its default while nobody has said it. Ages
    are those of the moment when the shim spoke.
    """

    global_step: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    measured: TaskMeasures = field(default_factory=TaskMeasures)
    heartbeat_age_s: float = 0.0
    step_age_s: float = 0.0
    runtime_age_s: float | None = None
    stage: str | None = None
    stage_age_s: float = 0.0
    passing: tuple[int, int] | None = None
    """How many batches it has passed over, and of how many, before it trains on from within its data."""
    unreached: tuple[tuple[TaskId, str], ...] = ()
    """The peers that it does not reach before its first step, and what was found (`protocol/reports.py:Finding`)."""
    steps_total: int | None = None
    epochs: int | None = None
    began_step: int | None = None
    began_stride: int = 0
    began_age_s: float | None = None
    nonfinite: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    metric_steps: Mapping[str, int] = field(default_factory=dict)
    saving: Saving | None = None
    rescues: bool = False
    holds: Holds | None = None
    rescued: Rescued | None = None
    restored: Restored | None = None
    loaded: Loaded | None = None

    @property
    def rehearsed(self) -> str:
        """Return what it could hand over, as it has tried: how much and in what time, or `no` and why; empty before."""
        return self.measured.get("rescue") or ""

    @property
    def has_stepped(self) -> bool:
        """Return whether a step was made in this generation. Keras also reports the step at which training begins."""
        if self.global_step is None:
            return False
        return self.began_step is None or self.began_stride > 0 or self.global_step > self.began_step


@dataclass(frozen=True, slots=True)
class Task:
    """One task of the current generation."""

    id: TaskId
    host: str
    generation: int = 0
    phase: TaskPhase = TaskPhase.WAITING
    pid: int | None = None
    port: int | None = None
    progress: Progress = Progress()
    first_step: int | None = None
    """The first global_step that this generation reported."""
    heard_at: Instant | None = None
    exit: Exit | None = None
    said: tuple[str, ...] = ()
    """Sentences of its runtime that were already noted."""
    is_muted: bool = False
    """It has said more than is kept of a task in one generation."""
    start_at: Deadline | None = None
    """In WAITING, of a task that is restarted alone: when."""
    budget: Budget = field(default_factory=Budget)
    """Of a task that is restarted alone."""
    deadline_at: Deadline | None = None
    """Of a task that is restarted alone: by when it must have joined, or, once it is being ended, be gone."""
    injected: Injected | None = None
    """The last fault that `orch chaos` injected into it, in this generation."""
    ending: FirstCause | None = None
    """Why it is being ended while the others go on; None while it may live."""


@dataclass(frozen=True, slots=True)
class Standby:
    """The tasks of the next generation, which are started up to their gates while the present one trains.

    A task that a spare could take over is here once for its own host, and once for each spare that holds it too.
    """

    generation: int = 0
    tasks: tuple[Task, ...] = ()
    """Empty if none were started, or all are gone."""
    since_at: Instant = 0.0
    """When they were ordered."""
    start_at: Deadline | None = None
    """When the next ones are started, in place of these if there are any; None: not in this generation, as known."""
    join_at: Deadline | None = None
    """By when all must be at their gates; None once they are."""
    ended: str = ""
    """Why they are being ended; empty while they may be released."""
    failures: int = 0
    """How many times in this generation they died, or could not be started."""
    lost_on: tuple[str, ...] = ()
    """Spares that lost theirs in this generation, each as often as it did."""

    def __post_init__(self) -> None:
        if not isinstance(self.tasks, Roster):
            object.__setattr__(
                self, "tasks", Roster(self.tasks, lambda task: (task.id, task.host), lambda task: task.host)
            )

    @property
    def is_ready(self) -> bool:
        """Whether all of them wait at their gates."""
        return bool(self.tasks) and not self.ended and self.join_at is None

    @property
    def is_living(self) -> bool:
        """Whether it has, or may have, processes."""
        return any(task.phase.may_live for task in self.tasks)

    def holds(self, id: TaskId, generation: int, host: str) -> bool:
        """Return whether a task of that generation on a host is one of its own that may be released."""
        task = self.find(id, host)
        is_it = task is not None and task.generation == generation and task.phase.may_live
        return is_it and not self.ended

    def tasks_on(self, host: str) -> list[Task]:
        """Return those on a host."""
        return cast("Roster[tuple[TaskId, str], Task]", self.tasks).at_place(host)

    def find(self, id: TaskId, host: str) -> Task | None:
        """Return the task of that id on that host; None if there is none."""
        return cast("Roster[tuple[TaskId, str], Task]", self.tasks).find((id, host))

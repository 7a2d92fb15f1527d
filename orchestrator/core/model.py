"""The state: what we believe of a run. Immutable values; changed only by `decide.step`.

Fields ending in `_at` are instants (see `instants`). `ended_time` and its kin are Unix time, for people only.
What belongs to one phase alone is in `phase_states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, cast

from orchestrator.core.causes import Cause as Cause
from orchestrator.core.downtime import Cost as Cost
from orchestrator.core.downtime import Downtime as Downtime
from orchestrator.core.ends import Exit as Exit
from orchestrator.core.ends import FirstCause as FirstCause
from orchestrator.core.ends import Follower as Follower
from orchestrator.core.ends import Injected as Injected
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.instants import Deadline, Instant
from orchestrator.core.owner import Owner as Owner
from orchestrator.core.phase_states import Backoff as Backoff
from orchestrator.core.phase_states import Ended as Ended
from orchestrator.core.phase_states import Intent as Intent
from orchestrator.core.phase_states import Pending as Pending
from orchestrator.core.phase_states import Phase as Phase
from orchestrator.core.phase_states import PhaseState as PhaseState
from orchestrator.core.phase_states import Rendezvous as Rendezvous
from orchestrator.core.phase_states import Running as Running
from orchestrator.core.phase_states import Stopping as Stopping
from orchestrator.core.phase_states import Swept as Swept
from orchestrator.core.placement import assigned
from orchestrator.core.plan import HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.replacing import replace
from orchestrator.core.roster import Roster
from orchestrator.core.saving import Saving as Saving

_PhaseState = TypeVar("_PhaseState", bound=PhaseState)


class TaskPhase(Enum):
    """Of one task in one generation."""

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
        """No process of it is left, as far as anybody can know."""
        return self in _GONE

    @property
    def may_live(self) -> bool:
        """There is, or may be, a process."""
        return self not in _WITHOUT_PROCESS


_GONE = (TaskPhase.EXITED, TaskPhase.LOST)
_WITHOUT_PROCESS = (TaskPhase.WAITING, *_GONE)


class Link(Enum):
    """The SSH connection to a host. Says nothing of its tasks."""

    CONNECTING = "CONNECTING"
    CONNECTED = "CONNECTED"
    UNREACHABLE = "UNREACHABLE"


class HostState(Enum):
    """Whether a host may be given tasks. Says nothing of its link."""

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
class Progress:
    """What the last heartbeat said of a task."""

    global_step: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps_per_s: float | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    log_bytes: int = 0
    log_dropped_bytes: int = 0
    heartbeat_age_s: float = 0.0
    step_age_s: float = 0.0
    """Since it moved to its step, when the shim spoke."""
    runtime_age_s: float | None = None
    """Since the last word of the runtime in the task's own process; None where it gives no sign of life."""
    steps_total: int | None = None
    """The global step at which the training ends, where the script says so."""
    epochs: int | None = None
    began_step: int | None = None
    """Where the script's training began in this generation; None until that can be told."""
    began_stride: int = 0
    """How inexact that is: so many steps lie between two reports of the script; 0 where it is exact."""
    input_share: float | None = None
    """The share of the time that it waits for its next batch; None where that is not measured."""
    peers_share: float | None = None
    """The same of collectives, in which it waits for the other workers."""
    began_age_s: float | None = None
    """Since it began, when the shim spoke; None where that is not known exactly."""
    nonfinite: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """Of each metric that was not finite in this generation: the first such step, and `nan`, `inf` or `-inf`."""
    saving: Saving | None = None
    """How often it saves, where its runtime decides that."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the run came back, and how often without progress."""

    restarts: int = 0
    without_progress: int = 0
    """Restarts in a row, for the script's own fault, with no newer verified checkpoint."""
    in_a_row: int = 0
    """Restarts in a row without a newer verified checkpoint, whoever is to blame: sets the wait."""
    step: int | None = None
    """The verified step at the last restart; a newer one clears the counts."""
    failure: str | None = None
    """How and at which step the last generation failed, where that would happen again (`cause.failure`)."""


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
    budget: Budget = Budget()
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
    """Empty where none were started, or all are gone."""
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

    def tasks_on(self, host: str) -> list[Task]:
        """Return those on a host."""
        return cast("Roster[tuple[TaskId, str], Task]", self.tasks).at_place(host)

    def find(self, id: TaskId, host: str) -> Task | None:
        """Return the task of that id on that host; None where there is none."""
        return cast("Roster[tuple[TaskId, str], Task]", self.tasks).find((id, host))


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
    """Of the generations' directories in the checkpoint directory, as this host sees it."""
    checkpoint_share: str = ""
    """What the run found written in the checkpoint directory: the same on all hosts, or they do not share it."""
    unkillable: tuple[Unkillable, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a person must know: one sentence, and the way out."""

    code: str
    message: str
    hint: str | None = None
    exit_code: int = 1
    key: str | None = None
    """What in the cluster spec says so, such as `run.strategy`."""
    table: tuple[tuple[str, ...], ...] = ()
    """What the sentence sums up; the first row names the columns. Whoever shows it aligns it."""


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What a GPU did when its host was last heard; None for what it does not tell."""

    index: int
    name: str = ""
    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class GpuFault:
    """What has gone wrong with a GPU, and in which generation that was first told."""

    index: int
    xid: int | None
    """None: it has disappeared."""
    generation: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """What a host was told by whoever lends it: that it will be taken away."""

    why: str
    in_s: float
    """When, counted from the report; 0 where that is not known."""


@dataclass(frozen=True, slots=True)
class Host:
    """What we believe of a host of this run."""

    name: str
    link: Link = Link.CONNECTING
    since_at: Instant = 0.0
    heard_at: Instant | None = None
    boot_id: str | None = None
    facts: Facts | None = None
    """None until it is prepared; None again after a reboot."""
    problem: str | None = None
    """Why it is unreachable or being connected for long."""
    warning: str | None = None
    """What on it may end tasks although nothing is wrong with them."""
    retry_at: Deadline | None = None
    """When a host that could not be prepared is asked again: what it lacked (a mount, a disk) may come."""
    cpu_percent: float | None = None
    memory_percent: float | None = None
    memory_available_bytes: int | None = None
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
    leave_at: Deadline | None = None
    """When its tasks are asked to end, at the latest, since it will be taken away; None of a host that stays."""
    leave_why: str = ""
    untouched: bool = False
    """A spare that was never given a task: nothing of the run can be left there."""
    dir_silent_s: float = 0.0
    """How long the checkpoint directory has not answered there."""
    dir_free_bytes: int | None = None
    """What is free in the checkpoint directory as that host sees it; None where it does not say so."""
    dir_low_at: Instant | None = None
    """Since when its disk has been full; None where it is not."""
    gpu_loads: tuple[GpuLoad, ...] = ()
    gpu_faults: tuple[GpuFault, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest checkpoint: one that was read whole, or that nothing can read and that seems complete."""

    global_step: int | None
    path: str
    generation: int
    verified_at: Instant
    saved_time: float | None = None
    bytes: int | None = None
    """Its size, or that of the one before it; None where no look has told one."""
    verified: bool = True
    """False: its format is not known. It is resumed from, but it is no progress that the budget counts."""
    removed: bool = False
    """The last look did not find it any more: scripts remove their backup when they have ended well."""

    def is_same(self, path: str, global_step: int | None, saved_time: float | None) -> bool:
        """Whether that is no newer one. Where no step is told, one that is written again has another time only.

        >>> known = Checkpoint(None, "gen-000001/state.npz", 1, verified_at=0.0, saved_time=5.0)
        >>> [known.is_same("gen-000001/state.npz", None, time) for time in (5.0, 6.0)]
        [True, False]
        """
        known = (self.path, self.global_step) == (path, global_step)
        return known and (global_step is not None or self.saved_time == saved_time)


@dataclass(frozen=True, slots=True)
class Seed:
    """What a generation starts from."""

    generation: int
    global_step: int | None = None
    """None: from the start, there never was a checkpoint; or its step cannot be told."""
    source: str | None = None
    path: str = ""
    rejected: tuple[tuple[str, str], ...] = ()
    """(path, why) of what did not read whole."""
    copy: str = ""
    """Where hosts share no directory: the same checkpoint, on every host; empty where there is none."""
    verified: bool = True
    """False: nothing could read it, and it seems complete."""
    from_scratch: bool = False
    """A person wanted step 0 (`--from-scratch`)."""


@dataclass(frozen=True, slots=True)
class Run:
    """One submission, until a terminal phase."""

    run_id: str
    plan: Plan
    epoch: int
    tasks: tuple[Task, ...]
    hosts: tuple[Host, ...]
    phase_state: PhaseState = field(default_factory=Pending)
    """The phase, with what belongs to it alone."""
    since_at: Instant = 0.0
    """When the phase was entered."""
    generation: int = 0
    """Of the gang. A task that was restarted alone has a higher one."""
    generation_last: int = 0
    """The highest that was given out: to the gang, or to a task restarted alone."""
    replacements: Mapping[str, str | None] = field(default_factory=dict)
    """By host of the plan: who has its tasks in this generation; None: nobody, they are left out. Else it itself."""
    reason: str = ""
    reason_rest: str | None = None
    """What `reason` says after the sentence of the first cause; None where it does not begin with that."""
    seed: Seed | None = None
    checkpoint: Checkpoint | None = None
    budget: Budget = Budget()
    first_cause: FirstCause | None = None
    standby: Standby = Standby()
    downtime: Downtime | None = None
    """Since training ended, until its first new step; None while it trains."""
    cost: Cost | None = None
    """What the last failure has cost, once it trains again."""
    trained_s: float = 0.0
    """How long the generations before this one were RUNNING."""
    failures: int = 0
    """How many of them ended by a failure."""
    problem: Problem | None = None
    best_step: int | None = None
    """The highest global_step that any generation reported."""
    reached_step: int | None = None
    """The highest since a generation last started from a checkpoint: what the next restart goes back from."""
    longest_pause_s: float | None = None
    """Between two moves of the chief's position, in this run."""
    from_scratch: bool = False
    """Asked for and not done yet: older checkpoints are to be left behind."""
    code: str = ""
    """The digest of the tree that this run runs, from its first generation on, whatever the workdir becomes."""
    warnings: tuple[str, ...] = ()
    said_chars: int = 0
    """How much its tasks have said, in all generations."""
    owner: Owner | None = None
    """The head node that drives it; None of a run that an older orch began, until the next epoch."""

    def __post_init__(self) -> None:
        if not isinstance(self.tasks, Roster):
            object.__setattr__(
                self, "tasks", Roster(self.tasks, lambda task: task.id, lambda task: task.host)
            )
        if not isinstance(self.hosts, Roster):
            object.__setattr__(self, "hosts", Roster(self.hosts, lambda host: host.name))

    @property
    def phase(self) -> Phase:
        """Which it is."""
        return self.phase_state.phase

    @property
    def intent(self) -> Intent | None:
        """What STOPPING leads to; None in other phases."""
        return self.phase_state.intent if isinstance(self.phase_state, Stopping) else None

    @property
    def proof(self) -> Mapping[str, Swept] | None:
        """By host that was looked at, what is left of the run there; None until they are asked to look."""
        return self.phase_state.proof if isinstance(self.phase_state, Stopping | Ended) else None

    def within(self, phase: type[_PhaseState]) -> _PhaseState:
        """Return what belongs to the phase that the run is in. Raises InvariantViolated where it is in another."""
        if not isinstance(self.phase_state, phase):
            raise InvariantViolated(
                f"{self.run_id} is {self.phase.value}, where {phase.__name__} was expected"
            )
        return self.phase_state

    @property
    def placed(self) -> Plan:
        """The plan with this generation's tasks: where they are now, and without those that are left out."""
        return (
            replace(self.plan, tasks=assigned(self.plan, self.replacements))
            if self.replacements
            else self.plan
        )

    def placed_with(self, task: TaskId, host: str) -> Plan:
        """Return the plan as it is placed while `host` has that task, and with it all of its slot."""
        now = self.task(task).host
        if now == host:
            return self.placed
        slot = next(slot for slot in self.plan.hosts_used if self.replacements.get(slot, slot) == now)
        return replace(self.plan, tasks=assigned(self.plan, {**self.replacements, slot: host}))

    @property
    def assignees(self) -> tuple[Host, ...]:
        """The hosts that hold the tasks of this generation."""
        holding = {task.host for task in self.tasks}
        return tuple(host for host in self.hosts if host.name in holding)

    @property
    def chief(self) -> TaskId:
        """The task whose exit code and checkpoints stand for the run."""
        return cast("Roster[TaskId, Task]", self.tasks).first

    def task(self, id: TaskId) -> Task:
        """KeyError where there is none."""
        return cast("Roster[TaskId, Task]", self.tasks).named(id)

    def find_task(self, id: TaskId) -> Task | None:
        """Return the task of that id; None where a smaller gang goes on without it."""
        return cast("Roster[TaskId, Task]", self.tasks).find(id)

    def tasks_on(self, host: str) -> list[Task]:
        """Return the tasks that are on that host in this generation."""
        return cast("Roster[TaskId, Task]", self.tasks).at_place(host)

    def is_placed_as(self, other: Run) -> bool:
        """Return whether both have the same tasks in the same places, as far as that is known at once."""
        return cast("Roster[TaskId, Task]", self.tasks).stands_as(cast("Roster[TaskId, Task]", other.tasks))

    def host(self, name: str) -> Host:
        """KeyError where there is none."""
        return cast("Roster[str, Host]", self.hosts).named(name)

    def with_task(self, changed: Task) -> Run:
        """Return the run with the task of that id replaced."""
        return replace(self, tasks=cast("Roster[TaskId, Task]", self.tasks).with_(changed))

    def with_host(self, changed: Host) -> Run:
        """Return the run with the host of that name replaced."""
        return replace(self, hosts=cast("Roster[str, Host]", self.hosts).with_(changed))

    @property
    def global_step(self) -> int | None:
        """The chief's."""
        return self.task(self.chief).progress.global_step

    @property
    def verified_step(self) -> int | None:
        """Of the newest checkpoint, where it was read whole."""
        return (
            self.checkpoint.global_step if self.checkpoint is not None and self.checkpoint.verified else None
        )


def new_run(
    run_id: str,
    plan: Plan,
    *,
    epoch: int,
    at: float,
    from_scratch: bool = False,
    owner: Owner | None = None,
) -> Run:
    """Return the state of a run that has just been submitted."""

    def task(planned: TaskPlan) -> Task:
        return Task(id=planned.id, host=planned.host)

    def host(planned: HostPlan) -> Host:
        return Host(name=planned.name, since_at=at, untouched=planned.name not in plan.hosts_used)

    return Run(
        run_id=run_id,
        plan=plan,
        epoch=epoch,
        tasks=tuple(task(t) for t in sorted(plan.tasks, key=lambda t: t.id)),
        hosts=tuple(host(h) for h in plan.hosts if h.spare or h.name in plan.hosts_used),
        since_at=at,
        reason="connecting to the hosts",
        from_scratch=from_scratch,
        owner=owner,
    )

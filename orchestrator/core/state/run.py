"""The state of a run: what the coordinator believes about it. Immutable; only `decide.step` makes a new one.

Fields ending in `_at` are instants (see `instants`). `ended_time` and its kin are Unix time, for people only.
What belongs to one phase alone is in `phase_states`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from orchestrator.core.downtime import Cost, Downtime
from orchestrator.core.ends import FirstCause
from orchestrator.core.errors import InvariantViolated
from orchestrator.core.launching.placement import assigned
from orchestrator.core.plan import PRIORITIES, Gpu, HostPlan, Plan, TaskId, TaskPlan
from orchestrator.core.replacing import replace
from orchestrator.core.saving import Restored
from orchestrator.core.state.budget import Budget
from orchestrator.core.state.checkpoint import Checkpoint, GoneBack, Seed
from orchestrator.core.state.host import Host
from orchestrator.core.state.instants import Deadline, Instant, rebased
from orchestrator.core.state.owner import Owner
from orchestrator.core.state.phase_states import (
    Ended,
    Intent,
    Pending,
    Phase,
    PhaseState,
    Queued,
    Stopping,
    Swept,
)
from orchestrator.core.state.roster import Roster
from orchestrator.core.state.task import Standby, Task

_PhaseState = TypeVar("_PhaseState", bound=PhaseState)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person must know: one sentence, and a hint with the way out."""

    code: str
    message: str
    hint: str | None = None
    exit_code: int = 1
    key: str | None = None
    """What in the cluster spec says so, such as `run.strategy`."""
    held: tuple[tuple[Gpu, str], ...] = ()
    """The GPUs and slots of a host that others hold, each with who that is."""
    table: tuple[tuple[str, ...], ...] = ()
    """What the sentence sums up; the first row names the columns. Whoever shows it aligns it."""


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    """When a run is to end: at its next checkpoint, if one comes in time."""

    why: str
    at: Deadline
    """When it ends without one."""
    wanted_at: Deadline | None
    """From when on a checkpoint ends it; None once that has come."""
    goes_on: bool = False
    """Whether it returns to the queue then."""
    is_asked: bool = True
    """Whether somebody wants it to end as soon as nothing is lost; else it may train for as long as it has time."""


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
    """The gang's generation. A task that was restarted alone has a higher one."""
    generation_last: int = 0
    """The highest that was given out: to the gang, or to a task restarted alone."""
    replacements: Mapping[str, str | None] = field(default_factory=dict)
    """Hosts of the plan whose tasks another host holds in this generation, and which; None: they are left out."""
    reason: str = ""
    reason_rest: str | None = None
    """What `reason` says after the sentence of the first cause; None if it does not begin with that."""
    seed: Seed | None = None
    checkpoint: Checkpoint | None = None
    budget: Budget = field(default_factory=Budget)
    first_cause: FirstCause | None = None
    standby: Standby = field(default_factory=Standby)
    downtime: Downtime | None = None
    """Since training ended, until its first new step; None while it trains."""
    cost: Cost | None = None
    """What the last failure has cost, once it trains again."""
    trained_s: float = 0.0
    """How long the generations before this one were RUNNING."""
    failures: int = 0
    """How many of them ended by a failure."""
    rescued: int = 0
    """After how many of these a survivor handed over its state."""
    problem: Problem | None = None
    share: str = ""
    """The token that the first generation's hosts found in the checkpoint directory; empty if there is none."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Some of what was not pushed of the working directory, each with why."""
    best_step: int | None = None
    """The highest global_step that any generation reported."""
    reached_step: int | None = None
    """The highest since a generation last started from a checkpoint: what the next restart goes back from."""
    longest_pause_s: float | None = None
    """The longest time between two moves of the chief's position, in this run."""
    unrestorable: tuple[Restored, ...] = ()
    """The checkpoints that tasks of this run could not restore."""
    step_max: int | None = None
    """The highest step whose state could be used when this generation began; None if unknown."""
    gone_back: GoneBack | None = None
    """Of `on_nonfinite: rollback`."""
    from_scratch: bool = False
    """A start from scratch was asked for and is not done yet: older checkpoints are to be left behind."""
    code: str = ""
    """The digest of the tree that this run runs, from its first generation on, whatever the workdir becomes."""
    rank: int | None = None
    """The priority with which its turn in the queue came; None of a run that did not wait there."""
    connected_again_at: Instant | None = None
    """When it was last found, while it trained, that the coordinator is cut off no longer: enough hosts are heard."""
    planned_end: PlannedEnd | None = None
    """None of a run that may train for as long as it wants."""
    warnings: tuple[str, ...] = ()
    no_rescue: str = ""
    """Why a survivor could hand over nothing, or what it would take, as the chief has said."""
    said_chars: int = 0
    """How much its tasks have said, in all generations."""
    owner: Owner | None = None
    """The head node that drives it; None of a run that an older orch began, until the next epoch."""
    asked: Plan | None = None
    """The plan as it was submitted, where other places than its own were free; None: that is `plan`."""
    against: tuple[tuple[str, str], ...] = ()
    """By host that holds none of its tasks: why not, when its place was chosen."""
    refusals: int = 0
    """How many hosts have turned it away before it began, for which another place was looked for."""

    def __post_init__(self) -> None:
        if not isinstance(self.tasks, Roster):
            object.__setattr__(
                self, "tasks", Roster(self.tasks, lambda task: task.id, lambda task: task.host)
            )
        if not isinstance(self.hosts, Roster):
            object.__setattr__(self, "hosts", Roster(self.hosts, lambda host: host.name))

    @property
    def phase(self) -> Phase:
        """Return the phase that the run is in."""
        return self.phase_state.phase

    @property
    def intent(self) -> Intent | None:
        """Return what follows STOPPING; None in other phases."""
        return self.phase_state.intent if isinstance(self.phase_state, Stopping) else None

    @property
    def proof(self) -> Mapping[str, Swept] | None:
        """Return the proof of each host that gave one; None before the hosts are asked for it."""
        state = self.phase_state.waited if isinstance(self.phase_state, Pending) else self.phase_state
        return state.proof if isinstance(state, Stopping | Ended | Queued) else None

    @property
    def has_begun(self) -> bool:
        """Return whether the first generation has begun. From then on, a host that refuses does not end the run."""
        return self.phase is not Phase.PENDING or self.generation > 0

    @property
    def has_no_process(self) -> bool:
        """Return whether the run waits or is being prepared, and so has no process anywhere."""
        return self.phase in (Phase.QUEUED, Phase.PENDING)

    @property
    def is_unplaced(self) -> bool:
        """Return whether it waits for its first turn, and its place is chosen only then."""
        return self.phase is Phase.QUEUED and not self.generation and self.submitted.has_choice

    def within(self, phase: type[_PhaseState]) -> _PhaseState:
        """Return what belongs to the phase that the run is in. Raises InvariantViolated where it is in another."""
        if not isinstance(self.phase_state, phase):
            raise InvariantViolated(
                f"{self.run_id} is {self.phase.value}, where {phase.__name__} was expected"
            )
        return self.phase_state

    @property
    def submitted(self) -> Plan:
        """Return the plan as it was submitted."""
        return self.asked or self.plan

    def is_of(self, plan: Plan) -> bool:
        """Return whether a plan is the one that was submitted. An older orch knew of no needs, only of places."""
        return self.submitted == plan or (not self.submitted.needs and self.plan == plan.fixed)

    @property
    def placed(self) -> Plan:
        """Return the plan with this generation's tasks: where they are now, without those that are left out."""
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

    def python(self, host: str) -> str:
        """Return the Python of a host: the one that was probed there, else as the plan names it."""
        facts = self.host(host).facts
        return (facts.executable if facts is not None else "") or self.plan.host(host).python

    @property
    def assignees(self) -> tuple[Host, ...]:
        """Return the hosts that hold the tasks of this generation."""
        holding = cast("Roster[TaskId, Task]", self.tasks).places
        return tuple([host for host in self.hosts if host.name in holding])

    @property
    def chief(self) -> TaskId:
        """Return the task whose exit code and checkpoints stand for the run."""
        return cast("Roster[TaskId, Task]", self.tasks).first

    def task(self, id: TaskId) -> Task:
        """Return the task of that id; KeyError if there is none."""
        return cast("Roster[TaskId, Task]", self.tasks).named(id)

    def find_task(self, id: TaskId) -> Task | None:
        """Return the task of that id; None if a smaller gang goes on without it."""
        return cast("Roster[TaskId, Task]", self.tasks).find(id)

    def tasks_on(self, host: str) -> list[Task]:
        """Return the tasks that are on that host in this generation."""
        return cast("Roster[TaskId, Task]", self.tasks).at_place(host)

    def is_placed_as(self, other: Run) -> bool:
        """Return whether both have the same tasks in the same places, as far as known at once."""
        return cast("Roster[TaskId, Task]", self.tasks).stands_as(cast("Roster[TaskId, Task]", other.tasks))

    def host(self, name: str) -> Host:
        """Return the host of that name; KeyError if there is none."""
        return cast("Roster[str, Host]", self.hosts).named(name)

    def with_task(self, changed: Task) -> Run:
        """Return the run with the task of that id replaced."""
        return replace(self, tasks=cast("Roster[TaskId, Task]", self.tasks).with_(changed))

    def with_host(self, changed: Host) -> Run:
        """Return the run with the host of that name replaced."""
        return replace(self, hosts=cast("Roster[str, Host]", self.hosts).with_(changed))

    @property
    def is_seeded(self) -> bool:
        """Return whether the generation's checkpoint directory is ready for a script to read."""
        return self.plan.checkpoint is None or (
            self.seed is not None and self.seed.generation == self.generation
        )

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


def taken_up(run: Run, written_at: float, lived_until: float, now: Instant) -> Run:
    """Return a run as another coordinator goes on with it. What it waits counts, and its time limit; silence does not.

    Args:
        run: as it was written.
        written_at: when, by the clock of the coordinator that did.
        lived_until: how long that one lived at least, by the same clock.
        now: by the clock of the new one.
    """
    planned_end = rebased(run.planned_end, now - lived_until)
    state = rebased(run.phase_state, now - (lived_until if run.phase is Phase.QUEUED else written_at))
    return replace(rebased(run, now - written_at), planned_end=planned_end, phase_state=state)


def new_run(
    run_id: str,
    plan: Plan,
    *,
    epoch: int,
    at: float,
    from_scratch: bool = False,
    owner: Owner | None = None,
    left_out: tuple[tuple[str, str], ...] = (),
) -> Run:
    """Return the state of a run that has just been submitted."""

    used = set(plan.hosts_used)

    def task(planned: TaskPlan) -> Task:
        return Task(id=planned.id, host=planned.host)

    def host(planned: HostPlan) -> Host:
        return Host(name=planned.name, since_at=at, untouched=planned.name not in used)

    return Run(
        run_id=run_id,
        plan=plan,
        epoch=epoch,
        tasks=tuple(task(t) for t in sorted(plan.tasks, key=lambda t: t.id)),
        hosts=tuple(host(h) for h in plan.hosts if h.spare or h.name in used),
        since_at=at,
        phase_state=_first(plan, at),
        reason="connecting to the hosts" if plan.queue is None else "waits in the queue",
        from_scratch=from_scratch,
        owner=owner,
        left_out=left_out,
    )


def _first(plan: Plan, at: float) -> PhaseState:
    asked = plan.queue
    if asked is None:
        return Pending()
    give_up_at = at + asked.max_wait_s if asked.max_wait_s is not None else None
    return Queued(priority=PRIORITIES.index(asked.priority), since_at=at, give_up_at=give_up_at)

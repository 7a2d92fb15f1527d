"""The plan: what a cluster spec resolved to. Immutable, complete, and the same on every machine.

Paths of the head node are absolute. Durations are seconds. Nothing in a plan is secret: of a secret it
holds the name only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import cast

from orchestrator.core.state.roster import Roster

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
"""TensorFlow's task types, in the order in which people read them."""


PUSH_BYTES_MAX = 200 << 20
"""How much of a working directory is pushed where the spec names no limit. Code is less; data should lie elsewhere."""

LOG_BYTES_MAX = 1 << 30
SUMMARY_BYTES_MAX = 10 << 30
OUTPUT_BYTES_MAX = 100 << 30
COPY_BYTES_MAX = 1 << 40
"""Further limits, where the spec names none: what no training reaches, and a host that has gone wrong does."""


Gpu = int | str
"""A GPU as the spec names it: its number in the driver's order, or its UUID; a MIG instance by its UUID alone."""

ENVIRONMENTS = "~/.local/share/orch/environments"
"""On every host, what `setup:` of a spec has made (`host/agent/environments.py`)."""


@total_ordering
@dataclass(frozen=True, slots=True)
class TaskId:
    """TensorFlow's task type and task index; shown `worker:3`."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    def __lt__(self, other: TaskId) -> bool:
        return (TASK_TYPES.index(self.type), self.index) < (TASK_TYPES.index(other.type), other.index)

    @staticmethod
    def parse(text: str) -> TaskId:
        """`worker:3` to a TaskId. Raises ValueError if it is none."""
        type_, _, index = text.partition(":")
        if type_ not in TASK_TYPES or not index.isdecimal():
            raise ValueError(f"not a task: {text!r}; a task reads like worker:3")
        return TaskId(type_, int(index))


LEASING = ("ssh", "local")
"""Transports to hosts that several runs may use. What an engine lends is the run's own."""

SLOT = "slot-"
"""Before the number of a host's slot, where it is leased as GPUs are."""


def lease_in_words(lease: Gpu) -> str:
    """Return what is leased, for people: `GPU 3`, `slot 0`."""
    number = str(lease).removeprefix(SLOT)
    return f"slot {number}" if number != str(lease) else f"GPU {number}"


@dataclass(frozen=True, slots=True)
class HostPlan:
    """A machine: how to reach it, and which of its resources the run may use."""

    name: str
    transport: str = "ssh"
    """`ssh`, or `local`: the head node itself, no SSH; or that of an engine which lends the host."""
    address: str = ""
    """What SSH connects to; passes through ~/.ssh/config."""
    data_address: str = ""
    """What its peers connect to: the host's part of TF_CONFIG."""
    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    proxy_jump: str | None = None
    """`none`: connect directly, whatever ~/.ssh/config says. None: ~/.ssh/config decides."""
    python: str = "python3"
    activate: str | None = None
    """A person's line for the login shell, which makes the environment of all that runs there."""
    gpus: tuple[Gpu, ...] = ()
    slots: int = 1
    """How many tasks of this run it may hold."""
    tasks_max: int | None = field(default=None, compare=False)
    """How many tasks of all runs it may hold, where the spec says so: each has the lease of a slot."""
    slots_lent: tuple[int, ...] = field(default=(), compare=False)
    """The numbers of these that the run has, where it stands in for another host; empty: all."""
    labels: tuple[tuple[str, str], ...] = ()
    spare: bool = False
    allocation: str = ""
    """Of an engine's host: what was lent. The same machine in another allocation is reached anew."""
    spec: str = field(default="", compare=False)
    """Where a person wrote of it: the file, absolute, or the word of a command line. For hints only."""

    seen_address: str = field(default="", compare=False)
    """What its peers have reached it by, where they did not by what the spec says; looked for before each start."""

    @property
    def connection(self) -> HostPlan:
        """Return what it takes to connect: runs share a link where all of it is the same."""
        return replace(
            self,
            data_address="",
            seen_address="",
            gpus=(),
            slots=1,
            tasks_max=None,
            slots_lent=(),
            labels=(),
            spare=False,
        )

    @property
    def host_slots(self) -> Sequence[int]:
        """Return the numbers of the slots that tasks have for themselves; none where slots do not count."""
        return self.slots_lent or range(self.tasks_max or 0)

    @property
    def leases(self) -> tuple[Gpu, ...]:
        """Return all that it has for tasks to have for themselves alone: its GPUs, and its slots where these count."""
        return (*self.gpus, *(f"{SLOT}{number}" for number in self.host_slots))

    @property
    def is_set_up(self) -> bool:
        """Return whether its Python is an environment that `setup:` makes."""
        return self.python.startswith(f"{ENVIRONMENTS}/")

    def way_to_install(self, packages: str) -> str:
        """Return how what its Python lacks comes to it."""
        if self.is_set_up:
            return f"add {packages} to the requirements of `setup:`"
        return f"on {self.name}: `{self.python} -m pip install {packages}`"

    @property
    def is_pod(self) -> bool:
        """Return whether it is a pod of Kubernetes: Kubernetes decides when it ends, and says why."""
        return self.transport == "k8s"

    @property
    def peer_address(self) -> str:
        """Return the address that its peers connect to. Hosts with the same address share one machine's ports."""
        return self.seen_address or self.data_address or self.address or self.name


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for some tasks of one type. `gpus` is the count for each task; None leaves it to `placement`."""

    type: str
    replicas: int
    gpus: int | None = None
    split: bool = False
    """As many tasks, with as many GPUs each, as use all GPUs; `gpu_split` finds both numbers before it is placed."""
    on: tuple[str, ...] = ()
    """The hosts that may hold them; all may if empty."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that their hosts must have."""
    gpu_bytes: int | None = None
    """How much memory each of their GPUs must have."""
    together: bool | None = None
    """True: on as few hosts as possible. False: one a host. None: spread, as the slots allow."""
    memory_bytes: int | None = None
    """How much memory of its host each of them needs."""

    @property
    def shares(self) -> bool:
        """Return whether its tasks take an equal share of the GPUs that are left on their host."""
        return self.gpus is None and self.type in ("chief", "worker")

    @property
    def needs(self) -> int:
        """Return how many GPUs each of its tasks needs at least."""
        return self.gpus or 0

    @property
    def is_particular(self) -> bool:
        """Return whether not every host with as many GPUs will do."""
        return bool(self.on or self.labels or self.asks_host)

    @property
    def asks_host(self) -> bool:
        """Return whether only the host can say if it will do."""
        return self.gpu_bytes is not None or self.memory_bytes is not None


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One TensorFlow process and its place."""

    id: TaskId
    host: str
    gpus: tuple[Gpu, ...] = ()
    slot: int = 0
    """Its number among the run's tasks on this host, from 0."""
    host_slot: int | None = None
    """The number of the host's slot that it has for itself among all runs; None where slots do not count over runs."""

    @property
    def leases(self) -> tuple[Gpu, ...]:
        """Return what it needs of its host for itself alone: its GPUs, and its slot."""
        return self.gpus if self.host_slot is None else (*self.gpus, f"{SLOT}{self.host_slot}")


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Where the training saves, and how many generations' directories are kept."""

    dir: str
    keep: int = 3
    shared: bool = True
    """False: each host has a directory of its own there, and the head node carries checkpoints between them."""
    copy_bytes_max: int = COPY_BYTES_MAX
    """How large a checkpoint may be that the head node carries."""
    every_s: float | None = None
    """How often the runtime saves. None, and no `every_steps`: as often as costs least."""
    every_steps: int | None = None
    group: str | None = None
    """Whose members may write into the directory too. None: only the user of the SSH connections."""
    volume: str = ""
    """In pods, what is mounted there: in another volume the same path is another directory."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When to give up. The wait before a restart doubles from `backoff_s` up to `backoff_max_s`."""

    without_progress_max: int = 5
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    on_stall: str = "restart"
    """When the position stands still: `restart`, or `notify` only."""
    on_nonfinite: str = "notify"
    """When a metric of the chief is NaN or infinite: `notify` only, or `stop` the run."""
    standby: str = "off"
    """Whether the next generation's tasks wait at their gates while this one trains: `auto`, `on` or `off`."""
    rescue_s: float = 0.0
    """How long a task whose peer has died may take to hand over its state; 0: none does."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the run waits for each thing, in seconds.

    It holds that unreachable_after_s >= 3 * heartbeat_s, and lost_after_s > unreachable_after_s: two heartbeats may be
    lost on the way; a third means that the link is gone, and still says nothing about the task.
    """

    heartbeat_s: float = 2.0
    unreachable_after_s: float = 10.0
    lost_after_s: float = 60.0
    stall_after_s: float | None = None
    """None: judged against the pace that this run has shown."""
    start_after_s: float = 300.0
    """How long the tasks have to join before the generation is given up, with the names of who is missing."""
    kill_grace_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Measure:
    """How `orch scale` has a training measured: the steps to skip, then the steps to measure; then it ends."""

    steps: int
    warmup: int


@dataclass(frozen=True, slots=True)
class Prove:
    """How many steps `orch prove` has a training record before it ends."""

    steps: int


@dataclass(frozen=True, slots=True)
class Options:
    """What the runtime does for the script, besides watching it. The task gets it in ORCH_RUNTIME."""

    transparent: bool = False
    """The script knows nothing of any strategy: it is run within the scope of one."""
    batch: str | None = None
    """Of a transparent script: `global` (its batch is that of all replicas together) or `per_replica`."""
    replicas_on_cpu: int | None = None
    """Logical CPU devices for the strategy, where there are no GPUs."""
    communication: str = "auto"
    """Of the collectives: auto, ring or nccl."""
    communication_timeout_s: float | None = None
    """Seconds after which a collective is given up; longer than the longest step, evaluation and first trace."""
    bytes_per_pack: int | None = None
    """How many bytes of gradients go into one collective; None: all."""
    keras: int | None = None
    """2: the script uses tf_keras (TF_USE_LEGACY_KERAS is set)."""
    children: bool = True
    """Keras 3 is patched in each Python that the script starts, too."""
    serve: bool = False
    """parameter_server: the runtime is the server on worker and ps. False: the script starts its own."""
    tpu: str | None = None
    """Of the strategy tpu: the TPU's name, `grpc://address:port`, or `local` on a TPU VM."""
    measure: Measure | None = None
    """The script is measured for some steps, and ends then."""
    on_shrink: str = "ignore"
    """With fewer replicas than planned: `hold_batch`, `scale_lr`, or `ignore`."""
    replicas_planned: int | None = None
    """How many there are while none is left out; None if none may be."""
    proves: bool | str = False
    """A transparent script's first step of each fit is compared with that of one process. `auto`: where that is due."""
    prove: Prove | None = None
    """The script's first steps are recorded, and it ends then."""
    dies_after: int | None = None
    """In the trial of a script: so many steps, and a save, after which its first generation is killed."""


@dataclass(frozen=True, slots=True)
class NotifyPlan:
    """Which messages are sent. The recipients' addresses are kept elsewhere, since they hold tokens and passwords."""

    on: tuple[str, ...]
    to: tuple[str, ...]
    """The service of each recipient, such as `ntfy`."""
    lines: int = 10
    """How many of a task's last lines a message carries."""


PRIORITIES = ("low", "normal", "high")


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """How a run waits for what others hold; without it, the run fails at once."""

    priority: str = "normal"
    """One of PRIORITIES."""
    max_wait_s: float | None = None
    preempt: bool = False
    """Whether runs of the queue that began with a lower priority make way for it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run is started from, and nothing that changes while it runs."""

    name: str
    strategy: str
    hosts: tuple[HostPlan, ...]
    tasks: tuple[TaskPlan, ...]
    """With their places. Where `needs` says what they need, a coordinator chooses others among what is free."""
    script: str
    """Relative to workdir; of a module, its file."""
    args: tuple[str, ...] = ()
    workdir: str = "."
    """Absolute, on the head node; its content is pushed to every host."""
    push_bytes_max: int = PUSH_BYTES_MAX
    withheld: tuple[str, ...] = ()
    """Files below workdir that hold secrets of the spec: they are never pushed."""
    log_bytes_max: int = LOG_BYTES_MAX
    """How much of one task's logs is copied to the head node."""
    summary_bytes_max: int = SUMMARY_BYTES_MAX
    """The same for a task's TensorBoard files."""
    output_bytes_max: int = OUTPUT_BYTES_MAX
    """The same for the files that a task leaves in its working directory."""
    outputs: tuple[str, ...] = ()
    """Patterns of the files that are fetched when the run has ended."""
    outputs_dir: str = ""
    """Absolute, on the head node; each run gets a directory there."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Names of environment variables whose values travel apart from the plan and are never shown."""
    ports: tuple[int, int] = (20000, 20999)
    """First and last port, both included."""
    checkpoint: CheckpointPlan | None = None
    restart: RestartPolicy = RestartPolicy()
    timing: Timing = Timing()
    options: Options = Options()
    replicas_min: Mapping[str, int] = field(default_factory=dict)
    """By task type: how many must be left when a host is lost and no spare is there. Others are never left out."""
    time_limit_s: float | None = None
    """After this time the run ends, at a checkpoint if one comes in time. None: no limit."""
    queue: QueuePlan | None = field(default=None, compare=False)
    """None: it does not wait. It has no effect once the run has begun."""
    chaos: bool = False
    """Whether `orch chaos` may inject faults."""
    notify: NotifyPlan | None = None
    runtime: bool = True
    """False (`runtime: off`): the script is started plain; only its life is watched, not its progress."""
    module: str = ""
    """The script's name where it is run as under `python -m`, from workdir; else empty."""
    no_restore: str = field(default="", compare=False)
    """Why the script comes back from no checkpoint, by its sources, and the way out; empty if it may."""
    rescues: bool = field(default=False, compare=False)
    """Whether the script has what hands over its state when a peer dies, by its sources."""
    no_handover: str = field(default="", compare=False)
    """Why its steps could not be handed over, by its sources; empty where they do not say so."""
    needs: tuple[Ask, ...] = ()
    """What the tasks need of their hosts; empty of a plan whose places are fixed, as on hosts that an engine lends."""

    def __post_init__(self) -> None:
        if not isinstance(self.hosts, Roster):
            object.__setattr__(self, "hosts", Roster(self.hosts, lambda host: host.name))
        if not isinstance(self.tasks, Roster):
            object.__setattr__(
                self, "tasks", Roster(self.tasks, lambda task: task.id, lambda task: task.host)
            )

    def host(self, name: str) -> HostPlan:
        """Return the host of that name; KeyError if there is none."""
        return cast("Roster[str, HostPlan]", self.hosts).named(name)

    def task(self, id: TaskId) -> TaskPlan:
        """Return the task of that id; KeyError if there is none."""
        return cast("Roster[TaskId, TaskPlan]", self.tasks).named(id)

    @property
    def fixed(self) -> Plan:
        """Return the plan with the places that it has, whatever else is free: what an engine lends is the run's own."""
        hosts = tuple(replace(host, tasks_max=None) for host in self.hosts)
        tasks = tuple(replace(task, host_slot=None) for task in self.tasks)
        return replace(self, hosts=hosts, tasks=tasks, needs=())

    @property
    def has_choice(self) -> bool:
        """Return whether the tasks could be elsewhere on the hosts that the file lists."""
        if any(ask.asks_host for ask in self.needs):
            return True
        if not self.needs:
            return False
        used: dict[str, int] = {}
        for task in self.tasks:
            used[task.host] = used.get(task.host, 0) + len(task.gpus)
        return any(
            host.name not in used or used[host.name] < len(host.gpus) or host.tasks_max is not None
            for host in self.hosts
            if not host.spare
        )

    @property
    def command(self) -> tuple[str, ...]:
        """What Python is given: the script, or `-m` and the module, and the arguments."""
        return ("-m", self.module, *self.args) if self.module else (self.script, *self.args)

    @property
    def root(self) -> str:
        """Of a module, where it imports from on the head node; empty for a script: that is its own folder."""
        return self.workdir if self.module else ""

    @property
    def chief(self) -> TaskId:
        """Return the task whose checkpoints and exit code stand for the run: the chief, else worker:0."""
        return cast("Roster[TaskId, TaskPlan]", self.tasks).first

    @property
    def hosts_used(self) -> tuple[str, ...]:
        """Return the names of the hosts that hold a task, in the order of the plan."""
        placed = {task.host for task in self.tasks}
        return tuple(host.name for host in self.hosts if host.name in placed)

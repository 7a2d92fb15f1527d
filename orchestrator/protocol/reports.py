"""The types of reports: what a shim says of its task, and an agent of its host and of all tasks.

NotRequired fields may be missing because a shim of an older version does not send them: a shim outlives the agent that
started it. The agent itself always has the version of the head.
"""

from typing import Annotated, Literal, NotRequired, TypedDict, final

from orchestrator.protocol.bounds import (
    Count,
    FreeBytes,
    Generation,
    Kind,
    Length,
    LogLine,
    MetricName,
    Name,
    Number,
    Pid,
    Port,
    Range,
    RunId,
    Seconds,
    Sentence,
    Step,
    TaskName,
    Text,
    UnixTime,
)
from orchestrator.protocol.limits import LAST_LINES_MAX, LEFT_MAX, METRICS_MAX, SAID_MAX, TRAIL_MAX
from orchestrator.protocol.measures import GpuMeasures, HostMeasures, TaskMeasures
from orchestrator.protocol.paths import RelativePath

TaskPhase = Literal["starting", "ready", "running", "exited", "unknown"]

ExitCause = Literal["script", "oom", "perhaps-oom", "signal", "shim-died", "rebooted", "lost", "start-failed"]

SweptBy = Literal["cgroup", "marker"]

NotFinite = Literal["nan", "inf", "-inf"]

Stage = Literal["importing", "connecting", "building", "compiling", "training", "evaluating", "saving"]
"""What a task's process does, according to its runtime."""

Finding = Literal["unresolved", "refused", "silent", "no-route", "proxy"]
"""Why a peer is not reached, in this order: its name does not resolve; nothing listens there; no answer, as behind a
firewall; no route; its port is reachable, but gRPC would go through a proxy of the environment."""

PEERS_MAX = 4
"""The maximum number of peers that a task checks: the leader, and its neighbours in the ring."""

RUNS_MAX = 1024
"""The maximum number of runs in a report."""

TASKS_MAX = 4096
"""The maximum number of a run's tasks on a host, including older generations that still live."""


class Said(TypedDict):
    """A sentence of the runtime, or the error that ended the script."""

    kind: Kind
    message: Sentence


class Left(TypedDict):
    """A process that could not be killed."""

    pid: Pid
    why: Text


class TaskExit(TypedDict):
    """How a task ended."""

    code: NotRequired[Annotated[int, Range(0, 255)] | None]
    signal: NotRequired[Annotated[int, Range(1, 255)] | None]
    ago_s: NotRequired[Seconds | None]
    """Time since it ended, by the host's monotonic clock; null after a reboot."""
    ended_at: NotRequired[UnixTime]
    ordered: NotRequired[bool]
    """Whether the shim had an order to stop it."""
    released: NotRequired[bool]
    """Whether it had been released; false also if that was not recorded."""
    cause: ExitCause
    last_lines: NotRequired[Annotated[list[LogLine], Length(LAST_LINES_MAX)]]
    peak_rss_bytes: NotRequired[Count | None]
    swept: NotRequired[SweptBy]
    left: NotRequired[Annotated[list[Left], Length(LEFT_MAX)]]


class Began(TypedDict):
    """The step at which a script's training began in this generation, once the runtime knows it."""

    step: Step
    stride: Step
    """0 if the step is exact. Else it was estimated from the script's first two reports, which are that far apart."""


class NonFinite(TypedDict):
    """The first step at which a metric was not a finite number, and its value."""

    step: Step
    value: NotFinite


Row = Annotated[list[Number], Length(10)]
"""`[step, value]`; of several values `[first step, last step, count, sum, first, smallest, its step, largest, its step,
last]`."""


class Trail(TypedDict):
    """The newest values of a metric in this generation, in the order in which they were reported."""

    count: Count
    """How many values there were in all: the last row ends with that one. So a reader knows which rows it has."""
    rows: Annotated[list[Row], Length(TRAIL_MAX)]
    """What was told before is told again, in fewer rows, since a report may be lost."""


class Saving(TypedDict):
    """How often a task saves, and why. Its runtime decides this at each save."""

    every_steps: Step
    every_s: NotRequired[Seconds]
    """Missing if the spec gives a number of steps."""
    cost_s: NotRequired[Seconds]
    """How long a save pauses the training. Missing before the first save."""
    spent_s: NotRequired[Seconds]
    """How long all saves of this process together have paused the training."""
    saved_step: NotRequired[Step]
    """The step of the last save, which may not be verified yet."""
    failure_s: Seconds
    """The expected mean time between failures."""
    why: Kind
    """`least`: saves and lost work together cost least. `share`, `writing`, `shortest`, `longest`: the limit that
    decided. `spec`: the spec gives the interval."""


class Passing(TypedDict):
    """How far a task has read the data that was trained before, up to where the training goes on."""

    done: Step
    """How many batches it has passed over."""
    total: Step
    """How many there are; 0 or too few where that is not known."""


class Peer(TypedDict):
    """A peer that a task does not reach, before its first step."""

    task: TaskName
    finding: Finding


class Holds(TypedDict):
    """The state that a task holds after a peer's death. Of several survivors, the most advanced one hands over."""

    step: Step
    checksum: Annotated[int, Range(0, 0xFFFFFFFF)]
    """CRC-32 of its weights. Replicas have the same at the same step."""


class Rescued(TypedDict):
    """The state that a task handed over before its end, as requested."""

    step: Step | None
    """null if it handed over nothing."""
    took_s: Seconds
    why: Sentence
    """Why it handed over nothing."""


class Loaded(TypedDict):
    """The weights that a script has loaded last. Where all tasks train one model, all load the same."""

    number: Step
    """Which load it is: where in the script, and how many there were before at that place. Others are not compared."""
    file: RelativePath
    """The name of the file."""
    checksum: Annotated[int, Range(0, 0xFFFFFFFF)]
    """CRC-32 of the model's weights after it."""


class Restored(TypedDict):
    """The checkpoint of ours that a task went on from, or could not restore."""

    file: RelativePath
    """Its path within the generation's directory."""
    step: Step | None
    """null if it was not restored."""
    saved_at: UnixTime
    bytes: Count
    why: Sentence
    """Why it could not be restored; empty if it was."""


class Task(TaskMeasures):
    """All that is known about a task in a generation."""

    task: TaskName
    generation: Generation
    phase: TaskPhase
    """`ready`: the process waits for its release; TensorFlow is imported if the script names it. `running`: released.
    `unknown`: started on this host, but its shim has not reported to this agent yet; all other fields are missing."""
    pid: NotRequired[Pid | None]
    port: NotRequired[Port | None]
    """The port that the shim reserves for it."""
    global_step: NotRequired[Step | None]
    step_age_s: NotRequired[Seconds | None]
    """Time since `global_step` changed."""
    began: NotRequired[Began | None]
    began_age_s: NotRequired[Seconds | None]
    """Time since training began, after restoring. null: unknown, or not known exactly."""
    saving: NotRequired[Saving | None]
    rescues: NotRequired[bool]
    """Whether it could hand over its state now."""
    holds: NotRequired[Holds | None]
    rescued: NotRequired[Rescued | None]
    restored: NotRequired[Restored | None]
    loaded: NotRequired[Loaded | None]
    epoch: NotRequired[Step | None]
    """The training epoch."""
    steps_total: NotRequired[Step | None]
    """The `global_step` at which the training ends; null or missing if the script does not say."""
    epochs: NotRequired[Step | None]
    """The total number of epochs."""
    metrics: NotRequired[Annotated[dict[MetricName, Number | None], Length(METRICS_MAX)]]
    """null for a value that is not finite."""
    metric_steps: NotRequired[Annotated[dict[MetricName, Step], Length(METRICS_MAX)]]
    """For each metric that was reported at another step than `global_step`: its step."""
    nonfinite: NotRequired[Annotated[dict[MetricName, NonFinite], Length(METRICS_MAX)]]
    """For each metric that was not finite: the first time."""
    stretches: NotRequired[Annotated[dict[MetricName, Trail], Length(METRICS_MAX)]]
    """Of a chief: all values of its metrics. An older shim has none, and only its newest values are kept."""
    peak_rss_bytes: NotRequired[Count | None]
    heartbeat_age_s: NotRequired[Seconds]
    """Time since the shim's last report."""
    runtime_age_s: NotRequired[Seconds | None]
    """Time since the last message from the task's runtime; null if it sends no heartbeats."""
    stage: NotRequired[Stage | None]
    """null if unknown, as for a task that only serves."""
    stage_age_s: NotRequired[Seconds | None]
    passing: NotRequired[Passing | None]
    peers: NotRequired[Annotated[list[Peer], Length(PEERS_MAX)]]
    """Peers that it does not reach. Empty after its first step."""
    error: NotRequired[Said | None]
    said: NotRequired[Annotated[list[Said], Length(SAID_MAX)]]
    exit: NotRequired[TaskExit | None]


class DirectorySample(TypedDict):
    """How a run's checkpoint directory responds on a host."""

    silent_s: Seconds
    """How long the current check has been waiting for the file system."""
    free_bytes: FreeBytes | None
    missing: NotRequired[bool]
    """Whether it is not the directory that the run shares: the share is not mounted there."""


class GpuLoad(GpuMeasures):
    """The load of a GPU."""

    index: Annotated[int, Range(0, 63)]
    name: Name


class GpuFault(TypedDict):
    """An error of a GPU since the agent started."""

    index: Annotated[int, Range(0, 63)]
    xid: Annotated[int, Range(0, 9999)] | None
    """The error that the driver reported; null: the GPU has disappeared."""


class Sample(HostMeasures):
    """The load of a host."""

    gpus: NotRequired[Annotated[list[GpuLoad], Length(64)]]
    """From nvidia-smi, every five seconds, on hosts that have it."""
    gpu_faults: NotRequired[Annotated[list[GpuFault], Length(128)]]


class Unkillable(TypedDict):
    """A process of a run, of any head node, that survived SIGKILL."""

    run: Name
    pid: Pid
    command: Name
    since: UnixTime
    """When orch gave up killing it."""
    why: Sentence


class Leaving(TypedDict):
    """A warning from the host's provider, such as Slurm or a cloud, that the host will be taken away."""

    why: Sentence
    in_s: Seconds
    """The time that is left; 0 if unknown."""


class Sampled(Sample):
    """Measurements of every heartbeat."""

    leaving: NotRequired[Leaving | None]
    """null or missing: no such warning."""
    checkpoint_dirs: Annotated[dict[RunId, DirectorySample], Length(RUNS_MAX)]


class HostSample(Sampled):
    """The `host` part of a report."""

    unkillable: Annotated[list[Unkillable], Length(LEFT_MAX)]
    """While there is one, no run starts tasks on this host."""


class Report(TypedDict):
    """All that is known about the tasks of watched runs."""

    host: HostSample
    runs: Annotated[dict[RunId, Annotated[list[Task], Length(TASKS_MAX)]], Length(RUNS_MAX)]


@final
class ReportFrame(TypedDict):
    """Agent to coordinator, every heartbeat (all agents at the same time of day), and at once when a phase changes."""

    report: Report


class ShimReportFrame(TypedDict):
    """Shim to agent: when the agent connects, every heartbeat, and at once after a change."""

    report: Task

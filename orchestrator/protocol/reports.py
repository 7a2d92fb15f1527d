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
    Pace,
    Percent,
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
from orchestrator.protocol.limits import LAST_LINES_MAX, LEFT_MAX, METRICS_MAX, SAID_MAX

TaskPhase = Literal["starting", "ready", "running", "exited", "unknown"]

ExitCause = Literal["script", "oom", "perhaps-oom", "signal", "shim-died", "rebooted", "lost", "start-failed"]

SweptBy = Literal["cgroup", "marker"]

PsutilFrom = Literal["bundle", "host", "none"]

NotFinite = Literal["nan", "inf", "-inf"]

Stage = Literal["importing", "connecting", "building", "compiling", "training", "evaluating", "saving"]
"""What a task's process does, as its runtime sees it."""

Finding = Literal["unresolved", "refused", "silent", "no-route", "proxy"]
"""Why a peer is not reached: its name has no address here; nothing listens there; no answer, as behind a firewall; no
way to its network; its port can be reached, but the environment has gRPC go through a proxy."""

PEERS_MAX = 4
"""The most peers that a task looks at: the one that leads, and its neighbours in the ring."""

RUNS_MAX = 1024
"""The most runs of one report."""

TASKS_MAX = 4096
"""The most tasks of one run on one host, with older generations that still live."""


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

    code: Annotated[int, Range(0, 255)] | None
    signal: Annotated[int, Range(1, 255)] | None
    ago_s: Seconds | None
    """Time since it ended, by the host's monotonic clock; null after a reboot."""
    ended_at: NotRequired[UnixTime]
    ordered: NotRequired[bool]
    """Whether the shim had been told to stop it."""
    released: NotRequired[bool]
    """Whether it had passed its gate; false also where that was not written down."""
    cause: ExitCause
    last_lines: NotRequired[Annotated[list[LogLine], Length(LAST_LINES_MAX)]]
    peak_rss_bytes: NotRequired[Count | None]
    swept: NotRequired[SweptBy]
    left: NotRequired[Annotated[list[Left], Length(LEFT_MAX)]]


class Began(TypedDict):
    """Where a script's training began in this generation, which the runtime says once it can be told."""

    step: Step
    stride: Step
    """0: the step is exact. Else it was told by the script's first two reports, which are so many steps apart."""


class NonFinite(TypedDict):
    """A metric was no finite number: at which step first, and what it was."""

    step: Step
    value: NotFinite


class Saving(TypedDict):
    """How often a task saves, and why: what its runtime has decided with its last save."""

    every_steps: Step
    every_s: NotRequired[Seconds]
    """Missing where the spec gives a number of steps."""
    cost_s: NotRequired[Seconds]
    """How long a save holds the training up. Missing until there was one."""
    spent_s: NotRequired[Seconds]
    """How long all saves of this process have held it up."""
    saved_step: NotRequired[Step]
    """Of its last save, which nobody may have verified yet."""
    failure_s: Seconds
    """The mean time between failures that is expected."""
    why: Kind
    """`least`: both together cost least. `share`, `writing`, `shortest`, `longest`: the limit that was met. `spec`."""


class Peer(TypedDict):
    """A peer that a task does not reach, before its first step."""

    task: TaskName
    finding: Finding


class Holds(TypedDict):
    """What a task holds after its peer's death: of several survivors, the one that is furthest hands over."""

    step: Step
    checksum: Annotated[int, Range(0, 0xFFFFFFFF)]
    """CRC-32 of its weights: replicas have the same at the same step."""


class Rescued(TypedDict):
    """What a task has handed over of its state, as it was asked to before its end."""

    step: Step | None
    """null: nothing."""
    took_s: Seconds
    why: Text
    """Why nothing."""


class Task(TypedDict):
    """All that is known of one task in one generation."""

    task: TaskName
    generation: Generation
    phase: TaskPhase
    """`ready`: the process waits for its release; TensorFlow is imported if the script names it. `running`: released.
    `unknown`: started on this host, but its shim has not reported to this agent yet; all other fields are missing."""
    pid: NotRequired[Pid | None]
    port: NotRequired[Port | None]
    """The port that the shim holds for it."""
    global_step: NotRequired[Step | None]
    step_age_s: NotRequired[Seconds | None]
    """Time since `global_step` changed."""
    began: NotRequired[Began | None]
    began_age_s: NotRequired[Seconds | None]
    """Time since training began: what was to be restored is. null: not known, or not exactly."""
    saving: NotRequired[Saving | None]
    rescues: NotRequired[bool]
    """Whether it could hand over its state now."""
    holds: NotRequired[Holds | None]
    rescued: NotRequired[Rescued | None]
    epoch: NotRequired[Step | None]
    """The training epoch."""
    steps_total: NotRequired[Step | None]
    """The `global_step` at which the training ends; null or missing where the script does not say so."""
    epochs: NotRequired[Step | None]
    """How many epochs there are."""
    metrics: NotRequired[Annotated[dict[MetricName, Number | None], Length(METRICS_MAX)]]
    """null for a value that is not finite."""
    metric_steps: NotRequired[Annotated[dict[MetricName, Step], Length(METRICS_MAX)]]
    """Of each metric that was reported at another step than `global_step`: at which one."""
    nonfinite: NotRequired[Annotated[dict[MetricName, NonFinite], Length(METRICS_MAX)]]
    """Of each metric that was not finite: when first."""
    steps_per_s: NotRequired[Pace | None]
    cpu_percent: NotRequired[Percent | None]
    rss_bytes: NotRequired[Count | None]
    peak_rss_bytes: NotRequired[Count | None]
    log_bytes: NotRequired[Count]
    """The end of its log, counted from its first byte, with what was rotated away."""
    log_dropped_bytes: NotRequired[Count]
    heartbeat_age_s: NotRequired[Seconds]
    """Time since the shim's last report."""
    runtime_age_s: NotRequired[Seconds | None]
    """Time since the last message of the runtime in the task; null if it sends no heartbeats."""
    stage: NotRequired[Stage | None]
    """null: nothing tells it, as of a task that only serves."""
    stage_age_s: NotRequired[Seconds | None]
    peers: NotRequired[Annotated[list[Peer], Length(PEERS_MAX)]]
    """Those that it does not reach. Empty once it has made a step."""
    error: NotRequired[Said | None]
    said: NotRequired[Annotated[list[Said], Length(SAID_MAX)]]
    exit: NotRequired[TaskExit | None]


class DirectorySample(TypedDict):
    """How a run's checkpoint directory responds on a host."""

    silent_s: Seconds
    """How long the current check of it has been waiting for the file system."""
    free_bytes: FreeBytes | None


class GpuLoad(TypedDict):
    """What a GPU does. null: it cannot be told."""

    index: Annotated[int, Range(0, 63)]
    name: Name
    utilization_percent: Percent | None
    memory_used_bytes: Count | None
    memory_total_bytes: Count | None
    temperature_c: Percent | None
    power_w: Percent | None


class GpuFault(TypedDict):
    """What has gone wrong with a GPU since the agent began."""

    index: Annotated[int, Range(0, 63)]
    xid: Annotated[int, Range(0, 9999)] | None
    """What the driver has complained of; null: the GPU has disappeared."""


class Sample(TypedDict):
    """The load of a host."""

    cpu_percent: Percent | None
    memory_percent: Percent | None
    memory_available_bytes: NotRequired[FreeBytes | None]
    disk_free_bytes: FreeBytes | None
    gpus: NotRequired[Annotated[list[GpuLoad], Length(64)]]
    """What nvidia-smi says every five seconds, where there is one."""
    gpu_faults: NotRequired[Annotated[list[GpuFault], Length(128)]]
    psutil: PsutilFrom
    """Where psutil came from; `none`: the numbers are those of /proc."""


class Unkillable(TypedDict):
    """A process of a run, of whichever head, that lives although SIGKILL was sent to it."""

    run: Name
    pid: Pid
    command: Name
    since: UnixTime
    """When its kill was given up."""
    why: Text


class Leaving(TypedDict):
    """What the host was told by whoever lends it: that it will be taken away."""

    why: Text
    in_s: Seconds
    """The time that is left; 0 where that is not known."""


class Sampled(Sample):
    """What is measured at every heartbeat."""

    leaving: NotRequired[Leaving | None]
    """null or missing: it stays, as far as it knows."""
    checkpoint_dirs: Annotated[dict[RunId, DirectorySample], Length(RUNS_MAX)]


class HostSample(Sampled):
    """The `host` part of a report."""

    unkillable: Annotated[list[Unkillable], Length(LEFT_MAX)]
    """No run is given tasks on this host while there is one."""


class Report(TypedDict):
    """All that is known of all tasks of the watched runs."""

    host: HostSample
    runs: Annotated[dict[RunId, Annotated[list[Task], Length(TASKS_MAX)]], Length(RUNS_MAX)]


@final
class ReportFrame(TypedDict):
    """Agent to coordinator, every heartbeat (all agents at the same time of day), and at once when a phase changes."""

    report: Report


class ShimReportFrame(TypedDict):
    """Shim to agent: when the agent connects, every heartbeat, and at once after a change."""

    report: Task

"""The types of what agents, shims and runtimes send. The types of orders and of their replies are in `orders`.

docs/protocol.md is made from the types and from the strings below their fields.

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
    Path,
    Percent,
    Pid,
    Port,
    Range,
    RawObject,
    RunId,
    Seconds,
    Sentence,
    Share,
    Stacks,
    Step,
    TaskName,
    Text,
    UnixTime,
)
from orchestrator.protocol.limits import LAST_LINES_MAX, LEFT_MAX, METRICS_MAX, SAID_MAX

TaskPhase = Literal["starting", "ready", "running", "exited", "unknown"]

ExitCause = Literal["script", "oom", "signal", "shim-died", "rebooted", "lost", "start-failed"]

SweptBy = Literal["cgroup", "marker"]

PsutilFrom = Literal["bundle", "host", "none"]

NotFinite = Literal["nan", "inf", "-inf"]

RUNS_MAX = 1024
"""The most runs of one report."""

TASKS_MAX = 4096
"""The most tasks of one run on one host, with older generations that still live."""


# ---------------------------------------------------------------- hello


class BootRequest(TypedDict):
    """The head's request to the few lines of Python that start an agent: one line of JSON."""

    nonce: str
    """The answers are marked with its reverse, so that an echo is not taken for an answer."""
    digest: str
    host_dir: str | None
    heartbeat_s: float
    psutil: str | None
    """The digest of the archive that the head can push."""
    psutil_platform: str


class BootAnswer(TypedDict, total=False):
    """The answer: the bundle is needed, or the agent starts, or why it cannot."""

    need: bool
    magic: Name
    """Of the host's byte code, in hex: the head may have compiled for it."""
    ok: bool
    error: Literal["python-too-old", "os", "internal"]
    version: Name
    errno: Annotated[int, Range(0, 1 << 16)] | None
    why: Text
    path: Path


class Hello(TypedDict):
    """What an agent says first."""

    digest: Name
    """The digest of its bundle."""
    python: Name
    platform: Name
    """System, machine and C library, which decide which compiled modules can be loaded."""
    hostname: Name
    user: Name
    boot_id: Name
    """Changes with a reboot, after which older pids mean nothing."""
    host_dir: Path
    host_dir_device: Annotated[int, Range(0, 2**64)]
    """`st_dev` of `host_dir`."""
    psutil: Literal["bundle", "none"]
    """`bundle`: psutil was pushed before."""
    psutil_wanted: bool
    cgroup: bool
    """Whether tasks get control groups."""
    warning: Text | None
    """What may end tasks on this host without a failure, such as logind at logout."""


class Slow(TypedDict, total=False):
    """What was slow when the head connected."""

    shell_s: Seconds
    """Time of the login shell's rc files, if above 1 s."""
    connect_s: Seconds
    """Time until sshd accepted the connection, if above 5 s."""


class Greeting(Hello):
    """A hello, with what the head adds to it."""

    slow: NotRequired[Slow]


@final
class HelloFrame(TypedDict):
    """Agent to coordinator, once, first."""

    hello: Hello


# ---------------------------------------------------------------- reports


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
    failure_s: Seconds
    """The mean time between failures that is expected."""
    why: Kind
    """`least`: both together cost least. `share`, `writing`, `shortest`, `longest`: the limit that was met. `spec`."""


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
    epoch: NotRequired[Step | None]
    """The training epoch."""
    steps_total: NotRequired[Step | None]
    """The `global_step` at which the training ends; null or missing where the script does not say so."""
    epochs: NotRequired[Step | None]
    """How many epochs there are."""
    metrics: NotRequired[Annotated[dict[MetricName, Number | None], Length(METRICS_MAX)]]
    """null for a value that is not finite."""
    nonfinite: NotRequired[Annotated[dict[MetricName, NonFinite], Length(METRICS_MAX)]]
    """Of each metric that was not finite: when first."""
    steps_per_s: NotRequired[Pace | None]
    cpu_percent: NotRequired[Percent | None]
    input_share: NotRequired[Share | None]
    """The share of the time that its step waits for the next batch, of late; null: not measured."""
    peers_share: NotRequired[Share | None]
    """The same of collectives: it waits for the other workers, and for what they send."""
    rss_bytes: NotRequired[Count | None]
    peak_rss_bytes: NotRequired[Count | None]
    log_bytes: NotRequired[Count]
    """The end of its log, counted from its first byte, with what was rotated away."""
    log_dropped_bytes: NotRequired[Count]
    heartbeat_age_s: NotRequired[Seconds]
    """Time since the shim's last report."""
    runtime_age_s: NotRequired[Seconds | None]
    """Time since the last message of the runtime in the task; null if it sends no heartbeats."""
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
    """Agent to coordinator, every heartbeat, and at once when a task's phase changes."""

    report: Report


# ---------------------------------------------------------------- replies


class Error(TypedDict):
    """Why an order failed."""

    code: Name
    message: Text
    hint: Text | None
    """What a person can do about it."""


@final
class OkFrame(TypedDict):
    """Agent to coordinator: an order was done. The frames of some replies have a blob."""

    reply: Count
    """The order's id."""
    ok: RawObject
    """Its type depends on the order."""


@final
class ErrorFrame(TypedDict):
    """Agent to coordinator: an order failed."""

    reply: Count
    error: Error


Reply = OkFrame | ErrorFrame


# ---------------------------------------------------------------- agent and shim


class ShimReportFrame(TypedDict):
    """Shim to agent: when the agent connects, every heartbeat, and at once after a change."""

    report: Task


# ---------------------------------------------------------------- shim and runtime: JSON lines


class Ready(TypedDict):
    """The versions of the packages in a task's process."""

    versions: dict[str, str | None]


class ReadyLine(TypedDict):
    """Runtime to shim: the task waits for its release; TensorFlow is imported if the script names it."""

    ready: Ready


class StepLine(TypedDict):
    """Runtime to shim: the progress of the training, at most four times a second."""

    step: Step
    age_s: NotRequired[Seconds]
    """Time since the step was made."""
    began: NotRequired[Began]
    saving: NotRequired[Saving]
    epoch: NotRequired[Step]
    total: NotRequired[Step]
    """The step at which the training ends."""
    epochs: NotRequired[Step]
    """How many epochs there are."""
    metrics: NotRequired[dict[MetricName, Number]]
    nonfinite: NotRequired[dict[MetricName, NotFinite]]
    """The metrics of this step for which JSON has no number."""
    steps_per_s: NotRequired[Pace]
    input_share: NotRequired[Share]
    """The share of the last seconds in which the step waited for the next batch."""
    peers_share: NotRequired[Share]
    """The same in collectives."""


class SayLine(TypedDict):
    """Runtime to shim: a sentence for people."""

    say: Said


class ErrorLine(TypedDict):
    """Runtime to shim: what ended the script; `kind` is `import`, `syntax`, `exception`, `unsupported`, or a word of
    the runtime's own that a failure signature knows: `no-tpu`, `no-local-tpu`, `no-rendezvous`."""

    error: Said


class StacksLine(TypedDict):
    """Runtime to shim: the Python stacks of all threads."""

    stacks: Stacks


class HeartbeatLine(TypedDict):
    """Runtime to shim, each second from the release on."""

    heartbeat: dict[str, object]


class Go(TypedDict):
    """The content of a release."""

    env: dict[str, str]


class GoLine(TypedDict):
    """Shim to runtime: the release."""

    go: Go


class Stopping(TypedDict):
    """The content of a stop."""

    grace_s: Seconds


class StopLine(TypedDict):
    """Shim to runtime: end the task."""

    stop: Stopping


class AskStacksLine(TypedDict):
    """Shim to runtime: send the stacks."""

    stacks: dict[str, object]


RuntimeLine = ReadyLine | StepLine | SayLine | ErrorLine | StacksLine | HeartbeatLine
"""What a runtime sends. A script may write to the same socket, so the shim trusts none of it."""

ShimLine = GoLine | StopLine | AskStacksLine
"""What a shim sends to its runtime."""

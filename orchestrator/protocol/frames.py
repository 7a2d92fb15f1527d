"""What an agent says of its host and of the tasks there, what a shim says of its task, and what a runtime says to it.

Every frame is one JSON object with one of the keys of the classes that end in `Frame`, or with `order`, of which
`orders` has the types. A string below a field says what it holds; docs/protocol.md is made from both.

A field that may be left out (NotRequired) is one that a shim of an older version may not know: shims outlive the
version of the agent that started them. An agent is always of the head's own version.
"""

from typing import Annotated, Literal, NotRequired, TypedDict, final

from orchestrator.protocol.bounds import (
    Count,
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

RUNS_MAX = 1024
"""Of one report: as many as one link serves, and far more than one host has."""

TASKS_MAX = 4096
"""Of one run on one host, older generations that still live among them."""


# ---------------------------------------------------------------- hello


class BootRequest(TypedDict):
    """What the head asks of the few lines that start an agent: one line of JSON."""

    nonce: str
    """Its answers are marked with this said backwards, so that no echo is taken for one."""
    digest: str
    host_dir: str | None
    heartbeat_s: float
    psutil: str | None
    """The digest of the archive that the head could push."""
    psutil_platform: str


class BootAnswer(TypedDict, total=False):
    """What those lines answer: that they need the bundle, that the agent starts, or why not."""

    need: bool
    ok: bool
    error: Literal["python-too-old", "os", "internal"]
    version: Name
    errno: Annotated[int, Range(0, 1 << 16)] | None
    why: Text
    path: Path


class Hello(TypedDict):
    """The first words of an agent."""

    digest: Name
    """Of the bundle that it runs from."""
    python: Name
    platform: Name
    """Which compiled modules fit: system, machine, C library."""
    hostname: Name
    user: Name
    boot_id: Name
    """Another one means that the host was rebooted: no pid of before means anything."""
    host_dir: Path
    host_dir_device: Annotated[int, Range(0, 2**64)]
    """`st_dev` of that directory."""
    psutil: Literal["bundle", "none"]
    """`bundle`: it was pushed before."""
    psutil_wanted: bool
    cgroup: bool
    """Whether tasks are put into control groups, which nothing of theirs can leave."""
    warning: Text | None
    """What on the host may end tasks although nothing is wrong with them, such as logind at logout."""


class Slow(TypedDict, total=False):
    """What the head found slow on the way to an agent."""

    shell_s: Seconds
    """The rc files of the login shell; said above 1 s."""
    connect_s: Seconds
    """Until sshd let us in; said above 5 s."""


class Greeting(Hello):
    """A hello as the rest of the head knows it."""

    slow: NotRequired[Slow]


@final
class HelloFrame(TypedDict):
    """Agent to coordinator, once, first."""

    hello: Hello


# ---------------------------------------------------------------- reports


class Said(TypedDict):
    """A sentence of the runtime in a task, or the error that ended its script."""

    kind: Kind
    message: Sentence


class Left(TypedDict):
    """A process that could not be killed."""

    pid: Pid
    why: Text


class TaskExit(TypedDict):
    """EXIT: how a task ended."""

    code: Annotated[int, Range(0, 255)] | None
    signal: Annotated[int, Range(1, 255)] | None
    ago_s: Seconds | None
    """Since it ended, by the host's monotonic clock; null after a reboot."""
    ended_at: NotRequired[UnixTime]
    ordered: NotRequired[bool]
    """We stopped it."""
    cause: ExitCause
    last_lines: NotRequired[Annotated[list[LogLine], Length(LAST_LINES_MAX)]]
    peak_rss_bytes: NotRequired[Count | None]
    swept: NotRequired[SweptBy]
    left: NotRequired[Annotated[list[Left], Length(LEFT_MAX)]]


class Task(TypedDict):
    """TASK: all that is known of one task in one generation."""

    task: TaskName
    generation: Generation
    phase: TaskPhase
    """`ready`: it waits for its release, with TensorFlow imported where the script names it. `running`: released.
    `unknown`: it was started here, and its shim has not spoken to this agent yet; nothing else is given then."""
    pid: NotRequired[Pid | None]
    port: NotRequired[Port | None]
    """That its shim holds for it."""
    global_step: NotRequired[Step | None]
    step_age_s: NotRequired[Seconds | None]
    """Since it moved there."""
    epoch: NotRequired[Step | None]
    """Of the training."""
    metrics: NotRequired[Annotated[dict[MetricName, Number | None], Length(METRICS_MAX)]]
    """null: not a finite number."""
    steps_per_s: NotRequired[Pace | None]
    cpu_percent: NotRequired[Percent | None]
    rss_bytes: NotRequired[Count | None]
    peak_rss_bytes: NotRequired[Count | None]
    log_bytes: NotRequired[Count]
    """The logical end of its log."""
    log_dropped_bytes: NotRequired[Count]
    heartbeat_age_s: NotRequired[Seconds]
    """Since its shim spoke."""
    runtime_age_s: NotRequired[Seconds | None]
    """Since the last word of the runtime in its process; null where that gives no sign of life."""
    error: NotRequired[Said | None]
    said: NotRequired[Annotated[list[Said], Length(SAID_MAX)]]
    exit: NotRequired[TaskExit | None]


class DirectorySample(TypedDict):
    """How a run's checkpoint directory answers on a host."""

    silent_s: Seconds
    """How long a look into it has not come back."""
    free_bytes: Count | None


class Sample(TypedDict):
    """How busy a host is."""

    cpu_percent: Percent | None
    memory_percent: Percent | None
    disk_free_bytes: Count | None
    psutil: PsutilFrom
    """Where psutil came from; `none`: the numbers are those of /proc."""


class HostSample(Sample):
    """The `host` part of a report."""

    checkpoint_dirs: Annotated[dict[RunId, DirectorySample], Length(RUNS_MAX)]


class Report(TypedDict):
    """A level, never an edge: all that is known of all tasks of the watched runs."""

    host: HostSample
    runs: Annotated[dict[RunId, Annotated[list[Task], Length(TASKS_MAX)]], Length(RUNS_MAX)]


@final
class ReportFrame(TypedDict):
    """Agent to coordinator, every heartbeat, and at once when a task's phase changes."""

    report: Report


# ---------------------------------------------------------------- replies


class Error(TypedDict):
    """Why an order was not done."""

    code: Name
    message: Text
    hint: Text | None
    """The way out."""


@final
class OkFrame(TypedDict):
    """Agent to coordinator: an order was done. Some replies bring bytes as the frame's blob."""

    reply: Count
    """The order's id."""
    ok: RawObject
    """What the table of orders says."""


@final
class ErrorFrame(TypedDict):
    """Agent to coordinator: an order was not done."""

    reply: Count
    error: Error


Reply = OkFrame | ErrorFrame


# ---------------------------------------------------------------- agent and shim


class ShimReportFrame(TypedDict):
    """Shim to agent: when it connects, every heartbeat, and at once on a change."""

    report: Task


# ---------------------------------------------------------------- shim and runtime: JSON lines


class Ready(TypedDict):
    """What is installed in a task's own process."""

    versions: dict[str, str | None]


class ReadyLine(TypedDict):
    """Runtime to shim: TensorFlow is imported where the script names it, and the task waits for its release."""

    ready: Ready


class StepLine(TypedDict):
    """Runtime to shim: how far the training is, at most four times a second."""

    step: Step
    age_s: NotRequired[Seconds]
    """Since the step was made."""
    epoch: NotRequired[Step]
    metrics: NotRequired[dict[MetricName, Number]]
    steps_per_s: NotRequired[Pace]


class SayLine(TypedDict):
    """Runtime to shim: a sentence for people."""

    say: Said


class ErrorLine(TypedDict):
    """Runtime to shim: what ended the script; `kind` is `import`, `syntax`, `exception` or `unsupported`."""

    error: Said


class StacksLine(TypedDict):
    """Runtime to shim: the Python stacks of all its threads."""

    stacks: Stacks


class HeartbeatLine(TypedDict):
    """Runtime to shim, each second from the release on."""

    heartbeat: dict[str, object]


class Go(TypedDict):
    """What the release brings."""

    env: dict[str, str]


class GoLine(TypedDict):
    """Shim to runtime: the release."""

    go: Go


class Stopping(TypedDict):
    """How long the task has to end by itself."""

    grace_s: Seconds


class StopLine(TypedDict):
    """Shim to runtime: end."""

    stop: Stopping


class AskStacksLine(TypedDict):
    """Shim to runtime: say where you are."""

    stacks: dict[str, object]


RuntimeLine = ReadyLine | StepLine | SayLine | ErrorLine | StacksLine | HeartbeatLine
"""What a runtime says. A script may write to the same socket: the shim takes nothing of it on trust."""

ShimLine = GoLine | StopLine | AskStacksLine
"""What a shim says to its runtime."""

"""Types of the orders about tasks and their files, and of their replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    Count,
    Digest,
    Generation,
    Length,
    Pid,
    Port,
    Stacks,
    TaskName,
    UnixTime,
)
from orchestrator.protocol.orders.base import (
    FILES_MAX,
    FaultKind,
    Fence,
    Nothing,
    OfRun,
    OfTask,
    Place,
    Share,
    Verb,
)
from orchestrator.protocol.paths import RelativePath
from orchestrator.protocol.reports import Left, SweptBy


class Start(OfTask):
    """Start the shim of a task, which starts the task's process."""

    python: str
    script: str
    """The path in the code; or `-m`, and then the first argument is a module."""
    args: list[str]
    env: dict[str, str]
    secrets: dict[str, str]
    """Environment variables that are never written to a disk."""
    code: str
    """The digest of the code."""
    ports: list[int]
    """The shim reserves the first free one."""
    hold: bool
    """Whether the task runs under the runtime and waits for `release`."""
    log_max_bytes: int
    scratch: bool
    """Whether the task gets its own temporary checkpoint directory."""


class Started(TypedDict):
    """The shim has started."""

    pid: Pid | None
    already: NotRequired[bool]


class Release(OfTask):
    """Release the task from its gate, with TF_CONFIG."""

    env: dict[str, str]
    """TF_CONFIG and similar variables."""
    seed: NotRequired[str | None]
    """A directory that the agent copies into the temporary checkpoint directory. The shim does not get this field."""
    seed_step: NotRequired[int | None]
    """The step of the checkpoint there; -1 if it tells none. Refused with code `seed-differs` where it is another."""
    share: NotRequired[Share | None]
    """Refused with code `share-missing` where this is not there. The shim does not get this field, nor `seed_step`."""
    port: NotRequired[int | None]
    """The port at which its peers expect the task, if it is not the one that the shim reserved."""


class Stop(OfTask):
    """Stop the task. The reply comes at once, and reports show the end."""

    grace_s: float
    """How long the task may take to end; 0 kills it at once."""
    rescue: NotRequired[bool]
    """Whether it first hands over its state, since a peer died. An older shim ignores this field."""
    compare: NotRequired[bool]
    """Whether it first reports which state it holds, and waits for a second stop. An older shim hands over at once."""


class AskStacks(OfTask):
    """Return the stacks of the task's threads."""


class StacksText(TypedDict):
    """The stacks of the task's threads."""

    stacks: Stacks
    by: Literal["runtime", "kernel"]
    """`kernel` if the runtime did not answer within 5 s."""


class Sweep(OfRun):
    """Kill all processes of the run up to that generation, and name those that cannot be killed."""

    generation_max: int
    release: NotRequired[str | None]
    """A checkpoint directory whose claim the run gives up afterwards."""
    ends: NotRequired[bool | None]
    """Whether the run ends: nobody drives it on this host once its last process is gone."""


class Swept(TypedDict):
    """The proof: no process of the run up to that generation is left, except those in `left`."""

    left: Annotated[list[Left], Length(4096)]
    ports_busy: Annotated[list[Port], Length(4096)]
    by: SweptBy


class AskLog(OfTask):
    """Read whole lines of the task's log; they are the blob of the reply."""

    offset: int
    bytes_max: int


class LogPart(TypedDict):
    """The position of the log's part that is the blob of the frame."""

    offset: Count
    """Later than requested if the start was removed by rotation."""
    end: Count
    time: UnixTime
    """When it was read, by the host's clock."""


class Saved(TypedDict):
    """A generation's directory of the checkpoint directory, and the task that saves there."""

    dir: str
    task: str
    generation: int


class AskFiles(OfRun):
    """List TensorBoard's files of the run, what its tasks left in their working directories, or what one has saved."""

    of: Literal["summaries", "outputs", "saved"]
    saved: NotRequired[Saved | None]


class TaskFile(TypedDict):
    """A file that a task wrote."""

    task: TaskName
    generation: Generation
    place: Place
    path: RelativePath
    bytes: Count


class TaskFiles(TypedDict):
    """The files of the run's tasks on the host."""

    files: Annotated[list[TaskFile], Length(FILES_MAX)]
    left_out: Count
    """The number of links, of names with control characters, and of files beyond the maximum size of an answer."""


class OfFile(OfTask):
    """Name a file of a task. A working directory is the same in all generations."""

    place: Place
    path: RelativePath
    dir: NotRequired[str | None]
    """For `saved`: the generation's directory of the checkpoint directory."""


class AskFile(OfFile):
    """Read a part of one of these files; it is the blob of the reply."""

    offset: int
    bytes_max: int


class AskDigest(OfFile):
    """Read a whole file, and say what its content is."""


class FileDigest(TypedDict):
    """The digest and the size of a file."""

    sha256: Digest
    bytes: Count


class Fault(OfRun):
    """Inject a fault into a run whose spec allows it. The reply comes when it has begun; a host's fault has no task."""

    fault: FaultKind
    for_s: float
    task: NotRequired[str | None]
    generation: NotRequired[int | None]


class FaultBegun(TypedDict):
    """The fault has begun."""

    pid: NotRequired[Pid]
    bytes: NotRequired[Count]


START = Verb("start", Start, Started, Fence.BEGINS, ("no-code", "gpu-leased"))
RELEASE = Verb("release", Release, Nothing, refusals=("gone", "share-missing"))
STOP = Verb("stop", Stop, Nothing, refusals=("no-task",))
SWEEP = Verb("sweep", Sweep, Swept)
STACKS = Verb("stacks", AskStacks, StacksText)
LOG = Verb("log", AskLog, LogPart)
FILES = Verb("files", AskFiles, TaskFiles)
FILE = Verb("file", AskFile, Nothing)
DIGEST = Verb("digest", AskDigest, FileDigest)
FAULT = Verb("fault", Fault, FaultBegun)

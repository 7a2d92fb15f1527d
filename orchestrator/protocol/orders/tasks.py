"""The types of the orders of a task's life and files, and of their replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    Count,
    Digest,
    FilePath,
    Generation,
    Length,
    Pid,
    Port,
    Stacks,
    TaskName,
    UnixTime,
)
from orchestrator.protocol.orders.base import FILES_MAX, FaultKind, OfRun, OfTask, Place
from orchestrator.protocol.reports import Left, SweptBy


class Start(OfTask):
    """What a shim needs to start the task."""

    python: str
    script: str
    """Relative to the code; or `-m`, and the first argument is a module."""
    args: list[str]
    env: dict[str, str]
    secrets: dict[str, str]
    """Never written to a disk."""
    code: str
    """The digest of the code."""
    ports: list[int]
    """The shim takes the first that is free."""
    hold: bool
    """Whether the task runs under the runtime, and waits for its release."""
    log_max_bytes: int
    scratch: bool
    """Whether the task gets a checkpoint directory of its own, which is removed with it."""


class Started(TypedDict):
    """The shim has started."""

    pid: Pid | None
    already: NotRequired[bool]


class Release(OfTask):
    """What the task gets when all tasks have joined."""

    env: dict[str, str]
    """TF_CONFIG and similar variables."""
    seed: NotRequired[str | None]
    """The directory that the agent copies into the scratch. It is not forwarded to the shim."""
    port: NotRequired[int]
    """The port that the task takes now, in place of the one that its shim holds: by it the task's peers know it."""


class Stop(OfTask):
    """How long the task may take to end."""

    grace_s: float
    """0 to kill it at once."""
    rescue: NotRequired[bool]
    """Whether it hands over its state first, as a survivor of a peer's death; an older shim ends it gently."""
    compare: NotRequired[bool]
    """Whether it first says what it holds, and waits for a second stop; an older shim hands over at once."""


class AskStacks(OfTask):
    """The task."""


class StacksText(TypedDict):
    """The stacks of the task."""

    stacks: Stacks
    by: Literal["runtime", "kernel"]
    """`kernel` if the runtime did not answer within 5 s."""


class Sweep(OfRun):
    """The newest generation that is swept."""

    generation_max: int
    release: NotRequired[str]
    """The checkpoint directory on which the run then has no claim any more."""
    ends: NotRequired[bool]
    """The run ends: nobody drives it on this host once nothing of it is left."""


class Swept(TypedDict):
    """The proof: no process of the run up to that generation is left, but for those that are named."""

    left: Annotated[list[Left], Length(4096)]
    ports_busy: Annotated[list[Port], Length(4096)]
    by: SweptBy


class AskLog(OfTask):
    """Which part of the log."""

    offset: int
    bytes_max: int


class LogPart(TypedDict):
    """Which part the blob is."""

    offset: Count
    """Later than requested if the start was rotated away."""
    end: Count
    time: UnixTime
    """By the host's clock, when it was read."""


class AskFiles(OfRun):
    """Which files: those of TensorBoard, or all that the tasks left in their working directories."""

    of: Literal["summaries", "outputs"]


class TaskFile(TypedDict):
    """A file that a task has written."""

    task: TaskName
    generation: Generation
    place: Place
    path: FilePath
    bytes: Count


class TaskFiles(TypedDict):
    """Files of the run's tasks on the host."""

    files: Annotated[list[TaskFile], Length(FILES_MAX)]
    left_out: Count
    """Of links, of names with control characters, and of what is beyond the bounds of an answer."""


class OfFile(OfTask):
    """Which file. That of a working directory is the same in all generations."""

    place: Place
    path: str


class AskFile(OfFile):
    """Which part of which file."""

    offset: int
    bytes_max: int


class FileDigest(TypedDict):
    """The content of a file."""

    sha256: Digest
    bytes: Count


class Fault(OfRun):
    """The fault, and how long it lasts. Faults of a host have no task."""

    fault: FaultKind
    for_s: float
    task: NotRequired[str]
    generation: NotRequired[int]


class FaultBegun(TypedDict):
    """The fault has begun."""

    pid: NotRequired[Pid]
    bytes: NotRequired[Count]

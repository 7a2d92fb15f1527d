"""The types of all orders and of their replies. `table` says which belong together.

Some replies repeat files that an older version may have written (the marker of a generation, the record of a run). Of
those, only the fields that are used are required.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    AnyJson,
    Count,
    Digest,
    Epoch,
    FilePath,
    FreeBytes,
    Generation,
    Length,
    Name,
    Path,
    Pid,
    Port,
    RunId,
    SavedStep,
    Seconds,
    Stacks,
    TaskName,
    Text,
    UnixTime,
)
from orchestrator.protocol.frames import Left, SweptBy, Task

FILES_MAX = 100_000
"""The most entries of any list. For most lists, the limit of the frame comes first."""

CheckpointsDo = Literal["list", "read", "pin", "unpin", "rollback"]

FaultKind = Literal["kill", "freeze", "kill-shim", "kill-agent", "fill"]


class Order(TypedDict, total=False):
    """The fields of every order, which are added when it is sent."""

    order: str
    """The verb."""
    id: int
    """The id of the reply; an order without an id gets no reply."""


class OfRun(Order):
    """An order for a run."""

    run: str
    epoch: int
    """The epoch of the coordinator."""


class OfTask(OfRun):
    """An order for one task in one generation."""

    generation: int
    task: str


class Nothing(TypedDict):
    """An empty reply: the order was done, now or before."""


# ---------------------------------------------------------------- watching


class Watch(OfRun):
    """How often the run is to be reported."""

    heartbeat_s: float


# ---------------------------------------------------------------- before a start


class Probe(OfRun):
    """The run's Python and its checkpoint directory."""

    python: str
    checkpoint_dir: str | None


class GpuInUse(TypedDict):
    """A process that uses a GPU."""

    gpu: Count
    """Its number in the driver's order."""
    pid: Pid
    user: Name | None
    name: Path


class OwnName(TypedDict):
    """The address to which the host's own name resolves, where libraries such as gloo listen."""

    name: Name
    address: Name | None
    """null if it cannot be bound; `why` says why."""
    why: Text | None


class Facts(TypedDict):
    """What the run's Python found on the host."""

    python: Name
    versions: Annotated[dict[Name, Name | None], Length(16)]
    """The versions of tensorflow, keras, tf_keras and numpy; null for a missing package."""
    checkpoint_writable: bool
    checkpoint_why: Text | None
    """Why the directory cannot be written; null if it can."""
    checkpoint_share: Name | None
    """The token of the run in the directory. Hosts that share the directory have the same one."""
    gpus: Annotated[list[Name], Length(1024)] | None
    """UUIDs in the driver's order; null without a driver."""
    gpus_in_use: Annotated[list[GpuInUse], Length(4096)]
    disk_free_bytes: FreeBytes | None
    own_name: OwnName


class Code(OfRun):
    """The manifest of the working directory."""

    files: list[tuple[str, str, int, int]]
    """Path, SHA-256, mode and bytes of each."""


class CodeState(TypedDict):
    """Which parts of the code the host lacks."""

    digest: Digest
    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """The files that must be sent as `blob`; empty if the tree is in place."""


class Blob(OfRun):
    """A part of a file, which is the blob of the frame."""

    sha256: str
    offset: int
    last: bool
    store: NotRequired[Literal["checkpoints"]]
    """Set for a chunk of a snapshot."""


class BlobState(TypedDict):
    """Whether the file is right."""

    damaged: NotRequired[bool]
    """True if the whole file does not have that hash. It is not kept, and the next `code` names it again."""


class Psutil(Order):
    """A part of psutil's archive, which is the blob of the frame. It has no id: reports show whether psutil works."""

    sha256: str
    offset: int
    last: bool


# ---------------------------------------------------------------- checkpoints


class By(TypedDict):
    """Who made a generation, for people."""

    run: str
    host: str
    task: str


class Rejected(TypedDict):
    """A damaged checkpoint."""

    path: Path
    why: Text


class Seed(OfRun):
    """Which generation begins, and from which checkpoints it may start."""

    generation: int
    dir: str
    python: str
    from_scratch: bool
    keep: int
    by: By
    only: NotRequired[str]
    """The digest of the only snapshot that may be used."""


class Seeded(TypedDict):
    """The checkpoint from which the generation starts."""

    global_step: SavedStep | None
    source: Path | None
    """null if there never was a checkpoint."""
    verified: NotRequired[bool | None]
    """false if its format is unknown; null if there is no checkpoint."""
    path: Path
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]
    highest_generation: NotRequired[Generation]
    from_scratch: NotRequired[bool]
    by: NotRequired[AnyJson]
    """The whole reply is also stored in the directory, and repeated if the order is."""


class Verify(OfRun):
    """Which generation's newest checkpoint is verified."""

    generation: int
    dir: str
    python: str


class SavedCheckpoint(TypedDict):
    """A checkpoint that was read to its last byte, or one of an unknown format that seems complete."""

    global_step: SavedStep | None
    path: Path
    saved_at: UnixTime
    kind: Name
    """Its format."""
    verified: bool
    """false if its format is unknown."""


class Verified(TypedDict):
    """The newest good checkpoint, and the damaged ones that are newer."""

    checkpoint: SavedCheckpoint | None
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]


class Snapshot(OfRun):
    """Which checkpoint is copied."""

    generation: int
    dir: str
    python: str
    path: str | None
    """null for the newest good one."""


class Manifest(TypedDict):
    """The files and chunks of a snapshot, which is in `.orch/safe/<digest>`."""

    digest: Digest
    files: Annotated[
        list[tuple[FilePath, Count, SavedStep, Annotated[list[Digest], Length(FILES_MAX)]]], Length(FILES_MAX)
    ]
    """For each file its name, its bytes, its modification time in ns, and the SHA-256 of each chunk."""
    piece_bytes: Count
    """The size of each chunk but the last of a file. The key keeps its old name because manifests are on disks."""
    bytes: Count
    generation: Generation | None
    global_step: SavedStep | None
    saved_at: UnixTime
    by: AnyJson


class Chunk(OfRun):
    """Which part of which file of a snapshot."""

    dir: str
    digest: str
    name: str
    offset: int
    bytes_max: int


class Receive(OfRun):
    """The snapshot that the host must have."""

    dir: str
    manifest: Manifest


class Received(TypedDict):
    """Which chunks the host lacks."""

    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """The chunks that must be sent as `blob` with `store`; empty if the snapshot is in place."""


class Checkpoints(OfRun):
    """What a person asks about a run's checkpoints."""

    do: CheckpointsDo
    dir: str
    python: str
    what: str | None
    """A step, `gen-N`, or a name from the list; null for `list` and `read`."""


class Checkpoint(TypedDict):
    """One checkpoint of the directory."""

    generation: Generation | None
    """null if it is in no generation's directory."""
    name: Path
    path: Path
    kind: Name
    global_step: SavedStep | None
    bytes: Count
    saved_at: UnixTime
    resumes: bool
    """Whether scripts resume from this kind of checkpoint by themselves."""
    whole: bool | None
    """null if it was not read yet, or if its format is unknown."""
    proof: Literal["checksums", "structure", "names"]
    """What reading it proves: that no bit has changed; that nothing is missing; nothing, for an unknown format."""
    why: Text | None
    verified_at: UnixTime | None
    pinned: bool
    set_aside: bool
    by: AnyJson
    given: bool
    """Whether it is the copy with which the generation started."""


class CheckpointsAnswer(TypedDict, total=False):
    """The reply has the first three fields for `list` and `read`, and the others for `pin`, `unpin` and `rollback`."""

    dir: Path
    checkpoints: Annotated[list[Checkpoint], Length(FILES_MAX)]
    newest: Path | None
    checkpoint: Checkpoint
    set_aside: Annotated[list[Generation], Length(FILES_MAX)]
    """For `rollback`: the generations that are ignored from now on."""
    path: Path
    already: bool


class Highest(OfRun):
    """The checkpoint directory."""

    dir: str


class HighestGeneration(TypedDict):
    """The highest generation in the directory."""

    generation: Generation
    """0 if there is none."""


# ---------------------------------------------------------------- a task's life


class Start(OfTask):
    """What a shim needs to start the task."""

    python: str
    script: str
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


class Stop(OfTask):
    """How long the task may take to end."""

    grace_s: float
    """0 to kill it at once."""


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


class SummaryFile(TypedDict):
    """One of TensorBoard's files."""

    task: TaskName
    generation: Generation
    path: FilePath
    bytes: Count


class SummaryFiles(TypedDict):
    """TensorBoard's files in ORCH_LOG_DIR."""

    files: Annotated[list[SummaryFile], Length(FILES_MAX)]
    left_out: Count


class Summary(OfTask):
    """Which part of which file."""

    path: str
    offset: int
    bytes_max: int


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


# ---------------------------------------------------------------- without, or beside, a coordinator


class Record(TypedDict):
    """A run as its coordinator sees it."""

    epoch: int
    written_at: float
    state: str
    """The JSON of the journal."""


class Keep(OfRun):
    """What the host must remember."""

    record: Record


class Runs(Order):
    """Whether the records are wanted too."""

    records: bool


class KnownTask(Task):
    """A task that a host remembers."""

    alive: bool


class KnownRun(TypedDict):
    """A run that a host remembers, whoever started it."""

    run: RunId
    directory: bool
    """false if only processes with the run's marker were found."""
    epoch: Epoch
    watched: bool
    watched_ago_s: Seconds | None
    alive: bool
    processes: Annotated[list[Pid], Length(FILES_MAX)]
    bytes: Count
    age_s: Seconds | None
    """Time since a file of it changed."""
    tasks: Annotated[list[KnownTask], Length(FILES_MAX)]
    record: AnyJson
    """The record of each run that lives, and of the newest others up to 1 MiB; else null."""


class KnownRuns(TypedDict):
    """All runs that the host remembers."""

    runs: Annotated[list[KnownRun], Length(FILES_MAX)]


class Remove(OfRun):
    """Whether a run is removed that an agent watches."""

    even_driven: bool

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
    Number,
    Path,
    Percent,
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
from orchestrator.protocol.frames import Left, SweptBy, Task, Unkillable
from orchestrator.protocol.limits import LEFT_MAX

FILES_MAX = 100_000
"""The most entries of any list. For most lists, the limit of the frame comes first."""

CheckpointsDo = Literal["list", "read", "pin", "unpin", "rollback"]

Place = Literal["logs", "work"]
"""Where a task writes files: into ORCH_LOG_DIR of a generation, or into its working directory."""

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


class Claim(TypedDict):
    """Which run a coordinator drives, and where that run saves."""

    id: Name
    """The coordinator's, which its journal was given when it was made."""
    head: Name
    """The host name of the head node."""
    user: Name
    run: Name
    name: Name
    checkpoint_dir: Path | None


class Watch(OfRun):
    """How often the run is to be reported, and who drives it."""

    heartbeat_s: float
    claim: NotRequired[Claim]


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
    gpus_why: Text | None
    """Why there is no GPU; null if there are some, or if it cannot be told."""
    gpus_in_use: Annotated[list[GpuInUse], Length(4096)]
    disk_free_bytes: FreeBytes | None
    own_name: OwnName
    unkillable: Annotated[list[Unkillable], Length(LEFT_MAX)]


class GpuUser(TypedDict):
    """A process that uses a GPU."""

    pid: Pid
    user: Name | None
    run: Name | None
    """The run of ours that it is of; null where it is none, or cannot be told."""


class Gpu(TypedDict):
    """A GPU and its use. What cannot be told is null."""

    index: Count
    """Its number in the driver's order."""
    name: Name
    utilization_percent: Percent | None
    memory_used_bytes: Count | None
    memory_total_bytes: Count | None
    processes: Annotated[list[GpuUser], Length(4096)]


class AskMachine(Order):
    """What a host has; the order says no more."""


class Hardware(TypedDict):
    """What a host has, and who uses it. What cannot be told is null."""

    cpus: Count
    load: Number | None
    """Of the last minute."""
    memory_total_bytes: Count | None
    memory_free_bytes: Count | None
    disk_total_bytes: FreeBytes | None
    """Of the file system of the host's directory."""
    disk_free_bytes: FreeBytes | None
    gpus: Annotated[list[Gpu], Length(1024)]
    gpus_why: Text | None
    """Why there is no GPU; null if there are some, or if it cannot be told."""


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
    claim: NotRequired[Claim]
    """Whose the checkpoint directory becomes. Refused with code `driven` while another coordinator's run uses it."""
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
    bytes: Count
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
    release: NotRequired[str]
    """The checkpoint directory on which the run then has no claim any more."""


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


# ---------------------------------------------------------------- without, or beside, a coordinator


class Record(TypedDict):
    """A run as its coordinator sees it."""

    epoch: int
    written_at: float
    revision: NotRequired[int]
    """Grows with every record of the epoch."""
    state: str
    """The JSON of the journal, compressed by zlib, in base64."""


class Keep(OfRun):
    """What the host must remember."""

    record: Record


class Runs(Order):
    """What is wanted beside the names, owners and lives of the runs."""

    records: bool
    brief: NotRequired[bool]
    """Leave out sizes, and the tasks of runs of which nothing lives."""
    dir: NotRequired[str]
    """A checkpoint directory: the reply says whose it is."""


class Claimed(Claim):
    """A claim as it is written on a host or in a checkpoint directory."""

    since: UnixTime
    """Since when this owner has had it."""


class Stamp(TypedDict):
    """Whose a checkpoint directory is."""

    claim: Claimed
    host: Name
    """The host name of the run's chief."""
    ago_s: Seconds
    """Time since an agent looked after it, or something was saved."""
    driven: bool
    """Whether that was less than 15 minutes ago."""


class KnownTask(Task):
    """A task that a host remembers."""

    alive: bool


class KnownRun(TypedDict):
    """A run that a host remembers, whoever started it."""

    run: RunId
    directory: bool
    """false if only processes with the run's marker were found."""
    epoch: Epoch
    claim: Claimed | None
    """Whose it is; null if unknown."""
    watched: bool
    """Whether an agent watches it now."""
    watched_ago_s: Seconds | None
    """Time since one did; null if its coordinator has no more to do with it."""
    driven: bool
    """Whether that was less than 15 minutes ago."""
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
    checkpoint: NotRequired[Stamp | None]


class Remove(OfRun):
    """Who removes a run."""

    owner: str
    """The id of the coordinator that asks. Of others' runs, what lives or is driven is left alone."""
    even_alive: bool
    """Remove it all the same: a person has named it."""

"""What a coordinator may ask of an agent, and what an agent answers: the types of each order and of its reply.

`table` says which belong together. Of what hosts keep in files that older versions wrote (a checkpoint's marker, a
run's record) only what is used is required.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    AnyJson,
    Count,
    Digest,
    Epoch,
    FilePath,
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
"""Of anything that is listed; the frame's own limit comes first for most."""

CheckpointsDo = Literal["list", "read", "pin", "unpin", "rollback"]

FaultKind = Literal["kill", "freeze", "kill-shim", "kill-agent", "fill"]


class Order(TypedDict, total=False):
    """What is in every order; added when it is sent."""

    order: str
    """The verb."""
    id: int
    """Of the reply; an order without one gets none."""


class OfRun(Order):
    """An order for a run."""

    run: str
    epoch: int
    """Of the coordinator that asks."""


class OfTask(OfRun):
    """An order for one task in one generation."""

    generation: int
    task: str


class Nothing(TypedDict):
    """An empty reply: done, now or before."""


# ---------------------------------------------------------------- watching


class Watch(OfRun):
    """From now on the run is in the reports."""

    heartbeat_s: float


# ---------------------------------------------------------------- before a start


class Probe(OfRun):
    """Which Python, and which directory the run saves into."""

    python: str
    checkpoint_dir: str | None


class GpuInUse(TypedDict):
    """A process that computes on a GPU."""

    gpu: Count
    """Its number in the driver's order."""
    pid: Pid
    user: Name | None
    name: Path


class OwnName(TypedDict):
    """Where a library listens that asks for the host's own name."""

    name: Name
    address: Name | None
    """null: nowhere."""
    why: Text | None


class Facts(TypedDict):
    """What the run's Python found."""

    python: Name
    versions: Annotated[dict[Name, Name | None], Length(16)]
    """Of tensorflow, keras, tf_keras and numpy; null where one is missing."""
    checkpoint_writable: bool
    checkpoint_why: Text | None
    """Why it is not writable."""
    checkpoint_share: Name | None
    """What the run finds written in the directory: equal on all hosts, or they do not share it."""
    gpus: Annotated[list[Name], Length(1024)] | None
    """UUIDs in the driver's order; null where there is no driver."""
    gpus_in_use: Annotated[list[GpuInUse], Length(4096)]
    disk_free_bytes: Count | None
    own_name: OwnName


class Code(OfRun):
    """The manifest of the working directory."""

    files: list[tuple[str, str, int, int]]
    """Path, SHA-256, mode and bytes of each."""


class CodeState(TypedDict):
    """What of the code the host lacks."""

    digest: Digest
    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """Contents that must come as `blob`; empty: the tree is in place."""


class Blob(OfRun):
    """A part of a file's content, which is the frame's blob."""

    sha256: str
    offset: int
    last: bool
    store: NotRequired[Literal["checkpoints"]]
    """A chunk of a snapshot, and no code."""


class BlobState(TypedDict):
    """Empty, or what is wrong."""

    damaged: NotRequired[bool]
    """The whole is not its hash. After the last part of each, `code` is asked again."""


class Psutil(Order):
    """A part of psutil's archive, which is the frame's blob. Has no id: reports say later where psutil came from."""

    sha256: str
    offset: int
    last: bool


# ---------------------------------------------------------------- checkpoints


class By(TypedDict):
    """Whose a generation is, for people."""

    run: str
    host: str
    task: str


class Rejected(TypedDict):
    """A checkpoint that did not read whole."""

    path: Path
    why: Text


class Seed(OfRun):
    """Which generation begins, and what it may begin with."""

    generation: int
    dir: str
    python: str
    from_scratch: bool
    keep: int
    by: By
    only: NotRequired[str]
    """The digest of the one snapshot to take it from."""


class Seeded(TypedDict):
    """What the generation begins with."""

    global_step: SavedStep | None
    source: Path | None
    """null: there never was a checkpoint."""
    path: Path
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]
    highest_generation: NotRequired[Generation]
    from_scratch: NotRequired[bool]
    by: NotRequired[AnyJson]
    """Whose it is. The answer lies in the directory, too, and is given again where it is asked again."""


class Verify(OfRun):
    """Which generation's newest checkpoint is to be read."""

    generation: int
    dir: str
    python: str


class SavedCheckpoint(TypedDict):
    """A checkpoint that reads whole."""

    global_step: SavedStep | None
    path: Path
    saved_at: UnixTime


class Verified(TypedDict):
    """What was read."""

    checkpoint: SavedCheckpoint | None
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]


class Snapshot(OfRun):
    """Which checkpoint is to be set aside."""

    generation: int
    dir: str
    python: str
    path: str | None
    """null: the newest that reads whole."""


class Manifest(TypedDict):
    """MANIFEST: what a snapshot is made of. It is in `.orch/safe/<digest>` from then on."""

    digest: Digest
    files: Annotated[
        list[tuple[FilePath, Count, SavedStep, Annotated[list[Digest], Length(FILES_MAX)]]], Length(FILES_MAX)
    ]
    """Name, bytes, time of change in ns, and the SHA-256 of each chunk, of each file."""
    piece_bytes: Count
    """Of each chunk but a file's last. (The key is older than the word: manifests lie on disks.)"""
    bytes: Count
    generation: Generation | None
    global_step: SavedStep | None
    saved_at: UnixTime
    by: AnyJson


class Chunk(OfRun):
    """Which part of a snapshot's file."""

    dir: str
    digest: str
    name: str
    offset: int
    bytes_max: int


class Receive(OfRun):
    """The snapshot that is to be here."""

    dir: str
    manifest: Manifest


class Received(TypedDict):
    """What of it is missing."""

    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """Chunks that must come as `blob` with `store: "checkpoints"`; empty: the snapshot is in place."""


class Checkpoints(OfRun):
    """What a person wants of the checkpoints of a run."""

    do: CheckpointsDo
    dir: str
    python: str
    what: str | None
    """A step, `gen-N`, or a name of the list; not for `list` and `read`."""


class Checkpoint(TypedDict):
    """CHECKPOINT: one of a directory's, and what is known of it."""

    generation: Generation | None
    """null: it lies beside the generations."""
    name: Path
    path: Path
    kind: Name
    global_step: SavedStep | None
    bytes: Count
    saved_at: UnixTime
    resumes: bool
    """Scripts go on from such a one by themselves."""
    whole: bool | None
    """null: not read yet."""
    why: Text | None
    verified_at: UnixTime | None
    pinned: bool
    set_aside: bool
    by: AnyJson
    given: bool
    """A copy that the generation began with."""


class CheckpointsAnswer(TypedDict, total=False):
    """`list` and `read` answer with the first three, the others with what follows them."""

    dir: Path
    checkpoints: Annotated[list[Checkpoint], Length(FILES_MAX)]
    newest: Path | None
    checkpoint: Checkpoint
    set_aside: Annotated[list[Generation], Length(FILES_MAX)]
    """Of `rollback`: the generations that count no more."""
    path: Path
    already: bool


class Highest(OfRun):
    """Which directory."""

    dir: str


class HighestGeneration(TypedDict):
    """How far the generations there have got."""

    generation: Generation
    """0 for none."""


# ---------------------------------------------------------------- a task's life


class Start(OfTask):
    """Everything that a shim needs."""

    python: str
    script: str
    args: list[str]
    env: dict[str, str]
    secrets: dict[str, str]
    """Never written down."""
    code: str
    """The digest of the tree."""
    ports: list[int]
    """Candidates, of which the shim takes one."""
    hold: bool
    """The runtime is on: the process waits for its release."""
    log_max_bytes: int
    scratch: bool
    """This task's checkpoint directory is the host's own and thrown away."""


class Started(TypedDict):
    """The shim is up."""

    pid: Pid | None
    already: NotRequired[bool]


class Release(OfTask):
    """What a task gets when all have joined."""

    env: dict[str, str]
    """TF_CONFIG and its like."""
    seed: NotRequired[str | None]
    """The directory whose content goes to the scratch. The agent copies it; the shim does not get this field."""


class Stop(OfTask):
    """How long a task may take to end."""

    grace_s: float
    """0: it is killed at once."""


class AskStacks(OfTask):
    """Of which task."""


class StacksText(TypedDict):
    """Where the task is in its code."""

    stacks: Stacks
    by: Literal["runtime", "kernel"]
    """`kernel`: its runtime did not answer within 5 s."""


class Sweep(OfRun):
    """Up to which generation."""

    generation_max: int


class Swept(TypedDict):
    """The proof: after it no marked process of the run up to that generation lives, or it is named."""

    left: Annotated[list[Left], Length(4096)]
    ports_busy: Annotated[list[Port], Length(4096)]
    by: SweptBy


class AskLog(OfTask):
    """Which part of a log."""

    offset: int
    bytes_max: int


class LogPart(TypedDict):
    """What part it is."""

    offset: Count
    """Later than asked where rotation has dropped the start."""
    end: Count


class SummaryFile(TypedDict):
    """One of TensorBoard's files."""

    task: TaskName
    generation: Generation
    path: FilePath
    bytes: Count


class SummaryFiles(TypedDict):
    """What is below ORCH_LOG_DIR."""

    files: Annotated[list[SummaryFile], Length(FILES_MAX)]
    left_out: Count


class Summary(OfTask):
    """Which part of which file."""

    path: str
    offset: int
    bytes_max: int


class Fault(OfRun):
    """What `orch chaos` does to a task, or to the host."""

    fault: FaultKind
    for_s: float
    task: NotRequired[str]
    generation: NotRequired[int]


class FaultBegun(TypedDict):
    """It has begun."""

    pid: NotRequired[Pid]
    bytes: NotRequired[Count]


# ---------------------------------------------------------------- without, or beside, a coordinator


class Record(TypedDict):
    """A run as its coordinator saw it."""

    epoch: int
    written_at: float
    state: str
    """The journal's JSON of it."""


class Keep(OfRun):
    """What the host is to remember."""

    record: Record


class Runs(Order):
    """Whether records are wanted."""

    records: bool


class KnownTask(Task):
    """A task that a host remembers."""

    alive: bool


class KnownRun(TypedDict):
    """A run that a host remembers, whoever began it."""

    run: RunId
    directory: bool
    """false: only processes with the run's mark were found."""
    epoch: Epoch
    watched: bool
    watched_ago_s: Seconds | None
    alive: bool
    processes: Annotated[list[Pid], Length(FILES_MAX)]
    bytes: Count
    age_s: Seconds | None
    """Since anything of it changed."""
    tasks: Annotated[list[KnownTask], Length(FILES_MAX)]
    record: AnyJson
    """Of each run that lives, and of the newest others up to 1 MiB; else null."""


class KnownRuns(TypedDict):
    """All that the host remembers."""

    runs: Annotated[list[KnownRun], Length(FILES_MAX)]


class Remove(OfRun):
    """Whether a run goes that somebody drives."""

    even_driven: bool

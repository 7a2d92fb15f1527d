"""Orders that look at hosts, and prepare them for a start; their types, and those of the replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    Count,
    Digest,
    Exact,
    Form,
    FreeBytes,
    Length,
    LogLine,
    Name,
    Number,
    Path,
    Percent,
    Pid,
    Port,
    Range,
    Seconds,
    Text,
    UnixTime,
)
from orchestrator.protocol.limits import LEFT_MAX
from orchestrator.protocol.orders.base import FILES_MAX, Fence, Nothing, OfRun, Sent, Verb
from orchestrator.protocol.orders.driving import Leased
from orchestrator.protocol.paths import RelativePath
from orchestrator.protocol.reports import Unkillable


class Import(TypedDict):
    """Import TensorFlow once, in a process of its own."""

    env: dict[str, str]
    within_s: float


class Imported(TypedDict):
    """The result of importing TensorFlow."""

    seconds: Seconds
    gpus: Count | None
    """How many GPUs TensorFlow sees; null if it did not get that far."""
    why: Text | None
    """Why the import failed; null if it succeeded or was ended."""


class Probe(OfRun):
    """Check the run's Python and its packages, the script and the GPUs, and who may write the checkpoint directory."""

    python: str
    env: NotRequired[dict[str, str]]
    """The environment of the tasks, as the spec has it."""
    files: NotRequired[list[tuple[str, str]]]
    """Small files of the working directory, with their text: a shim such as pyenv's chooses the Python by them."""
    checkpoint_dir: str | None
    group: NotRequired[str | None]
    """Whose members may write into the checkpoint directory too."""
    share: NotRequired[str | None]
    """The token that the run has in the directory; it is looked for, and nothing is made. null: it has none yet."""
    withdraw: NotRequired[bool]
    """Instead, remove the token that was made for it; true: and the directory."""
    modules: NotRequired[list[str]]
    """Top-level modules that the script needs."""
    packages: NotRequired[list[str] | None]
    """Modules whose versions the answer has."""
    source: NotRequired[str | None]
    """The text of the script, which is compiled; null: none."""
    tensorflow: NotRequired[Import]


class GpuInUse(TypedDict):
    """A process that uses a GPU."""

    gpu: Count
    """The index in the driver's order."""
    pid: Pid | None
    """null of a process that only holds the GPU's lease: the kernel names its user alone."""
    user: Name | None
    name: Path


class OwnName(TypedDict):
    """The address to which the host's own name resolves. Libraries such as gloo listen there."""

    name: Name
    address: Name | None
    """null if it cannot be bound."""
    why: Text | None


class Facts(TypedDict):
    """The result of `probe`."""

    python: Name
    executable: NotRequired[Annotated[str, Length(4096), Exact()]]
    """What starts this Python. A shim is passed by: it might choose another Python for the next process."""
    activated: NotRequired[Annotated[dict[Name, Annotated[str, Length(1 << 16)]], Length(1024)]]
    """The variables that `activate` of the spec has changed, without the host's name and home; empty if removed."""
    versions: Annotated[dict[Name, Name | None], Length(16)]
    """Versions of `packages`; null for a missing package."""
    checkpoint_writable: bool
    checkpoint_why: Text | None
    """Why the directory is not writable; null if it is."""
    checkpoint_share: Name | None
    """The run's token in the directory. Hosts that report the same token share the directory."""
    checkpoint_others: NotRequired[Text | None]
    """Who else may write into the directory, and should not; then no token is made."""
    gpus: Annotated[list[Name], Length(1024)] | None
    """UUIDs in the driver's order; null without a driver."""
    gpu_instances: NotRequired[Annotated[dict[Name, Count], Length(1024)]]
    """By the UUID of each MIG instance, the index of the GPU that it is a part of."""
    gpus_why: Text | None
    """Why there is no GPU; null if there are some, or if unknown."""
    gpus_in_use: Annotated[list[GpuInUse], Length(4096)]
    own_name: OwnName
    unkillable: Annotated[list[Unkillable], Length(LEFT_MAX)]
    missing: NotRequired[Annotated[list[Name], Length(1024)]]
    """The modules that the host lacks."""
    syntax: NotRequired[Text]
    """Why the script does not compile; missing if it does."""
    tensorflow: NotRequired[Imported]


class GpuUser(TypedDict):
    """A process that uses a GPU."""

    pid: Pid
    user: Name | None
    run: Name | None
    """The orch run to which it belongs; null if none or unknown."""


class Gpu(TypedDict):
    """A GPU and its use. Unknown values are null."""

    index: Count
    """The index in the driver's order."""
    name: Name
    utilization_percent: Percent | None
    memory_used_bytes: Count | None
    memory_total_bytes: Count | None
    processes: Annotated[list[GpuUser], Length(4096)]
    uuid: NotRequired[Name]


class AskMachine(Sent):
    """Return the CPUs, memory, disk and GPUs of the host, with their use."""


class Hardware(TypedDict):
    """The hardware of a host, and its use. Unknown values are null."""

    cpus: Count
    load: Number | None
    """The load average over one minute."""
    memory_total_bytes: Count | None
    memory_free_bytes: Count | None
    disk_total_bytes: FreeBytes | None
    """Of the file system with the agent's directory."""
    disk_free_bytes: FreeBytes | None
    gpus: Annotated[list[Gpu], Length(1024)]
    gpus_why: Text | None
    """Why there is no GPU; null if there are some, or if unknown."""
    leases: NotRequired[Annotated[list[Leased], Length(1024)]]
    """The GPUs and slots that somebody has leased, and who."""


class Code(OfRun):
    """Put the code in place, or name the files that are missing."""

    files: list[tuple[RelativePath, str, int, int]]
    """For each file: path, SHA-256, mode and size in bytes."""


class CodeState(TypedDict):
    """The files of the code that the host lacks."""

    digest: Digest
    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """Files to be sent as `blob`; empty if the code is in place."""
    dangling: NotRequired[Annotated[list[Path], Length(FILES_MAX)]]
    """Links of the code to what is not on the host."""


class Blob(OfRun):
    """Store a part of a file, which is the blob of the frame."""

    sha256: str
    offset: int
    last: bool
    store: NotRequired[Literal["checkpoints"] | None]
    """Set if it is a chunk of a snapshot."""


class BlobState(TypedDict):
    """The result of receiving a file."""

    damaged: NotRequired[bool]
    """True if the file does not have that SHA-256. It is discarded, and the next `code` asks for it again."""


class Psutil(Sent):
    """Store a part of psutil's archive, which is the blob of the frame, and load psutil after the last part."""

    sha256: str
    offset: int
    last: bool


class Environment(Sent):
    """Look for a virtual environment, or make it; asked again, say how far that is."""

    key: str
    """The name: a digest of all other fields except `wheels`, `keep` and `begin`."""
    version: str | None
    """The version of Python, such as 3.11; null: the agent's."""
    requirements: str
    constraints: str
    """Both in the format of pip's files."""
    offline: bool
    """Whether only `wheels` are installed, without a package index."""
    wheels: list[tuple[str, str]]
    """Name and SHA-256 of each. They are sent as `blob`."""
    keep: list[str]
    """Environments that runs of this head node still need. Others may be removed."""
    begin: bool
    """Whether to begin to make it if it does not exist. False: only report its state."""


class EnvironmentState(TypedDict):
    """The state of a virtual environment."""

    state: Literal["absent", "making", "ready"]
    python: Annotated[str, Form(r"[0-9][0-9.]{0,31}", "a version")]
    """The version of Python that it has or would get."""
    by: Literal["uv", "pip"]
    machine: Annotated[str, Form(r"[A-Za-z0-9_]{1,64}", "a processor")]
    libc: Annotated[str, Form(r"musl|glibc-2\.[0-9]{1,3}(\.[0-9]{1,4})?", "a C library")]
    """Such as glibc-2.36. It decides which wheels fit."""
    line: LogLine
    """The last line that uv or pip printed."""
    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """Wheels that the host still lacks."""


TARGETS_MAX = 4096
"""The maximum number of peers that a host is asked to connect to."""


class Examine(Sent):
    """Listen on ports of the run for a while, and return limits, disks, clock and proxies of the host."""

    ports: tuple[int, int]
    """First and last port of the run. The host listens only if there is a token."""
    token: str
    """The listeners send it to everyone who connects, so that a peer knows which host it reached."""
    listen_s: float
    """How long they listen, unless the connection ends earlier."""
    directories: list[str]
    """Directories to examine, besides the agent's own."""
    gpus: NotRequired[bool]
    """Whether to ask nvidia-smi, which may take seconds."""
    group: NotRequired[str | None]
    """Whose members may write into the checkpoint directory too."""
    writes: NotRequired[str | None]
    """A directory in which to measure the speed of writing with a sync."""
    secret: NotRequired[str]
    """A peer that sends it gets data for `BULK_S` or up to `BULK_BYTES_MAX`, to measure the bandwidth."""


class Owner(TypedDict):
    """The owner and the permissions of a directory."""

    uid: Count
    user: Name
    mode: Annotated[int, Range(0, 0o7777)]
    writable: bool
    """By the user of the SSH connection."""


class Directory(TypedDict):
    """A directory and its file system. Unknown values are null."""

    path: Path
    why: Text | None
    """Why the directory could not be examined; null if it could."""
    free_bytes: FreeBytes | None
    free_files: FreeBytes | None
    exists: bool
    """If false, the other fields describe the directory in which it would be created."""
    read_only: bool
    noexec: bool
    owner: Owner | None
    """null if the directory does not exist."""
    own: Owner | None
    """The owner of `.orch` in a checkpoint directory; null if there is none."""
    nfs: Annotated[list[Name], Length(64)]
    """The mount options if it is NFS; else empty."""
    others: NotRequired[Text | None]
    """Who may write there besides this user, root and that group; null if nobody may."""


class GpuState(TypedDict):
    """A GPU, according to nvidia-smi."""

    name: Name
    uuid: NotRequired[Name]
    ecc_errors: Count | None
    """Uncorrected memory errors since the driver was loaded; null if the GPU does not count them."""
    slowed: Name | None
    """Why the hardware throttles the GPU now; null if it does not."""
    xids: Annotated[list[Annotated[int, Range(0, 9999)]], Length(64)]
    """The errors (Xid) that the driver reported since the boot, if the kernel's log can be read."""


class Health(TypedDict):
    """The state of a host. Unknown values are null."""

    time: UnixTime
    reached_at: Name | None
    """The host's address on the SSH connection, as the host sees it."""
    ports: Annotated[list[Port], Length(16)]
    """The ports on which it listens now."""
    ports_free: Count
    ports_busy: Annotated[list[Port], Length(16)]
    """The first ports that are not free."""
    outgoing: tuple[Port, Port] | None
    """The range of local ports for outgoing connections."""
    proxies: Annotated[dict[Name, Name], Length(16)]
    """The proxy variables that gRPC reads, without user and password."""
    open_files: Count | None
    """The limit of open files; null without a limit."""
    processes: Count | None
    """The limit of the user's processes, threads included; null without a limit."""
    startups: Count | None
    """How many logins may be in progress before sshd drops some; null if unknown."""
    uid: Count
    directories: Annotated[list[Directory], Length(64)]
    gpus: NotRequired[Annotated[list[GpuState], Length(1024)]]
    """In the driver's order; missing if the order did not ask for them."""
    visible_gpus: NotRequired[Text]
    """CUDA_VISIBLE_DEVICES of the login shell; missing if unset."""
    write_bytes_per_s: NotRequired[Number | None]
    """With a sync; null if it could not be measured."""
    save_bytes: NotRequired[FreeBytes | None]
    """The size of the newest checkpoint in the directory of `writes`; null if there is none."""
    memory_bytes: NotRequired[FreeBytes | None]
    memory_free_bytes: NotRequired[FreeBytes | None]
    """MemAvailable: the kernel's estimate of what can be allocated without swapping."""
    cgroups: NotRequired[bool]
    """Whether each task gets a control group, which limits, measures and ends it."""


class Target(TypedDict):
    """A peer to connect to, and the token that it should send."""

    host: str
    address: str
    ports: list[int]
    token: str
    secret: NotRequired[str]
    """The peer's secret. If set, only the bandwidth is measured."""
    measure_s: NotRequired[float]
    """How long the bandwidth is measured."""


class Reach(Sent):
    """Resolve the names of the run's other hosts, and connect to what listens there."""

    targets: list[Target]
    within_s: float


Outcome = Literal["fine", "no-name", "refused", "timeout", "no-route", "stranger", "cut"]
"""stranger: the answer has another token; cut: the answer begins, but large packets do not arrive."""


class Seen(TypedDict):
    """The result for a peer at one of its addresses."""

    host: Name
    address: Name
    outcome: Outcome
    resolved: Annotated[list[Name], Length(16)]
    resolve_s: Seconds
    port: Port | None
    """The port that could not be reached; null if all could, or if none was tried."""
    why: Text | None
    """The operating system's error; null if the peer was reached."""
    bytes_per_s: NotRequired[Number]


class Reached(TypedDict):
    """The results. A peer that is missing was not tried in time."""

    seen: Annotated[list[Seen], Length(TARGETS_MAX)]


PROBE = Verb("probe", Probe, Facts, Fence.ANYBODY)
MACHINE = Verb("machine", AskMachine, Hardware, Fence.ANYBODY)
ENVIRONMENT = Verb("environment", Environment, EnvironmentState, Fence.ANYBODY)
CODE = Verb("code", Code, CodeState, Fence.BEGINS)
BLOB = Verb("blob", Blob, BlobState, refusals=("offset",))
PSUTIL = Verb("psutil", Psutil, Nothing, Fence.ANYBODY)
EXAMINE = Verb("examine", Examine, Health, Fence.ANYBODY)
REACH = Verb("reach", Reach, Reached, Fence.ANYBODY)

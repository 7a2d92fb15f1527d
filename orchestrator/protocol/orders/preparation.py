"""Types of the orders that prepare a start, and of their replies."""

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
    Seconds,
    Text,
)
from orchestrator.protocol.limits import LEFT_MAX
from orchestrator.protocol.orders.base import FILES_MAX, Fence, Nothing, OfRun, Sent, Verb
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
    modules: NotRequired[list[str]]
    """Top-level modules that the script needs."""
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
    """Versions of tensorflow, keras, tf_keras and numpy; null for a missing package."""
    checkpoint_writable: bool
    checkpoint_why: Text | None
    """Why the directory is not writable; null if it is."""
    checkpoint_share: Name | None
    """The run's token in the directory. Hosts that report the same token share the directory."""
    checkpoint_others: NotRequired[Name | None]
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


PROBE = Verb("probe", Probe, Facts, Fence.ANYBODY)
MACHINE = Verb("machine", AskMachine, Hardware, Fence.ANYBODY)
ENVIRONMENT = Verb("environment", Environment, EnvironmentState, Fence.ANYBODY)
CODE = Verb("code", Code, CodeState, Fence.BEGINS)
BLOB = Verb("blob", Blob, BlobState, refusals=("offset",))
PSUTIL = Verb("psutil", Psutil, Nothing, Fence.ANYBODY)

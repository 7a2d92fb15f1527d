"""The types of the orders before a start, and of their replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    Count,
    Digest,
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
from orchestrator.protocol.orders.base import FILES_MAX, OfRun, Order
from orchestrator.protocol.reports import Unkillable


class Import(TypedDict):
    """How TensorFlow is imported once, in a process of its own."""

    env: dict[str, str]
    within_s: float


class Imported(TypedDict):
    """How that went."""

    seconds: Seconds
    gpus: Count | None
    """How many TensorFlow sees; null where it has not come so far."""
    why: Text | None
    """Why the import failed; null if it did not, or was ended."""


class Probe(OfRun):
    """The run's Python and its checkpoint directory."""

    python: str
    checkpoint_dir: str | None
    modules: NotRequired[list[str]]
    """Top-level modules to look for."""
    source: NotRequired[str | None]
    """The script, to be compiled; null: nothing is."""
    tensorflow: NotRequired[Import]


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
    own_name: OwnName
    unkillable: Annotated[list[Unkillable], Length(LEFT_MAX)]
    missing: NotRequired[Annotated[list[Name], Length(1024)]]
    """Which of the modules are not there."""
    syntax: NotRequired[Text]
    """Why the script does not compile; not there if it does."""
    tensorflow: NotRequired[Imported]


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
    """A part of psutil's archive, which is the blob of the frame. Reports show whether psutil works."""

    sha256: str
    offset: int
    last: bool


class Environment(Order):
    """A virtual environment, and what it is made of."""

    key: str
    """Its name: a digest of all that follows but for `wheels`, `keep` and `begin`."""
    version: str | None
    """Of its Python, such as 3.11; null: that of the agent's."""
    requirements: str
    constraints: str
    """As files for pip."""
    offline: bool
    """Only the wheels are used."""
    wheels: list[tuple[str, str]]
    """The name of each, and its SHA-256: they are pushed as blobs."""
    keep: list[str]
    """Environments that runs of this head have a use for."""
    begin: bool
    """Begin to make it, unless it is there; the answer comes with the next order. False: only look."""


class EnvironmentState(TypedDict):
    """How far it is."""

    state: Literal["absent", "making", "ready"]
    python: Annotated[str, Form(r"[0-9][0-9.]{0,31}", "a version")]
    """The one that it has, or would have."""
    by: Literal["uv", "pip"]
    machine: Annotated[str, Form(r"[A-Za-z0-9_]{1,64}", "a processor")]
    libc: Annotated[str, Form(r"musl|glibc-2\.[0-9]{1,3}(\.[0-9]{1,4})?", "a C library")]
    """Such as glibc-2.36: which wheels fit."""
    line: LogLine
    """What uv or pip has printed last."""
    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """Wheels that are not there yet."""

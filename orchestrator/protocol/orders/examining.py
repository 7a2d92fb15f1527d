"""Types of the orders of `orch doctor`, which looks for problems before a start, and of their replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    Count,
    FreeBytes,
    Length,
    Name,
    Number,
    Path,
    Port,
    Range,
    Seconds,
    Text,
    UnixTime,
)
from orchestrator.protocol.orders.base import Fence, Sent, Verb

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
    others: NotRequired[Name | None]
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
    visible_gpus: NotRequired[Name]
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


EXAMINE = Verb("examine", Examine, Health, Fence.ANYBODY)
REACH = Verb("reach", Reach, Reached, Fence.ANYBODY)

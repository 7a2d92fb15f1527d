"""The types of the orders that look for what would keep a run from training, and of their replies."""

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
from orchestrator.protocol.orders.base import Order

TARGETS_MAX = 4096
"""How many peers one host may be asked to reach."""


class Examine(Order):
    """What to listen on, and where to look."""

    ports: tuple[int, int]
    """First and last port of the run. Without a token nothing listens."""
    token: str
    """What the listeners answer to whoever connects, so that a peer knows whom it has reached."""
    listen_s: float
    """How long they listen, unless the connection ends before."""
    directories: list[str]
    """Directories besides those of the host itself."""
    gpus: NotRequired[bool]
    """Whether to ask nvidia-smi, which may take seconds."""
    writes: NotRequired[str | None]
    """A directory in which to try how fast it can be written and synced."""
    secret: NotRequired[str]
    """Who sends it to a listener gets bytes for `BULK_S` or up to `BULK_BYTES_MAX`, to measure the network."""


class Owner(TypedDict):
    """Whose a directory is."""

    uid: Count
    user: Name
    mode: Annotated[int, Range(0, 0o7777)]
    writable: bool
    """By the user of the connection."""


class Directory(TypedDict):
    """A directory and its file system. What cannot be told is null."""

    path: Path
    why: Text | None
    """Why nothing can be told; null if it can."""
    free_bytes: FreeBytes | None
    free_files: FreeBytes | None
    exists: bool
    """False: what is told is of the directory in which it would be made."""
    read_only: bool
    noexec: bool
    owner: Owner | None
    """null: it does not exist."""
    own: Owner | None
    """Of our directory in it, that of a checkpoint directory; null: there is none."""
    nfs: Annotated[list[Name], Length(64)]
    """The options of its mount; empty of any other file system."""


class GpuState(TypedDict):
    """A GPU, as nvidia-smi tells it."""

    name: Name
    ecc_errors: Count | None
    """Uncorrected errors of its memory since the driver was loaded; null where it does not count them."""
    slowed: Name | None
    """Why the hardware slows it down now; null if it does not."""
    xids: Annotated[list[Annotated[int, Range(0, 9999)]], Length(64)]
    """The errors (Xid) that the driver has told of it since the boot, as far as we may read the kernel's log."""


class Health(TypedDict):
    """What the host is like. What cannot be told is null."""

    time: UnixTime
    reached_at: Name | None
    """The address at which SSH has reached the host, as the host sees it."""
    ports: Annotated[list[Port], Length(16)]
    """Where it listens now."""
    ports_free: Count
    ports_busy: Annotated[list[Port], Length(16)]
    """The first of those that are not free."""
    outgoing: tuple[Port, Port] | None
    """The range of ports of outgoing connections."""
    proxies: Annotated[dict[Name, Name], Length(16)]
    """The variables that gRPC reads, without user and password."""
    open_files: Count | None
    """How many may be open at once; null without a limit."""
    processes: Count | None
    """How many the user may have, threads included; null without a limit."""
    startups: Count | None
    """How many logins may be under way at sshd before it drops some; null where it does not say so."""
    uid: Count
    directories: Annotated[list[Directory], Length(64)]
    gpus: NotRequired[Annotated[list[GpuState], Length(1024)]]
    """In the driver's order; not there where they were not asked for."""
    write_bytes_per_s: NotRequired[Number | None]
    """With a sync; null where it could not be tried."""
    save_bytes: NotRequired[FreeBytes | None]
    """The size of the newest checkpoint in that directory; null: there is none."""
    memory_bytes: NotRequired[FreeBytes | None]
    memory_free_bytes: NotRequired[FreeBytes | None]
    """What can be had without swapping, as the kernel reckons it."""
    cgroups: NotRequired[bool]
    """Whether each task gets a control group, in which it is limited, measured and ended."""


class Target(TypedDict):
    """A peer, and what it would answer."""

    host: str
    address: str
    ports: list[int]
    token: str
    secret: NotRequired[str]
    """Its secret: the bytes that it sends are measured for so long, and nothing else is looked at."""
    measure_s: NotRequired[float]


class Reach(Order):
    """The peers to connect to."""

    targets: list[Target]
    within_s: float


Outcome = Literal["fine", "no-name", "refused", "timeout", "no-route", "stranger", "cut"]
"""stranger: somebody else answers; cut: it begins to answer, and large packets do not arrive."""


class Seen(TypedDict):
    """How one peer was reached, at one address."""

    host: Name
    address: Name
    outcome: Outcome
    resolved: Annotated[list[Name], Length(16)]
    resolve_s: Seconds
    port: Port | None
    """The port that was not reached; null if all were, or none was tried."""
    why: Text | None
    """In the words of the system; null if it was reached."""
    bytes_per_s: NotRequired[Number]


class Reached(TypedDict):
    """How the peers were reached. Who is missing was not reached in time."""

    seen: Annotated[list[Seen], Length(TARGETS_MAX)]

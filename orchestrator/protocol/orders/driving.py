"""Orders about who drives a run, and about what hosts remember of runs; their types, and those of the replies."""

from typing import Annotated, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    AnyJson,
    Count,
    Epoch,
    Length,
    Name,
    Path,
    Pid,
    RunId,
    Seconds,
    UnixTime,
)
from orchestrator.protocol.orders.base import FILES_MAX, Fence, Nothing, OfRun, Sent, Verb
from orchestrator.protocol.reports import Task


class Claim(TypedDict):
    """A coordinator's claim on a run and on its checkpoint directory."""

    id: Name
    """The coordinator's id, which its journal has had since it was created."""
    head: Name
    """The host name of the head node."""
    user: Name
    run: Name
    name: Name
    checkpoint_dir: Path | None


class Watch(OfRun):
    """Report the run's tasks from now on, at that pace, and note who drives it."""

    heartbeat_s: float
    claim: NotRequired[Claim | None]
    gpus: NotRequired[list[int] | None]
    """GPUs that the run uses exclusively on this host. The agent acquires their leases."""
    gpu_uuids: NotRequired[list[Name] | None]
    """More of them, which the spec names by UUID."""
    slots: NotRequired[list[Count] | None]
    """Slots of the host, by number, that the run's tasks take, where the spec says how many it has."""


class Unwatch(OfRun):
    """Report the run's tasks no more, and note that nobody drives it."""


class Lease(OfRun):
    """Take the leases of the run's GPUs that are not taken yet, and say who has the others."""


class Leased(TypedDict):
    """The holder of the lease of a GPU or of a slot. Unknown values are null."""

    gpu: Count | None
    """null of a MIG instance and of a slot."""
    instance: NotRequired[Name]
    """The UUID of a MIG instance; or `slot-0`, of a slot."""
    user: Name | None
    run: Name | None
    head: Name | None
    since: UnixTime | None


class LeasesOfOthers(TypedDict):
    """The run's GPUs whose leases others hold; empty if the run has all of its leases."""

    others: Annotated[list[Leased], Length(1024)]


class Record(TypedDict):
    """A copy of the run's state in the coordinator's journal."""

    epoch: int
    written_at: float
    revision: NotRequired[int]
    """It grows with every record of an epoch."""
    state: str
    """The journal's JSON, compressed by zlib, in base64."""


class Keep(OfRun):
    """Store the run's record: at the start and the release of a generation, and at the end of the run."""

    record: Record


class Runs(Sent):
    """Say who drives what: all runs that the host remembers, whoever started them, and whose a directory is."""

    records: bool
    brief: NotRequired[bool]
    """Leave out sizes, and the tasks of runs without a live process."""
    dir: NotRequired[str | None]
    """A checkpoint directory, whose owner the reply names."""


class Claimed(Claim):
    """A claim as stored on a host or in a checkpoint directory."""

    since: UnixTime
    """When this owner claimed it."""


class Stamp(TypedDict):
    """The owner of a checkpoint directory."""

    claim: Claimed
    host: Name
    """The name of the host on which the run's chief runs."""
    ago_s: Seconds
    """Time since an agent renewed the claim, or a checkpoint was saved."""
    driven: bool
    """Whether `ago_s` is less than 15 minutes."""


class KnownTask(Task):
    """A task that a host remembers."""

    alive: bool


class KnownRun(TypedDict):
    """A run that a host remembers, from any head node."""

    run: RunId
    directory: bool
    """Whether the run has a directory; false if only its marked processes were found."""
    epoch: Epoch
    claim: Claimed | None
    """The run's owner; null if unknown."""
    watched: bool
    """Whether an agent watches the run now."""
    watched_ago_s: Seconds | None
    """Time since an agent watched it; null if its coordinator is done with it."""
    driven: bool
    """Whether `watched_ago_s` is less than 15 minutes."""
    alive: bool
    processes: Annotated[list[Pid], Length(FILES_MAX)]
    bytes: Count
    age_s: Seconds | None
    """Time since one of its files changed."""
    tasks: Annotated[list[KnownTask], Length(FILES_MAX)]
    record: AnyJson
    """The run's record, for every live run and for the newest others up to 1 MiB; else null."""


class KnownRuns(TypedDict):
    """The runs that the host remembers."""

    runs: Annotated[list[KnownRun], Length(FILES_MAX)]
    checkpoint: NotRequired[Stamp | None]


class Remove(OfRun):
    """Kill and remove everything of a run on the host.

    Refused with code `driven` for what is another owner's and lives, or was driven less than 15 minutes ago.
    """

    owner: str
    """The id of the coordinator that asks. Other coordinators' runs are refused while they live or are driven."""
    even_alive: bool
    """Whether to remove such a run too, since a person named it."""


WATCH = Verb("watch", Watch, Nothing)
UNWATCH = Verb("unwatch", Unwatch, Nothing)
LEASE = Verb("lease", Lease, LeasesOfOthers)
KEEP = Verb("keep", Keep, Nothing)
RUNS = Verb("runs", Runs, KnownRuns, Fence.ANYBODY)
REMOVE = Verb("remove", Remove, Nothing, refusals=("driven",))

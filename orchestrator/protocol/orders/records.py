"""The types of the orders that are answered without, or beside, a coordinator of the run."""

from typing import Annotated, NotRequired, TypedDict

from orchestrator.protocol.bounds import AnyJson, Count, Epoch, Length, Name, Pid, RunId, Seconds, UnixTime
from orchestrator.protocol.orders.base import FILES_MAX, OfRun, Order
from orchestrator.protocol.orders.watching import Claim
from orchestrator.protocol.reports import Task


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

"""Types of the order that makes an agent watch a run."""

from typing import Annotated, NotRequired, TypedDict

from orchestrator.protocol.bounds import Count, Length, Name, Path, UnixTime
from orchestrator.protocol.orders.base import Nothing, OfRun, Verb


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


class Unwatch(OfRun):
    """Report the run's tasks no more, and note that nobody drives it."""


class Lease(OfRun):
    """Take the leases of the run's GPUs that are not taken yet, and say who has the others."""


class Leased(TypedDict):
    """The holder of a GPU's lease. Unknown values are null."""

    gpu: Count | None
    """null of a MIG instance."""
    instance: NotRequired[Name]
    """The UUID of a MIG instance."""
    user: Name | None
    run: Name | None
    head: Name | None
    since: UnixTime | None


class Leases(TypedDict):
    """The run's GPUs whose leases others hold; empty if the run has all of its leases."""

    others: Annotated[list[Leased], Length(1024)]


WATCH = Verb("watch", Watch, Nothing)
UNWATCH = Verb("unwatch", Unwatch, Nothing)
LEASE = Verb("lease", Lease, Leases)

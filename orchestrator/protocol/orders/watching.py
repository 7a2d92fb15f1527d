"""Types of the order that makes an agent watch a run."""

from typing import Annotated, NotRequired, TypedDict

from orchestrator.protocol.bounds import Count, Length, Name, Path, UnixTime
from orchestrator.protocol.orders.base import OfRun


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
    """Watch the run, and report it."""

    heartbeat_s: float
    claim: NotRequired[Claim]
    gpus: NotRequired[list[int]]
    """GPUs that the run uses exclusively on this host. The agent acquires their leases."""
    gpu_uuids: NotRequired[list[Name]]
    """More of them, which the spec names by UUID."""


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

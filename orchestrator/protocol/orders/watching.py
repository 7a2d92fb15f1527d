"""The types of the order that makes an agent watch a run."""

from typing import Annotated, NotRequired, TypedDict

from orchestrator.protocol.bounds import Count, Length, Name, Path, UnixTime
from orchestrator.protocol.orders.base import OfRun


class Claim(TypedDict):
    """Which run a coordinator drives, and where that run saves."""

    id: Name
    """The coordinator's, which its journal was given when it was made."""
    head: Name
    """The host name of the head node."""
    user: Name
    run: Name
    name: Name
    checkpoint_dir: Path | None


class Watch(OfRun):
    """How often the run is to be reported, and who drives it."""

    heartbeat_s: float
    claim: NotRequired[Claim]
    gpus: NotRequired[list[int]]
    """The GPUs that the run has for itself on this host: the agent takes their leases."""


class Leased(TypedDict):
    """Who has the lease of a GPU. What he does not tell, or what cannot be seen, is null."""

    gpu: Count
    user: Name | None
    run: Name | None
    head: Name | None
    since: UnixTime | None


class Leases(TypedDict):
    """Which GPUs of the run somebody else has; none: all of them are the run's."""

    others: Annotated[list[Leased], Length(1024)]

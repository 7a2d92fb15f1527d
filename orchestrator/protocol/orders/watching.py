"""The types of the order that makes an agent watch a run."""

from typing import NotRequired, TypedDict

from orchestrator.protocol.bounds import Name, Path
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

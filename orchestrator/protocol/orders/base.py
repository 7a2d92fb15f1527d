"""What every order has, and what several of them speak of."""

from typing import Literal, TypedDict

FILES_MAX = 100_000
"""The most entries of any list. For most lists, the limit of the frame comes first."""

CheckpointsDo = Literal["list", "read", "pin", "unpin", "rollback", "rm"]

Place = Literal["logs", "work"]
"""Where a task writes files: into ORCH_LOG_DIR of a generation, or into its working directory."""

FaultKind = Literal["kill", "freeze", "kill-shim", "kill-agent", "fill"]


class Order(TypedDict, total=False):
    """The fields of every order, which are added when it is sent."""

    order: str
    """The verb."""
    id: int
    """The id of the reply; an order without an id gets no reply."""


class OfRun(Order):
    """An order for a run."""

    run: str
    epoch: int
    """The epoch of the coordinator."""


class OfTask(OfRun):
    """An order for one task in one generation."""

    generation: int
    task: str


class Nothing(TypedDict):
    """An empty reply: the order was done, now or before."""

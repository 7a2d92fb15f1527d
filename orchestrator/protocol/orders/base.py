"""Base types of the orders, and types that several orders share."""

from typing import Literal, TypedDict

FILES_MAX = 100_000
"""The maximum number of entries in any list. Most lists reach the maximum size of a frame first."""

CheckpointsDo = Literal["list", "read", "pin", "unpin", "rollback", "rm"]

Place = Literal["logs", "work"]
"""Where a task wrote a file: in a generation's ORCH_LOG_DIR, or in its working directory."""

FaultKind = Literal["kill", "freeze", "kill-shim", "kill-agent", "fill"]


class Order(TypedDict, total=False):
    """The fields that every order gets when it is sent."""

    order: str
    """The verb."""
    id: int
    """The reply repeats it. An order without an id gets no reply."""


class OfRun(Order):
    """An order for a run."""

    run: str
    epoch: int
    """The coordinator's epoch."""


class Share(TypedDict):
    """The checkpoint directory that a run shares between its hosts, and its token there."""

    dir: str
    token: str


class OfTask(OfRun):
    """An order for one task in one generation."""

    generation: int
    task: str


class Nothing(TypedDict):
    """An empty reply: the order has been carried out, now or earlier."""

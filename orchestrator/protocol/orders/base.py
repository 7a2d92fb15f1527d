"""What an order is, the base types of the orders, and types that several of them share.

An order is declared once, beside its types: `STOP = Verb("stop", Stop, Nothing)`. From that follow its encoding
(`STOP({…})`; mypy checks the fields, and knows the type of the reply), the check of its reply on the head, its fence on
the host, and its section in docs/protocol.md. An agent carries it out in its method `_on_stop`, which the name finds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast

Q = TypeVar("Q")
A = TypeVar("A")

FILES_MAX = 100_000
"""The maximum number of entries in any list. Most lists reach the maximum size of a frame first."""

CheckpointsDo = Literal["list", "read", "pin", "unpin", "rollback", "rm"]

Place = Literal["logs", "work", "saved"]
"""Where a task wrote a file: in a generation's ORCH_LOG_DIR, in its working directory, or in what a
generation saves."""

FaultKind = Literal["kill", "freeze", "kill-shim", "kill-agent", "fill"]


class Fence(Enum):
    """Which coordinators may give an order. The order says so itself, unless it is for the newest only."""

    NEWEST = "newest"
    """The host checks run and epoch, and refuses an older coordinator with code `superseded`."""
    BEGINS = "begins"
    """The same, and a host that does not know the run creates its directory."""
    ANYBODY = "anybody"
    """Any coordinator. The order changes nothing about a run."""


@dataclass(frozen=True, slots=True)
class Order(Generic[A]):
    """An order that can be sent. `fields` is the whole JSON object, without the id."""

    verb: "Verb[Any, A]"
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verb(Generic[Q, A]):
    """The signature of an order. The docstring of `request` says what the host does."""

    name: str
    request: type[Q]
    answer: type[A]
    fence: Fence = Fence.NEWEST
    refusals: tuple[str, ...] = ()
    """Codes of its own errors upon which the coordinator acts."""

    def __call__(self, fields: Q) -> Order[A]:
        """Make the order. A field that may be missing is left out where it is None."""
        made: dict[str, Any] = {"order": self.name}
        if self.fence is not Fence.NEWEST:
            made["fence"] = self.fence.value
        needed = cast("Any", self.request).__required_keys__
        given = cast("Mapping[str, Any]", fields)
        made.update((name, value) for name, value in given.items() if value is not None or name in needed)
        return Order(self, made)


class Sent(TypedDict, total=False):
    """The fields that an order gets when it is sent."""

    order: str
    """The verb."""
    fence: Literal["begins", "anybody"]
    id: int
    """The reply repeats it. An order without an id gets no reply."""


class OfRun(Sent):
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

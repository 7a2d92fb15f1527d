"""The one table of orders: what each may ask, what it answers, whose it must be, and who sends it.

`STOP({…})` makes an order that can be sent; its fields are checked by mypy, and so is what its reply holds. Agents
have one method for each, named `handler`; the coordinator checks each reply by `answer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from orchestrator.protocol import orders

Q = TypeVar("Q")
A = TypeVar("A")


class Fence(Enum):
    """Whose orders a host accepts."""

    RUN = "newest"
    """Run and epoch are checked: an older coordinator is refused (`superseded`)."""
    BEGINS = "newest, begins"
    """The same, and a host that does not know the run begins to."""
    NONE = "anybody"
    """It changes nothing of a run."""


@dataclass(frozen=True, slots=True)
class Order(Generic[A]):
    """An order that can be sent. `fields` are what goes on the wire, but for the id."""

    verb: Verb[Any, A]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verb(Generic[Q, A]):
    """One row of the table."""

    name: str
    fence: Fence
    request: type[Q]
    answer: type[A]
    sender: str
    """The module below orchestrator/daemon that makes it."""
    about: str
    """One sentence: what the agent does."""

    def __call__(self, fields: Q) -> Order[A]:
        """Make the order."""
        return Order(self, {"order": self.name, **cast("Mapping[str, Any]", fields)})

    @property
    def handler(self) -> str:
        """Return the name of an agent's method for it."""
        return f"_on_{self.name}"


WATCH = Verb(
    "watch",
    Fence.RUN,
    orders.Watch,
    orders.Nothing,
    "connection.link",
    "Reports the run's tasks from now on, at that pace.",
)
UNWATCH = Verb(
    "unwatch",
    Fence.RUN,
    orders.OfRun,
    orders.Nothing,
    "connection.link",
    "Reports the run's tasks no more.",
)
PROBE = Verb(
    "probe",
    Fence.NONE,
    orders.Probe,
    orders.Facts,
    "coordinator.preparation",
    "Says what the run's Python has, what computes on the GPUs, and whether the checkpoint directory can be written.",
)
CODE = Verb(
    "code",
    Fence.BEGINS,
    orders.Code,
    orders.CodeState,
    "coordinator.preparation",
    "Puts the tree of the code in place, or says which contents are missing.",
)
BLOB = Verb(
    "blob",
    Fence.RUN,
    orders.Blob,
    orders.BlobState,
    "connection.orders",
    "Takes a part of a file's content, which is the frame's blob.",
)
PSUTIL = Verb(
    "psutil",
    Fence.NONE,
    orders.Psutil,
    orders.Nothing,
    "connection.bootstrap",
    "Takes a part of psutil's archive, which is the frame's blob, and loads psutil after the last one.",
)
HIGHEST = Verb(
    "highest",
    Fence.RUN,
    orders.Highest,
    orders.HighestGeneration,
    "coordinator.preparation",
    "Says the highest generation in the checkpoint directory.",
)
SEED = Verb(
    "seed",
    Fence.BEGINS,
    orders.Seed,
    orders.Seeded,
    "connection.orders",
    "Puts the newest checkpoint that reads whole into the generation's directory.",
)
VERIFY = Verb(
    "verify",
    Fence.RUN,
    orders.Verify,
    orders.Verified,
    "connection.orders",
    "Reads the generation's newest checkpoint to its last byte.",
)
SNAPSHOT = Verb(
    "snapshot",
    Fence.RUN,
    orders.Snapshot,
    orders.Manifest,
    "transfer.checkpoints",
    "Sets a copy of a checkpoint aside that no script touches, so that it can travel.",
)
CHUNK = Verb(
    "chunk",
    Fence.RUN,
    orders.Chunk,
    orders.Nothing,
    "transfer.checkpoints",
    "Reads a part of a snapshot's file, which is the reply's blob.",
)
RECEIVE = Verb(
    "receive",
    Fence.BEGINS,
    orders.Receive,
    orders.Received,
    "transfer.checkpoints",
    "Puts a snapshot in place from chunks that have come, or says which are missing.",
)
CHECKPOINTS = Verb(
    "checkpoints",
    Fence.RUN,
    orders.Checkpoints,
    orders.CheckpointsAnswer,
    "coordinator.checkpoint_requests",
    "Lists, reads, pins and unpins checkpoints, or goes back to one, for a person.",
)
START = Verb(
    "start",
    Fence.BEGINS,
    orders.Start,
    orders.Started,
    "connection.orders",
    "Starts a task's shim, which starts the task's process.",
)
RELEASE = Verb(
    "release",
    Fence.RUN,
    orders.Release,
    orders.Nothing,
    "connection.orders",
    "Lets the task go on from its gate, with TF_CONFIG.",
)
STOP = Verb(
    "stop",
    Fence.RUN,
    orders.Stop,
    orders.Nothing,
    "connection.orders",
    "Lets the task end; answered at once, and the reports tell the rest.",
)
SWEEP = Verb(
    "sweep",
    Fence.RUN,
    orders.Sweep,
    orders.Swept,
    "connection.orders",
    "Kills whatever is left of the run up to that generation, and names what will not die.",
)
STACKS = Verb(
    "stacks",
    Fence.RUN,
    orders.AskStacks,
    orders.StacksText,
    "connection.orders",
    "Says where a task is in its code.",
)
LOG = Verb(
    "log",
    Fence.RUN,
    orders.AskLog,
    orders.LogPart,
    "transfer.logcopy",
    "Reads whole lines of a task's log, which are the reply's blob.",
)
SUMMARIES = Verb(
    "summaries",
    Fence.RUN,
    orders.OfRun,
    orders.SummaryFiles,
    "transfer.tensorboard",
    "Lists TensorBoard's files of the run.",
)
SUMMARY = Verb(
    "summary",
    Fence.RUN,
    orders.Summary,
    orders.Nothing,
    "transfer.tensorboard",
    "Reads a part of one of TensorBoard's files, which is the reply's blob.",
)
FAULT = Verb(
    "fault",
    Fence.RUN,
    orders.Fault,
    orders.FaultBegun,
    "connection.orders",
    "Hurts a task, where the run's spec allows it; answered once it has begun.",
)
KEEP = Verb(
    "keep",
    Fence.RUN,
    orders.Keep,
    orders.Nothing,
    "coordinator.records",
    "Remembers the run as its coordinator sees it: at a generation's start, at its release, and at the run's end.",
)
RUNS = Verb(
    "runs",
    Fence.NONE,
    orders.Runs,
    orders.KnownRuns,
    "connection.orders",
    "Says all that the host remembers of runs, whoever began them.",
)
REMOVE = Verb(
    "remove",
    Fence.RUN,
    orders.Remove,
    orders.Nothing,
    "connection.orders",
    "Ends and removes all of a run on the host; refused (`driven`) while an agent watches it.",
)

TABLE: tuple[Verb[Any, Any], ...] = (
    WATCH,
    UNWATCH,
    PROBE,
    CODE,
    BLOB,
    PSUTIL,
    HIGHEST,
    SEED,
    VERIFY,
    SNAPSHOT,
    CHUNK,
    RECEIVE,
    CHECKPOINTS,
    START,
    RELEASE,
    STOP,
    SWEEP,
    STACKS,
    LOG,
    SUMMARIES,
    SUMMARY,
    FAULT,
    KEEP,
    RUNS,
    REMOVE,
)
"""In the order of a run's life."""

BY_NAME: Mapping[str, Verb[Any, Any]] = {row.name: row for row in TABLE}

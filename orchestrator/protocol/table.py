"""The table of orders: the types of each request and of its reply, its fence, and its sender.

`STOP({…})` makes an order; mypy checks its fields, and knows the type of its reply. An agent has one method for each
order, `handler`. The coordinator checks each reply against `answer`.
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
    """Which coordinators may give an order."""

    RUN = "newest"
    """The host checks run and epoch, and refuses an older coordinator with code `superseded`."""
    BEGINS = "newest, begins"
    """The same, and a host that does not know the run creates its directory."""
    NONE = "anybody"
    """Any coordinator. The order changes nothing about a run."""


@dataclass(frozen=True, slots=True)
class Order(Generic[A]):
    """An order that can be sent. `fields` is the whole JSON object, without the id."""

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
    """The module of orchestrator/head that makes the order."""
    about: str
    """What the agent does, in one sentence."""

    def __call__(self, fields: Q) -> Order[A]:
        """Make the order."""
        return Order(self, {"order": self.name, **cast("Mapping[str, Any]", fields)})

    @property
    def handler(self) -> str:
        """Return the name of the agent's method for this order."""
        return f"_on_{self.name}"


WATCH = Verb(
    "watch",
    Fence.RUN,
    orders.Watch,
    orders.Nothing,
    "links.requests",
    "Reports the run's tasks from now on, at that pace, and notes who drives it.",
)
UNWATCH = Verb(
    "unwatch",
    Fence.RUN,
    orders.OfRun,
    orders.Nothing,
    "links.requests",
    "Reports the run's tasks no more, and notes that nobody drives it.",
)
LEASE = Verb(
    "lease",
    Fence.RUN,
    orders.OfRun,
    orders.Leases,
    "hosts.preparation",
    "Takes the leases of the run's GPUs that it does not have yet, and says who has the others.",
)
PROBE = Verb(
    "probe",
    Fence.NONE,
    orders.Probe,
    orders.Facts,
    "links.requests",
    "Checks the packages of the run's Python, the GPUs, and whether the checkpoint directory can be written.",
)
MACHINE = Verb(
    "machine",
    Fence.NONE,
    orders.AskMachine,
    orders.Hardware,
    "links.requests",
    "Returns the CPUs, memory, disk and GPUs of the host, with their use.",
)
EXAMINE = Verb(
    "examine",
    Fence.NONE,
    orders.Examine,
    orders.Health,
    "links.requests",
    "Listens on ports of the run for a while, and returns limits, disks, clock and proxies of the host.",
)
REACH = Verb(
    "reach",
    Fence.NONE,
    orders.Reach,
    orders.Reached,
    "hosts.examination",
    "Resolves the names of the run's other hosts, and connects to what listens there.",
)
ENVIRONMENT = Verb(
    "environment",
    Fence.NONE,
    orders.Environment,
    orders.EnvironmentState,
    "hosts.environments",
    "Looks for a virtual environment, or makes it; asked again, it says how far that is.",
)
CODE = Verb(
    "code",
    Fence.BEGINS,
    orders.Code,
    orders.CodeState,
    "hosts.preparation",
    "Puts the code in place, or names the files that are missing.",
)
BLOB = Verb(
    "blob",
    Fence.RUN,
    orders.Blob,
    orders.BlobState,
    "links.requests",
    "Stores a part of a file, which is the blob of the frame.",
)
PSUTIL = Verb(
    "psutil",
    Fence.NONE,
    orders.Psutil,
    orders.Nothing,
    "links.requests",
    "Stores a part of psutil's archive, which is the blob of the frame, and loads psutil after the last part.",
)
HIGHEST = Verb(
    "highest",
    Fence.RUN,
    orders.Highest,
    orders.HighestGeneration,
    "hosts.preparation",
    "Returns the highest generation in the checkpoint directory.",
)
SEED = Verb(
    "seed",
    Fence.BEGINS,
    orders.Seed,
    orders.Seeded,
    "links.requests",
    "Makes the generation's directory with the newest good checkpoint in it.",
)
VERIFY = Verb(
    "verify",
    Fence.RUN,
    orders.Verify,
    orders.Verified,
    "links.requests",
    "Reads the newest checkpoint of a generation to its last byte.",
)
SNAPSHOT = Verb(
    "snapshot",
    Fence.RUN,
    orders.Snapshot,
    orders.Manifest,
    "transfer.partwise",
    "Copies a checkpoint into a snapshot, so that it can be transferred while scripts change the directory.",
)
CHUNK = Verb(
    "chunk",
    Fence.RUN,
    orders.Chunk,
    orders.Nothing,
    "transfer.partwise",
    "Reads a part of a file of a snapshot; it is the blob of the reply.",
)
RECEIVE = Verb(
    "receive",
    Fence.BEGINS,
    orders.Receive,
    orders.Received,
    "transfer.partwise",
    "Puts a snapshot together from its chunks, or names the chunks that are missing.",
)
CHECKPOINTS = Verb(
    "checkpoints",
    Fence.RUN,
    orders.Checkpoints,
    orders.CheckpointsAnswer,
    "coordinator.checkpoint_requests",
    "Lists, reads, pins, unpins, rolls back or removes checkpoints, for a person.",
)
START = Verb(
    "start",
    Fence.BEGINS,
    orders.Start,
    orders.Started,
    "links.requests",
    "Starts the shim of a task, which starts the task's process.",
)
RELEASE = Verb(
    "release",
    Fence.RUN,
    orders.Release,
    orders.Nothing,
    "links.requests",
    "Releases the task from its gate, with TF_CONFIG.",
)
STOP = Verb(
    "stop",
    Fence.RUN,
    orders.Stop,
    orders.Nothing,
    "links.requests",
    "Stops the task. The reply comes at once, and reports show the end.",
)
SWEEP = Verb(
    "sweep",
    Fence.RUN,
    orders.Sweep,
    orders.Swept,
    "links.requests",
    "Kills all processes of the run up to that generation, and names those that cannot be killed.",
)
STACKS = Verb(
    "stacks",
    Fence.RUN,
    orders.AskStacks,
    orders.StacksText,
    "links.requests",
    "Returns the stacks of a task.",
)
LOG = Verb(
    "log",
    Fence.RUN,
    orders.AskLog,
    orders.LogPart,
    "transfer.logcopy",
    "Reads whole lines of a task's log; they are the blob of the reply.",
)
FILES = Verb(
    "files",
    Fence.RUN,
    orders.AskFiles,
    orders.TaskFiles,
    "transfer.files",
    "Lists TensorBoard's files of the run, or what its tasks left in their working directories.",
)
FILE = Verb(
    "file",
    Fence.RUN,
    orders.AskFile,
    orders.Nothing,
    "transfer.files",
    "Reads a part of one of these files; it is the blob of the reply.",
)
DIGEST = Verb(
    "digest",
    Fence.RUN,
    orders.OfFile,
    orders.FileDigest,
    "transfer.files",
    "Reads a whole file, and says what its content is.",
)
FAULT = Verb(
    "fault",
    Fence.RUN,
    orders.Fault,
    orders.FaultBegun,
    "links.requests",
    "Injects a fault into a run whose spec allows it. The reply comes when it has begun.",
)
KEEP = Verb(
    "keep",
    Fence.RUN,
    orders.Keep,
    orders.Nothing,
    "hosts.host_records",
    "Stores the run's record: at the start and the release of a generation, and at the end of the run.",
)
RUNS = Verb(
    "runs",
    Fence.NONE,
    orders.Runs,
    orders.KnownRuns,
    "links.requests",
    "Says who drives what: all runs that the host remembers, whoever started them, and whose a directory is.",
)
REMOVE = Verb(
    "remove",
    Fence.RUN,
    orders.Remove,
    orders.Nothing,
    "links.requests",
    "Kills and removes everything of a run on the host. Refused with code `driven` for what is another owner's and "
    "lives, or was driven less than 15 minutes ago.",
)

TABLE: tuple[Verb[Any, Any], ...] = (
    WATCH,
    UNWATCH,
    LEASE,
    PROBE,
    MACHINE,
    EXAMINE,
    REACH,
    ENVIRONMENT,
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
    FILES,
    FILE,
    DIGEST,
    FAULT,
    KEEP,
    RUNS,
    REMOVE,
)
"""All orders, in the order of a run's life."""

BY_NAME: Mapping[str, Verb[Any, Any]] = {row.name: row for row in TABLE}

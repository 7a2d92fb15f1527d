"""The types of the orders about checkpoints, and of their replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    AnyJson,
    Count,
    Digest,
    FilePath,
    Generation,
    Length,
    Name,
    Path,
    SavedStep,
    Seconds,
    Text,
    UnixTime,
)
from orchestrator.protocol.orders.base import FILES_MAX, CheckpointsDo, OfRun
from orchestrator.protocol.orders.watching import Claim


class By(TypedDict):
    """Who made a generation, for people."""

    run: str
    host: str
    task: str


class Rejected(TypedDict):
    """A damaged checkpoint."""

    path: Path
    why: Text


class Seed(OfRun):
    """Which generation begins, and from which checkpoints it may start."""

    generation: int
    dir: str
    python: str
    from_scratch: bool
    keep: int
    by: By
    claim: NotRequired[Claim]
    """Whose the checkpoint directory becomes. Refused with code `driven` while another coordinator's run uses it."""
    only: NotRequired[str]
    """The digest of the only snapshot that may be used."""


class KeptAside(TypedDict):
    """What a start from scratch has set aside. It is kept until a person removes it."""

    generations: Annotated[list[Generation], Length(FILES_MAX)]
    global_step: SavedStep | None
    """The highest; null if it is not known."""
    bytes: Count


class Seeded(TypedDict):
    """The checkpoint from which the generation starts."""

    global_step: SavedStep | None
    source: Path | None
    """null if there never was a checkpoint."""
    verified: NotRequired[bool | None]
    """false if its format cannot be verified; null if there is no checkpoint."""
    path: Path
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]
    highest_generation: NotRequired[Generation]
    from_scratch: NotRequired[bool]
    aside: NotRequired[KeptAside | None]
    """After a start from scratch, what was trained before."""
    removed: NotRequired[Annotated[list[Generation], Length(FILES_MAX)]]
    """The generations beyond `keep` that were removed."""
    by: NotRequired[AnyJson]
    """The whole reply is also stored in the directory, and repeated if the order is."""


class Verify(OfRun):
    """Which generation's newest checkpoint is verified."""

    generation: int
    dir: str
    python: str


class SavedCheckpoint(TypedDict):
    """A checkpoint that was read to its last byte, or one whose format cannot be verified and that seems complete."""

    global_step: SavedStep | None
    path: Path
    saved_at: UnixTime
    kind: Name
    """Its format."""
    bytes: Count
    verified: bool
    """false if its format cannot be verified."""


class Verified(TypedDict):
    """The newest good checkpoint, and the damaged ones that are newer."""

    checkpoint: SavedCheckpoint | None
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]
    waited_s: NotRequired[Seconds]
    """How long it waited for who writes, which is no cost of reading."""


class Snapshot(OfRun):
    """Which checkpoint is copied."""

    generation: int
    dir: str
    python: str
    path: str | None
    """null for the newest good one."""


class Manifest(TypedDict):
    """The files and chunks of a snapshot, which is in `.orch/safe/<digest>`."""

    digest: Digest
    files: Annotated[
        list[tuple[FilePath, Count, SavedStep, Annotated[list[Digest], Length(FILES_MAX)]]], Length(FILES_MAX)
    ]
    """For each file its name, its bytes, its modification time in ns, and the SHA-256 of each chunk."""
    piece_bytes: Count
    """The size of each chunk but the last of a file. The key keeps its old name because manifests are on disks."""
    bytes: Count
    generation: Generation | None
    global_step: SavedStep | None
    saved_at: UnixTime
    by: AnyJson


class Chunk(OfRun):
    """Which part of which file of a snapshot."""

    dir: str
    digest: str
    name: str
    offset: int
    bytes_max: int


class Receive(OfRun):
    """The snapshot that the host must have."""

    dir: str
    manifest: Manifest


class Received(TypedDict):
    """Which chunks the host lacks."""

    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """The chunks that must be sent as `blob` with `store`; empty if the snapshot is in place."""


class Checkpoints(OfRun):
    """What a person asks about a run's checkpoints."""

    do: CheckpointsDo
    dir: str
    python: str
    what: str | None
    """A step, `gen-N`, or a name from the list; for `rm` `gen-N` or `set-aside`; null for `list` and `read`."""


class Checkpoint(TypedDict):
    """One checkpoint of the directory."""

    generation: Generation | None
    """null if it is in no generation's directory."""
    name: Path
    path: Path
    kind: Name
    global_step: SavedStep | None
    bytes: Count
    saved_at: UnixTime
    resumes: bool
    """Whether scripts resume from this kind of checkpoint by themselves."""
    whole: bool | None
    """null if it was not read yet, or if its format cannot be verified."""
    writing: NotRequired[bool]
    """Whether it is not whole and its files change, or did a moment ago."""
    proof: Literal["checksums", "structure", "names"]
    """What reading it proves: that no bit has changed; that nothing is missing; only that the save was finished."""
    why: Text | None
    verified_at: UnixTime | None
    pinned: bool
    set_aside: bool
    by: AnyJson
    given: bool
    """Whether it is the copy with which the generation started."""


class CheckpointsAnswer(TypedDict, total=False):
    """The reply has the first two fields for `list` and `read`, and the others for what else is asked."""

    dir: Path
    checkpoints: Annotated[list[Checkpoint], Length(FILES_MAX)]
    """Newest first."""
    checkpoint: Checkpoint
    set_aside: Annotated[list[Generation], Length(FILES_MAX)]
    """For `rollback`: the generations that are ignored from now on."""
    removed: Annotated[list[Generation], Length(FILES_MAX)]
    """For `rm`: the generations that were removed."""
    bytes: Count
    """For `rm`: how much that was."""
    path: Path
    already: bool


class Highest(OfRun):
    """The checkpoint directory."""

    dir: str


class HighestGeneration(TypedDict):
    """The highest generation in the directory."""

    generation: Generation
    """0 if there is none."""

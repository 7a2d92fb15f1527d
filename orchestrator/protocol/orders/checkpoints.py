"""Types of the orders about checkpoints, and of their replies."""

from typing import Annotated, Literal, NotRequired, TypedDict

from orchestrator.protocol.bounds import (
    AnyJson,
    Count,
    Digest,
    Generation,
    GenerationPath,
    Length,
    Name,
    Path,
    PathInDir,
    PathInGeneration,
    SavedStep,
    Seconds,
    Text,
    UnixTime,
)
from orchestrator.protocol.orders.base import FILES_MAX, CheckpointsDo, Fence, Nothing, OfRun, Share, Verb
from orchestrator.protocol.orders.driving import Claim
from orchestrator.protocol.paths import RelativePath
from orchestrator.protocol.reports import Restored


class By(TypedDict):
    """The run, host and task that made a generation, to be shown to people."""

    run: str
    host: str
    task: str


class Rejected(TypedDict):
    """A damaged checkpoint."""

    path: PathInDir
    why: Text


class Seed(OfRun):
    """Make the generation's directory with the newest good checkpoint in it."""

    generation: int
    dir: str
    python: str
    from_scratch: bool
    keep: int
    by: By
    claim: NotRequired[Claim | None]
    """The new owner of the checkpoint directory. Refused with code `driven` while another coordinator's run uses it."""
    only: NotRequired[str | None]
    """The digest of the only snapshot that may be used."""
    step_max: NotRequired[int | None]
    """Which step the training can have reached. A file of ours that claims more is not believed."""
    unrestorable: NotRequired[list[Restored] | None]
    """The checkpoints that tasks of this run could not restore: the one before is used."""
    group: NotRequired[str | None]
    """Whose members may write into the directory too."""
    share: NotRequired[Share | None]
    """Refused with code `share-missing`, and nothing is made, where this is not there."""


class KeptAside(TypedDict):
    """The checkpoints that a start from scratch set aside. They are kept until a person removes them."""

    generations: Annotated[list[Generation], Length(FILES_MAX)]
    global_step: SavedStep | None
    """The highest step among them; null if unknown."""
    bytes: Count


class Seeded(TypedDict):
    """The checkpoint from which the generation starts."""

    global_step: SavedStep | None
    source: PathInDir | None
    """The path of the original; null if there was no checkpoint."""
    verified: NotRequired[bool | None]
    """false if the format cannot be verified; null if there is no checkpoint."""
    path: GenerationPath
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]
    dropped: NotRequired[Annotated[list[Path], Length(FILES_MAX)]]
    """Older files that were removed, where a run with rescues had no room for its next saves."""
    highest_generation: NotRequired[Generation]
    from_scratch: NotRequired[bool]
    aside: NotRequired[KeptAside | None]
    """After a start from scratch: the earlier checkpoints."""
    removed: NotRequired[Annotated[list[Generation], Length(FILES_MAX)]]
    """The generations beyond `keep` that were removed."""
    replaceable: NotRequired[Restored | None]
    """The file that is given, where one of an earlier step could be given in its place."""
    by: NotRequired[AnyJson]
    """The maker of the generation. The directory stores this reply, and a repeated order gets the same one."""


class Verify(OfRun):
    """Read the newest checkpoint of a generation to its last byte."""

    generation: int
    dir: str
    python: str
    share: NotRequired[Share | None]
    """Refused with code `share-missing` where this is not there."""
    step_max: NotRequired[int | None]
    """As in `seed`."""


class SavedCheckpoint(TypedDict):
    """A checkpoint that was read completely, or one in a format that cannot be verified and that seems complete."""

    global_step: SavedStep | None
    path: PathInGeneration
    saved_at: UnixTime
    kind: Name
    """The format."""
    bytes: Count
    verified: bool
    """false if the format cannot be verified."""


class Verified(TypedDict):
    """The newest intact checkpoint, and the damaged ones that are newer."""

    checkpoint: SavedCheckpoint | None
    rejected: Annotated[list[Rejected], Length(FILES_MAX)]
    waited_s: NotRequired[Seconds]
    """Time spent waiting for a save to finish, which does not count as time to read."""


class Snapshot(OfRun):
    """Copy a checkpoint into a snapshot, so that it can be transferred while scripts change the directory."""

    generation: int
    dir: str
    python: str
    path: str | None
    """null: the newest intact checkpoint."""


class Manifest(TypedDict):
    """The files and chunks of a snapshot, which is stored in `.orch/safe/<digest>`."""

    digest: Digest
    files: Annotated[
        list[tuple[RelativePath, Count, SavedStep, Annotated[list[Digest], Length(FILES_MAX)]]],
        Length(FILES_MAX),
    ]
    """For each file: name, size in bytes, modification time in ns, and the SHA-256 of each chunk."""
    piece_bytes: Count
    """The size of every chunk except a file's last. The key keeps its old name, since disks hold old manifests."""
    bytes: Count
    generation: Generation | None
    global_step: SavedStep | None
    saved_at: UnixTime
    by: AnyJson


class Chunk(OfRun):
    """Read a part of a file of a snapshot; it is the blob of the reply."""

    dir: str
    digest: str
    name: RelativePath
    offset: int
    bytes_max: int


class Receive(OfRun):
    """Put a snapshot together from its chunks, or name the chunks that are missing."""

    dir: str
    manifest: Manifest


class Received(TypedDict):
    """The chunks that the host lacks."""

    missing: Annotated[list[Digest], Length(FILES_MAX)]
    """Chunks to be sent as `blob` with `store`; empty if the snapshot is in place."""


class Checkpoints(OfRun):
    """List, read, pin, unpin, roll back or remove checkpoints, for a person: `orch ckpt`."""

    do: CheckpointsDo
    dir: str
    python: str
    what: str | None
    """A step, `gen-N`, or a name from the list; for `rm` `gen-N` or `set-aside`; null for `list` and `read`."""
    group: NotRequired[str | None]
    """Whose members may write into the directory too."""


class Checkpoint(TypedDict):
    """One checkpoint of the directory."""

    generation: Generation | None
    """null if the checkpoint is not in a generation's directory."""
    name: Path
    """What people call it. A host looks it up in its own list."""
    path: PathInDir
    kind: Name
    global_step: SavedStep | None
    bytes: Count
    saved_at: UnixTime
    resumes: bool
    """Whether scripts resume from this kind of checkpoint by themselves."""
    whole: bool | None
    """Whether it is intact; null if it was not read yet, or if its format cannot be verified."""
    writing: NotRequired[bool]
    """Whether it is incomplete and its files have just changed."""
    proof: Literal["checksums", "structure", "names"]
    """What reading proves: no bit changed (checksums), nothing is missing (structure), the save finished (names)."""
    why: Text | None
    verified_at: UnixTime | None
    pinned: bool
    set_aside: bool
    by: AnyJson
    given: bool
    """Whether it is the copy from which the generation started."""


class CheckpointsAnswer(TypedDict, total=False):
    """The reply to `list` and `read` has `dir` and `checkpoints`; other replies have the fields that follow."""

    dir: PathInDir
    checkpoints: Annotated[list[Checkpoint], Length(FILES_MAX)]
    """Newest first."""
    checkpoint: Checkpoint
    set_aside: Annotated[list[Generation], Length(FILES_MAX)]
    """For `rollback`: generations that are ignored from now on."""
    removed: Annotated[list[Generation], Length(FILES_MAX)]
    """For `rm`: generations that were removed."""
    bytes: Count
    """For `rm`: the total size of what was removed."""
    path: PathInDir
    already: bool


class Highest(OfRun):
    """Return the highest generation in the checkpoint directory."""

    dir: str


class HighestGeneration(TypedDict):
    """The highest generation in a checkpoint directory."""

    generation: Generation
    """0 if there is none."""


HIGHEST = Verb("highest", Highest, HighestGeneration)
SEED = Verb("seed", Seed, Seeded, Fence.BEGINS, ("driven", "share-missing", "no-space"))
VERIFY = Verb("verify", Verify, Verified, refusals=("share-missing",))
SNAPSHOT = Verb("snapshot", Snapshot, Manifest)
CHUNK = Verb("chunk", Chunk, Nothing)
RECEIVE = Verb("receive", Receive, Received, Fence.BEGINS)
CHECKPOINTS = Verb("checkpoints", Checkpoints, CheckpointsAnswer, refusals=("no-such-checkpoint",))

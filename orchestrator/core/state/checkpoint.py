"""The newest checkpoint of a run, and what a generation starts from. Immutable values."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.saving import Restored
from orchestrator.core.state.instants import Instant


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest checkpoint: one that was read as a whole, or one in an unknown format that seems complete."""

    global_step: int | None
    path: str
    generation: int
    verified_at: Instant
    saved_time: float | None = None
    bytes: int | None = None
    """Its size, or that of the one before it; None if no look has told one."""
    verified: bool = True
    """False: its format is not known. It is resumed from, but it is no progress that the budget counts."""
    removed: bool = False
    """The last look did not find it any more: scripts remove their backup when they have ended well."""

    def is_same(self, path: str, global_step: int | None, saved_time: float | None) -> bool:
        """Return whether that is the same checkpoint. Without a step, one that was rewritten differs by its time only.

        >>> known = Checkpoint(None, "gen-000001/state.npz", 1, verified_at=0.0, saved_time=5.0)
        >>> [known.is_same("gen-000001/state.npz", None, time) for time in (5.0, 6.0)]
        [True, False]
        """
        known = (self.path, self.global_step) == (path, global_step)
        return known and (global_step is not None or self.saved_time == saved_time)


@dataclass(frozen=True, slots=True)
class GoneBack:
    """How often the run went back to an older checkpoint because a metric was no number, and since which step."""

    step: int
    times: int


@dataclass(frozen=True, slots=True)
class Aside:
    """The checkpoints that a start from scratch has set aside. They are kept until a person removes them."""

    generations: tuple[int, ...]
    global_step: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Seed:
    """The checkpoint that a generation starts from."""

    generation: int
    global_step: int | None = None
    """None: from the start, there never was a checkpoint; or its step cannot be told."""
    source: str | None = None
    path: str = ""
    rejected: tuple[tuple[str, str], ...] = ()
    """(path, why) of damaged checkpoints."""
    copy: str = ""
    """Where hosts share no directory: the same checkpoint, on every host; empty if there is none."""
    verified: bool = True
    """False: nothing could read it, and it seems complete."""
    from_scratch: bool = False
    """A person wanted step 0 (`--from-scratch`)."""
    aside: Aside | None = None
    """Then: what was trained before."""
    removed: tuple[int, ...] = ()
    """The generations beyond `keep` that were removed for it."""
    dropped: tuple[str, ...] = ()
    """Older files that were removed, since there was no room for the next saves."""
    replaceable: Restored | None = None
    """The file, where one of an earlier step could be given in its place."""

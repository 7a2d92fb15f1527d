"""The newest checkpoint of a run, and what a generation starts from. Immutable values, as in `model`."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.state.instants import Instant


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The newest checkpoint: one that was read whole, or that nothing can read and that seems complete."""

    global_step: int | None
    path: str
    generation: int
    verified_at: Instant
    saved_time: float | None = None
    bytes: int | None = None
    """Its size, or that of the one before it; None where no look has told one."""
    verified: bool = True
    """False: its format is not known. It is resumed from, but it is no progress that the budget counts."""
    removed: bool = False
    """The last look did not find it any more: scripts remove their backup when they have ended well."""

    def is_same(self, path: str, global_step: int | None, saved_time: float | None) -> bool:
        """Whether that is no newer one. Where no step is told, one that is written again has another time only.

        >>> known = Checkpoint(None, "gen-000001/state.npz", 1, verified_at=0.0, saved_time=5.0)
        >>> [known.is_same("gen-000001/state.npz", None, time) for time in (5.0, 6.0)]
        [True, False]
        """
        known = (self.path, self.global_step) == (path, global_step)
        return known and (global_step is not None or self.saved_time == saved_time)


@dataclass(frozen=True, slots=True)
class GoneBack:
    """The run went back to an older checkpoint because a metric was no number: since which step, and how many times."""

    step: int
    times: int


@dataclass(frozen=True, slots=True)
class Aside:
    """What a start from scratch has set aside: kept until a person removes it."""

    generations: tuple[int, ...]
    global_step: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class Seed:
    """What a generation starts from."""

    generation: int
    global_step: int | None = None
    """None: from the start, there never was a checkpoint; or its step cannot be told."""
    source: str | None = None
    path: str = ""
    rejected: tuple[tuple[str, str], ...] = ()
    """(path, why) of what did not read whole."""
    copy: str = ""
    """Where hosts share no directory: the same checkpoint, on every host; empty where there is none."""
    verified: bool = True
    """False: nothing could read it, and it seems complete."""
    from_scratch: bool = False
    """A person wanted step 0 (`--from-scratch`)."""
    aside: Aside | None = None
    """Then: what was trained before."""
    removed: tuple[int, ...] = ()
    """The generations beyond `keep` that were removed for it."""

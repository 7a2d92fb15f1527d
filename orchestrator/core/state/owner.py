"""The owner of a run: the head node that drives it, and the claims of owners that hosts report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Owner:
    """A head node's coordinator. Its id was drawn when its journal was made, so a lost journal makes it another."""

    id: str
    head: str
    """The host name of the head node."""
    user: str

    def __str__(self) -> str:
        return f"{self.user}@{self.head}"


@dataclass(frozen=True, slots=True)
class Driven:
    """A run of any head node, as a host or a checkpoint directory shows it."""

    run_id: str
    name: str
    owner: Owner | None
    """None: an older orch began it."""
    since: str
    """Since when this owner has had it, for people."""
    checkpoint_dir: str | None
    evidence: str
    """What shows that it goes on, for people; empty if nothing does."""
    where: str
    epoch: int = 0
    """The highest epoch that the host has obeyed for it."""
    is_stamp: bool = False
    """It is known from the checkpoint directory, and not from the host itself."""

    @property
    def sentence(self) -> str:
        """Return a sentence that says which head node drives the run, and where."""
        whose = f"{self.owner}" if self.owner is not None else "an unknown owner"
        since = f" since {self.since}" if self.since else ""
        saves = f"; it saves into {self.checkpoint_dir}" if self.checkpoint_dir else ""
        return f"{self.where}: {self.run_id} is driven by {whose}{since}: {self.evidence}{saves}"

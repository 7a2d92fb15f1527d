"""Moments: what happens within a turn, and matters to other concerns than the one in which it happens (`Turn.tell`)."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.causes import Cause
from orchestrator.core.hosts.slots import Assignment
from orchestrator.core.plan import TaskId
from orchestrator.core.state.run import Run
from orchestrator.core.state.task import Task


class Waits(NamedTuple):
    """The next generation waits for hosts. The answer is True where that is in vain, and the run ends."""


class Begins(NamedTuple):
    """A generation begins. The answer is its tasks, where some wait for it already."""

    assignment: Assignment


class Resumed(NamedTuple):
    """A task says from which checkpoint it went on, or why it could not."""

    task: Task


class Stepped(NamedTuple):
    """The chief has told its step."""

    chief: Task
    is_first: bool
    """Whether it is the first one that was made in this generation."""


class RestartsAlone(NamedTuple):
    """A task is restarted by itself. The answer is one that waits in its place."""

    task: TaskId


class MayStop(NamedTuple):
    """Hardly a step is lost where the run stops now: a newer checkpoint is there, or its tasks can hand over theirs."""

    occasion: str


class NothingTrains(NamedTuple):
    """The gang may change places at once, since nothing trains until it does."""

    why: str


class Stops(NamedTuple):
    """All tasks of a generation are to end at once."""

    before: Run
    """The run as it trained."""
    patience_s: float
    is_saved: bool
    """Whether the run is to end saved."""


class Restarts(NamedTuple):
    """All tasks have ended, and the run may go on. The answer is True where it waits, or that is not known yet."""

    blamed: Cause
    progressed: bool


class FailsAgain(NamedTuple):
    """The same failure twice in a row, without progress. The answer is what is said of that where the run ends."""


class HandedOver(NamedTuple):
    """All tasks have ended. The answer is what a survivor has handed over, as a sentence; empty if none was asked."""


class Proves(NamedTuple):
    """The hosts are asked for the proof that nothing is left. The answer is how long a concern takes beside that."""


class Ends(NamedTuple):
    """The run ends, whatever has not been answered."""

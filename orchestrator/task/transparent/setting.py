"""The settings of a transparent run."""

from __future__ import annotations

import functools
import os

from orchestrator.task import this_task
from orchestrator.task.cadence import Cadence, Wish
from orchestrator.task.transparent.backup import steps_saved, variables_of
from orchestrator.task.transparent.shrink import Shrink
from orchestrator.task.transparent.strategy import told_by_chief
from orchestrator.task.writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.task.transparent.noise import Noise
    from orchestrator.task.transparent.replay import Course
    from orchestrator.task.transparent.reporter import Reporter
    from orchestrator.task.transparent.rescue import Rescue


STOP_WAIT_S = 1.5
"""How long a stop waits for a save that is being written."""


class Setting:
    """The settings that all fits of a process share."""

    def __init__(
        self,
        library: str,
        strategy: Any,
        options: dict[str, Any],
        report: Reporter,
        chief: bool,
        noise: Noise | None = None,
        rescue: Rescue | None = None,
    ) -> None:
        self.library = library
        self.strategy = strategy
        self.report = report
        self.chief = chief
        self.shrink = Shrink(options, strategy.num_replicas_in_sync, report)
        # One for all fits, since the cost of a save is known once the first fit has saved.
        self.cadence = Cadence(
            Wish.read(options), functools.partial(told_by_chief, strategy, chief), this_task.tell_saving
        )
        self.writer = Writer()
        this_task.stop_hooks.append(functools.partial(self.writer.wait, STOP_WAIT_S))
        self.checkpoint_dir = os.environ.get("ORCH_CHECKPOINT_DIR") or None
        self.restores_late = library == "keras"
        """Whether variables that are built only when the first step is traced can be restored then."""
        self.fits = 0
        self.inside = False
        self.noise = noise
        self.rescue = rescue
        self.steps = 0
        """The steps of all fits so far."""
        self.steps_before = steps_saved(self.checkpoint_dir) if self.checkpoint_dir else 0
        """The steps of the newest backup, until the fit that has no backup: the fits before it train nothing."""

    def prepare(self, model: Any, course: Course) -> None:
        """Build the variables that are to be restored, as far as possible."""

    def count_steps(self) -> int:
        """Return the steps of the script, which never become fewer."""
        return max(self.steps, self.steps_before)

    def groups_of(self, model: Any) -> dict[str, list[Any]]:
        """Return all variables to save, by group."""
        return {
            **variables_of(model),
            **({"noise": self.noise.variables()} if self.noise is not None else {}),
        }

    def steps_of(self, model: Any) -> int:  # noqa: ARG002 - a script's own steps are those of its optimizer
        """Return the position to save."""
        return self.steps

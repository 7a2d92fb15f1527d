"""The settings of a transparent run."""

from __future__ import annotations

import os

from orchestrator.runtime.transparent.backup import steps_saved, variables_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from orchestrator.runtime.transparent.noise import Noise
    from orchestrator.runtime.transparent.said import Said


class Setting:
    """The settings that all fits of a process share."""

    def __init__(
        self, library: str, strategy: Any, options: dict[str, Any], said: Said, chief: bool, noise: Noise
    ) -> None:
        self.library = library
        self.strategy = strategy
        self.said = said
        self.chief = chief
        self.per_replica = options.get("batch") == "per_replica"
        self.save_every = int(options["save_every_steps"]) if options.get("save_every_steps") else None
        self.checkpoint_dir = os.environ.get("ORCH_CHECKPOINT_DIR") or None
        self.fits = 0
        self.inside = False
        self.noise = noise
        self.steps = 0
        """The steps of all fits so far."""
        self.steps_before = steps_saved(self.checkpoint_dir) if self.checkpoint_dir else 0
        """The steps of the newest backup, until the fit that has none: fits before it train nothing."""

    def count_steps(self) -> int:
        """Return the steps of the script, which never become fewer."""
        return max(self.steps, self.steps_before)

    def groups_of(self, model: Any) -> dict[str, list[Any]]:
        """Return all variables to save, by group."""
        return {**variables_of(model), "noise": self.noise.variables()}
